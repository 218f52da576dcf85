"""Config: everything a training follows from. One dataclass is the command line, the YAML file and
the Python API.

    preset("tiny", balancer="quantile", steps=100)                     in Python
    equipoise train --preset tiny --balancer quantile --steps 100      on the command line
    read_config("runs/a/config.yaml")                                  from a file; each run has one

A preset gives every value; a file replaces some; flags replace some more.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.model import MODELS, ModelConfig
from equipoise.model.config import (
    check_at_least_one,
    check_finite_not_negative,
    check_not_negative,
    check_positive_finite,
    check_setting,
)
from equipoise.storage.optional import import_optional
from equipoise.storage.output_path import output_path
from equipoise.storage.settings_files import read_settings
from equipoise.storage.suggestions import did_you_mean

if TYPE_CHECKING:
    from equipoise.balancing import Balancer

Option = int | float | str


@dataclass(frozen=True, kw_only=True)
class Config:
    """How to train. See docs/training.md for what each choice costs."""

    preset: str = "tiny"
    """tiny, small, paper-tiny, deepseekmoe-1b or deepseekmoe-3b: where all other values come from
    unless given
    """
    out: str = "runs/unnamed"
    """the run's folder"""
    resume: bool = False
    """continue from the newest checkpoint in the folder, if there is one"""

    balancer: str = "deepseek"
    """one of equipoise.balancers()"""
    update_rate: float | None = None
    """the paper's u: the balancer's step, or the weight of the auxiliary loss; by default the
    balancer's own
    """
    balancer_options: dict[str, Option] = field(default_factory=dict)
    """other options of the balancer, by name"""
    look_ahead: int = 0
    """router inputs of a forward to score again after the optimizer's step; 0: none"""

    data: str = "docstrings"
    """docstrings, wikitext-103, or a text file or folder"""
    tokenizer: str = "auto"
    """bpe (trained on the data), gpt2, or a file or folder; auto: gpt2 for wikitext-103, else bpe
    """

    steps: int = 300
    """optimizer steps"""
    batch_size: int = 8
    """sequences in a step, over all ranks"""
    micro_batch_size: int | None = None
    """sequences in a forward of one rank; gradients accumulate until the batch is done. Default:
    the rank's whole share
    """
    learning_rate: float = 1e-3
    warmup_steps: int = 0
    """the learning rate rises linearly from 0 over these"""
    final_learning_rate: float = 0.1
    """where the cosine ends, as a share of the learning rate; 1 keeps it constant"""
    weight_decay: float = 0.1
    """of matrices; norms do not decay"""
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 1.0
    """the largest norm of a gradient"""
    seed: int = 0
    """of the first weights and of the data's order"""

    evaluate_every: int = 50
    """steps between evaluations; 0: only at the end"""
    validation_sequences: int = 768
    """how many, spread evenly over the validation split and always the same; 0: the whole split"""
    checkpoint_every: int = 100
    """steps between checkpoints; 0: only when stopped and at the end"""
    keep_checkpoints: int = 2
    """how many of the newest to keep"""
    trace_every: int = 1
    """steps between records of loads and shifts; 0: no trace"""
    trace_scores: int = 32
    """tokens whose scores are kept in every record of the trace, as a sample"""
    trace_batches: int = 8
    """batches whose scores are kept whole, spread over the training: the theorems are about such.
    Needs one rank and no accumulation; else only the first forward's are kept, as a sample
    """
    histogram_steps: tuple[int, ...] = ()
    """steps at which scores and shifts are counted into histograms (the paper's figures 3 and 4)"""

    log_to: str = "auto"
    """tensorboard, or tensorboard:FOLDER; none; auto: the run's own tensorboard/, if that package
    is installed
    """

    device: str = "auto"
    """cpu, cuda, ...; auto: cuda if there is one"""
    precision: str = "auto"
    """float32 or bfloat16 (autocast; weights stay float32); auto: bfloat16 where the device
    multiplies it fast
    """
    parallel: str = "ddp"
    """with several ranks: ddp, a whole model on each, or fsdp, its weights shared out"""
    rank_timeout: float = 600.0
    """seconds a rank waits for the others before it ends: a machine may be gone"""
    recompute: bool = False
    """compute activations again in backward instead of keeping them"""
    compile: bool = False
    """torch.compile each layer"""
    lanes: int | None = None
    """parts of a forward that run side by side on the CPU, each on its share of the threads; by
    default 2 where threads are even in number and the parts make the same choices as the whole,
    else 1
    """

    model: ModelConfig = MODELS["tiny"]
    """its sizes"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "out", str(output_path(self.out)))
        check_at_least_one(self, "steps", "batch_size", "keep_checkpoints")
        check_not_negative(self, "warmup_steps", "evaluate_every", "validation_sequences")
        check_not_negative(self, "checkpoint_every", "trace_every", "trace_scores")
        check_not_negative(self, "trace_batches", "look_ahead")
        check_positive_finite(self, "learning_rate", "clip")
        check_finite_not_negative(self, "weight_decay", "seed")
        check_positive_finite(self, "rank_timeout")
        rate, share = self.update_rate, self.final_learning_rate
        check_setting(
            rate is None or math.isfinite(rate), f"update_rate must be finite, not {rate}"
        )
        for step in self.histogram_steps:
            check_setting(
                isinstance(step, int) and 1 <= step <= self.steps,
                f"histogram_steps are numbers of steps, from 1 to {self.steps}: {step!r} is none",
            )
        check_setting(
            0 <= share <= 1, f"final_learning_rate is a share, between 0 and 1, not {share}"
        )
        for name, known in CHOICES.items():
            value = getattr(self, name)
            check_setting(value in known, f"{name} must be {' or '.join(known)}, not {value!r}")
        kind, colon, where = self.log_to.partition(":")
        named = kind == "tensorboard" and bool(where.strip() or not colon)
        check_setting(
            named or self.log_to in ("auto", "none"),
            f"log_to must be auto, none, tensorboard or tensorboard:FOLDER, not {self.log_to!r}",
        )
        for name in ("micro_batch_size", "lanes"):
            if getattr(self, name) is not None:
                check_at_least_one(self, name)
        self._check_balancer()

    def _check_balancer(self) -> None:
        """Raise now if the balancer's name or an option is wrong.

        The default one has neither: --help, which shows it, and `equipoise plan` need no torch.
        """
        default = type(self).__dataclass_fields__["balancer"].default
        if self.balancer != default or self.update_rate is not None or self.balancer_options:
            self.make_balancer(self.model.num_experts, self.model.top_k)

    def make_balancer(self, num_experts: int, top_k: int) -> Balancer:
        """A new balancer for one MoE layer."""
        from equipoise.balancing import method_spec, resolve_balancer

        options: dict[str, Any] = dict(self.balancer_options)
        if self.update_rate is not None:
            options[method_spec(self.balancer).update_rate_option] = self.update_rate
        return resolve_balancer(self.balancer, num_experts, top_k, options)

    def keeps_batch(self, step: int) -> bool:
        """Whether this step's batch is one of those the trace keeps whole; the last one is."""
        count = min(self.trace_batches, self.steps) if self.trace_every else 0
        return any(step == self.steps * n // count for n in range(1, count + 1))

    def to_dict(self) -> dict[str, Any]:
        """As YAML and JSON hold it."""
        return dataclasses.asdict(self) | {"histogram_steps": list(self.histogram_steps)}


CHOICES = {"precision": ("auto", "float32", "bfloat16"), "parallel": ("ddp", "fsdp")}

# The paper states batch, sequence length, steps, AdamW, learning rate and weight decay (section
# 3.1). It states no schedule: the rate is constant here, as read. Betas and clipping are those of
# its sources (Dai et al. 2024).
PAPER_SETTINGS = {
    "data": "wikitext-103",
    "steps": 100_000,
    "batch_size": 64,
    "micro_batch_size": 2,
    "learning_rate": 1e-4,
    "final_learning_rate": 1.0,
    "weight_decay": 0.1,
    "evaluate_every": 1000,
    "validation_sequences": 0,
    "checkpoint_every": 1000,
    "trace_every": 10,
    # 67 MB a layer and batch
    "trace_batches": 0,
}
TRAINING_PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"learning_rate": 3e-3, "warmup_steps": 20, "evaluate_every": 0},
    "small": {
        "steps": 2000,
        "batch_size": 16,
        "warmup_steps": 100,
        "evaluate_every": 200,
        "checkpoint_every": 200,
    },
    # the paper's experiment on two cores: a constant rate, so that what is learnt about balance has
    # settled and not stopped
    "paper-tiny": {
        "steps": 800,
        "batch_size": 8,
        "learning_rate": 2e-3,
        "warmup_steps": 50,
        "final_learning_rate": 1.0,
        "evaluate_every": 200,
        "checkpoint_every": 400,
        "trace_batches": 0,
    },
    "deepseekmoe-1b": PAPER_SETTINGS,
    "deepseekmoe-3b": PAPER_SETTINGS | {"parallel": "fsdp", "micro_batch_size": 1},
}


