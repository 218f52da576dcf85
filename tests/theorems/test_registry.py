"""A statement is one decorated function: its name, its evidence, and its place in the list."""

import numpy as np
import pytest

from equipoise.optimum.loop import FixedScores
from equipoise.theorems import registry
from equipoise.theorems.evidence.runs import RUNS, STEPS
from equipoise.theorems.registry import EvidenceKind, Setting, statement, statement_variants
from equipoise.theorems.statements import all_statements
from equipoise.theorems.verdict import require_hypothesis
from equipoise.theorems.verify import verify
from tests.theorems.cases import lively, scores

# what run folders and docs/results hold: a released name never changes, nor does the order. One was
# withdrawn: "17 regret, variance at p*" is not a theorem (errata 10)
RELEASED = [
    "assumption: i.i.d. tokens",
    "assumption: independent experts",
    "assumption: positive density",
    "assumption: p* in the domain",
    "assumption: diameter of the shift",
    "assumption: stationary scores",
    "assumption: no ties",
    "remark: softmax before or after top-K",
    "1 change in Lagrangian",
    "2 switching benefit",
    "3 pairwise bounds",
    "4 Lagrangian, DeepSeek step",
    "5 assignment changes",
    "6 monotonicity",
    "6 sandwich, free of assumptions",
    "7 like switches, like gaps",
    "8 unique movements, u < u-bar",
    "8 movements, M(u)",
    "8 movements, B_k(p)",
    "9 band stability, u < u-bar",
    "9 band stability, M(u)",
    "9 band stability, B_k(p)",
    "10 uniform dominance",
    "11 band entry, u < u-bar",
    "11 band entry, M(u)",
    "11 band entry, B_k(p)",
    "12 unbiased gradient",
    "13 variance and second moment",
    "14 second derivative",
    "14 second derivative, sampled loads",
    "14 strong convexity",
    "15 zero-sum projection",
    "15 drift of the sign rule's mean",
    "16 per-batch dual is convex",
    "16 one-step accounting",
    "17 logarithmic regret",
    "17 regret, exact second moments",
    "17 regret, no strong convexity",
    "17 regret in hindsight",
]


@pytest.fixture
def empty(monkeypatch):
    """A registry of its own."""
    monkeypatch.setattr(registry, "_REGISTERED", {})


def test_released_names_and_their_order():
    assert [each.name for each in all_statements()] == RELEASED


def test_a_statement_is_one_decorated_function(monkeypatch):
    """The worked example: registered, found by verify, in its place, and called by itself."""
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))

    @statement(7, "loads count choices", evidence=STEPS, meaning="tokens")
    def loads_count_choices(step):
        """Recorded loads are the column sums of the choices."""
        require_hypothesis(step.number < 3, "only the first steps are looked at")
        return -float(np.abs(step.loads - step.before.sum(0)).max())

    names = [each.name for each in all_statements()]
    assert names == [*RELEASED[:16], "7 loads count choices", *RELEASED[16:]]
    found = {verdict.name: verdict for verdict in verify()}
    assert found["7 loads count choices"].holds
    verdict = loads_count_choices(lively(steps=5))
    assert (verdict.margin, verdict.worst_step) == (0.0, 0)
    assert verdict.why == ("tokens; checked 3 of 5; elsewhere: only the first steps are looked at")
    assert loads_count_choices.__doc__.startswith("Recorded loads")


@pytest.mark.usefixtures("empty")
def test_two_statements_of_one_name_are_refused():
    statement(1, "a", evidence=STEPS)(lambda step: 0.0)
    statement(2, "a", evidence=STEPS)(lambda step: 0.0)
    with pytest.raises(ValueError, match="two statements are called '1 a'"):
        statement(1, "a", evidence=RUNS)(lambda run: 0.0)


@pytest.mark.usefixtures("empty")
def test_variants_are_registered_one_by_one():
    @statement_variants(3, "slack", {"one": 1.0, "two": 2.0}, evidence=STEPS)
    def slack(step, size):
        """The size."""
        return size

    assert [each.name for each in registry.registered_statements()] == [
        "3 slack, one",
        "3 slack, two",
    ]
    problem = FixedScores(scores(), 2)
    assert slack(problem).margin == 1.0
    assert slack(problem, "two").margin == 2.0
    assert slack.__doc__ == "The size."


@pytest.mark.usefixtures("empty")
def test_a_source_may_be_refused_as_a_whole():
    def nothing_in(source):
        require_hypothesis(False, f"{source} is not a source")

    kind = EvidenceKind(Setting.DRAWN_BATCHES, nothing_in)
    verdict = statement(4, "never", evidence=kind)(lambda piece: 0.0)("this")
    assert verdict == ("4 never", False, None, None, None, "this is not a source")
