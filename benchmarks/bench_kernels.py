"""The routing operators beside torch.topk, on this machine's GPU or on the CPU.

    python benchmarks/bench_kernels.py --gpu        # fills the table of docs/kernels.md
    python benchmarks/bench_kernels.py              # the same on the CPU

Each row is a shape; each column the median of many calls in microseconds: reading the scores once,
torch.topk + gather + scatter_add, our choice with loads and runner-up, the same with the reference
back end, the histogram that curvature counts, sigmoid and choice and gates from logits in one
operator and one after the other. Beside them what others have: megatron-core's routing from logits,
transformers' DeepseekV3 router (with a projection of 8 numbers), and the top-K of triton's own
triton_kernels (no shift, no loads). What is missing or cannot run here is left out with its reason.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from equipoise import kernels, route
from equipoise.routing.kernels.operators import bin_distances, rank_experts

SHAPES = [
    (64, 256, 8),
    (4096, 128, 8),
    (8192, 256, 8),
    (8192, 512, 8),
    (16384, 64, 6),
    (128, 896, 16),
]
HISTOGRAM_BINS, HISTOGRAM_STRIDE = 512, 4


def bare(scores: Tensor, shift: Tensor, top_k: int) -> object:
    experts = torch.topk(scores + shift, top_k, dim=1).indices
    loads = torch.zeros(scores.shape[1], dtype=torch.int64, device=scores.device)
    ones = torch.ones(experts.numel(), dtype=torch.int64, device=scores.device)
    return experts, scores.gather(1, experts), loads.scatter_add_(0, experts.flatten(), ones)


def contestants(scores: Tensor, shift: Tensor, top_k: int) -> dict[str, Callable[[], object]]:
    routing = route(scores, top_k, shift=shift)
    assert routing.runner_up is not None
    assert routing.margin is not None
    runner_up, margin = routing.runner_up.contiguous(), routing.margin.contiguous()
    scale = torch.full_like(shift, HISTOGRAM_BINS / 2 / 0.1)

    def on_reference() -> object:
        with kernels("reference"):
            return rank_experts(scores, shift, None, top_k, top_k + 1)

    found: dict[str, Callable[[], object]] = {
        "read": lambda: scores.sum(),
        "bare": lambda: bare(scores, shift, top_k),
        "choice": lambda: rank_experts(scores, shift, None, top_k, top_k + 1),
        "reference": on_reference,
        "histogram": lambda: bin_distances(
            scores, shift, runner_up, margin, None, scale, HISTOGRAM_BINS,
            flips=True, stride=HISTOGRAM_STRIDE,
        ),
        "from logits": lambda: route(scores, top_k, shift=shift, score="sigmoid"),
        "sigmoid + it": lambda: route(scores.sigmoid(), top_k, shift=shift),
    }  # fmt: skip
    for name, make in RIVALS.items():
        try:
            call = make(scores, shift, top_k)
            call()
        except Exception as error:
            left_out.setdefault(name, f"{type(error).__name__}: {str(error).splitlines()[0]}")
        else:
            found[name] = call
    return found


def megatron(scores: Tensor, shift: Tensor, top_k: int) -> Callable[[], object]:
    from megatron.core.transformer.moe.moe_utils import topk_routing_with_score_function

    return lambda: topk_routing_with_score_function(
        scores, top_k, score_function="sigmoid", expert_bias=shift
    )


def transformers(scores: Tensor, shift: Tensor, top_k: int) -> Callable[[], object]:
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

    tokens, num_experts = scores.shape
    config = DeepseekV3Config(
        hidden_size=8, n_routed_experts=num_experts, num_experts_per_tok=top_k, n_group=1,
        topk_group=1,
    )  # fmt: skip
    router = DeepseekV3TopkRouter(config).to(scores.device)
    torch.nn.init.normal_(router.weight)
    hidden = torch.randn(tokens, 8, device=scores.device)
    return lambda: router(hidden)


def triton_kernels(scores: Tensor, shift: Tensor, top_k: int) -> Callable[[], object]:
    from triton_kernels.topk import topk

    return lambda: topk(scores, top_k, apply_softmax=False)


Maker = Callable[[Tensor, Tensor, int], Callable[[], object]]
RIVALS: dict[str, Maker] = {
    "megatron": megatron,
    "transformers": transformers,
    "triton": triton_kernels,
}
left_out: dict[str, str] = {}
"""why a rival is not in the table"""


def microseconds(call: Callable[[], object], rounds: int, device: str) -> float:
    """The median; on a GPU between events of its own stream, so that launches overlap as usual."""
    for _ in range(5):
        call()
    taken = []
    for _ in range(rounds):
        if device == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            torch.cuda.synchronize()
            taken.append(begin.elapsed_time(end) * 1e3)
        else:
            start = time.perf_counter()
            call()
            taken.append((time.perf_counter() - start) * 1e6)
    return statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpu", action="store_true", help="on the CUDA device")
    parser.add_argument("--rounds", type=int, default=50)
    arguments = parser.parse_args()
    device = "cuda" if arguments.gpu else "cpu"
    if arguments.gpu and not torch.cuda.is_available():
        raise SystemExit("no CUDA device here: torch.cuda.is_available() is False")
    name = torch.cuda.get_device_name() if arguments.gpu else "the CPU"
    print(f"torch {torch.__version__} on {name}; medians of {arguments.rounds} calls, microseconds")
    for number, (T, E, K) in enumerate(SHAPES):
        torch.manual_seed(number)
        scores, shift = torch.rand(T, E, device=device), torch.randn(E, device=device) * 0.1
        calls = contestants(scores, shift, K)
        times = {each: microseconds(call, arguments.rounds, device) for each, call in calls.items()}
        if not number:
            print(f"{'T, E, K':>16}" + "".join(f"{each:>13}" for each in times))
        print(f"{f'{T}, {E}, {K}':>16}" + "".join(f"{time_:13.1f}" for time_ in times.values()))
    for name, reason in left_out.items():
        print(f"left out: {name}: {reason}")


if __name__ == "__main__":
    main()
