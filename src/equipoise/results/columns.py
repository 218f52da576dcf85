"""columns: every figure of every table, defined once for terminal, page, Markdown and CSV.

A column is found by its key in what a run, a comparison, a sweep or an arena left on disk
(run.py, comparison/, sweep.py, arena.py). Two tables may show the same figure with another name
or another number of digits: `Column.shown_as` makes one from the other, so that its key and its
meaning stand here once. A new metric is a new Column here, in the groups at the end whose tables
show it, and a key in the rows of run.py or arena.py.

In all columns of a comparison less is better.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from equipoise.results.over_seeds import NOT_MEASURED, Figures

PERCENT = "%"


@dataclass(frozen=True)
class Column:
    """One figure: where it is found in a row, how it is written, and what it means."""

    key: str
    name: str
    """on the page and in Markdown"""
    short: str
    """on the terminal, where a line break is a new line of the heading"""
    meaning: str = ""
    digits: int | None = None
    """after the point; None: as many as the number needs"""
    unit: str = ""
    """PERCENT for a share, which is written in percent"""
    chance: str | None = None
    """key of what chance alone leaves, shown beside it"""
    phrase: str = ""
    """in the middle of a sentence"""

    @property
    def difference_unit(self) -> str:
        """Differences of shares are in points, since a percentage of a percentage confuses."""
        return "points" if self.unit == PERCENT else ""

    def shown_as(self, **changes: Any) -> Column:
        """The same figure under another name, or with other digits."""
        return replace(self, **changes)

    def text(self, value: Any) -> str:
        """A value as it is written in a cell; "-" for None."""
        if value is None:
            return "-"
        if self.digits is None:
            return f"{value:g}" if isinstance(value, float) else str(value)
        return f"{value:.{self.digits}{self.unit or 'f'}}"

    def cell(self, figures: Figures, *, spread: bool = False) -> str:
        """A row's mean, with its standard deviation over seeds if asked for, and what chance alone
        leaves.
        """
        figure = figures.get(self.key, NOT_MEASURED)
        written = self.text(figure.mean)
        if spread and figure.spread is not None:
            written += f" ± {self.text(figure.spread)}"
        floor = figures.get(self.chance, NOT_MEASURED).mean if self.chance else None
        return written if floor is None else f"{written} (chance {self.text(floor)})"

    def change(self, mean: float, half: float | None) -> str:
        """A difference with half the width of its interval."""
        scale, form = (100 if self.unit == PERCENT else 1), f".{self.digits}f"
        written = f"{scale * mean:+{form}}"
        return written if half is None else f"{written} ± {scale * half:{form}}"


# On the validation set, after the last step.
VALIDATION_LOSS = Column(
    "validation_loss",
    "validation loss",
    "valid.\nloss",
    "after the last step",
    4,
    phrase="validation loss",
)
VALIDATION_IMBALANCE = Column(
    "imbalance",
    "validation imbalance",
    "validation\nimbalance",
    "mean |load - target| / target over the validation set after the last step; beside it what "
    "chance alone leaves on that many sequences",
    3,
    chance="floor",
    phrase="validation imbalance",
)
MAX_VIOLATION = Column(
    "max_violation",
    "MaxVio",
    "MaxVio",
    "the fullest expert's load / target - 1, validation set",
    3,
)
IMBALANCE_ERROR = Column(
    "imbalance_error",
    "error of the imbalance",
    "error",
    "standard error of the validation imbalance, from resampled sequences",
    3,
)
BATCH_IMBALANCE = Column(
    "batch_imbalance",
    "batch imbalance",
    "batch",
    "imbalance of single validation batches, of a forward's size",
    3,
)
VALIDATION_IDLE = Column(
    "idle_share",
    "validation idle",
    "idle",
    "idle device time in validation batches",
    1,
    PERCENT,
)

# Over the steps of the training: what the run cost.
_STEP = "mean |load - target| / target of each step's own batch"
_IDLE = "share of 8 devices' time spent waiting for the fullest, in the forwards of training"
_EARLY = "the same over the first fifth of the steps"
_LATE = "the same over the last quarter"
TRAINING_IMBALANCE = Column(
    "training_imbalance",
    "training imbalance",
    "whole\nimb.",
    f"{_STEP}, mean over all steps",
    3,
    phrase="imbalance over the training",
)
EARLY_IMBALANCE = Column("early_imbalance", "imbalance, first fifth", "first\n1/5", _EARLY, 3)
LATE_IMBALANCE = Column("late_imbalance", "imbalance, last quarter", "last\n1/4", _LATE, 3)
TRAINING_IDLE = Column(
    "training_idle",
    "training idle",
    "whole\nidle",
    f"{_IDLE}, mean over all steps",
    1,
    PERCENT,
    phrase="idle device time over the training",
)
EARLY_IDLE = Column("early_idle", "idle, first fifth", "first\n1/5", _EARLY, 1, PERCENT)
LATE_IDLE = Column("late_idle", "idle, last quarter", "last\n1/4", _LATE, 1, PERCENT)
TRAIN_LOSS = Column(
    "train_loss", "training loss", "loss", "mean over the last tenth of the steps", 4
)

# Against the exact optimum with even loads. given_up and affinity_kept are one measure: with F the
# sum of every token's K largest scores, O that of the optimum and C that of the experts chosen,
# given_up is 1 - O / F, of a trained network, and affinity_kept is C / O, of a balancer on a
# stream. Without balancing C is F, and affinity_kept = 1 / (1 - given_up).
GIVEN_UP = Column(
    "given_up",
    "given up",
    "given\nup",
    "affinity given up at equal balance: what exactly even loads would cost, as a share of the "
    "largest scores, on validation batches",
    2,
    PERCENT,
)
AFFINITY_KEPT = Column(
    "affinity_kept",
    "affinity",
    "affinity",
    "sum of the chosen scores over that of the exact optimum with even loads; above 1 where uneven "
    "loads keep more",
    4,
)
DUAL_GAP = Column(
    "dual_gap",
    "dual gap",
    "gap",
    "what is left to gain by a better shift, as a share of the exact even optimum; 0 only for an "
    "optimal shift",
    2,
    PERCENT,
)

# Under the settled shift, on request.
SETTLED_IMBALANCE = Column(
    "settled_imbalance",
    "imbalance, settled shift",
    "settled",
    "the validation imbalance when routing by the settled shift (equipoise.settled) instead of the "
    "last one",
    3,
)
SETTLED_LOSS = Column(
    "settled_loss", "loss, settled shift", "loss", "the validation loss when routing by it", 4
)

# Settings.
UPDATE_RATE = Column("update_rate", "u", "u", "the step size of the balancer's update")
LEARNING_RATE = Column("learning_rate", "learning rate", "lr")
WEIGHT_DECAY = Column("weight_decay", "weight decay", "wd")
_SETTINGS = {column.key: column for column in (UPDATE_RATE, LEARNING_RATE, WEIGHT_DECAY)}

DECIDING_COLUMNS = (
    VALIDATION_LOSS,
    VALIDATION_IMBALANCE,
    TRAINING_IMBALANCE,
    EARLY_IMBALANCE,
    LATE_IMBALANCE,
    TRAINING_IDLE,
    EARLY_IDLE,
    LATE_IDLE,
    GIVEN_UP,
)
"""of a comparison: what people decide by"""

MORE_COLUMNS = (
    MAX_VIOLATION,
    IMBALANCE_ERROR,
    BATCH_IMBALANCE,
    VALIDATION_IDLE,
    DUAL_GAP,
    SETTLED_IMBALANCE,
    SETTLED_LOSS,
    TRAIN_LOSS,
)
"""of a comparison: the rest, on the page only"""

COMPARISON_COLUMNS = DECIDING_COLUMNS + MORE_COLUMNS
TERMINAL_DIFFERENCES = (
    VALIDATION_LOSS,
    VALIDATION_IMBALANCE,
    TRAINING_IMBALANCE,
    TRAINING_IDLE,
    GIVEN_UP,
)
ANSWERED_COLUMNS = (TRAINING_IMBALANCE, TRAINING_IDLE, VALIDATION_IMBALANCE, VALIDATION_LOSS)
"""what the sentences on top speak of, in this order"""

PAPER_COLUMNS = (
    UPDATE_RATE.shown_as(name="paper: u"),
    VALIDATION_LOSS.shown_as(name="paper: loss", digits=3),
    VALIDATION_IMBALANCE.shown_as(name="paper: imbalance"),
)
"""of the figures that the paper reports of a scheme"""

OBSERVED_KEYS = ("shift_mean", "shift_diameter", "score_spread_first", "score_spread_last")
"""of the trace and the histograms, for the paper's observations (comparison/observations.py)"""
COMPARISON_KEYS = (
    *(column.key for column in COMPARISON_COLUMNS),
    *OBSERVED_KEYS,
    "floor",
    "train_imbalance",
    "seconds",
)
"""what a row of a comparison has. Seconds are kept and not shown, since they measure the machine
more than the scheme.
"""

