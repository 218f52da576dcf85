"""Two recordings: what differs, by which margin, and where it begins."""

import json

import numpy as np
import pytest
import torch

import equipoise
from equipoise.attach.replay import ExpertChoices, write_megatron_trace
from equipoise.cli import main
from tests.attach.tools import batch, tiny


def recording(first, second, margins=None):
    choices = ExpertChoices()
    choices.add_rows("layers.0", np.array(first), margins)
    choices.add_rows("layers.1", np.array(second), margins)
    return choices


A = recording([[0, 1], [2, 3], [4, 5], [6, 7]], [[0, 1], [2, 3], [4, 5], [6, 7]])
B = recording([[1, 0], [2, 4], [4, 5], [-1, -1]], [[0, 1], [2, 4], [0, 1], [6, 7]])


def test_shares_are_of_choices_and_of_tokens():
    found = equipoise.agree(A, B)
    first, second = found.layers
    # the order in a token is left aside, and a token that was routed live is not compared
    assert (first.tokens, second.tokens) == (3, 4)
    assert first.choices_differ == pytest.approx(1 / 6)
    assert first.tokens_differ == first.first_differ == pytest.approx(1 / 3)
    assert (second.choices_differ, second.tokens_differ) == (3 / 8, 2 / 4)
    # token 1 differed before
    assert second.first_differ == 1 / 4
    assert found.choices_differ == pytest.approx(4 / 14)
    assert found.tokens_differ == 2 / 4
    assert found.first == ("layers.0", 1, [2, 3], [2, 4])


def test_a_recording_agrees_with_itself():
    found = equipoise.agree(A, A)
    assert found.first is None
    assert found.tokens_differ == found.choices_differ == 0


def test_differences_are_sorted_by_the_lower_margin():
    low, high = (np.array(values, np.float32) for values in ([1, 5e-5, 1, 1], [1, 1, 5e-3, 1]))
    rows = [[0, 1], [2, 3], [4, 5], [6, 7]]
    other = [[0, 1], [2, 4], [4, 6], [6, 7]]
    found = equipoise.agree(recording(rows, rows, low), recording(other, rows, high))
    bins = {each.high: (each.tokens, each.differ) for each in found.layers[0].margins}
    assert bins == {
        1e-5: (0, 0),
        1e-4: (1, 1),
        1e-3: (0, 0),
        1e-2: (1, 1),
        0.1: (0, 0),
        np.inf: (2, 0),
    }
    assert sum(each.differ for each in found.layers[1].margins) == 0


def test_other_tokens_or_layers_are_refused():
    shorter = recording([[0, 1]], [[0, 1]])
    with pytest.raises(ValueError, match=r"layers\.0: 4 tokens of 2 experts, and 1 of 2"):
        equipoise.agree(A, shorter)
    with pytest.raises(ValueError, match=r"different layers: layers\.0, layers\.1, and layers\.0"):
        equipoise.agree(A, ExpertChoices({"layers.0": A["layers.0"]}))


def test_half_the_precision_differs_by_small_margins_only():
    model = tiny("qwen3_moe").eval()
    recordings = []
    for dtype in (torch.float32, torch.bfloat16):
        balancing = equipoise.balance(model.to(dtype), "deepseek")
        with torch.no_grad(), balancing.record_experts(margins=True) as choices:
            for seed in range(20):
                model(**batch(seed))
        balancing.detach()
        recordings.append(choices)
    found = equipoise.agree(*recordings)
    assert 0 < found.tokens_differ < 0.5
    for layer in found.layers:
        assert sum(each.differ for each in layer.margins if each.low >= 1e-2) == 0
        assert sum(each.tokens for each in layer.margins if each.low >= 1e-2) > 0


def test_the_verb(tmp_path, capsys):
    first, second = str(A.save(tmp_path / "a.npz")), str(B.save(tmp_path / "b.npz"))
    assert main(["agree", first, second]) == 0
    shown = capsys.readouterr().out
    assert "33.333%" in shown
    assert "The first difference is in layers.0, token 1: [2, 3] and [2, 4]" in " ".join(
        shown.split()
    )
    assert main(["agree", first, second, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["first"]["token"] == 1
    assert answer["layers"][1]["tokens_differ"] == 0.5
    assert main(["agree", first, first]) == 0
    assert "They agree" in capsys.readouterr().out
    assert main(["agree", first, str(tmp_path / "no.npz")]) == 2


def test_layers_of_other_tokens_are_counted_apart():
    pair = [ExpertChoices({"text": A["layers.0"]}), ExpertChoices({"text": B["layers.0"]})]
    for each in pair:
        each.add_rows("pictures", np.array([[0, 1]]))
    found = equipoise.agree(*pair)
    assert found.tokens_differ == 1 / 5
    assert found.choices_differ == pytest.approx((1 / 2) / 4)


def test_a_trace_of_megatron_by_the_index_of_its_layers(tmp_path):
    rows = {0: A["layers.0"], 1: A["layers.1"]}
    path = write_megatron_trace(tmp_path / "router_trace_rank0.jsonl", rows)
    assert equipoise.agree(A, path).first is None
