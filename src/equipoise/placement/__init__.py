"""Placement: which experts, and which copies of them, on which device, from recorded loads.

Every layer of a model with expert parallelism waits for its fullest device. Which one that is
changes from batch to batch, so what counts is the mean over batches of the fullest device's load,
and not the fullest device under mean loads.

    recorded_loads   loads of a trace, a run or a plain file
    cluster          devices, nodes, slots, and what must fit
    device_loads     what a placement makes of loads: the cost
    eplb             DeepSeek's algorithm, the rival and a start
    starts           EPLB's placement, and one that sees every batch
    search           local search on the cost (state, swaps, copies: its kernels)
    exact            small layers by an integer program
    bound            what no placement can be better than, with proofs (and shared_copies)
    place            all layers; the public function
    result           what was found, beside others
    maps             files of vLLM, SGLang, vllm-ascend
    picture          devices before and after
"""

from equipoise.placement.maps import read_map
from equipoise.placement.place import place
from equipoise.placement.recorded_loads import RecordedLoads
from equipoise.placement.result import LayerPlacement, Placement, PlacementRow

__all__ = ["LayerPlacement", "Placement", "PlacementRow", "RecordedLoads", "place", "read_map"]
