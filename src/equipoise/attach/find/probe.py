"""Probe: learn how a router chooses by watching it choose, not by knowing its class.

A router of transformers ends in one `topk` over its experts. So a tiny batch of random tokens is
sent through it, on the CPU and with random weights in place of its own, while every top-K on the
way is watched:

    ranked = what the last top-K was taken of         its width is E, its k is K
    ranked moves by d when a tensor moves by d        that tensor is the correction bias
    ranked - bias = f(logits)                         f is the score function
    a top-K over (T, G), after one over (T, G, E/G)   experts lie in G groups

Nothing of the model is touched, and it may live on any device, the meta device included, or be
sharded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor, nn

from equipoise.attach.find.choosing_code import chooses_in_code
from equipoise.attach.find.routing_spec import PROBED_SCORES, RoutingSpec, holds_choice
from equipoise.attach.find.stand_ins import stand_ins
from equipoise.attach.find.watched_run import RouterPath, TopKCall, WatchedRun
from equipoise.attach.find.zero_parts import gathering_rests, whole_shape
from equipoise.routing import Groups

_PROBE_TOKENS = 64
_TOLERANCE = 1e-5


class NotByTopKError(ValueError):
    """A router that was watched and did not choose by a top-K over its experts."""


class OneLevelUpError(NotByTopKError):
    """A router whose gate only computes logits: the block around it chooses."""


def probe_router(block: nn.Module, gate_name: str) -> RoutingSpec:
    """Watch the router `gate_name` of `block` choose. Raises NotByTopKError where it does so in
    another way.
    """
    return _Probe(block, gate_name).find_spec()


class _Probe:
    """The runs of one router, and what follows from them."""

    def __init__(self, block: nn.Module, gate_name: str) -> None:
        self.path = RouterPath(block, gate_name)
        self.gate_name = gate_name
        self.rng = torch.Generator().manual_seed(0)
        self.tensors = self._random_tensors(block, getattr(block, gate_name))
        self.widths = _hidden_sizes(getattr(block, gate_name))
        self.hidden = torch.zeros(0)
        """what the gate is called with: (T, D) or (1, T, D), set by the first run that succeeds"""
        self.passed: str | None = None
        """the block's vector that is passed to the gate, where it wants one"""
        self.filled = False
        """whether the gate requires more than hidden states, such as a mask"""

    def find_spec(self) -> RoutingSpec:
        """Run the router once, then again with each candidate for a bias moved."""
        first = self._first_run()
        ranked, top_k, indices = self._last_topk(first)
        num_experts = ranked.shape[-1]
        kept = _is_score(ranked)
        bias = self._find_bias(first, ranked, kept)
        self._check_choice(first, indices)
        if bias is not None:
            self._check_last_class(bias)
        score, logits_at = self._find_score(first, ranked, kept, bias)
        groups, worth = find_groups(first.calls, num_experts)
        fill = None if kept.all() else float(ranked[~kept][0])
        name = None if bias is None else bias.removeprefix("block.")
        return RoutingSpec(
            num_experts=num_experts,
            top_k=top_k,
            groups=groups,
            group_worth=worth,
            fill=fill,
            score=score,
            logits_at=logits_at,
            bias=name,
            in_gate=first.in_gate,
            passed=self.passed is not None,
            returns_choice=any(holds_choice(output, top_k) for output in first.gate_output),
        )

    def _random_tensors(self, block: nn.Module, gate: nn.Module) -> dict[str, Tensor]:
        """Random stand-ins for all the gate holds, and for the block's own short vectors."""
        prefix = f"block.{self.gate_name}."
        named = {prefix + name: value for name, value in _named_tensors(gate, recurse=True)}
        named |= {f"block.{name}": value for name, value in _named_tensors(block, recurse=False)}
        return {name: self._random_like(value) for name, value in named.items()}

    def _random_like(self, value: Tensor) -> Tensor:
        """Normal numbers: of such a size that scores differ, and a bias does not decide alone."""
        shape = whole_shape(value)
        if not value.is_floating_point():
            return torch.zeros(shape, dtype=value.dtype)
        # a weight may be (E, D) or (D, E): the larger is nearly always D
        wide = len(shape) >= 2 and shape[0] > 1
        spread = 2 * max(shape[-2:]) ** -0.5 if wide else 0.1
        return spread * torch.randn(shape, generator=self.rng)

    def _run_router(self, hidden: Tensor, tensors: dict[str, Tensor]) -> WatchedRun:
        """Let the router choose with other tensors in place of its own, in evaluation mode."""
        was_training = [module for module in self.path.modules() if module.training]
        try:
            for module in was_training:
                module.training = False
            own = stand_ins(self.path, tensors)
            full = torch.autocast("cpu", enabled=False)
            with gathering_rests(self.path), torch.no_grad(), full, own:
                return self.path(hidden.clone(), self.passed, self.filled)
        finally:
            for module in was_training:
                module.training = True

    def _first_run(self) -> WatchedRun:
        """Some gates want (T, D), some (B, S, D); some are given the bias by their block; what else
        they require is filled in last, since a bias may be among it.
        """
        vectors = [name.removeprefix("block.") for name in self.tensors if name.count(".") == 1]
        refusals = []
        ways = [(False, passed) for passed in (None, *vectors)] + [(True, None)]
        for width in self.widths:
            tokens = torch.randn(_PROBE_TOKENS, width, generator=self.rng)
            for self.filled, self.passed in ways:
                for hidden in (tokens, tokens.unsqueeze(0)):
                    self.hidden = hidden
                    try:
                        return self._run_router(hidden, self.tensors)
                    except Exception as error:  # a stranger's code may raise anything
                        refusals.append(f"{type(error).__name__}: {error}")
        raise NotByTopKError(f"it could not be called with hidden states alone ({refusals[0]})")

    def _last_topk(self, run: WatchedRun) -> TopKCall:
        """The top-K over experts: (T, E) ranked, K, (T, K) indices."""
        if not run.calls:
            self._refuse_without_topk()
        ranked, top_k, indices = run.calls[-1]
        over_experts = [call for call in run.calls if call.values.shape == ranked.shape]
        if len(over_experts) > 1:
            raise NotByTopKError(
                f"it takes {len(over_experts)} top-Ks over its experts, one after another, where "
                "one top-K is expected to make the whole choice"
            )
        return TopKCall(ranked.flatten(0, -2).float(), top_k, indices.flatten(0, -2))

    def _refuse_without_topk(self) -> NoReturn:
        """Many blocks let the gate compute logits only, and choose in their own forward."""
        block = self.path.block
        if not chooses_in_code(block):
            raise NotByTopKError(
                "it chooses without torch.topk (if it takes a single expert by argmax or max, name "
                "it in routers=)"
            )
        raise OneLevelUpError(f"{type(block).__name__}.forward chooses, and not its gate")

    def _find_bias(self, first: WatchedRun, ranked: Tensor, kept: Tensor) -> str | None:
        """Move every vector of E numbers in turn: `ranked` follows the bias number by number, and
        no gate weight follows it.

        gpt_oss has a bias inside its logits, which moves the gate weights too: it is no correction
        bias.
        """
        found = [
            name
            for name, value in self.tensors.items()
            if value.is_floating_point()
            and value.numel() == ranked.shape[-1]
            and self._follows_tensor(name, first, ranked, kept)
        ]
        if len(found) > 1:
            raise ValueError(
                f"{len(found)} tensors act as the bias of one router: {', '.join(found)}"
            )
        return found[0] if found else None

    def _follows_tensor(self, name: str, first: WatchedRun, ranked: Tensor, kept: Tensor) -> bool:
        """Whether the ranking moves as the tensor `name` does, and nothing else moves with it."""
        nudge = 0.01 * torch.randn(self.tensors[name].shape, generator=self.rng)
        second = self._run_router(self.hidden, {**self.tensors, name: self.tensors[name] + nudge})
        moved, _, indices = self._last_topk(second)
        both = kept & _is_score(moved)
        if ((moved - ranked - nudge.flatten()).abs()[both] > _TOLERANCE).any():
            return False
        same = (indices == self._last_topk(first)[2]).all(1)
        outputs = zip((*first.gate_output, *first.choice), (*second.gate_output, *second.choice))
        return all(_same_rows(before, after, same) for before, after in outputs)

    def _find_score(
        self, run: WatchedRun, ranked: Tensor, kept: Tensor, bias: str | None
    ) -> tuple[str | None, int | None]:
        """The score function, and which output of the gate holds the logits it acts on."""
        scores = ranked if bias is None else ranked - self.tensors[bias].flatten()
        for place, output in enumerate(run.gate_output):
            if (
                not isinstance(output, Tensor)
                or output.shape[-1:] != ranked.shape[-1:]
                or output.numel() != ranked.numel()
            ):
                continue
            for name, function in PROBED_SCORES.items():
                error = (function(output.reshape(ranked.shape)) - scores).abs()[kept]
                if (error < _TOLERANCE).all():
                    return name, (-1 if run.returns_alone else place)
        return None, None

    def _check_last_class(self, bias: str) -> None:
        """Let every token choose the last class, where families put classes that are no experts."""
        raised = self.tensors[bias].clone()
        raised.view(-1)[-1] += 10.0
        run = self._run_router(self.hidden, {**self.tensors, bias: raised})
        self._check_choice(run, self._last_topk(run)[2])

    def _check_choice(self, run: WatchedRun, indices: Tensor) -> None:
        """What the experts are called with must be what the top-K chose: zaya rewrites it, and
        would be counted wrongly.
        """
        for output in run.choice:
            if not isinstance(output, Tensor) or output.numel() != indices.numel():
                continue
            if output.dtype in (torch.int64, torch.int32):
                if not torch.equal(output.reshape(indices.shape).long(), indices):
                    raise NotByTopKError("it rewrites its choice after the top-K")
                return