def preset(name: str, **changes: Any) -> Config:
    """A named config with changes. `model` may be a ModelConfig, or a dict of changed sizes.

    Args:
        name: "tiny", "small", "paper-tiny", "deepseekmoe-1b" or "deepseekmoe-3b".
        changes: settings that differ, those of the model as a dict.

    Example:
        >>> equipoise.preset("tiny", steps=100, model={"num_experts": 32}).model.num_experts
        32
    """
    if name not in TRAINING_PRESETS:
        known = ", ".join(TRAINING_PRESETS)
        meant = did_you_mean(name, TRAINING_PRESETS)
        raise ValueError(f"no preset {name!r}{meant}: there are {known}")
    return update_config(Config(preset=name, model=MODELS[name], **TRAINING_PRESETS[name]), changes)


def update_config(config: Config, changes: Mapping[str, Any]) -> Config:
    """The same config with changes, as a file would name them. Unknown names are refused."""
    return _replace_settings(config, changes, "")


def read_config(path: str | Path) -> Config:
    """A config from a YAML or TOML file. Its `preset` (by default tiny) gives what the file leaves
    out.
    """
    content = read_settings(path)
    return update_config(preset(str(content.pop("preset", "tiny"))), content)


def micro_batch_size(config: Config, ranks: int) -> int:
    """Sequences in a forward of one rank; refuses ranks that cannot share the batch evenly."""
    share, left = divmod(config.batch_size, ranks)
    if left:
        raise ValueError(
            f"a batch of {config.batch_size} sequences does not divide over {ranks} ranks: choose "
            "a batch_size that does"
        )
    size = config.micro_batch_size or share
    if share % size:
        raise ValueError(
            f"a batch of {config.batch_size} sequences gives each of {ranks} ranks "
            f"{share}, which do not divide into micro-batches of {size}"
        )
    return size


