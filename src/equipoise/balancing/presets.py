"""The named methods, a few lines each. `equipoise.balancer(name, ...)` makes one (resolve.py).

    v = (L - A) / L     the violation of an expert, positive where it has too few tokens

A new method is one more function here. Its docstring is its formula; its signature holds its
options and their defaults; the decorator says the rest (spec.py), and nothing else lists methods.
"""

from __future__ import annotations

from equipoise.balancing.balancer import Balancer
from equipoise.balancing.batch.base import Base
from equipoise.balancing.batch.bip import BIP
from equipoise.balancing.batch.expert_choice import ExpertChoice
from equipoise.balancing.batch.sinkhorn import Sinkhorn
from equipoise.balancing.batch.truncated_auction import TruncatedAuction
from equipoise.balancing.penalties import AuxiliaryLoss, PhiLoss, ZLoss
from equipoise.balancing.shift import step_sizes
from equipoise.balancing.shift.curvature import CurvatureMove
from equipoise.balancing.shift.directions import LoadGap
from equipoise.balancing.shift.dual import Dual
from equipoise.balancing.shift.geometry import hypentropy, price_simplex
from equipoise.balancing.shift.moving_quantile import MovingQuantile
from equipoise.balancing.shift.parts import EMA, AdaGrad, Center, Scale, Sign, Tanh
from equipoise.balancing.shift.per_device import Devices, PerDevice
from equipoise.balancing.shift.quantile import QuantileMove
from equipoise.balancing.spec import method
from equipoise.balancing.target import Target, Weights
from equipoise.balancing.threshold import Threshold


@method(kind="shift", needs="loads", arena_default=True)
def none(num_experts: int, top_k: int, *, target: Weights = None) -> Dual:
    """No balancing: the shift stays as it is, 0 or what was loaded."""
    return Dual(num_experts, top_k, LoadGap("counts"), [Scale(0.0)], target=target)


@method(
    kind="shift",
    needs="loads",
    rate="update_rate",
    rates_to_try=(1e-5, 1e-4, 1e-3, 1e-2),
    arena_default=True,
)
def deepseek(
    num_experts: int, top_k: int, *, update_rate: float = 1e-3, target: Weights = None
) -> Dual:
    """p += u sign(v). DeepSeek-V3 and V4, GLM-4.5 (Wang et al. 2024); the paper's eq. 3."""
    return Dual(num_experts, top_k, LoadGap("counts"), [Sign(), Scale(update_rate)], target=target)


@method(
    kind="shift",
    needs="loads",
    rate="update_rate",
    rates_to_try=(1e-4, 1e-3, 1e-2, 1e-1),
    arena_default=True,
)
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


@method(kind="shift", needs="loads", rate="update_rate", rates_to_try=(1e-5, 1e-4, 1e-3, 1e-2))
def moonlight(
    num_experts: int, top_k: int, *, update_rate: float = 1e-3, target: Weights = None
) -> Dual:
    """p += u (sign(v) - mean sign(v)). Kimi's Moonlight, torchtitan: deepseek without its drift."""
    return Dual(
        num_experts, top_k, LoadGap("counts"), [Sign(), Center(), Scale(update_rate)], target=target
    )


@method(
    kind="shift",
    needs="loads",
    rate="update_rate",
    rates_to_try=(1e-4, 1e-3, 1e-2),
    arena_default=True,
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
    """d = u tanh(sharpness v), centred; m = momentum m + (1 - momentum) d; p += m.

    Arcee's Trinity.
    """
    parts = [Tanh(sharpness), Scale(update_rate), Center(), EMA(momentum)]
    return Dual(num_experts, top_k, LoadGap("relative"), parts, target=target)


@method(kind="shift", needs="loads", rate="update_rate", rates_to_try=(1e-1, 1.0, 10.0))
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
        num_experts,
        top_k,
        LoadGap(unit),
        [Scale(step_sizes.inverse_steps(update_rate))],
        target=target,
    )


