"""Lanes: a forward and its backward in parts that run side by side, each on its own threads.

On the CPU torch gives every operation all threads, and each waits for the slowest of them before
the next can begin. Two parts of a batch need not wait for each other: with half the threads each, a
step of `small` takes a tenth less time on two cores.

    each lane:   loss and gradients of its sequences, as its share of the batch's mean
    at the end:  gradients are added in the order of the lanes: every run has the same sum

Every lane has a copy of the model that shares all memory but the gradients. A token's experts must
not depend on the other tokens of the batch (Balancer.sequences_are_independent), or the parts would
not be the whole. Tallies are whole numbers and add up.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.model import DeepSeekMoE, ModelOutput
from equipoise.routing import Tally
from equipoise.training.config import Config
from equipoise.training.ranks import World

Work = Callable[[nn.Module, Tensor, Tensor, float], ModelOutput]
"""(model, tokens, targets, share of the batch): forward and backward"""


class Lanes:
    """Runs work on a batch in one lane or several.

    Args:
        model: what the first lane calls; the only one where there is one lane.
        net: the model whose weights are trained.
        count: how many lanes.
    """

    def __init__(self, model: nn.Module, net: DeepSeekMoE, count: int) -> None:
        self.net = net
        self.twins = [_make_twin(net) for _ in range(count - 1)]
        self.models = [model, *self.twins]
        self.threads = _start_threads(count) if count > 1 else []

    @property
    def nets(self) -> list[DeepSeekMoE]:
        """The model of each lane."""
        return [self.net, *self.twins]

    def run(self, work: Work, tokens: Tensor, targets: Tensor, share: float) -> ModelOutput:
        """Work on the batch (B, S), which is `share` of a step's, and return one output for all of
        it.
        """
        if not self.threads:
            return work(self.models[0], tokens, targets, share)
        parts = [each.tensor_split(len(self.threads)) for each in (tokens, targets)]
        shares = [len(part) / len(tokens) for part in parts[0]]
        running = [
            thread.submit(work, model, some, wanted, share * size)
            for thread, model, some, wanted, size in zip(
                self.threads, self.models, *parts, shares, strict=True
            )
        ]
        # also if one fails: the others must not run on while the error is handled
        wait(running)
        return _join_outputs([each.result() for each in running], shares)

    def collect(self) -> None:
        """Add all lanes' gradients onto the first one's, and drop them."""
        for twin in self.twins:
            for weight, other in zip(self.net.parameters(), twin.parameters(), strict=True):
                assert weight.grad is not None
                assert other.grad is not None
                weight.grad += other.grad
                other.grad = None


def choose_lane_count(config: Config, world: World) -> int:
    """The lanes of a training: those asked for, or two where they are of use."""
    why_not = _why_one_lane(config, world)
    if config.lanes is not None:
        if config.lanes > 1 and why_not:
            raise ValueError(f"lanes = {config.lanes} is impossible: {why_not}")
        return config.lanes
    return 2 if why_not is None and torch.get_num_threads() % 2 == 0 else 1


def _why_one_lane(config: Config, world: World) -> str | None:
    """The reason that forbids several lanes, if there is one."""
    size = config.micro_batch_size or config.batch_size
    lanes = config.lanes or 2
    if world.device.type != "cpu":
        return f"they are for the CPU, not for {world.device.type}"
    if world.ranks > 1:
        return f"{world.ranks} ranks share the batch already"
    if size < lanes:
        return f"a forward has only {size} sequence{'s' if size > 1 else ''}"
    if config.compile:
        return "compiled layers are not shared between threads (compile)"
    if not config.make_balancer(
        config.model.num_experts, config.model.top_k
    ).sequences_are_independent:
        return f"the balancer {config.balancer!r} looks at all tokens of a forward together"
    return None


def _make_twin(net: DeepSeekMoE) -> DeepSeekMoE:
    """A copy that shares weights, buffers and balancers, and has gradients of its own."""
    shared: dict[int, Any] = {
        id(weight): nn.Parameter(weight.detach()) for weight in net.parameters()
    }
    shared |= {id(buffer): buffer for buffer in net.buffers()}
    shared |= {
        id(layer.router.balancer): layer.router.balancer for layer in net.moe_layers.values()
    }
    return copy.deepcopy(net, shared)


def _start_threads(count: int) -> list[ThreadPoolExecutor]:
    """A thread for each lane, which gives torch's operations its share of all threads.

    torch.set_num_threads holds for the thread that calls it, and for threads that have not asked
    for their number yet.
    """
    total_threads = torch.get_num_threads()
    share = max(1, total_threads // count)
    threads = [
        ThreadPoolExecutor(
            1, thread_name_prefix="lane", initializer=torch.set_num_threads, initargs=(share,)
        )
        for _ in range(count)
    ]
    for thread in threads:
        # ask now: otherwise its first operation would take all threads again
        thread.submit(torch.get_num_threads).result()
    torch.set_num_threads(total_threads)
    return threads


def _join_outputs(outputs: list[ModelOutput], shares: list[float]) -> ModelOutput:
    """One forward's output from those of its parts."""
    weights = torch.tensor(shares, dtype=torch.float64)
    means = [
        (torch.stack(each).double() * weights).sum()
        for each in zip(*((o.loss, o.penalty) for o in outputs))
    ]
    tallies = [
        _as_one_forward(sum(parts[1:], start=parts[0]))
        for parts in zip(*(o.tallies for o in outputs))
    ]
    samples = [
        sum(s for s in parts if s is not None) or None
        for parts in zip(*(o.samples for o in outputs))
    ]
    return ModelOutput(means[0], None, means[1], tallies, samples, [])


def _as_one_forward(tally: Tally) -> Tally:
    """The parts ran at the same time: one forward, whose loads are the sum."""
    return replace(tally, forwards=tally.loads.unsqueeze(0))
