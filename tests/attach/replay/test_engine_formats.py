"""What engines return, aligned with what a trainer feeds its model."""

import base64

import numpy as np
import pytest
import torch

import equipoise
from equipoise.attach.replay.engine_formats import (
    decode_sglang,
    encode_sglang,
    engine_array,
    pack_sequences,
    place_in_batch,
    sequence_experts,
)
from equipoise.attach.replay.megatron_trace import read_megatron_trace, write_megatron_trace
from tests.attach.tools import tiny


def routed(tokens, seed=0, layers=2):
    rng = np.random.default_rng(seed)
    return rng.random((tokens, layers, 8)).argsort(-1)[..., :2].astype(np.int16)


def test_the_last_token_is_live():
    rows = sequence_experts(routed(6), 7)
    assert np.array_equal(rows[:6], routed(6))
    assert (rows[6] == -1).all()
    assert np.array_equal(engine_array(rows), routed(6))


def test_prompt_and_completion_are_joined():
    rows = sequence_experts(routed(6)[4:], 7, prompt=routed(6)[:4])
    assert np.array_equal(rows[:6], routed(6))
    whole = sequence_experts(routed(7)[4:], 7, prompt=routed(7)[:4])
    assert np.array_equal(whole, routed(7))


def test_a_later_turn_starts_where_the_last_ended():
    rows = sequence_experts(routed(6)[4:], 7, start=4)
    assert (rows[:4] == -1).all()
    assert np.array_equal(rows[4:6], routed(6)[4:])


def test_experts_of_too_few_tokens_are_refused():
    with pytest.raises(ValueError, match=r"experts of 5 tokens from token 0 on .* sequence of 7"):
        sequence_experts(routed(5), 7)
    with pytest.raises(ValueError, match=r"integers of shape \(tokens, layers, K\)"):
        sequence_experts(routed(5)[0], 5)
    with pytest.raises(ValueError, match="numbers from -1 to 32767"):
        sequence_experts(routed(5).astype(np.int32) + 2**15, 5)


def test_sglang_there_and_back():
    text = encode_sglang(routed(6))
    assert np.frombuffer(base64.b64decode(text), np.int32).size == 24
    assert np.array_equal(decode_sglang(text, 2, 2), routed(6))
    small = base64.b64encode(routed(6).astype(np.uint8).tobytes())
    assert np.array_equal(decode_sglang(small, 2, 2, "uint8"), routed(6))
    with pytest.raises(ValueError, match="24 numbers, which are no whole tokens of 5 layers"):
        decode_sglang(text, 5, 2)
    with pytest.raises(ValueError, match="not the base64 of int32"):
        decode_sglang("?", 2, 2)


def test_padding_may_be_left_or_right():
    first, second = sequence_experts(routed(4, 1), 5), sequence_experts(routed(2, 2), 3)
    mask = torch.tensor([[1, 1, 1, 1, 1, 0], [0, 0, 0, 1, 1, 1]])
    placed = place_in_batch([first, second], mask)
    assert np.array_equal(placed[0, :5], first)
    assert np.array_equal(placed[1, 3:], second)
    assert (placed[0, 5] == -1).all()
    assert (placed[1, :3] == -1).all()
    with pytest.raises(ValueError, match=r"row 0 of attention_mask keeps 5 tokens.* of 3"):
        place_in_batch([second, first], mask)


def test_packed_sequences_follow_each_other():
    packed = pack_sequences([routed(4, 1), routed(2, 2)], 8)
    assert np.array_equal(packed[:6], np.concatenate([routed(4, 1), routed(2, 2)]))
    assert (packed[6:] == -1).all()
    with pytest.raises(ValueError, match="6 tokens, more than 5"):
        pack_sequences([routed(4, 1), routed(2, 2)], 5)


def test_a_padded_batch_from_an_engine_is_replayed():
    model = tiny("qwen3_moe").eval()
    balancing = equipoise.balance(model, "deepseek")
    mask = torch.tensor([[1, 1, 1, 1, 1, 0], [0, 0, 0, 1, 1, 1]])
    sequences = [sequence_experts(routed(4, 1), 5), sequence_experts(routed(2, 2), 3)]
    given = place_in_batch(sequences, mask)
    ids = torch.randint(3, 60, (2, 6))
    recording = balancing.record_experts()
    with torch.no_grad(), balancing.replay(given) as replayed, recording as taken:
        model(input_ids=ids, attention_mask=mask)
    for place, layer in enumerate(taken.layers):
        asked = given[:, :, place].reshape(-1, 2)
        assert np.array_equal(taken[layer][asked[:, 0] >= 0], asked[asked[:, 0] >= 0])
    assert replayed.live_share == 2 / 8  # the last token of each; padding is no token


def test_a_megatron_trace_there_and_back(tmp_path):
    experts = {1: routed(5)[:, 0], 4: routed(5)[:, 1]}
    path = write_megatron_trace(tmp_path / "router_trace_rank0.jsonl", experts)
    read = read_megatron_trace(path)
    assert list(read) == [1, 4]
    assert all(np.array_equal(read[layer], experts[layer]) for layer in experts)
    assert list(read_megatron_trace(path, first_layer=2)) == [3, 6]


def test_a_megatron_trace_of_several_calls(tmp_path):
    # as its RouterTracer writes it: two micro-batches, another step, and a layer of MTP
    line = (
        '{"step": %d, "stage": "pre_dispatch", "block": "%s", "layer": 0, "rank": 0, '
        '"num_tokens": 1, "topk": 2, "top_indices": [[%d, 7]]}\n'
    )
    path = tmp_path / "router_trace_rank0.jsonl"
    path.write_text(
        line % (0, "decoder", 1) + line % (0, "mtp", 6) + line % (0, "decoder", 2)
        + line % (1, "decoder", 3)
    )  # fmt: skip
    assert read_megatron_trace(path)[0][:, 0].tolist() == [1, 2, 3]
    assert read_megatron_trace(path, step=0)[0][:, 0].tolist() == [1, 2]
    with pytest.raises(ValueError, match="no record of a decoder layer of step 5"):
        read_megatron_trace(path, step=5)
    for damage in (
        '{"step": 0}\n',
        "[]\n",
        "{\n",
        line.replace("[[%d, 7]]", "[[%d]]") % (0, "decoder", 1),
    ):
        path.write_text(line % (0, "decoder", 1) + damage)
        with pytest.raises(ValueError, match="line 2 is no record of a routing trace"):
            read_megatron_trace(path)