SWEEP_COLUMNS = (
    VALIDATION_LOSS.shown_as(short="loss"),
    VALIDATION_IMBALANCE.shown_as(name="imbalance", short="imbal.", digits=4, chance=None),
    MAX_VIOLATION,
)
SWEEP_KEYS = (*(column.key for column in SWEEP_COLUMNS), TRAIN_LOSS.key, "seconds")
"""what a row of a sweep has"""

ARENA_COLUMNS = (
    Column("rate", "rate", "rate", "the balancer's step size"),
    Column(
        "steady_imbalance",
        "steady imbalance",
        "steady",
        "mean imbalance over the last third of the steps",
        4,
    ),
    Column("over_floor", "x floor", "x floor", "steady imbalance over what chance alone leaves", 2),
    MAX_VIOLATION.shown_as(
        key="steady_max_violation",
        short="maxvio",
        meaning="the fullest expert's load / target - 1, mean over the last third of the steps",
    ),
    Column("steps_to_floor", "steps to 2x floor", "steps", "until within twice the floor"),
    AFFINITY_KEPT,
    Column("switched", "switched", "switch", "share of tokens an update sends elsewhere", 1, "%"),
    VALIDATION_IDLE.shown_as(
        name="idle", meaning="device time lost waiting for the fullest device, steady steps"
    ),
    Column(
        "regret",
        "regret",
        "regret",
        "what the shifts lost against the best one that stays, of the optimum; below 0: by "
        "following the scores it did better",
        2,
        "%",
    ),
    Column(
        "dynamic_regret",
        "dynamic regret",
        "dynamic",
        "what the shifts lost against each batch's own optimum, of the optimum",
        2,
        "%",
    ),
    Column(
        "dropped_share",
        "dropped at 1.25",
        "dropped",
        "choices that a capacity factor of 1.25 would drop, steady steps",
        2,
        "%",
    ),
    Column(
        "sequence_violation",
        "MaxVio in a sequence",
        "in seq.",
        "the fullest expert's load / target - 1 within single sequences, mean over the sequences "
        "of steady steps",
        2,
    ),
)


def setting_column(key: str) -> Column:
    """Of a setting of `equipoise train`: most are shown under their own name."""
    return _SETTINGS.get(key, Column(key, key, key))
