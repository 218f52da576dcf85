"""The experts of a Mixture-of-Experts: E small SwiGLU networks, of which each token uses K.

    out_t = sum_k gates_tk * W_down[e] (silu(W_gate[e] x_t) * W_up[e] x_t)      with e = experts_tk

Nothing is dropped: whatever the router chose is computed, however full an expert gets. An expert
index equal to E means "no expert": that choice is skipped and its gate gets no gradient.

The work is matrix multiplication, and all else is overhead to be kept small. Choices are sorted by
expert once, so that each expert multiplies one contiguous block. Three implementations differ in
how the blocks are run:

    loop      block after block. Needs the blocks' sizes on the host, which makes a GPU wait
    grouped   all blocks in one call. The sizes stay on the device. Not in float64
    padded    one batched multiplication, every block filled up with zeros to the fullest

Each has the output and the gradients of `reference_experts`, which runs every expert on every
token.

What "auto" takes. On the CPU, loop: forward and backward it was at least as fast as the others at
all sizes measured, from 16 to 8,192 tokens and 8 to 128 experts, and 1.3 times as fast as grouped
at the largest. Elsewhere, grouped where its rule of alignment (rows of whole 16 bytes) allows it,
and loop otherwise: that is how others do it on GPUs, and has not been measured, since no GPU was at
hand.

loop.py says how it is fast.

Shapes: T tokens, E experts, K choices, D hidden size, F expert size, S = T*K choices in all.
"""

from equipoise.layers.experts.layer import IMPLEMENTATIONS, Experts
from equipoise.layers.experts.reference import reference_experts

__all__ = ["IMPLEMENTATIONS", "Experts", "reference_experts"]
