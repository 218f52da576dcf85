"""The named methods, a few lines each, and `balancer(name, ...)` that finds them.

v = (L - A) / L     the violation of an expert, positive where it has too few tokens
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from torch import Tensor

from equipoise.balancing.balancer import Balancer
from equipoise.balancing.batch.matching import Base, ExpertChoice
from equipoise.balancing.batch.transport import BIP, Sinkhorn
from equipoise.balancing.penalties import AuxiliaryLoss, ZLoss
from equipoise.balancing.shift import step_sizes
from equipoise.balancing.shift.curvature import CurvatureMove
from equipoise.balancing.shift.directions import LoadGap
from equipoise.balancing.shift.dual import Dual
from equipoise.balancing.shift.geometry import hypentropy
from equipoise.balancing.shift.parts import EMA, AdaGrad, Center, Scale, Sign, Tanh
from equipoise.balancing.shift.quantile import QuantileMove
from equipoise.storage.suggestions import did_you_mean

Weights = Sequence[float] | Tensor | None


def none(num_experts: int, top_k: int, *, target: Weights = None) -> Dual:
    """No balancing: the shift stays as it is, 0 or what was loaded."""
    return Dual(num_experts, top_k, LoadGap("counts"), [Scale(0.0)], target=target)


def deepseek(
    num_experts: int, top_k: int, *, update_rate: float = 1e-3, target: Weights = None
) -> Dual:
    """p += u sign(v). DeepSeek-V3 and V4, GLM-4.5 (Wang et al. 2024); the paper's eq. 4."""
    return Dual(num_experts, top_k, LoadGap("counts"), [Sign(), Scale(update_rate)], target=target)


def proportional(
    num_experts: int,
    top_k: int,
    *,
    update_rate: float = 1e-2,
    unit: str = "relative",
    target: Weights = None,
) -> Dual:
    """p += u v. Wang et al. 2024, table 3; the better form for softmax scores there."""
    return Dual(num_experts, top_k, LoadGap(unit), [Scale(update_rate)], target=target)


def moonlight(
    num_experts: int, top_k: int, *, update_rate: float = 1e-3, target: Weights = None
) -> Dual:
    """p += u (sign(v) - mean sign(v)). Kimi's Moonlight, torchtitan: deepseek without its drift."""
    return Dual(
        num_experts, top_k, LoadGap("counts"), [Sign(), Center(), Scale(update_rate)], target=target
    )


def smebu(
    num_experts: int,
    top_k: int,
    *,
    update_rate: float = 5e-4,
    sharpness: float = 2.0,
    momentum: float = 0.5,
    target: Weights = None,
) -> Dual:
    """d = u tanh(sharpness v), centred; m = momentum m + (1 - momentum) d; p += m. Arcee's Trinity."""
    parts = [Tanh(sharpness), Scale(update_rate), Center(), EMA(momentum)]
    return Dual(num_experts, top_k, LoadGap("relative"), parts, target=target)


def inverse(
    num_experts: int,
    top_k: int,
    *,
    update_rate: float = 1.0,
    unit: str = "tokens",
    target: Weights = None,
) -> Dual:
    """p += (u/n) (L - A)/T. The paper's step for its regret bound; u = 1 was its best."""
    return Dual(
        num_experts, top_k, LoadGap(unit), [Scale(step_sizes.inverse(update_rate))], target=target
    )


def inverse_sqrt(
    num_experts: int,
    top_k: int,
    *,
    update_rate: float = 1e-3,
    unit: str = "tokens",
    target: Weights = None,
) -> Dual:
    """p += (u/sqrt n) (L - A)/T. The paper's lowest loss, with u = 1e-3 over 100K steps; shorter
    runs want a larger u.
    """
    return Dual(
        num_experts,
        top_k,
        LoadGap(unit),
        [Scale(step_sizes.inverse_sqrt(update_rate))],
        target=target,
    )


def mirror(
    num_experts: int,
    top_k: int,
    *,
    update_rate: float = 0.1,
    width: float = 1e-2,
    unit: str = "relative",
    target: Weights = None,
) -> Dual:
    """asinh(p/width) += u v. Dual mirror descent (Balseiro et al. 2020) with the hypentropy."""
    geometry = hypentropy(width)
    return Dual(
        num_experts, top_k, LoadGap(unit), [Scale(update_rate)], geometry=geometry, target=target
    )


def adagrad(
    num_experts: int, top_k: int, *, update_rate: float = 1e-2, target: Weights = None
) -> Dual:
    """p += u (L - A) / sqrt(sum of (L - A)^2 so far). Scale-free: the same in every unit."""
    return Dual(
        num_experts, top_k, LoadGap("counts"), [AdaGrad(), Scale(update_rate)], target=target
    )


