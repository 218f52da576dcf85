"""What every balancer inherits."""

import pytest

from equipoise.balancing import Balancer


@pytest.mark.parametrize(
    ("old", "new"),
    [("judges_tokens_apart", "tokens_are_independent"), ("expect_parts", "fix_sampling_stride")],
)
def test_an_override_of_an_old_name_is_refused(old, new):
    with pytest.raises(TypeError, match=f"Mine.{old} is now called {new}"):
        type("Mine", (Balancer,), {old: None})