def _named_tensors(module: nn.Module, recurse: bool) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(recurse=recurse), *module.named_buffers(recurse=recurse)]


def _same_rows(before: object, after: object, rows: Tensor) -> bool:
    """Whether a gate's output stayed the same for the tokens that kept their experts."""
    if (
        not isinstance(before, Tensor)
        or not isinstance(after, Tensor)
        or before.numel() % len(rows)
    ):
        return True
    return bool(
        torch.equal(before.reshape(len(rows), -1)[rows], after.reshape(len(rows), -1)[rows])
    )


def _hidden_sizes(gate: nn.Module) -> list[int]:
    """What D may be: as the gate says it, or a side of its first matrix, which is (E, D) as a rule
    and (D, E) in some layers. A flat weight has no sides: D is then one of the gate's numbers.
    """
    for name in ("hidden_dim", "hidden_size", "d_model"):
        if isinstance(getattr(gate, name, None), int):
            return [int(getattr(gate, name))]
    for _, value in _named_tensors(gate, recurse=True):
        shape = whole_shape(value)
        if len(shape) == 2 and value.is_floating_point() and shape[0] > 1:
            return [shape[1], shape[0]]
    lengths = [value.numel() for _, value in _named_tensors(gate, recurse=True) if value.dim() == 1]
    numbers = {value for value in vars(gate).values() if type(value) is int and value > 1}
    sides = {number for number in numbers for each in lengths if each // number in numbers}
    if sides:
        return sorted(sides, reverse=True)
    raise NotByTopKError("it holds no matrix that could turn hidden states into logits")


def _is_score(ranked: Tensor) -> Tensor:
    """Where a score stands, and not the -inf or 0 of a group that was not chosen."""
    return torch.isfinite(ranked) & (ranked != 0)


def find_groups(calls: Sequence[TopKCall], num_experts: int) -> tuple[Groups | None, str | None]:
    """The groups, and what a group is chosen by, from the calls before the last."""
    for place, (values, keep, _) in enumerate(calls[:-1]):
        number = values.shape[-1]
        if values.dim() == 2 and number < num_experts and num_experts % number == 0:
            before = calls[place - 1] if place else None
            by_top2 = (
                before is not None
                and before.values.shape[-2:] == (number, num_experts // number)
                and before.top_k == 2
            )
            groups = None if keep == number else Groups(number, keep)
            return groups, "top2" if by_top2 else "other"
    return None, None
