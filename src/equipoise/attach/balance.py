"""balance: keep the experts of a model you already have evenly loaded.

    balancing = equipoise.balance(model, "deepseek", update_rate=1e-3)
    ...
    loss.backward(); optimizer.step(); balancing.step(); optimizer.zero_grad()

Between two steps every training forward is counted, and nothing else (count/states.py says what
counts). A step sums the counts over ranks, updates one balancer per router, and writes the result
into the model's own bias. Each part is a module: find/ finds the routers, count/ counts,
stepping.py steps, step_metrics.py and tables.py report, finishing.py ends a training, state/ saves.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from equipoise.attach.count.balanced_router import BalancedRouter
from equipoise.attach.count.forward_context import ForwardContext
from equipoise.attach.find.adapters import active_adapters
from equipoise.attach.find.own_routers import RouterName
from equipoise.attach.find.routers import find_routers
from equipoise.attach.finishing import anneal_routers, settle_routers, settled_routers
from equipoise.attach.hooks import (
    check_balanceable,
    clear_copied_hooks,
    models_around,
    watch_forwards,
)
from equipoise.attach.making import Maker, make_dual, maker_name
from equipoise.attach.optimizers import check_optimizer, follow_optimizer
from equipoise.attach.patching import PatchedMethod
from equipoise.attach.replay.replaying import ReplaysExperts
from equipoise.attach.replay.router_exchanges import advance_anticipations, forget_forwards
from equipoise.attach.state.sidecar import load_sidecar, save_beside, save_sidecar, shifts_beside
from equipoise.attach.step_metrics import step_table
from equipoise.attach.stepping import check_counted, check_in_use, collect_tallies, update_routers
from equipoise.attach.tables import found_table
from equipoise.balancing.step_metrics import BalanceMetrics, step_metrics
from equipoise.routing.rank_group import check_default_group
from equipoise.routing.recomputation import check_backward_is_seen

if TYPE_CHECKING:
    from equipoise.attach.count.recorder import Recorder
    from equipoise.attach.trainer import StepCallback
    from equipoise.routing import Tally


def balance(
    model: nn.Module,
    balancer: Maker = "deepseek",
    *,
    optimizer: torch.optim.Optimizer | None = None,
    group: dist.ProcessGroup | None = None,
    skip: Sequence[str] = (),
    routers: RouterName | Sequence[RouterName] | None = None,
    trace: str | Path | None = None,
    trace_scores: int = 256,
    **options: object,
) -> Balancing:
    """Balance every router of a model, and return the handle to do so.

    Args:
        model: a transformers model, wrapped or not (PEFT, DDP, FSDP2, torch.compile), or any module
            of the same structure.
        balancer: a name of `equipoise.balancers()` that has a shift, or a function of (num_experts,
            top_k) that makes one.
        optimizer: if given, `step()` is called automatically after every `optimizer.step()`. Of
            several optimizers, pass the one that steps last.
        group: the ranks that hold different tokens, if not all. Must be given where the model shows
            tensor or expert parallelism.
        skip: patterns of routers' names to leave alone.
        routers: of a model with layers of its own, the modules whose forward chooses experts by
            torch.topk, argmax or max: their names, patterns of names, classes, or themselves. By
            default they are found (docs/own-layers.md).
        trace: a folder to record every step in, as a Trace.
        trace_scores: how many tokens' scores the trace keeps, per step and router.
        **options: of the balancer (`update_rate=1e-3`, `target=[...]`).

    Example:
        >>> balancing = equipoise.balance(model, "moonlight", optimizer=optimizer)  # doctest: +SKIP
        >>> print(balancing)  # doctest: +SKIP
    """
    if optimizer is not None:
        check_optimizer(optimizer)
    balancing = Balancing(model, balancer, group=group, skip=skip, routers=routers, **options)
    if trace is not None:
        balancing.record(trace, trace_scores)
    if optimizer is not None:
        balancing.follow(optimizer)
    return balancing


class Balancing(ReplaysExperts):
    """A model's routers and their balancers.

    `print(balancing)` shows what was found, `report()` how even the loads are.
    """

    def __init__(
        self,
        model: nn.Module,
        balancer: Maker,
        *,
        group: dist.ProcessGroup | None,
        skip: Sequence[str] = (),
        routers: RouterName | Sequence[RouterName] | None = None,
        **options: object,
    ) -> None:
        check_backward_is_seen()
        check_balanceable(model)
        if group is None:
            check_default_group(model)
        # a copy keeps its shifts, and so does a model that was saved and loaded
        known_shifts = clear_copied_hooks(model) or shifts_beside(model)
        found = find_routers(model, skip, routers)
        self.model = model
        self.name = maker_name(balancer)
        self.group = group
        self.left_alone = found.left_alone
        """routers that are not balanced, and why"""
        self.context = ForwardContext()
        self.context.trained_adapters = active_adapters(model) or frozenset()
        make = functools.partial(make_dual, balancer, options)
        self.routers = [
            BalancedRouter(router, make(router.spec.num_experts, router.spec.top_k), self.context)
            for router in found.routers
        ]
        self.steps = 0
        self.dropped = 0
        """steps whose counts were dropped, since the optimizer skipped its own"""
        self.loaded = False
        """whether a saved state was taken over"""
        self._group_checked = False
        self._recorder: Recorder | None = None
        self._loads: dict[str, Tensor] = {}
        """of the last step, by router"""
        self.last_tallies: dict[str, Tally] = {}
        """what the last step was made from, by router; empty before the first"""
        self._handles: list[RemovableHandle] = []
        self._undo_following: list[Callable[[], object]] = []
        self._savers: list[PatchedMethod] = []
        try:
            self._attach_hooks(known_shifts)
        except BaseException:
            # half a set of hooks would count half
            self.detach()
            raise

    # ---- at every step

    def step(self) -> None:
        """Update every balancer by what was counted since the last step. Call it once after every
        `optimizer.step()`.
        """
        self._check_attached()
        check_in_use(self.routers)
        check_counted(self.routers)
        if self.group is None and not self._group_checked:
            # once more: the model may have been parallelised after balance()
            check_default_group(self.model)
            self._group_checked = True
        forget_forwards(self.routers)
        tallies = collect_tallies(self.routers, self.group)
        for router in self.routers:
            router.shift.refresh()
        if self._recorder is not None:
            self._recorder.remember_shifts(self)
        update_routers(self.routers, tallies)
        self._loads = {name: tally.loads for name, tally in tallies.items()}
        self.last_tallies = tallies
        advance_anticipations(self.routers)
        self.context.backward_seen = False
        self.steps += 1
        if self._recorder is not None:
            self._recorder.write_step(self, tallies)

    def drop(self) -> None:
        """Forget what was counted since the last step, with a warning: for a step that the
        optimizer skipped.
        """
        forget_forwards(self.routers)
        for router in self.routers:
            router.count.clear()
        if self._recorder is not None:
            self._recorder.drop_scores()
        self.context.backward_seen = False
        self.dropped += 1
        warnings.warn(
            f"a step was skipped: what was counted for it is dropped ({self.dropped} so far)",
            stacklevel=2,
        )

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Step after every step of this optimizer, and drop what was counted where its step is
        skipped.
        """
        check_optimizer(optimizer)
        self._undo_following += follow_optimizer(self, optimizer)

    def unfollow(self) -> None:
        """Follow no optimizer any more."""
        for undo in self._undo_following:
            undo()
        self._undo_following = []

    @property
    def gradients_wait(self) -> bool:
        """Whether gradients were computed from counted forwards, and no step was taken from them
        yet.
        """
        return self.context.backward_seen and any(router.count.tallies for router in self.routers)

    # ---- to look at

    def metrics(self, loads: bool = False) -> BalanceMetrics:
        """The last step: means over layers, the worst layer, and each layer's own. `loads=True`
        adds the loads by name.
        """
        balancers = {router.name: router.balancer for router in self.routers}
        answer = step_metrics(balancers, self._loads, self.steps, self.dropped)
        if loads:
            answer["loads"] = {name: value.tolist() for name, value in self._loads.items()}
        return answer

    def report(self) -> str:
        """How even the last step's loads were, and how far each shift is spread, as a table."""
        return step_table(self.routers, self._loads, self.metrics())

    def __str__(self) -> str:
        return found_table(self.routers, self.left_alone)

    def record(self, folder: str | Path, scores: int = 256) -> None:
        """Write a Trace of every step from now on, with the scores of some tokens."""
        from equipoise.attach.count.recorder import Recorder

        self._recorder = Recorder(self, folder, scores)

    @property
    def seats(self) -> list[BalancedRouter]:
        """The former name of `routers`."""
        warnings.warn("balancing.seats is now balancing.routers", DeprecationWarning, stacklevel=2)
        return self.routers

    # ---- at the end of a training

    def freeze(self) -> None:
        """Leave every shift where it is from now on."""
        for router in self.routers:
            router.balancer.freeze()

    def anneal(self, steps: int) -> None:
        """Come to an end over the next `steps` steps: biases slow down to rest, and shifts the
        model cannot hold go to 0.

        A bias is part of the model and is exported with it. The shift of a family without one lives
        here only, and inference engines will not know it: after annealing the model needs nothing
        but itself.
        """
        anneal_routers(self.routers, steps)

    @contextlib.contextmanager
    def settled(self) -> Iterator[None]:
        """Give the model its settled shifts inside the block, to evaluate or to save; the iterates
        are put back after it.

        Do not train inside.
        """
        self._check_attached()
        with settled_routers(self.routers):
            yield

    def settle(self) -> None:
        """Give the model its settled shifts for good: at the end, before it is saved."""
        self._check_attached()
        settle_routers(self.routers)

    def detach(self) -> nn.Module:
        """Remove all hooks and return the model. A bias stays as it is, in float32; the shift of a
        model without one is lost.
        """
        for router in self.routers:
            router.detach()
        for handle in self._handles:
            handle.remove()
        self.unfollow()
        for saver in self._savers:
            if saver.in_place:
                saver.restore()
        if self._recorder is not None:
            self._recorder.close()
        self._handles, self._savers = [], []
        self.context.detach()
        return self.model

    # ---- to save and resume, and for trainers

    def save(self, folder: str | Path) -> Path:
        """Write all balancers' state into `folder/equipoise.safetensors`: what a model file or an
        adapter does not hold.
        """
        return save_sidecar(self, Path(folder))

    def load(self, folder: str | Path) -> Balancing:
        """Take over the state that `save` wrote."""
        self._check_attached()
        load_sidecar(self, Path(folder))
        return self

    def callback(self) -> StepCallback:
        """For transformers' Trainer and all built on it: `Trainer(...,
        callbacks=[balancing.callback()])`.
        """
        from equipoise.attach.trainer import StepCallback

        return StepCallback(self)

    def lightning_callback(self) -> Any:
        """For Lightning: `Trainer(callbacks=[balancing.lightning_callback()])`."""
        from equipoise.attach.lightning import make_lightning_callback

        return make_lightning_callback(self)

    # ---- hooks

    def _attach_hooks(self, known_shifts: dict[str, Tensor]) -> None:
        """On every router and on the model around them; shifts that are known are taken over."""
        for router in self.routers:
            if router.found.bias is None and router.name in known_shifts:
                router.shift.start_from(known_shifts[router.name])
            router.attach()
        blocks = [router.found.block for router in self.routers]
        self._handles += watch_forwards(self.model, blocks, self.context)
        self._savers += save_beside(self, models_around(self.model, blocks))

    def _check_attached(self) -> None:
        if not self.context.attached:
            raise RuntimeError(
                "this balancing was detached from its model: call equipoise.balance(model) for a "
                "new one"
            )
