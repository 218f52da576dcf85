"""Padding and packing are counted exactly, whatever a batch is made by: transformers' collators,
TRL's, and masks of every shape.
"""

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask
from transformers import DataCollatorForLanguageModeling, DataCollatorWithFlattening

import equipoise
from equipoise.attach.count.padding import padding_of_mask, padding_of_positions
from tests.attach.tools import batch, forward, tiny

KINDS = ["deepseek_v3", "mixtral"]
DOCUMENTS = [[5, 6, 7, 8, 9, 10, 11], [12, 13, 14], [15], [16, 17]]
TOKENS = sum(map(len, DOCUMENTS))


class Padder:
    """What a collator asks of a tokenizer."""

    pad_token_id, mask_token, padding_side, pad_token = 0, None, "right", "[PAD]"
    model_input_names = ("input_ids", "attention_mask")

    def pad(self, features, return_tensors=None, pad_to_multiple_of=None, **_):
        length = max(len(each["input_ids"]) for each in features)
        length += -length % (pad_to_multiple_of or 1)
        rows = [each["input_ids"] + [0] * (length - len(each["input_ids"])) for each in features]
        mask = [[1] * len(each["input_ids"]) for each in features]
        mask = [row + [0] * (length - len(row)) for row in mask]
        return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(mask)}


def features():
    return [{"input_ids": list(document)} for document in DOCUMENTS]


def counted(name, inputs, balancer="deepseek"):
    """How many tokens every layer counted of one batch."""
    model = tiny(name)
    balancing = equipoise.balance(model, balancer)
    forward(model, {**inputs, "use_cache": False}).backward()
    balancing.step()
    (choices,) = {sum(loads) for loads in balancing.metrics(loads=True)["loads"].values()}
    return choices / 2


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("balancer", ["deepseek", "curvature"])
def test_a_flattened_batch_has_no_padding(name, balancer):
    """Also where it ends with a document of one token, whose position is 0."""
    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    for documents in (features(), features()[:3]):
        inputs = collate(documents)
        assert inputs["input_ids"].shape == (1, sum(len(each["input_ids"]) for each in documents))
        assert "cu_seq_lens_q" in inputs
        assert counted(name, inputs, balancer) == inputs["input_ids"].numel()


@pytest.mark.parametrize("name", KINDS)
def test_a_padded_batch_counts_its_tokens(name):
    inputs = DataCollatorForLanguageModeling(Padder(), mlm=False, pad_to_multiple_of=4)(features())
    assert inputs["input_ids"].shape == (4, 8)
    assert counted(name, inputs) == TOKENS


def test_packed_rows_are_as_the_documents_in_them():
    """The loads of a flattened batch are those of its documents one by one."""
    model = tiny("deepseek_v3")
    model.model.layers[0].self_attn.o_proj.weight.data.zero_()
    model.model.layers[1].self_attn.o_proj.weight.data.zero_()
    balancing = equipoise.balance(model)
    forward(model, {**DataCollatorWithFlattening()(features()), "use_cache": False}).backward()
    balancing.step()
    flattened = balancing.metrics(loads=True)["loads"]
    balancing.detach()
    model.model.layers[1].mlp.gate.e_score_correction_bias.zero_()
    balancing = equipoise.balance(model)
    for document in DOCUMENTS:
        forward(model, {"input_ids": torch.tensor([document]), "use_cache": False}).backward()
    balancing.step()
    assert balancing.metrics(loads=True)["loads"] == flattened


def four_dimensional(mask, kind):
    """As trainers make them of a mask (B, S) that may number documents: 1, 1, 2, 2, 0."""
    rows = mask[:, :, None]
    pairs = (rows == mask[:, None, :]) & (rows != 0)
    pairs = pairs.tril()[:, None]
    if kind == "bool":
        return pairs
    if kind == "int":
        return pairs.long()
    return torch.zeros(pairs.shape).masked_fill(~pairs, torch.finfo(torch.float32).min)


PACKED = torch.tensor([[1, 1, 2, 2, 2, 0], [1, 2, 3, 0, 0, 0], [0, 0, 1, 1, 1, 1]])


