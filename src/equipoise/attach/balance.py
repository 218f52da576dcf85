"""balance: keep the experts of a model you already have evenly loaded.

    balancing = equipoise.balance(model, "deepseek", update_rate=1e-3)
    ...
    loss.backward(); optimizer.step(); balancing.step(); optimizer.zero_grad()

Between two steps every training forward is counted, whatever comes in between; a step sums the
counts over ranks, updates one balancer per router, and writes the result into the model's own bias.
Routers are found by find/routers.py and counted by count/balanced_router.py.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from equipoise.attach.count.balanced_router import BalancedRouter
from equipoise.attach.count.forward_context import ForwardContext, check_backward_is_seen
from equipoise.attach.find.routers import find_routers
from equipoise.attach.hooks import check_balanceable, clear_copied_hooks, models_around
from equipoise.attach.making import Maker, make_dual
from equipoise.attach.optimizers import check_optimizer, follow_optimizer
from equipoise.attach.state.sidecar import SaveBeside
from equipoise.attach.tables import found_table, text_table
from equipoise.routing import metrics as load_metrics
from equipoise.routing import reduce

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from equipoise.attach.count.recorder import Recorder


def balance(
    model: nn.Module,
    balancer: Maker = "deepseek",
    *,
    optimizer: torch.optim.Optimizer | None = None,
    group: dist.ProcessGroup | None = None,
    skip: Sequence[str] = (),
    trace: str | Path | None = None,
    trace_scores: int = 256,
    **options: object,
) -> Balancing:
    """Balance every router of a model, and return the handle to do so.

    Args:
        model: a transformers model, wrapped or not (PEFT, DDP, FSDP2, torch.compile), or any module
            built alike.
        balancer: a name of `equipoise.balancers()` that has a shift, or a function of (num_experts,
            top_k) that makes one.
        optimizer: if given, `step()` is called by itself after every `optimizer.step()`. Of
            several, the one that steps last.
        group: the ranks that hold different tokens, if not all.
        skip: patterns of routers' names to leave alone.
        trace: a folder to record every step in, as a Trace.
        trace_scores: of how many tokens the trace keeps the scores, per step and router.
        **options: of the balancer (`update_rate=1e-3`, `target=[...]`).

    Example:
        >>> balancing = equipoise.balance(model, "moonlight", optimizer=optimizer)       # doctest: +SKIP
        >>> print(balancing)                                                             # doctest: +SKIP
    """
    if optimizer is not None:
        check_optimizer(optimizer)
    balancing = Balancing(model, balancer, group=group, skip=skip, **options)
    if trace is not None:
        balancing.record(trace, trace_scores)
    if optimizer is not None:
        balancing.follow(optimizer)
    return balancing


class Balancing:
    """A model's routers and their balancers. `print(balancing)` shows what was found, `report()`
    how it goes.
    """

    def __init__(
        self,
        model: nn.Module,
        balancer: Maker,
        *,
        group: dist.ProcessGroup | None,
        skip: Sequence[str],
        **options: object,
    ) -> None:
        check_backward_is_seen()
        check_balanceable(model)
        shifts = clear_copied_hooks(model)
        found = find_routers(model, skip)
        self.model = model
        self.name = (
            balancer
            if isinstance(balancer, str)
            else getattr(balancer, "__name__", type(balancer).__name__)
        )
        self.group = group
        self.left_alone = found.left_alone
        self.context = ForwardContext()
        make = functools.partial(make_dual, balancer, options)
        self.routers = [
            BalancedRouter(router, make(router.spec.num_experts, router.spec.top_k), self.context)
            for router in found.routers
        ]
        self.dropped = 0
        """steps whose counts were thrown away, since the optimizer's step was"""
        self.steps = 0
        self.loaded = False
        """whether a saved state was taken over"""
        self._recorder: Recorder | None = None
        self._loads: dict[str, Tensor] = {}
        self._handles: list[Any] = []
        self._undo: list[Callable[[], object]] = []
        try:
            self._attach(shifts)
        except BaseException:
            self.detach()  # half a set of hooks would count half
            raise

    # ---- at every step

    def step(self) -> None:
        """Update every balancer by what was counted since the last step. Call it once after every
        `optimizer.step()`.
        """
        self._check_attached()
        self._check_counted()
        tallies = {router.name: router.take_tally() for router in self.routers}
        devices = {tally.loads.device for tally in tallies.values()}
        if len(devices) > 1:  # a model spread over several devices
            first = next(iter(tallies.values())).loads.device
            tallies = {name: tally.to(first) for name, tally in tallies.items()}
        tallies = reduce(tallies, self.group)
        something_trains = any(not router.frozen for router in self.routers)
        for router in self.routers:
            router.refresh()
        if self._recorder is not None:
            self._recorder.before(self)
        for router in self.routers:
            if not (router.frozen and something_trains):
                router.update(tallies[router.name])
        self._loads = {name: tally.loads for name, tally in tallies.items()}
        self.context.backward_seen = False
        self.steps += 1
        if self._recorder is not None:
            self._recorder.after(self, tallies)

    def drop(self) -> None:
        """Forget what was counted since the last step, and say so: for a step that the optimizer
        skipped.
        """
        for router in self.routers:
            router.drop()
        if self._recorder is not None:
            self._recorder.drop()
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
        self._undo += follow_optimizer(self, optimizer)

    @property
    def gradients_wait(self) -> bool:
        """Whether gradients were computed from counted forwards, and no step was taken from them
        yet.
        """
        return self.context.backward_seen and any(router.tallies for router in self.routers)

    def unfollow(self) -> None:
        """Step by itself no more."""
        for undo in self._undo:
            undo()
        self._undo = []

    @property
    def seats(self) -> list[BalancedRouter]:
        """The former name of `routers`."""
        warnings.warn("balancing.seats is now balancing.routers", DeprecationWarning, stacklevel=2)
        return self.routers

    # ---- to look at

    def metrics(self, loads: bool = False) -> dict[str, Any]:
        """The last step: means over layers, the worst layer, and each layer's own. `loads=True`
        adds the loads by name.
        """
        layers = {
            router.name: {name: float(value) for name, value in self._measure(router).items()}
            for router in self.routers
            if router.name in self._loads
        }
        answer: dict[str, Any] = {"step": self.steps, "dropped_steps": self.dropped}
        if layers:
            for name in ("imbalance", "max_violation"):
                answer[name] = sum(layer[name] for layer in layers.values()) / len(layers)
            answer["worst_layer"] = max(layers, key=lambda name: layers[name]["max_violation"])
        answer["layers"] = layers
        if loads:
            answer["loads"] = {name: value.tolist() for name, value in self._loads.items()}
        return answer

    def report(self) -> str:
        """How even the last step's loads were, and where each shift stands, as a table."""
        measured = self.metrics()
        rows = []
        for router in self.routers:
            layer = measured["layers"].get(router.name, {})
            spread = float(router.applied_shift.max() - router.applied_shift.min())
            numbers = [
                layer.get(name, float("nan"))
                for name in ("imbalance", "max_violation", "dead_experts")
            ]
            rows.append(
                [
                    router.name,
                    int(self._loads.get(router.name, torch.zeros(1)).sum()),
                    *numbers,
                    spread,
                ]
            )
        header = ["layer", "choices", "imbalance", "max violation", "dead experts", "bias spread"]
        title = f"step {self.steps}" + (f", {self.dropped} dropped" if self.dropped else "")
        return f"{title}\n{text_table(header, rows)}"

    def __str__(self) -> str:
        return found_table(self.routers, self.left_alone)

    def record(self, folder: str | Path, scores: int = 256) -> None:
        """Write a Trace of every step from now on, with the scores of some tokens."""
        from equipoise.attach.count.recorder import Recorder

        self._recorder = Recorder(self, folder, scores)

    # ---- towards the end

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
        if steps < 1:
            raise ValueError(f"anneal over at least 1 step, not {steps}")
        for router in self.routers:
            if router.found.bias is None:
                router.anneal_left = steps
                router.balancer.freeze()
            else:
                router.balancer.anneal(steps)

    @contextlib.contextmanager
    def settled(self) -> Iterator[None]:
        """Give the model its settled shifts inside the block, to evaluate or to save; the iterates
        are put back after it.

        Do not train inside.
        """
        self._check_attached()
        for router in self.routers:
            router.refresh()
        iterates = [router.balancer.shift.clone() for router in self.routers]
        try:
            for router in self.routers:
                router.set_shift(router.balancer.settled_shift)
            yield
        finally:
            for router, iterate in zip(self.routers, iterates, strict=True):
                router.set_shift(iterate)

    def settle(self) -> None:
        """Give the model its settled shifts for good: at the end of training, before it is saved."""
        self._check_attached()
        for router in self.routers:
            router.refresh()
            router.set_shift(router.balancer.settled_shift)

    def detach(self) -> nn.Module:
        """Take all hooks off and return the model. A bias stays as it is, in float32; the shift of
        a model without one goes.
        """
        for router in self.routers:
            router.detach()
        for handle in self._handles:
            handle.remove()
        self.unfollow()
        saver = vars(self.model).get("save_pretrained")
        if isinstance(saver, SaveBeside) and saver.balancing is self:
            del self.model.save_pretrained
            if getattr(saver.own, "__func__", None) is not getattr(
                type(self.model), "save_pretrained", None
            ):
                vars(self.model)["save_pretrained"] = saver.own  # somebody had put their own there
        if self._recorder is not None:
            self._recorder.close()
        self._handles, self.context.live = [], False
        return self.model

    # ---- to save and resume, and for trainers

    def save(self, folder: str | Path) -> Path:
        """Write all balancers' state into `folder/equipoise.safetensors`: what a model file or an
        adapter does not hold.
        """
        from equipoise.attach.state.sidecar import save_sidecar

        return save_sidecar(self, Path(folder))

    def load(self, folder: str | Path) -> Balancing:
        """Take over the state that `save` wrote."""
        from equipoise.attach.state.sidecar import load_sidecar

        self._check_attached()
        load_sidecar(self, Path(folder))
        return self

    def callback(self) -> TrainerCallback:
        """For transformers' Trainer and all built on it: `Trainer(...,
        callbacks=[balancing.callback()])`.
        """
        from equipoise.attach.trainer import make_trainer_callback

        return make_trainer_callback(self)

    def lightning_callback(self) -> Any:
        """For Lightning: `Trainer(callbacks=[balancing.lightning_callback()])`."""
        from equipoise.attach.lightning import make_lightning_callback

        return make_lightning_callback(self)

    # ---- small things

    def _attach(self, shifts: dict[str, Tensor]) -> None:
        for router in self.routers:
            if router.found.bias is None and router.name in shifts:
                router.balancer.shift.copy_(shifts[router.name])
                router.apply_shift()
            router.attach()
        self._watch_forwards()
        model: Any = self.model
        if hasattr(model, "peft_config"):
            model.save_pretrained = SaveBeside(self, model.save_pretrained)

    def _watch_forwards(self) -> None:
        myself = weakref.ref(self)

        def tell(what: Callable[[BalancedRouter], None]) -> None:
            balancing = myself()
            for router in balancing.routers if balancing is not None else ():
                what(router)

        self.context.begins = lambda: tell(BalancedRouter.begin)
        self.context.fails = lambda: tell(BalancedRouter.fail)
        for module in models_around(self.model, [router.found.block for router in self.routers]):
            self._handles += self.context.attach(module)
        for module in self.model.modules():  # a layer with routers for text and for pictures
            if hasattr(module, "text_moe") and hasattr(module, "vision_moe"):
                self._handles.append(
                    module.register_forward_pre_hook(self.context.see_kinds, with_kwargs=True)
                )

    def _check_attached(self) -> None:
        if not self.context.live:
            raise RuntimeError(
                "this balancing was detached from its model: call equipoise.balance(model) for a "
                "new one"
            )

    def _check_counted(self) -> None:
        if not any(router.tallies for router in self.routers):
            raise RuntimeError(
                "nothing was counted since the last step: no training forward (model.train(), "
                "gradients on) went through the "
                "model. Is step() called twice, by a callback and an optimizer, or was the model "
                "compiled before balance()?"
            )
        missing = [router.name for router in self.routers if router.missed]
        if missing:
            raise RuntimeError(
                "these routers took part in training but were not counted: "
                f"{', '.join(missing)}. A fused kernel or a CUDA "
                "graph may have gone around them; leave them out by skip=[...] if they are not "
                "to be balanced"
            )

    def _measure(self, router: BalancedRouter) -> dict[str, Tensor]:
        return load_metrics(self._loads[router.name].cpu(), router.balancer.target.weights.cpu())
