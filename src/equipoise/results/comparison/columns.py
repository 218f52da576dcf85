"""columns: every figure of a comparison's tables, defined once for terminal, page, Markdown and
CSV.

In all of them less is better.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """One figure: where it is found in a row, how it is written, and what it means."""

    key: str
    name: str
    """on the page and in Markdown"""
    short: str
    """on the terminal"""
    meaning: str
    digits: int
    percent: bool = False
    chance: str | None = None
    """key of what chance alone leaves, shown beside it"""

    @property
    def unit(self) -> str:
        """Of its differences."""
        return "points" if self.percent else ""

    def text(self, value: float | None) -> str:
        return "-" if value is None else f"{value:.{self.digits}{'%' if self.percent else 'f'}}"

    def cell(self, row: dict, *, spread: bool = False) -> str:
        """A row's mean, with its standard deviation over seeds if asked for, and what chance alone
        leaves.
        """
        written, floor = self.text(row.get(self.key)), row.get(self.chance) if self.chance else None
        if spread and row.get(f"{self.key}_spread") is not None:
            written += f" ± {self.text(row[f'{self.key}_spread'])}"
        return written if floor is None else f"{written} (chance {self.text(floor)})"

    def change(self, mean: float, half: float | None) -> str:
        """A difference with half the width of its interval. Shares are told in points: a percent of
        a percent confuses.
        """
        scale, form = (100 if self.percent else 1), f".{self.digits}f"
        written = f"{scale * mean:+{form}}"
        return written if half is None else f"{written} ± {scale * half:{form}}"


_STEP = "mean |load - target| / target of each step's own batch"
_IDLE = "share of 8 devices' time spent waiting for the fullest, in the forwards of training"

DECIDING = (
    Column("validation_loss", "validation loss", "valid.\nloss", "after the last step", 4),
    Column(
        "imbalance",
        "validation imbalance",
        "validation\nimbalance",
        "mean |load - target| / target over the validation set after the last step; beside it "
        "what chance alone leaves on "
        "that many sequences",
        3,
        chance="floor",
    ),
    Column(
        "training_imbalance",
        "training imbalance",
        "train.\nimbal.",
        f"{_STEP}, mean over all steps",
        3,
    ),
    Column(
        "early_imbalance",
        "imbalance, first fifth",
        "first\n1/5",
        "the same over the first fifth of the steps",
        3,
    ),
    Column(
        "late_imbalance",
        "imbalance, last quarter",
        "last\n1/4",
        "the same over the last quarter",
        3,
    ),
    Column(
        "training_idle",
        "training idle",
        "train.\nidle",
        f"{_IDLE}, mean over all steps",
        1,
        percent=True,
    ),
    Column(
        "early_idle",
        "idle, first fifth",
        "first\n1/5",
        "the same over the first fifth of the steps",
        1,
        percent=True,
    ),
    Column(
        "late_idle",
        "idle, last quarter",
        "last\n1/4",
        "the same over the last quarter",
        1,
        percent=True,
    ),
    Column(
        "given_up",
        "given up",
        "given\nup",
        "affinity given up at equal balance: what exactly even loads would cost, as a share of "
        "the largest scores, on "
        "validation batches",
        2,
        percent=True,
    ),
)
"""what people decide by"""

REST = (
    Column(
        "max_violation",
        "MaxVio",
        "MaxVio",
        "the fullest expert's load / target - 1, validation set",
        3,
    ),
    Column(
        "imbalance_error",
        "error of the imbalance",
        "error",
        "standard error of the validation imbalance, from resampled sequences",
        3,
    ),
    Column(
        "batch_imbalance",
        "batch imbalance",
        "batch",
        "imbalance of single validation batches, of a forward's size",
        3,
    ),
    Column(
        "idle_share",
        "validation idle",
        "idle",
        "idle device time in validation batches",
        1,
        percent=True,
    ),
    Column(
        "dual_gap",
        "dual gap",
        "gap",
        "what is left to gain by a better shift, as a share of the exact even optimum; 0 only "
        "for an optimal shift",
        2,
        percent=True,
    ),
    Column(
        "settled_imbalance",
        "imbalance, settled shift",
        "settled",
        "the validation imbalance when routing by the settled shift (equipoise.settled) instead "
        "of the last one",
        3,
    ),
    Column(
        "settled_loss", "loss, settled shift", "loss", "the validation loss when routing by it", 4
    ),
    Column("train_loss", "training loss", "loss", "mean over the last tenth of the steps", 4),
)
COLUMNS = DECIDING + REST
OBSERVED = ("shift_mean", "shift_diameter", "score_spread_first", "score_spread_last")
"""of the trace and the histograms, for the paper's observations (observations.py)"""
KEYS = (*(column.key for column in COLUMNS), *OBSERVED, "floor", "train_imbalance", "seconds")
"""what a row has: seconds are kept, not shown, since they measure the machine more than the scheme
"""

TERMINAL_DIFFERENCES = (
    "validation_loss",
    "imbalance",
    "training_imbalance",
    "training_idle",
    "given_up",
)
ANSWERED = ("training_imbalance", "training_idle", "imbalance", "validation_loss")
"""what the sentence on top speaks of, in this order"""


def column(key: str) -> Column:
    return next(each for each in COLUMNS if each.key == key)
