"""ForwardContext: what routers must know of the forward they run in, and cannot see themselves.

A router sees hidden states and nothing else. Whether these tokens are trained on, and which of them
are padding, is known where the model is called: so every module that takes an `attention_mask` and
holds routers is watched from outside.

A forward trains if gradients are on where the *model* is called (under reentrant checkpointing they
are off where the router is called) and no backward pass is running (checkpointing recomputes
there). The states and who moves them are in states.py.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from typing import Any, Protocol

import torch
from torch import Tensor, nn

# what counts runs between compiled graphs, never inside one
from torch._compile import _disable_dynamo as eager
from torch.utils.hooks import RemovableHandle

from equipoise.attach.count.padding import padding_of_mask, padding_of_positions
from equipoise.attach.count.states import ForwardPhase
from equipoise.attach.find.adapters import active_adapters, auxiliary_loss
from equipoise.attach.find.quirks import picture_tokens, routes_pictures
from equipoise.routing.recomputation import check_backward_is_seen, in_backward

__all__ = ["ForwardContext", "check_backward_is_seen", "eager", "in_backward"]


REPLAY_RESTS = (
    "forwards whose experts are replayed are not counted, and leave the shift where it is: it had "
    'no part in their choice. {call}, tally="own") counts what the routers themselves would have '
    "chosen"
)


class ForwardListener(Protocol):
    """What is notified of training forwards: a BalancedRouter."""

    @property
    def block(self) -> nn.Module: ...

    def begin_forward(self, in_training_mode: bool) -> None: ...

    def fail_forward(self) -> None: ...

    def begin_reference(self) -> None: ...

    def end_reference(self) -> None: ...


class ForwardContext:
    """The forward that is running, shared by all routers of a model.

    The context of a copied model is DETACHED: a copy routes as the model does, and counts nothing.
    """

    def __init__(self) -> None:
        self.phase = ForwardPhase.IDLE
        self.records = False
        """whether every forward counts: where scores are recorded and nothing is trained"""
        self.replays = False
        """whether experts are given, and padding is of interest outside of training too"""
        self.backward_seen = False
        """whether gradients were computed since the last step"""
        self.listeners: list[ForwardListener] = []
        self._depth = 0
        """how many watched modules are running inside each other"""
        self._padding: Tensor | None = None
        """(T,) bool, of the running forward's attention_mask"""
        self._is_picture: Tensor | None = None
        """(T,) bool: tokens of a picture, where a layer has a router of its own for them"""
        self._argument_names: dict[nn.Module, list[str]] = {}
        """of a watched module's forward, in order"""
        self._watched: list[nn.Module] = []
        self._is_reference = False
        """whether the running forward is of a reference policy: adapters are off, or others act
        than those that are trained
        """
        self.trained_adapters: frozenset[str] = frozenset()
        """those that acted when balancing began, or in a training forward"""
        self._warned_of_adapter = False
        self._warned_of_loss = False
        self._warned_of_rest = False

    def __deepcopy__(self, memo: dict[int, Any]) -> ForwardContext:
        copy = memo[id(self)] = ForwardContext()
        copy.phase = ForwardPhase.DETACHED
        return copy

    def __getstate__(self) -> dict[str, object]:
        """A pickled context is DETACHED, as a copied one is."""
        return {**vars(ForwardContext()), "phase": ForwardPhase.DETACHED}

    @property
    def attached(self) -> bool:
        return self.phase is not ForwardPhase.DETACHED

    def watch(self, module: nn.Module) -> list[RemovableHandle]:
        """Watch the forwards of a module that holds routers."""
        self._watched.append(module)
        self._argument_names[module] = list(inspect.signature(module.forward).parameters)
        return [
            module.register_forward_pre_hook(self.enter_module, prepend=True, with_kwargs=True),
            module.register_forward_hook(self.leave_module, always_call=True),
        ]

    def watch_pictures(self, module: nn.Module) -> RemovableHandle:
        """Watch a layer that has one router for text and one for pictures."""
        return module.register_forward_pre_hook(self.see_pictures, with_kwargs=True)

    def may_count(self, block: nn.Module) -> bool:
        """Whether what this block routes could be counted at all: else its hooks do nothing.

        Unlike `counts` it can be traced by torch.compile, so that a model in evaluation compiles
        into one graph.
        """
        return self.records or block.training

    def _is_resting(self) -> bool:
        """Whether a model that is being compiled is in evaluation, where no block could count.

        Where an adapter may be off, and the model be its own reference, its forwards are watched.
        Can be traced, too; outside of torch.compile every forward is watched.
        """
        if not torch.compiler.is_compiling():
            return False
        if any(self.may_count(listener.block) for listener in self.listeners):
            return False
        return not any(
            hasattr(module, "peft_config") or getattr(module, "_hf_peft_config_loaded", False)
            for module in self._watched
        )

    def enter_module(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, object]
    ) -> None:
        """A watched module is called."""
        if not self._is_resting():
            self._enter_module(module, args, kwargs)

    @eager
    def _enter_module(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, object]
    ) -> None:
        if not self.attached:
            return
        outermost = self._depth == 0
        if outermost:
            self._begin_forward(module)
        self._depth += 1
        if self.phase is ForwardPhase.TRAINING and not self._warned_of_loss:
            self._check_losses(module, kwargs)
        arguments = {**dict(zip(self._argument_names[module], args)), **kwargs}
        if self.phase is ForwardPhase.TRAINING or self.records:
            self._read_mask(module, arguments)
        elif self.replays:
            # only to report: a mask that cannot be read stops no evaluation
            with contextlib.suppress(ValueError):
                self._read_mask(module, arguments)

    def _begin_forward(self, module: nn.Module) -> None:
        """The outermost watched module is called."""
        trains = torch.is_grad_enabled() and not in_backward()
        self._is_reference = self._runs_reference(active_adapters(module), trains)
        if self._is_reference:
            trains = False
            for listener in self.listeners:
                listener.begin_reference()
        self.phase = ForwardPhase.TRAINING if trains else ForwardPhase.PASSIVE
        self._padding = None
        if trains:
            for listener in self.listeners:
                listener.begin_forward(module.training)

    def _runs_reference(self, active: frozenset[str] | None, trains: bool) -> bool:
        """Whether this forward is of a reference policy: every adapter is off, or only adapters act
        that were never trained since balance(), while others were, as TRL's copy "ref" of an
        adapter that is trained on.
        """
        if active is None:
            return False
        if trains:
            self.trained_adapters |= active
        if not active or active & self.trained_adapters:
            return not active
        if self.trained_adapters and not self._warned_of_adapter:
            self._warned_of_adapter = True
            warnings.warn(
                f"the adapter {', '.join(sorted(active))} was not trained since balance() (that "
                f"was {', '.join(sorted(self.trained_adapters))}): it is taken for a reference "
                "policy, and routes by the shift of when balancing began",
                stacklevel=3,
            )
        return bool(self.trained_adapters)

    def _check_losses(self, module: nn.Module, kwargs: dict[str, object]) -> None:
        """Say once that an auxiliary loss acts beside our shift."""
        coefficient = auxiliary_loss(module, kwargs)
        if coefficient:
            self._warned_of_loss = True
            warnings.warn(
                "two things balance this model: the shift, and the auxiliary loss of its config "
                f"(output_router_logits is on, router_aux_loss_coef={coefficient:g}). The loss "
                "moves the gate's weights and costs affinity: set model.config."
                "router_aux_loss_coef = 0 before training, unless you want both",
                stacklevel=3,
            )

    def _read_mask(self, module: nn.Module, arguments: dict[str, object]) -> None:
        """Which tokens are padding, from a module's arguments; an inner one may say it too."""
        mask = arguments.get("attention_mask")
        if (isinstance(mask, Tensor) and mask.dim() == 2) or (
            self._padding is None and mask is not None
        ):
            self._padding = padding_of_mask(mask)
        elif self._padding is None:
            pad_token = getattr(getattr(module, "config", None), "pad_token_id", None)
            positions, tokens = arguments.get("position_ids"), arguments.get("input_ids")
            self._padding = padding_of_positions(positions, tokens, pad_token)

    def leave_module(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """A watched module returns, or raises: then torch passes None as its output."""
        if not self._is_resting():
            self._leave_module(output)

    @eager
    def _leave_module(self, output: Any) -> None:
        if self._depth:
            self._depth -= 1
        if self._depth or not self.attached:
            return
        if output is None and self.phase is ForwardPhase.TRAINING:
            for listener in self.listeners:
                listener.fail_forward()
        if self._is_reference:
            self._is_reference = False
            for listener in self.listeners:
                listener.end_reference()
        self.phase = ForwardPhase.IDLE
        self._padding = self._is_picture = None

    def warn_of_rest(self) -> None:
        """Say once that a replay leaves the shift where it is."""
        if self._warned_of_rest:
            return
        self._warned_of_rest = True
        warnings.warn(REPLAY_RESTS.format(call="balancing.replay(..."), stacklevel=3)

    def see_pictures(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, object]
    ) -> None:
        if not self._is_resting():
            self._see_pictures(args, kwargs)

    @eager
    def _see_pictures(self, args: tuple[Any, ...], kwargs: dict[str, object]) -> None:
        self._is_picture = picture_tokens(args, kwargs)

    def detach(self) -> None:
        """Count nothing from now on."""
        self.phase = ForwardPhase.DETACHED
        self.listeners, self._watched = [], []

    def counts(self, block: nn.Module) -> bool:
        """Whether what this block routes now is to be counted."""
        if not self.attached:
            return False
        if self.records:
            return True
        if not block.training:
            return False
        if in_backward():
            self.backward_seen = True
            return False
        if self.phase is ForwardPhase.IDLE:
            return torch.is_grad_enabled()
        return self.phase is ForwardPhase.TRAINING

    @property
    def trains(self) -> bool:
        """Whether gradients of the running forward may be asked for."""
        if self.phase is ForwardPhase.IDLE:
            return torch.is_grad_enabled() and not in_backward()
        return self.phase is ForwardPhase.TRAINING

    def may_recompute(self, is_replayed: bool) -> bool:
        """Whether a backward pass may run the running forward again."""
        # a block that is called by itself may be checkpointed with gradients off
        return self.trains or (is_replayed and self.phase is ForwardPhase.IDLE)

    def known_padding(self, name: str, num_tokens: int) -> Tensor | None:
        """`padding`, or None where attention_mask is of other tokens too, as in generation."""
        padding = self._padding
        return None if padding is None or len(padding) != num_tokens else padding

    def padding(self, name: str, num_tokens: int) -> Tensor | None:
        """(T,) bool, True for padding, of the tokens a router sees; None where there is none."""
        padding, pictures = self._padding, self._is_picture
        if padding is None:
            return None
        if pictures is not None and len(pictures) == len(padding) and pictures.any():
            padding = padding[pictures if routes_pictures(name) else ~pictures]
        if len(padding) != num_tokens:
            if not padding.any():
                return None
            raise ValueError(
                f"{name} routes {num_tokens} tokens, but attention_mask has {len(padding)}: it is "
                "unknown which of them are padding. Pass unpadded (packed) batches, or leave this "
                "router out by skip=[...]"
            )
        return padding