def quantile(
    num_experts: int, top_k: int, *, ema: float = 0.0, bins: int = 512, target: Weights = None
) -> Dual:
    """p = ema p + (1 - ema) (each expert's own quantile), centred. Kimi K3 (Su 2026). No step size."""
    if not 0 <= ema < 1:
        raise ValueError(f"ema must be in [0, 1), not {ema}")
    return Dual(num_experts, top_k, QuantileMove(bins), [Center(), Scale(1 - ema)], target=target)


def curvature(
    num_experts: int, top_k: int, *, stride: int | None = None, target: Weights = None
) -> Dual:
    """p += gain * (Newton step on the dual), centred; the gain finds itself. Equipoise's own:
    docs/curvature.md.
    """
    return Dual(num_experts, top_k, CurvatureMove(stride), [Center()], target=target)


def aux(
    num_experts: int,
    top_k: int,
    *,
    coefficient: float = 1e-3,
    scope: str = "batch",
    target: Weights = None,
) -> Balancer:
    """No shift: coefficient * sum_k f_k P_k is added to the loss (Switch, GShard; Qwen3 with scope
    "global").
    """
    return none(num_experts, top_k, target=target).carry(AuxiliaryLoss(coefficient, scope, target))


def z_loss(
    num_experts: int, top_k: int, *, coefficient: float = 1e-3, target: Weights = None
) -> Balancer:
    """No shift: coefficient * mean (logsumexp of the logits)^2 is added to the loss (ST-MoE).
    Stabilises, does not balance.
    """
    return none(num_experts, top_k, target=target).carry(ZLoss(coefficient))


def base(
    num_experts: int, top_k: int, *, tolerance: float = 1e-4, target: Weights = None
) -> Balancer:
    """No shift: the batch itself is solved, loads are exact (BASE layers). Sees later tokens in
    training; greedy otherwise.
    """
    return Base(num_experts, top_k, tolerance=tolerance, target=target)


def sinkhorn(
    num_experts: int,
    top_k: int,
    *,
    iterations: int = 8,
    temperature: float = 1.0,
    target: Weights = None,
) -> Balancer:
    """No shift: top-K of an entropic transport plan of the batch (S-BASE). Sees later tokens in
    training; greedy otherwise.
    """
    return Sinkhorn(
        num_experts, top_k, iterations=iterations, temperature=temperature, target=target
    )


def bip(num_experts: int, top_k: int, *, rounds: int = 8, target: Weights = None) -> Balancer:
    """No shift: prices found on the batch in a few rounds (Sun 2025). Sees later tokens in
    training; greedy otherwise.
    """
    return BIP(num_experts, top_k, rounds=rounds, target=target)


def expert_choice(num_experts: int, top_k: int, *, target: Weights = None) -> Balancer:
    """No shift: each expert takes its best tokens (Zhou et al. 2022). Leaks the future in a
    decoder; greedy in evaluation.
    """
    return ExpertChoice(num_experts, top_k, target=target)


PRESETS: dict[str, Callable[..., Balancer]] = {
    preset.__name__: preset
    for preset in (
        none,
        deepseek,
        proportional,
        moonlight,
        smebu,
        inverse,
        inverse_sqrt,
        mirror,
        adagrad,
        quantile,
        curvature,
        aux,
        z_loss,
        base,
        sinkhorn,
        bip,
        expert_choice,
    )
}


def balancers() -> list[str]:
    """The names `balancer` knows."""
    return list(PRESETS)


def balancer(name: str, num_experts: int, *, top_k: int, **options: object) -> Balancer:
    """A balancer by name: `equipoise.balancer("deepseek", 64, top_k=6, update_rate=1e-3)`.

    Args:
        name: one of `equipoise.balancers()`.
        num_experts: E.
        top_k: K.
        **options: the method's own (its signature in equipoise.balancing.presets), and `target`,
         weights of unequal loads.
    """
    if name not in PRESETS:
        raise ValueError(
            f"no balancer {name!r}{did_you_mean(name, PRESETS)}: there are {', '.join(PRESETS)}"
        )
    preset = PRESETS[name]
    known = [
        parameter
        for parameter in inspect.signature(preset).parameters
        if parameter not in ("num_experts", "top_k")
    ]
    for option in options:
        if option not in known:
            raise TypeError(
                f"{name} has no option {option!r}{did_you_mean(option, known)}: it takes "
                f"{', '.join(known)}"
            )
    return preset(num_experts, top_k, **options)
