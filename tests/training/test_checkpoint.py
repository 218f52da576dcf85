"""state.json of a checkpoint: what is not one is refused by its name."""

import pytest

from equipoise.training.checkpoint import read_state


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 2}', '{"format": 2, "files": 3}'])
def test_a_state_of_another_structure_is_named(tmp_path, content):
    (tmp_path / "state.json").write_text(content)
    with pytest.raises(ValueError, match=r"state\.json is damaged: .*delete .* the one before it"):
        read_state(tmp_path)