def write_yaml(config: Config) -> str:
    """The text that `read_config` understands."""
    return import_optional("yaml", extra="train").safe_dump(config.to_dict(), sort_keys=False)


def _replace_settings(old: Any, changes: Mapping[str, Any], prefix: str) -> Any:
    types = typing.get_type_hints(type(old))
    new = {}
    for name, value in changes.items():
        if name not in types:
            raise ValueError(f"no setting {prefix + name!r}{did_you_mean(name, types)}")
        if isinstance(value, Mapping) and dataclasses.is_dataclass(types[name]):
            new[name] = _replace_settings(getattr(old, name), value, f"{prefix}{name}.")
        else:
            new[name] = _convert_value(value, types[name], prefix + name)
    return dataclasses.replace(old, **new)


def _convert_value(value: Any, wanted: Any, name: str) -> Any:
    """YAML reads 1e-3 as text and 1 as an int, and has no tuples."""
    allowed = [each for each in (typing.get_args(wanted) or (wanted,)) if isinstance(each, type)]
    if float in allowed and isinstance(value, str | int) and not isinstance(value, bool):
        try:
            return float(value)
        except ValueError:
            pass
    if typing.get_origin(wanted) is tuple and isinstance(value, list | tuple):
        return tuple(value)
    if typing.get_origin(wanted) is dict and isinstance(value, Mapping):
        return {key: _parse_number(option) for key, option in value.items()}
    if typing.get_origin(wanted) in (tuple, dict):
        kind = "a list" if typing.get_origin(wanted) is tuple else "lines of the form 'name: value'"
        raise ValueError(f"{name} must be {kind}, not {value!r}")
    if any(
        isinstance(value, each) and (each is bool) == isinstance(value, bool) for each in allowed
    ):
        return value
    names = " or ".join("nothing" if each is type(None) else each.__name__ for each in allowed)
    raise ValueError(f"{name} must be {names}, not {value!r}")


def _parse_number(option: Any) -> Any:
    if not isinstance(option, str):
        return option
    for kind in (int, float):
        try:
            return kind(option)
        except ValueError:
            continue
    return option