@method(kind="shift", needs="loads", rate="update_rate", rates_to_try=(1e-2, 1e-1, 1.0))
def inverse_sqrt(
    num_experts: int,
    top_k: int,
    *,
    update_rate: float = 1e-3,
    unit: str = "tokens",
    target: Weights = None,
) -> Dual:
    """p += (u/sqrt n) (L - A)/T. The paper's lowest loss, with u = 1e-3 over 100K steps.

    Shorter runs need a larger u.
    """
    return Dual(
        num_experts,
        top_k,
        LoadGap(unit),
        [Scale(step_sizes.inverse_sqrt_steps(update_rate))],
        target=target,
    )


@method(kind="shift", needs="loads", rate="update_rate", rates_to_try=(1e-2, 1e-1, 1.0))
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


@method(kind="shift", needs="loads", rate="update_rate", rates_to_try=(1e-2, 1e-1, 1.0))
def regularized(
    num_experts: int,
    top_k: int,
    *,
    update_rate: float = 0.1,
    weight: float = 1.0,
    target: Weights = None,
) -> Dual:
    """q *= exp(-u v), then q to its mean weight/K; p = weight/K - q. Balseiro et al. 2021.

    Regularised allocation: it maximises the scores less `weight` times the greatest relative load,
    so that loads are even only where `weight` pays for it.
    """
    shares = Target(num_experts, top_k, target).shares
    return Dual(
        num_experts,
        top_k,
        LoadGap("relative"),
        [Scale(update_rate)],
        geometry=price_simplex(weight / top_k, shares),
        target=target,
    )


@method(
    kind="shift",
    needs="loads",
    rate="update_rate",
    rates_to_try=(1e-4, 1e-3, 1e-2, 1e-1),
    arena_default=True,
)
def adagrad(
    num_experts: int, top_k: int, *, update_rate: float = 1e-2, target: Weights = None
) -> Dual:
    """p += u (L - A) / sqrt(sum of (L - A)^2 so far). Scale-free: the same in every unit."""
    return Dual(
        num_experts, top_k, LoadGap("counts"), [AdaGrad(), Scale(update_rate)], target=target
    )


@method(
    kind="shift",
    needs="runner-up",
    rate="ema",
    rates_to_try=(1.0, 0.5, 0.25),
    rate_is_share=True,
    arena_default=True,
)
def quantile(
    num_experts: int, top_k: int, *, ema: float = 0.0, bins: int = 512, target: Weights = None
) -> Dual:
    """p = ema p + (1 - ema) (each expert's own quantile), centred. Kimi K3 (Su 2026).

    There is no step size.
    """
    if not 0 <= ema < 1:
        raise ValueError(f"ema must be in [0, 1), not {ema}")
    return Dual(num_experts, top_k, QuantileMove(bins), [Center(), Scale(1 - ema)], target=target)


@method(kind="shift", needs="runner-up", arena_default=True)
def curvature(
    num_experts: int, top_k: int, *, stride: int | None = None, target: Weights = None
) -> Dual:
    """p += gain * (Newton step on the dual), centred; the gain is found from the loads.

    Equipoise's own: docs/curvature.md.
    """
    return Dual(num_experts, top_k, CurvatureMove(stride), [Center()], target=target)


@method(kind="shift", needs="runner-up")
def per_device(
    num_experts: int, top_k: int, *, devices: Devices = None, target: Weights = None
) -> Dual:
    """p_k = q_d for all experts k of device d, and q moves as under curvature.

    Even devices, free experts. Other rules: Dual(..., PerDevice(direction, devices), parts).
    """
    direction = PerDevice(CurvatureMove(), devices)
    return Dual(num_experts, top_k, direction, [Center()], target=target)


@method(
    kind="shift",
    needs="runner-up",
    rate="strength",
    rates_to_try=(0.1, 0.3, 1.0),
    within_sequences=True,
)
def moving_quantile(
    num_experts: int,
    top_k: int,
    *,
    strength: float = 0.3,
    decay: float = 0.99,
    bins: int = 100,
    reach: float = 1.0,
    sequence_length: int | None = None,
    target: Weights = None,
) -> Dual:
    """`quantile` on s - strength beta, beta each expert's own quantile along the sequence so far.

    Moving quantile balancing (Su 2026): even loads within sequences too.
    """
    moving = MovingQuantile(
        strength, decay=decay, bins=bins, reach=reach, sequence_length=sequence_length
    )
    return quantile(num_experts, top_k, target=target).within_sequences(moving)


