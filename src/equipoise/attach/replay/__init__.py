"""Somebody else's experts: record what a model's routers choose, and make it take given experts.

Balancing.record_experts and Balancing.replay are the entrance. Here is what they give and take, and
what engines return (engine_formats.py, megatron_trace.py).
"""

from equipoise.attach.replay.engine_formats import (
    decode_sglang,
    encode_sglang,
    engine_array,
    pack_sequences,
    place_in_batch,
    sequence_experts,
)
from equipoise.attach.replay.even_loads import EvenLoads
from equipoise.attach.replay.expert_choices import ExpertChoices
from equipoise.attach.replay.forced_loads import SkewedLoads
from equipoise.attach.replay.megatron_trace import read_megatron_trace, write_megatron_trace

__all__ = [
    "EvenLoads",
    "ExpertChoices",
    "SkewedLoads",
    "decode_sglang",
    "encode_sglang",
    "engine_array",
    "pack_sequences",
    "place_in_batch",
    "read_megatron_trace",
    "sequence_experts",
    "write_megatron_trace",
]
