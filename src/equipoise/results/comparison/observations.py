"""observations: what the paper's section 3 reports of its experiment, put to a comparison of one's
own.

Each observation is a set of claims, "this figure is lower under a than under b", paired by seed
(differences.py). It is

    reproduced               if the 95% interval of every claim lies on the claim's side of 0
    not reproduced           if that of some claim lies on the other side
    cannot be told here      else: too few seeds, or no difference

The paper trained each scheme once, so its own figures have no interval.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from equipoise.results.comparison.differences import Difference, Row, paired, values

REPRODUCED, NOT, UNKNOWN = "reproduced", "not reproduced", "cannot be told here"
SIGN, INVERSE, ROOT, AUX = "deepseek", "inverse", "inverse_sqrt", "aux"
SCHEMES = (SIGN, INVERSE, ROOT, AUX)
PAPERS_RATE = 1e-3
"""the u that the paper found best for the sign rule"""
LOSS, LEVEL = "validation_loss", "imbalance"
SHORT = {LOSS: "loss", LEVEL: "imbalance"}


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


def observe(rows: Sequence[Row], search: Sequence[Row] = ()) -> list[Observation]:
    """The seven lines, from a comparison's rows and, for the first, those of a search of u
    (`equipoise sweep`).
    """
    by_name = {row["name"]: row for row in rows}
    return [
        _best_rate(search),
        _from_claims(
            2, "u/sqrt n: lowest loss, highest imbalance", by_name, _extreme(ROOT, LOSS, LEVEL)
        ),
        _from_claims(
            3, "auxiliary loss: lowest imbalance, highest loss", by_name, _extreme(AUX, LEVEL, LOSS)
        ),
        _from_claims(
            4,
            "u/n and the sign rule lie between, u/n slightly more even",
            by_name,
            (*_between(), _MORE_EVEN),
        ),
        _drift(by_name),
        _diameter(by_name),
        _histograms(by_name),
    ]


def _extreme(name: str, lowest: str, highest: str) -> tuple[Claim, ...]:
    others = [each for each in SCHEMES if each != name]
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
            Claim(LEVEL, AUX, name),
            Claim(LEVEL, name, ROOT),
        )
    )


_MORE_EVEN = Claim(LEVEL, INVERSE, SIGN)


def _from_claims(
    number: int, says: str, rows: dict[str, Row], claims: Sequence[Claim]
) -> Observation:
    if missing := [name for name in SCHEMES if not rows.get(name, {}).get("seeds")]:
        return Observation(number, says, UNKNOWN, f"no finished run of {', '.join(missing)}")
    found = [
        (
            claim,
            paired(
                values(rows[claim.lower], claim.figure), values(rows[claim.higher], claim.figure)
            ),
        )
        for claim in claims
    ]
    told = "; ".join(
        f"{SHORT[claim.figure]} {claim.lower} - {claim.higher} {_written(each)}"
        for claim, each in found
    )
    return Observation(number, says, judge([each for _, each in found]), told)


def judge(found: Sequence[Difference | None]) -> str:
    """Claims are that each difference is below 0."""
    intervals = [None if each is None else each.interval for each in found]
    if any(each is not None and each[0] > 0 for each in intervals):
        return NOT
    return (
        REPRODUCED
        if intervals and all(each is not None and each[1] < 0 for each in intervals)
        else UNKNOWN
    )


def _written(found: Difference | None) -> str:
    if found is None:
        return "unknown"
    return f"{found.mean:+.4f}" + ("" if found.half is None else f" ± {found.half:.4f}")


def _best_rate(search: Sequence[Row]) -> Observation:
    says = f"the sign rule's best u is {PAPERS_RATE:g}"
    losses = {
        row["settings"]["update_rate"]: values(row, LOSS)
        for row in search
        if row["settings"].get("balancer") == SIGN
    }
    if PAPERS_RATE not in losses or len(losses) < 2:
        return Observation(
            1, says, UNKNOWN, "needs a search: equipoise sweep paper-tiny, then --search FOLDER"
        )
    others = {
        rate: paired(losses[PAPERS_RATE], found)
        for rate, found in losses.items()
        if rate != PAPERS_RATE
    }
    told = "; ".join(
        f"loss at {PAPERS_RATE:g} - at {rate:g} {_written(each)}"
        for rate, each in sorted(others.items())
    )
    return Observation(1, says, judge(list(others.values())), told)


def _drift(rows: dict[str, Row]) -> Observation:
    """Under u/n and u/sqrt n gaps sum to 0, so their mean stays 0 but for rounding: an identity and
    not a finding.
    """
    says = "shifts drift to the right under the sign rule, and stay centred under u/n and u/sqrt n"
    means = {
        name: values(rows[name], "shift_mean") for name in (SIGN, INVERSE, ROOT) if name in rows
    }
    if len(means) < 3 or not all(means.values()):
        return Observation(5, says, UNKNOWN, "no shifts were recorded")
    zeros = dict.fromkeys(means[SIGN], 0.0)
    drift = paired(zeros, means[SIGN])
    centred = all(abs(value) < 1e-4 for name in (INVERSE, ROOT) for value in means[name].values())
    told = "; ".join(
        f"mean shift of {name} at the end {_written(paired(found, dict.fromkeys(found, 0.0)))}"
        for name, found in means.items()
    )
    return Observation(5, says, judge([drift]) if centred else NOT, told)


def _diameter(rows: dict[str, Row]) -> Observation:
    says = "max p - min p stays below 1 without being enforced"
    largest = {
        name: max(found.values())
        for name, row in rows.items()
        if (found := values(row, "shift_diameter"))
    }
    largest = {name: value for name, value in largest.items() if value > 0}
    if not largest:
        return Observation(6, says, UNKNOWN, "no shifts were recorded")
    told = "largest over layers, recorded steps and seeds: " + ", ".join(
        f"{k} {v:.3f}" for k, v in largest.items()
    )
    return Observation(6, says, REPRODUCED if max(largest.values()) < 1 else NOT, told)


def _histograms(rows: dict[str, Row]) -> Observation:
    """The paper shows pictures and states no figure, so nothing can be refuted: how the spread of
    the scores went here.
    """
    says = "the evolution of the score histograms (figure 3)"
    told = [
        f"{name} {row['score_spread_first']:.2f} to {row['score_spread_last']:.2f}"
        for name, row in rows.items()
        if row.get("score_spread_first") is not None
    ]
    evidence = (
        "the paper states no figure. Here the standard deviation of scores x E, first to "
        "last step: "
    )
    return Observation(7, says, UNKNOWN, evidence + (", ".join(told) or "not recorded"))


def as_text(observations: Sequence[Observation]) -> str:
    lines = [
        f"{each.number}. {each.says}: {each.verdict.upper()}\n   {each.evidence}"
        for each in observations
    ]
    return "The paper's observations (section 3), 95% intervals paired by seed\n" + "\n".join(lines)


def as_markdown(observations: Sequence[Observation]) -> str:
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


def read_search(path: Path) -> list[Row]:
    try:
        return search_rows(json.loads(path.read_text(encoding="utf-8")), path)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read: it is not JSON, or damaged ({error})") from None


def search_rows(content: Any, path: object) -> list[Row]:
    """The rows of a sweep's table.json."""
    if not isinstance(content, dict) or not isinstance(content.get("rows"), list):
        raise ValueError(f"{path} is not the table.json of `equipoise sweep`")
    return list(content["rows"])
