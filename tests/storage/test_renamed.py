"""Old names of a module give the new objects, and say so."""

import pytest

from equipoise.optimum import loop
from equipoise.storage.renamed import old_names
from equipoise.theorems.evidence import journeys
from equipoise.theorems.statements import regret


def test_an_old_name_gives_the_new_object():
    with pytest.warns(FutureWarning, match=r"loop\.deepseek is now .*loop\.deepseek_rule"):
        assert loop.deepseek is loop.deepseek_rule


def test_a_name_may_have_moved_to_another_module():
    with pytest.warns(FutureWarning, match=r"journeys\.run_descents"):
        assert regret.descend is journeys.run_descents


def test_other_names_are_missing_as_before():
    assert not hasattr(loop, "nothing_of_the_kind")
    with pytest.raises(AttributeError, match="module 'here' has no attribute 'there'"):
        old_names("here", {})("there")