@pytest.mark.parametrize("kind", ["bool", "int", "float"])
def test_masks_of_pairs_say_who_is_padding(kind):
    mask = four_dimensional(PACKED, kind)
    expected = (PACKED == 0).flatten()
    assert torch.equal(padding_of_mask(PACKED), expected)
    assert torch.equal(padding_of_mask(mask), expected)
    assert torch.equal(padding_of_mask(mask.expand(-1, 3, -1, -1)), expected)
    assert torch.equal(padding_of_mask(mask.squeeze(1)), expected)
    assert torch.equal(padding_of_mask({"none": None, "full_attention": mask}), expected)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_model_called_with_such_a_mask_counts_right(name, kind):
    inputs = batch(padded=True)
    kept = int(inputs["attention_mask"].sum())
    inputs["attention_mask"] = four_dimensional(inputs["attention_mask"], kind)
    assert counted(name, inputs) == kept < inputs["input_ids"].numel()


def test_a_block_mask_is_asked():
    def may_look(row, head, query, key):
        return (PACKED[row, query] == PACKED[row, key]) & (PACKED[row, query] != 0)

    mask = create_block_mask(may_look, B=3, H=None, Q_LEN=6, KV_LEN=6, device="cpu")
    assert torch.equal(padding_of_mask(mask), (PACKED == 0).flatten())


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (torch.ones(6), r"a tensor of shape \(6,\)"),
        (torch.ones(3, 1, 6, 9), r"a tensor of shape \(3, 1, 6, 9\)"),
        ("causal", "a str"),
    ],
)
def test_masks_that_cannot_be_read_are_refused(mask, said):
    with pytest.raises(ValueError, match=f"attention_mask is {said}: which tokens"):
        padding_of_mask(mask)


def test_a_training_with_such_a_mask_stops_and_an_evaluation_does_not():
    model, inputs = tiny("deepseek_v3"), batch()
    equipoise.balance(model)
    inputs["attention_mask"] = torch.ones(3, 1, 12, 20, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"attention_mask is a tensor of shape \(3, 1, 12, 20\)"):
        model(**inputs)
    with torch.no_grad(), pytest.raises(Exception, match=r"expanded size|must match"):
        model(**inputs)


def test_the_filled_end_of_a_flattened_row_is_padding():
    """TRL's padding_free with pad_to_multiple_of: pad tokens at position 0, and no mask."""
    tokens = torch.tensor([[5, 6, 7, 0, 8, 0, 0, 0], [5, 0, 0, 6, 7, 8, 9, 9]])
    positions = torch.tensor([[0, 1, 2, 0, 1, 0, 0, 0], [0, 0, 0, 0, 1, 2, 0, 0]])
    padding = padding_of_positions(positions, tokens, 0).view(2, 8)
    assert padding.nonzero().tolist() == [[0, 5], [0, 6], [0, 7]]
    assert padding_of_positions(positions, tokens, None) is None
    assert padding_of_positions(positions[None], tokens, 0) is None
    inputs = {"input_ids": tokens[:1], "position_ids": positions[:1]}
    assert counted("deepseek_v3", inputs) == 5


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("padding_free", [False, True])
def test_trls_collator_and_packing(name, padding_free):
    pytest.importorskip("trl", reason="a slow test fetches TRL")
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling as Collator

    for multiple in (None, 8):
        collate = Collator(0, padding_free=padding_free, pad_to_multiple_of=multiple)
        assert counted(name, collate(features())) == TOKENS


@pytest.mark.parametrize("strategy", ["bfd", "wrapped"])
def test_trls_packed_dataset(strategy):
    pytest.importorskip("trl", reason="a slow test fetches TRL")
    from datasets import Dataset
    from trl import pack_dataset
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling as Collator

    packed = pack_dataset(Dataset.from_dict({"input_ids": DOCUMENTS}), 8, strategy)
    collate = Collator(0, padding_free=strategy == "bfd", pad_to_multiple_of=8)
    assert counted("deepseek_v3", collate(list(packed))) == TOKENS
