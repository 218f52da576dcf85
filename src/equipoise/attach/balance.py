"""balance: keep the experts of a model you already have evenly loaded.

    balancing = equipoise.balance(model, "deepseek", update_rate=1e-3)
    ...
    loss.backward(); optimizer.step(); balancing.step(); optimizer.zero_grad()

Between two steps every training forward is counted, whatever comes in between; a step sums the
counts over ranks, updates one balancer per router, and writes the result into the model's own bias.
Routers are found by routers.py and counted by seat.py.
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

from equipoise.attach.count.balanced_router import Seat
from equipoise.attach.count.forward_context import Scene, check_backward_is_seen
from equipoise.attach.find.routers import find_routers
from equipoise.attach.hooks import check_model, clear_copied_seats, models_around
from equipoise.attach.making import Maker, make_dual
from equipoise.attach.optimizers import check_optimizer, follow
from equipoise.attach.state.sidecar import SaveBeside
from equipoise.attach.tables import found_table, table
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
        check_model(model)
        shifts = clear_copied_seats(model)
        found = find_routers(model, skip)
        self.model = model
        self.name = (
            balancer
            if isinstance(balancer, str)
            else getattr(balancer, "__name__", type(balancer).__name__)
        )
        self.group = group
        self.left_alone = found.left_alone
        self.scene = Scene()
        make = functools.partial(make_dual, balancer, options)
        self.seats = [
            Seat(router, make(router.habit.num_experts, router.habit.top_k), self.scene)
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
        tallies = {seat.name: seat.take() for seat in self.seats}
        devices = {tally.loads.device for tally in tallies.values()}
        if len(devices) > 1:  # a model spread over several devices
            first = next(iter(tallies.values())).loads.device
            tallies = {name: tally.to(first) for name, tally in tallies.items()}
        tallies = reduce(tallies, self.group)
        something_trains = any(not seat.frozen for seat in self.seats)
        for seat in self.seats:
            seat.refresh()
        if self._recorder is not None:
            self._recorder.before(self)
        for seat in self.seats:
            if not (seat.frozen and something_trains):
                seat.move(tallies[seat.name])
        self._loads = {name: tally.loads for name, tally in tallies.items()}
        self.scene.backward_seen = False
        self.steps += 1
        if self._recorder is not None:
            self._recorder.after(self, tallies)

    def drop(self) -> None:
        """Forget what was counted since the last step, and say so: for a step that the optimizer
        skipped.
        """
        for seat in self.seats:
            seat.drop()
        if self._recorder is not None:
            self._recorder.drop()
        self.scene.backward_seen = False
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
        self._undo += follow(self, optimizer)

    @property
    def gradients_wait(self) -> bool:
        """Whether gradients were computed from counted forwards, and no step was taken from them
        yet.
        """
        return self.scene.backward_seen and any(seat.tallies for seat in self.seats)

    def unfollow(self) -> None:
        """Step by itself no more."""
        for undo in self._undo:
            undo()
        self._undo = []

    # ---- to look at

    def metrics(self, loads: bool = False) -> dict[str, Any]:
        """The last step: means over layers, the worst layer, and each layer's own. `loads=True`
        adds the loads by name.
        """
        layers = {
            seat.name: {name: float(value) for name, value in self._measure(seat).items()}
            for seat in self.seats
            if seat.name in self._loads
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
        for seat in self.seats:
            layer = measured["layers"].get(seat.name, {})
            spread = float(seat.offered.max() - seat.offered.min())
            numbers = [
                layer.get(name, float("nan"))
                for name in ("imbalance", "max_violation", "dead_experts")
            ]
            rows.append(
                [seat.name, int(self._loads.get(seat.name, torch.zeros(1)).sum()), *numbers, spread]
            )
        header = ["layer", "choices", "imbalance", "max violation", "dead experts", "bias spread"]
        title = f"step {self.steps}" + (f", {self.dropped} dropped" if self.dropped else "")
        return f"{title}\n{table(header, rows)}"

    def __str__(self) -> str:
        return found_table(self.seats, self.left_alone)

    def record(self, folder: str | Path, scores: int = 256) -> None:
        """Write a Trace of every step from now on, with the scores of some tokens."""
        from equipoise.attach.count.recorder import Recorder

        self._recorder = Recorder(self, folder, scores)

    # ---- towards the end

    def freeze(self) -> None:
        """Leave every shift where it is from now on."""
        for seat in self.seats:
            seat.balancer.freeze()

    def anneal(self, steps: int) -> None:
        """Come to an end over the next `steps` steps: biases slow down to rest, and shifts the
        model cannot hold go to 0.

        A bias is part of the model and is exported with it. The shift of a family without one lives
        here only, and inference engines will not know it: after annealing the model needs nothing
        but itself.
        """
        if steps < 1:
            raise ValueError(f"anneal over at least 1 step, not {steps}")
        for seat in self.seats:
            if seat.router.bias is None:
                seat.anneal_left = steps
                seat.balancer.freeze()
            else:
                seat.balancer.anneal(steps)

    @contextlib.contextmanager
    def settled(self) -> Iterator[None]:
        """Give the model its settled shifts inside the block, to evaluate or to save; the iterates
        are put back after it.

        Do not train inside.
        """
        self._check_attached()
        for seat in self.seats:
            seat.refresh()
        iterates = [seat.balancer.shift.clone() for seat in self.seats]
        try:
            for seat in self.seats:
                seat.put(seat.balancer.settled_shift)
            yield
        finally:
            for seat, iterate in zip(self.seats, iterates, strict=True):
                seat.put(iterate)

    def settle(self) -> None:
        """Give the model its settled shifts for good: at the end of training, before it is saved."""
        self._check_attached()
        for seat in self.seats:
            seat.refresh()
            seat.put(seat.balancer.settled_shift)

    def detach(self) -> nn.Module:
        """Take all hooks off and return the model. A bias stays as it is, in float32; the shift of
        a model without one goes.
        """
        for seat in self.seats:
            seat.detach()
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
        self._handles, self.scene.live = [], False
        return self.model

    # ---- to save and resume, and for trainers

    def save(self, folder: str | Path) -> Path:
        """Write all balancers' state into `folder/equipoise.safetensors`: what a model file or an
        adapter does not hold.
        """
        from equipoise.attach.state.sidecar import save

        return save(self, Path(folder))

    def load(self, folder: str | Path) -> Balancing:
        """Take over the state that `save` wrote."""
        from equipoise.attach.state.sidecar import load

        self._check_attached()
        load(self, Path(folder))
        return self

    def callback(self) -> TrainerCallback:
        """For transformers' Trainer and all built on it: `Trainer(...,
        callbacks=[balancing.callback()])`.
        """
        from equipoise.attach.trainer import make_callback

        return make_callback(self)

    def lightning_callback(self) -> Any:
        """For Lightning: `Trainer(callbacks=[balancing.lightning_callback()])`."""
        from equipoise.attach.lightning import make_callback

        return make_callback(self)

    # ---- small things

    def _attach(self, shifts: dict[str, Tensor]) -> None:
        for seat in self.seats:
            if seat.router.bias is None and seat.name in shifts:
                seat.balancer.shift.copy_(shifts[seat.name])
                seat.offer()
            seat.attach()
        self._watch_forwards()
        model: Any = self.model
        if hasattr(model, "peft_config"):
            model.save_pretrained = SaveBeside(self, model.save_pretrained)

    def _watch_forwards(self) -> None:
        myself = weakref.ref(self)

        def tell(what: Callable[[Seat], None]) -> None:
            balancing = myself()
            for seat in balancing.seats if balancing is not None else ():
                what(seat)

        self.scene.begins = lambda: tell(Seat.begin)
        self.scene.fails = lambda: tell(Seat.fail)
        for module in models_around(self.model, [seat.router.block for seat in self.seats]):
            self._handles += self.scene.attach(module)
        for module in self.model.modules():  # a layer with routers for text and for pictures
            if hasattr(module, "text_moe") and hasattr(module, "vision_moe"):
                self._handles.append(
                    module.register_forward_pre_hook(self.scene.see_kinds, with_kwargs=True)
                )

    def _check_attached(self) -> None:
        if not self.scene.live:
            raise RuntimeError(
                "this balancing was detached from its model: call equipoise.balance(model) for a "
                "new one"
            )

    def _check_counted(self) -> None:
        if not any(seat.tallies for seat in self.seats):
            raise RuntimeError(
                "nothing was counted since the last step: no training forward (model.train(), "
                "gradients on) went through the "
                "model. Is step() called twice, by a callback and an optimizer, or was the model "
                "compiled before balance()?"
            )
        missing = [seat.name for seat in self.seats if seat.missed]
        if missing:
            raise RuntimeError(
                "these routers took part in training but were not counted: "
                f"{', '.join(missing)}. A fused kernel or a CUDA "
                "graph may have gone around them; leave them out by skip=[...] if they are not "
                "to be balanced"
            )

    def _measure(self, seat: Seat) -> dict[str, Tensor]:
        return load_metrics(self._loads[seat.name].cpu(), seat.balancer.target.weights.cpu())
