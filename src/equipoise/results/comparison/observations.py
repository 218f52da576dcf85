"""observations: what the paper's section 3 reports of its experiment, put to a comparison of one's
own.

Each observation is a set of claims, "this figure is lower under a than under b", paired by seed
(differences.py). It is

    reproduced         if the 95% interval of every claim lies on the claim's side of 0
    not reproduced     if that of some claim lies on the other side
    undecided          else: too few seeds, or no difference

The paper trained each scheme once, so its own figures have no interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from equipoise.results.comparison.differences import Difference, paired_difference
from equipoise.results.comparison.rows import SchemeRow
from equipoise.results.sweep import SettingRow

REPRODUCED, NOT_REPRODUCED, UNDECIDED = "reproduced", "not reproduced", "undecided"
SIGN, INVERSE, ROOT, AUX = "deepseek", "inverse", "inverse_sqrt", "aux"
PAPER_SCHEMES = (SIGN, INVERSE, ROOT, AUX)
PAPERS_RATE = 1e-3
"""the u that the paper found best for the sign rule"""
LOSS, IMBALANCE = "validation_loss", "imbalance"
CLAIM_NAMES = {LOSS: "loss", IMBALANCE: "imbalance"}


class Claim(NamedTuple):
    """`lower` has less of `figure` than `higher`."""

    figure: str
    lower: str
    higher: str


class Observation(NamedTuple):
    number: int
    says: str
    """what the paper observed"""
    verdict: str
    evidence: str
    """the figures measured here"""


def observe(rows: Sequence[SchemeRow], search: Sequence[SettingRow] = ()) -> list[Observation]:
    """The seven lines, from a comparison's rows and, for the first, those of a search of u
    (`equipoise sweep`).
    """
    by_name = {row.name: row for row in rows}
    return [
        _best_rate_of_sign(search),
        _judge_order(
            2, "u/sqrt n: lowest loss, highest imbalance", by_name, _extreme(ROOT, LOSS, IMBALANCE)
        ),
        _judge_order(
            3,
            "auxiliary loss: lowest imbalance, highest loss",
            by_name,
            _extreme(AUX, IMBALANCE, LOSS),
        ),
        _judge_order(
            4,
            "u/n and the sign rule lie between, u/n slightly more even",
            by_name,
            (*_between(), _MORE_EVEN),
        ),
        _shift_drift(by_name),
        _shift_diameter(by_name),
        _score_histograms(by_name),
    ]


def _extreme(name: str, lowest: str, highest: str) -> tuple[Claim, ...]:
    others = [each for each in PAPER_SCHEMES if each != name]
    return (
        *(Claim(lowest, name, each) for each in others),
        *(Claim(highest, each, name) for each in others),
    )


def _between() -> tuple[Claim, ...]:
    return tuple(
        claim
        for name in (INVERSE, SIGN)
        for claim in (
            Claim(LOSS, ROOT, name),
            Claim(LOSS, name, AUX),
            Claim(IMBALANCE, AUX, name),
            Claim(IMBALANCE, name, ROOT),
        )
    )


_MORE_EVEN = Claim(IMBALANCE, INVERSE, SIGN)


def _judge_order(
    number: int, says: str, rows: dict[str, SchemeRow], claims: Sequence[Claim]
) -> Observation:
    if missing := [name for name in PAPER_SCHEMES if name not in rows or not rows[name].seeds]:
        return Observation(number, says, UNDECIDED, f"no finished run of {', '.join(missing)}")
    found = [
        (
            claim,
            paired_difference(
                rows[claim.lower].values_of(claim.figure),
                rows[claim.higher].values_of(claim.figure),
            ),
        )
        for claim in claims
    ]
    evidence = "; ".join(
        f"{CLAIM_NAMES[claim.figure]} {claim.lower} - {claim.higher} {_difference_text(each)}"
        for claim, each in found
    )
    return Observation(number, says, judge_claims([each for _, each in found]), evidence)


def judge_claims(found: Sequence[Difference | None]) -> str:
    """Claims are that each difference is below 0."""
    intervals = [None if each is None else each.interval for each in found]
    if any(each is not None and each[0] > 0 for each in intervals):
        return NOT_REPRODUCED
    return (
        REPRODUCED
        if intervals and all(each is not None and each[1] < 0 for each in intervals)
        else UNDECIDED
    )


def _difference_text(found: Difference | None) -> str:
    if found is None:
        return "unknown"
    return f"{found.mean:+.4f}" + ("" if found.half is None else f" ± {found.half:.4f}")


def _best_rate_of_sign(search: Sequence[SettingRow]) -> Observation:
    says = f"the sign rule's best u is {PAPERS_RATE:g}"
    losses = {
        row.settings["update_rate"]: row.figures[LOSS].values
        for row in search
        if row.settings.get("balancer") == SIGN
    }
    if PAPERS_RATE not in losses or len(losses) < 2:
        return Observation(
            1, says, UNDECIDED, "needs a search: equipoise sweep paper-tiny, then --search FOLDER"
        )
    others = {
        rate: paired_difference(losses[PAPERS_RATE], found)
        for rate, found in losses.items()
        if rate != PAPERS_RATE
    }
    evidence = "; ".join(
        f"loss at {PAPERS_RATE:g} - at {rate:g} {_difference_text(each)}"
        for rate, each in sorted(others.items())
    )
    return Observation(1, says, judge_claims(list(others.values())), evidence)


def _shift_drift(rows: dict[str, SchemeRow]) -> Observation:
    """Under u/n and u/sqrt n gaps sum to 0, so their mean stays 0 but for rounding: an identity and
    not a finding.
    """
    says = "shifts drift to the right under the sign rule, and stay centred under u/n and u/sqrt n"
    means = {
        name: rows[name].values_of("shift_mean") for name in (SIGN, INVERSE, ROOT) if name in rows
    }
    if len(means) < 3 or not all(means.values()):
        return Observation(5, says, UNDECIDED, "no shifts were recorded")
    zeros = dict.fromkeys((seed for found in means.values() for seed in found), 0.0)
    drift = paired_difference(zeros, means[SIGN])
    centred = all(abs(value) < 1e-4 for name in (INVERSE, ROOT) for value in means[name].values())
    evidence = "; ".join(
        f"mean shift of {name} at the end {_difference_text(paired_difference(found, zeros))}"
        for name, found in means.items()
    )
    return Observation(5, says, judge_claims([drift]) if centred else NOT_REPRODUCED, evidence)


def _shift_diameter(rows: dict[str, SchemeRow]) -> Observation:
    says = "max p - min p stays below 1 without being enforced"
    largest = {
        name: max(found.values())
        for name, row in rows.items()
        if (found := row.values_of("shift_diameter"))
    }
    largest = {name: value for name, value in largest.items() if value > 0}
    if not largest:
        return Observation(6, says, UNDECIDED, "no shifts were recorded")
    evidence = "largest over layers, recorded steps and seeds: " + ", ".join(
        f"{k} {v:.3f}" for k, v in largest.items()
    )
    return Observation(
        6, says, REPRODUCED if max(largest.values()) < 1 else NOT_REPRODUCED, evidence
    )


def _score_histograms(rows: dict[str, SchemeRow]) -> Observation:
    """The paper shows pictures and states no figure, so nothing can be refuted: how the spread of
    the scores went here.
    """
    says = "the evolution of the score histograms (figure 3)"
    spreads = [
        f"{name} {row.mean_of('score_spread_first'):.2f} to {row.mean_of('score_spread_last'):.2f}"
        for name, row in rows.items()
        if row.mean_of("score_spread_first") is not None
    ]
    evidence = (
        "the paper states no figure. Here the standard deviation of scores x E, first to "
        "last step: "
    )
    return Observation(7, says, UNDECIDED, evidence + (", ".join(spreads) or "not recorded"))


def observations_lines(observations: Sequence[Observation]) -> str:
    lines = [
        f"{each.number}. {each.says}: {each.verdict.upper()}\n   {each.evidence}"
        for each in observations
    ]
    return "The paper's observations (section 3), 95% intervals paired by seed\n" + "\n".join(lines)


def observations_markdown(observations: Sequence[Observation]) -> str:
    lines = [
        f"| {each.number} | {each.says} | **{each.verdict}** | {each.evidence} |"
        for each in observations
    ]
    return "\n".join(
        [
            "| | the paper observed | here | measured, 95% intervals paired by seed |",
            "|---|---|---|---|",
            *lines,
        ]
    )
