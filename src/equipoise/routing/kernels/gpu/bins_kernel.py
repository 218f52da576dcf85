"""Triton: histograms of how far experts are from being chosen or left (`bin_distances`).

A program is one warp and takes some of the sampled tokens. Each expert of a token is one integer
atomic, so that counts are exact in any order. Multiplications and additions must not be fused
(enable_fp_fusion=False): all back ends round alike.
"""

# no postponed annotations: Triton reads tl.constexpr from them
import triton
import triton.language as tl


@triton.jit
def bins_kernel(
    scores_ptr,
    shift_ptr,
    runner_up_ptr,
    margin_ptr,
    mask_ptr,
    scale_ptr,
    counts_ptr,
    num_tokens,
    stride,
    E: tl.constexpr,
    COLUMNS: tl.constexpr,
    SAMPLES: tl.constexpr,
    MASKED: tl.constexpr,
    BINS: tl.constexpr,
    FLIPS: tl.constexpr,
):
    """Count every `stride`-th token: SAMPLES of them in a program. `scale` is bins per distance,
    BINS / 2 / width; counts are (E, BINS + 2) int32 and 0.
    """
    expert = tl.arange(0, COLUMNS)
    real = expert < E
    shift = tl.load(shift_ptr + expert, mask=real, other=0.0)
    scale = tl.load(scale_ptr + expert, mask=real, other=0.0)
    first = tl.program_id(0).to(tl.int64) * SAMPLES * stride
    for token in range(first, min(first + SAMPLES * stride, num_tokens), stride):
        margin = tl.load(margin_ptr + token)
        counted = margin < float("inf")
        if MASKED:
            counted = counted & (tl.load(mask_ptr + token) == 0)
        if counted:
            last_out = tl.load(runner_up_ptr + token)
            price = tl.load(scores_ptr + token * E + last_out).to(tl.float32)
            price += tl.load(shift_ptr + last_out)
            values = tl.load(scores_ptr + token * E + expert, mask=real, other=0.0)
            distance = (values.to(tl.float32) + shift) - price
            if FLIPS:
                distance = tl.where(distance > 0, distance, distance - margin)
            place = distance * scale + (BINS // 2 + 1)
            place = tl.minimum(tl.maximum(place, 0.0), BINS + 1.0).to(tl.int32)
            tl.atomic_add(counts_ptr + expert * (BINS + 2) + place, 1, mask=real, sem="relaxed")
