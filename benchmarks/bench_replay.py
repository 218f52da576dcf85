"""What a replay costs: a forward, and a training step, of a model that is given its experts against
the same model that knows nothing of it. At most 1.05x.

Two tiny families, one with a bias and one without, and a stack of equipoise.MoE. What is given is
what the model itself would choose, so that the experts have the same work in both. Beside it: what
balancing alone costs, and what recording, a floor and even loads do. All contestants race in
rounds. An equipoise.MoE is compared with itself, routing live.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import version

import torch
import transformers
from bench_huggingface import EXPERTS, FAMILIES, LENGTH, ROWS, SIZES, TOP_K, VOCABULARY
from rich.console import Console
from rich.table import Table
from timing import Neighbours, Timing, keep_memory, race
from torch import Tensor, nn

import equipoise
from equipoise.attach.replay import ExpertChoices

TARGET = 1.05
Block = Callable[[], AbstractContextManager[object]]


class Stack(nn.Module):
    """equipoise.MoE layers of the same sizes, with residuals."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        width, inner = SIZES["hidden_size"], SIZES["moe_intermediate_size"]
        self.embed = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(
            equipoise.MoE(width, inner, EXPERTS, TOP_K) for _ in range(SIZES["num_hidden_layers"])
        )

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.embed(ids)
        for layer in self.layers:
            hidden = hidden + layer(hidden).output
        return hidden.square().mean()


class Contestants:
    """One model, run in every way on the same tokens."""

    def __init__(self, name: str, train: bool) -> None:
        rng = torch.Generator().manual_seed(1)
        self.ids = torch.randint(0, VOCABULARY, (ROWS, LENGTH), generator=rng)
        self.train = train
        torch.manual_seed(0)
        self.plain = FAMILIES[name]() if name in FAMILIES else None
        self.plain = None if self.plain is None else self.plain.train(train)
        torch.manual_seed(0)
        self.model = (FAMILIES[name]() if name in FAMILIES else Stack()).train(train)
        self.balancing = equipoise.balance(self.model, "deepseek") if self.plain else None

    def replay(self, experts: ExpertChoices | None = None, **options: object) -> Block:
        if self.balancing is not None:
            return lambda: self.balancing.replay(experts, **options)
        return lambda: equipoise.replay_experts(self.model, experts, **options)

    def record(self) -> AbstractContextManager[ExpertChoices]:
        if self.balancing is not None:
            return self.balancing.record_experts()
        return equipoise.record_experts(self.model)

    def loss_of(self, model: nn.Module) -> Tensor:
        if isinstance(model, Stack):
            return model(self.ids)
        return model(input_ids=self.ids, labels=self.ids, use_cache=False).loss

    def run(self, model: nn.Module, block: Block) -> None:
        with block():
            loss = self.loss_of(model)
        if self.train:
            loss.backward()
            model.zero_grad()
        if model is self.model:
            self.forget()

    def forget(self) -> None:
        """As a step does: what was counted and kept goes."""
        if self.balancing is None:
            for layer in self.model.layers:
                if layer.router.exchange is not None:
                    layer.router.exchange.forget_forwards()
            return
        for router in self.balancing.routers:
            router.count.clear()
            if router.exchange is not None:
                router.exchange.forget_forwards()

    def race(self, rounds: int) -> dict[str, Timing]:
        with torch.no_grad(), self.record() as own:
            self.loss_of(self.model)
        blocks: dict[str, Block] = {
            "routes live": nullcontext,
            "routes live, again": nullcontext,
            "replay": self.replay(own),
            "replay with a floor of 0.5": self.replay(own, floor=0.5),
            "recorded": self.record,
            'force="balanced"': self.replay(force="balanced", devices=8),
        }
        contestants = {
            name: lambda block=block: self.run(self.model, block) for name, block in blocks.items()
        }
        if self.plain is not None:
            plain = {"not balanced": lambda: self.run(self.plain, nullcontext)}
            contestants = plain | contestants
        with torch.set_grad_enabled(self.train):
            return race(contestants, rounds)


def table(title: str, timings: dict[str, Timing]) -> Table:
    shown = Table(title=title)
    for heading in ("", "median ms", "times the first", "quartiles", "fastest ms"):
        shown.add_column(heading, justify="right" if heading else "left")
    for name, timing in timings.items():
        lower, upper = timing.ratio.lower, timing.ratio.upper
        shown.add_row(
            name,
            f"{timing.median_ms:.1f}",
            f"{timing.ratio.median:.3f}",
            f"{lower:.3f} {upper:.3f}",
            f"{timing.fastest_ms:.1f}",
        )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_memory()
    warnings.filterwarnings("ignore", "forwards whose experts are replayed")
    console = Console(highlight=False, soft_wrap=True, width=100)
    console.print(
        f"torch {torch.__version__}, transformers {version('transformers')}, equipoise "
        f"{equipoise.__version__}: {ROWS * LENGTH} tokens, {EXPERTS} experts, top-{TOP_K}"
    )
    transformers.logging.set_verbosity_error()
    for name in (*FAMILIES, "equipoise.MoE"):
        for train in (False, True):
            what = "a training step" if train else "a forward"
            with Neighbours() as neighbours:
                timings = Contestants(name, train).race(options.rounds)
            console.print(table(f"{name}, {what}", timings))
            cost = timings["replay"].ratio.median
            doubt = (
                f" (others took {neighbours.share:.0%} of the machine: not to be trusted)"
                if neighbours.busy
                else ""
            )
            result = "[green]PASS[/]" if cost <= TARGET else "[red]MISSED[/]"
            console.print(
                f"{name}, {what}: replay costs at most {TARGET}x: {cost:.3f}x: {result}{doubt}"
            )


if __name__ == "__main__":
    main()
