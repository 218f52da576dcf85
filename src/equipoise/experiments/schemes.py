"""The schemes that are compared: the paper's four, and those it did not have.

The paper's u were found for 100,000 steps of 262,144 tokens. A run of 300 steps at those u measures
the step count and not the scheme (u/sqrt n with u = 1e-3 has then moved no shift by more than
0.035). So every scheme has beside the paper's u the one tuned for a preset, and a table shows both.
For `tiny`, two seeds and five values each: the lowest validation imbalance among u whose validation
loss is within 0.005 of the scheme's lowest. The search and its limits: docs/results/tiny-rates.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from equipoise.results.comparison.rows_file import SchemeAbout
from equipoise.storage.suggestions import did_you_mean
from equipoise.training.config import Config, preset


@dataclass(frozen=True)
class Scheme:
    """One way of balancing, with the paper's figures where it has some."""

    name: str
    label: str
    balancer: str
    looks_ahead: bool = False
    paper_update_rate: float | None = None
    """u of the paper's best run (section 3)"""
    paper_loss: float | None = None
    paper_imbalance: float | None = None
    """table 1 of the paper: a model of 1 billion parameters, 100,000 steps"""
    tuned: dict[str, float] = field(default_factory=dict)
    """preset -> the u found for it"""
    options: dict[str, str] = field(default_factory=dict)
    """other options of the balancer"""

    def update_rate(self, name: str) -> float | None:
        """u for a preset: the one tuned for it, else the paper's."""
        return self.tuned.get(name, self.paper_update_rate)

    def about(self, name: str) -> SchemeAbout:
        """Its entry in the manifest of a comparison with this preset."""
        return {
            "name": self.name,
            "label": self.label,
            "balancer": self.balancer,
            "update_rate": self.update_rate(name),
            "paper": {
                "update_rate": self.paper_update_rate,
                "validation_loss": self.paper_loss,
                "imbalance": self.paper_imbalance,
            },
        }


SCHEMES = (
    Scheme("none", "no balancing", "none"),
    # per sequence, as Wang et al. define it (section 2.2), which is what the paper compares with
    Scheme(
        "aux",
        "auxiliary loss",
        "aux",
        False,
        1.0,
        3.68999,
        0.07443,
        {"tiny": 1e-1, "paper-tiny": 1e-4},
        {"scope": "sequence"},
    ),
    Scheme(
        "deepseek",
        "u/|L-A| (DeepSeek)",
        "deepseek",
        False,
        1e-3,
        3.65369,
        0.08928,
        {"tiny": 1e-3, "paper-tiny": 1e-3},
    ),
    Scheme(
        "inverse", "u/n", "inverse", False, 1.0, 3.68228, 0.08893, {"tiny": 3.0, "paper-tiny": 1.0}
    ),
    Scheme(
        "inverse_sqrt",
        "u/√n",
        "inverse_sqrt",
        False,
        1e-3,
        3.64642,
        0.08961,
        {"tiny": 3e-1, "paper-tiny": 1e-1},
    ),
    Scheme("quantile", "quantile", "quantile"),
    Scheme("curvature", "curvature", "curvature"),
    Scheme("curvature_ahead", "curvature, look-ahead", "curvature", True),
)
LOOK_AHEAD = 2048
"""router inputs of a forward that are scored again, where a scheme looks ahead"""


def choose_schemes(names: Sequence[str] | None) -> tuple[Scheme, ...]:
    """Schemes by name, in the table's order; all of them for None."""
    known = {scheme.name: scheme for scheme in SCHEMES}
    for name in names or ():
        if name not in known:
            raise ValueError(
                f"no scheme {name!r}{did_you_mean(name, known)}: there are {', '.join(known)}"
            )
    return SCHEMES if names is None else tuple(scheme for scheme in SCHEMES if scheme.name in names)


def configure_run(scheme: Scheme, name: str, **changes: Any) -> Config:
    """A scheme's config. With the same changes all schemes start from the same weights and see the
    same batches. All have one lane: not every scheme can have two, and their first losses must be
    the same to the last digit.
    """
    settings = {
        "balancer": scheme.balancer,
        "update_rate": scheme.update_rate(name),
        "look_ahead": LOOK_AHEAD if scheme.looks_ahead else 0,
        "balancer_options": scheme.options,
    }
    return preset(name, **settings, **{"lanes": 1, **changes})
