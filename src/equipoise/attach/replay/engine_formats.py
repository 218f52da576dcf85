"""The experts that engines return, in the form a replay takes, and back.

    vLLM      routed_experts, int16 (sequence - 1, layers, K): the last token was never an input
    vLLM 0.21 prompt_routed_experts (prompt, layers, K), routed_experts (completion, layers, K)
    SGLang    routed_experts, base64 of int32 (sequence - 1 - start, layers, K), flattened

A trainer's batch has every token of every sequence, and padding before or after. Tokens of which an
engine says nothing are -1: the router chooses for them. Never expert 0, which is a choice, too.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from equipoise.attach.replay.expert_choices import ExpertChoices, Rows
from equipoise.attach.replay.given_experts import LIVE

_WIRE_TYPES = {"int32": "<i4", "int16": "<i2", "uint16": "<u2", "uint8": "u1"}


def sequence_experts(
    routed: ArrayLike, length: int, *, prompt: ArrayLike | None = None, start: int = 0
) -> Rows:
    """(length, L, K) int16 of one sequence, -1 where the engine gave nothing.

    Args:
        routed: (N, L, K), what the engine returned: of all tokens but the last, or of the
            completion alone.
        length: of prompt and completion together.
        prompt: (P, L, K) of the prompt, where the engine returns it apart.
        start: how many tokens at the beginning were not asked for (SGLang's
            routed_experts_start_len).

    Example:
        >>> sequence_experts(np.zeros((3, 2, 1), int), 4)[:, 0, 0].tolist()
        [0, 0, 0, -1]
    """
    parts = [np.asarray(part) for part in (prompt, routed) if part is not None]
    for part in parts:
        _check_engine_array(part)
    given = np.concatenate(parts)
    if start + len(given) not in (length - 1, length):
        raise ValueError(
            f"experts of {len(given)} tokens from token {start} on are given for a sequence of "
            f"{length}: an engine returns them for all tokens, or all but the last"
        )
    rows = np.full((length, *given.shape[1:]), LIVE, np.int16)
    rows[start : start + len(given)] = given
    return rows


def engine_array(experts: ExpertChoices | ArrayLike) -> Rows:
    """int16 (sequence - 1, L, K), as vLLM returns it, of one recorded sequence or (S, L, K)."""
    if isinstance(experts, ExpertChoices):
        experts = np.stack([experts[layer] for layer in experts.layers], axis=1)
    array = np.asarray(experts)
    _check_engine_array(array)
    return array[:-1].astype(np.int16)


def decode_sglang(text: str | bytes, layers: int, top_k: int, dtype: str = "int32") -> Rows:
    """(N, layers, top_k), of the base64 text that SGLang returns.

    Args:
        dtype: of the numbers on the wire, where the server was told to send smaller ones.
    """
    if dtype not in _WIRE_TYPES:
        raise ValueError(f"dtype is one of {', '.join(_WIRE_TYPES)}, not {dtype!r}")
    try:
        flat = np.frombuffer(base64.b64decode(text, validate=True), _WIRE_TYPES[dtype])
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"routed_experts is not the base64 of {dtype}: {error}") from error
    if flat.size % (layers * top_k):
        raise ValueError(
            f"routed_experts has {flat.size} numbers, which are no whole tokens of {layers} "
            f"layers and {top_k} experts each"
        )
    return flat.reshape(-1, layers, top_k)


def encode_sglang(experts: ArrayLike) -> str:
    """The base64 text of (N, L, K), as SGLang returns it."""
    array = np.asarray(experts)
    _check_engine_array(array)
    return base64.b64encode(array.astype("<i4").tobytes()).decode("ascii")


def place_in_batch(sequences: Sequence[ArrayLike], attention_mask: ArrayLike) -> Rows:
    """(B, S, L, K) of sequences (length, L, K) each, where the (B, S) mask is not 0: padding may be
    left, right or both, and is -1.
    """
    kept = np.asarray(attention_mask) != 0
    if kept.ndim != 2 or len(kept) != len(sequences):
        raise ValueError(
            f"attention_mask is (batch, sequence), here ({len(sequences)}, ...), not {kept.shape}"
        )
    arrays = [np.asarray(sequence) for sequence in sequences]
    for row, (mask, array) in enumerate(zip(kept, arrays)):
        _check_engine_array(array)
        if mask.sum() != len(array):
            raise ValueError(
                f"row {row} of attention_mask keeps {int(mask.sum())} tokens, and experts of "
                f"{len(array)} are given: sequence_experts() gives every token of a sequence"
            )
    batch = np.full((*kept.shape, *arrays[0].shape[1:]), LIVE, np.int16)
    batch[kept] = np.concatenate(arrays)
    return batch


def pack_sequences(sequences: Sequence[ArrayLike], length: int | None = None) -> Rows:
    """(length, L, K) of sequences one after another, as packed training takes them; -1 after the
    last one.
    """
    joined = np.concatenate([np.asarray(sequence) for sequence in sequences])
    _check_engine_array(joined)
    length = len(joined) if length is None else length
    if length < len(joined):
        raise ValueError(f"the sequences have {len(joined)} tokens, more than {length}")
    packed = np.full((length, *joined.shape[1:]), LIVE, np.int16)
    packed[: len(joined)] = joined
    return packed


def _check_engine_array(array: Rows) -> None:
    if array.ndim != 3 or array.dtype.kind not in "iu":
        raise ValueError(
            f"experts are integers of shape (tokens, layers, K), not {array.dtype} of {array.shape}"
        )
    if array.size and not -1 <= int(array.min()) <= int(array.max()) < 2**15:
        raise ValueError(f"experts are numbers from -1 to {2**15 - 1}, and others are given")