@method(kind="penalty", needs="scores", rate="coefficient")
def aux(
    num_experts: int,
    top_k: int,
    *,
    coefficient: float = 1e-3,
    scope: str = "batch",
    target: Weights = None,
) -> Balancer:
    """No shift: coefficient * sum_k f_k P_k is added to the loss (Switch, GShard).

    Qwen3 uses the scope "global".
    """
    return none(num_experts, top_k, target=target).carry(AuxiliaryLoss(coefficient, scope, target))


@method(kind="penalty", needs="scores", rate="coefficient")
def phi(
    num_experts: int,
    top_k: int,
    *,
    coefficient: float = 1e-3,
    potential: str = "entropy",
    eta: float = 0.1,
    target: Weights = None,
) -> Balancer:
    """No shift: coefficient * <p, grad phi(m)> is added to the loss; m <- (1 - eta) m + eta p.

    p is the mean soft routing (arXiv 2605.15403); "entropy" or "euclidean".
    """
    return none(num_experts, top_k, target=target).carry(
        PhiLoss(coefficient, potential, eta, target)
    )


@method(kind="penalty", needs="scores", rate="coefficient")
def z_loss(
    num_experts: int, top_k: int, *, coefficient: float = 1e-3, target: Weights = None
) -> Balancer:
    """No shift: coefficient * mean (logsumexp of the logits)^2 is added to the loss (ST-MoE).

    It stabilises, and does not balance.
    """
    return none(num_experts, top_k, target=target).carry(ZLoss(coefficient))


@method(kind="batch solver", needs="scores")
def base(
    num_experts: int, top_k: int, *, tolerance: float = 1e-4, target: Weights = None
) -> Balancer:
    """No shift: the batch itself is solved, loads are exact (BASE layers).

    Sees later tokens in training; greedy otherwise.
    """
    return Base(num_experts, top_k, tolerance=tolerance, target=target)


@method(kind="batch solver", needs="scores")
def auction(num_experts: int, top_k: int, *, rounds: int = 100, target: Weights = None) -> Balancer:
    """No shift: the truncated auction of the BASE layers (Bertsekas 1992, Lewis et al. 2021).

    Sees later tokens in training; greedy otherwise.
    """
    return TruncatedAuction(num_experts, top_k, rounds=rounds, target=target)


@method(kind="batch solver", needs="scores")
def sinkhorn(
    num_experts: int,
    top_k: int,
    *,
    iterations: int = 8,
    temperature: float = 1.0,
    target: Weights = None,
) -> Balancer:
    """No shift: top-K of an entropic transport plan of the batch (S-BASE).

    Sees later tokens in training; greedy otherwise.
    """
    return Sinkhorn(
        num_experts, top_k, iterations=iterations, temperature=temperature, target=target
    )


@method(kind="batch solver", needs="scores")
def bip(num_experts: int, top_k: int, *, rounds: int = 8, target: Weights = None) -> Balancer:
    """No shift: prices found on the batch in a few rounds (Sun 2025).

    Sees later tokens in training; greedy otherwise.
    """
    return BIP(num_experts, top_k, rounds=rounds, target=target)


@method(kind="batch solver", needs="scores")
def expert_choice(num_experts: int, top_k: int, *, target: Weights = None) -> Balancer:
    """No shift: each expert takes its best tokens (Zhou et al. 2022).

    Leaks the future in a decoder; greedy in evaluation.
    """
    return ExpertChoice(num_experts, top_k, target=target)


@method(
    kind="threshold",
    needs="scores",
    rate="ema",
    rates_to_try=(0.1, 1.0),
    rate_is_share=True,
)
def threshold(
    num_experts: int,
    top_k: int,
    *,
    ema: float = 0.9,
    most: int | None = None,
    target: Weights = None,
) -> Balancer:
    """An expert takes every token that scores above beta; beta = ema beta + (1 - ema) its quantile.

    A token has K experts on average, and at most `most` (arXiv 2603.11535).
    """
    return Threshold(num_experts, top_k, ema=ema, most=most, target=target)
