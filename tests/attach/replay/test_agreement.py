"""Two recordings: what differs, by which margin, and where it begins."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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


def test_tokens_that_no_layer_compares_are_left_out():
    padding = [[-1, -1]] * 4
    pair = [recording([*rows, *padding], [*rows, *padding]) for rows in (ROWS, OTHER_ROWS)]
    assert equipoise.agree(*pair).tokens_differ == 3 / 4


def test_layers_of_other_tokens_are_counted_apart():
    pair = [ExpertChoices({"text": A["layers.0"]}), ExpertChoices({"text": B["layers.0"]})]
    for each in pair:
        each.add_rows("pictures", np.array([[0, 1]]))
    found = equipoise.agree(*pair)
    # three of text that both know, and one of a picture
    assert found.tokens_differ == 1 / 4
    assert found.choices_differ == pytest.approx((1 / 2) / 4)


def test_a_trace_of_megatron_by_the_index_of_its_layers(tmp_path):
    rows = {0: A["layers.0"], 1: A["layers.1"]}
    path = write_megatron_trace(tmp_path / "router_trace_rank0.jsonl", rows)
    assert equipoise.agree(A, path).first is None


def measured(rows, margins, levels, gates=None):
    """One layer for each list of rows."""
    choices = ExpertChoices()
    for number, each in enumerate(rows):
        choices.add_rows(
            f"layers.{number}",
            np.array(each),
            np.array(margins[number]),
            levels=np.array(levels[number]),
            gates=None if gates is None else np.array(gates[number]),
        )
    return choices


ROWS = [[0, 1], [2, 3], [4, 5], [6, 7]]
OTHER_ROWS = [[0, 2], [2, 4], [4, 6], [6, 7]]


def test_differences_are_told_apart_by_what_explains_them():
    """An ulp of bf16 at 0.5 is 2^-8; one of the two recordings has no margins."""
    ulp = 2.0**-8
    plain = recording(ROWS, ROWS)
    margins = [[4 * ulp, 4.1 * ulp, 0.0, 0.0], [5 * ulp, 5 * ulp, 5 * ulp, 0.0]]
    near = measured([[[0, 2], [2, 4], [4, 5], [6, 7]], OTHER_ROWS], margins, [[0.5] * 4] * 2)
    found = equipoise.agree(plain, near, precision="bf16")
    first, second = found.layers
    # rounding, follows, other
    assert first.explained == (1, 0, 1)
    assert second.explained == (0, 2, 1)
    assert found.explained == (1, 2, 2)
    assert found.serious
    assert first.largest_margin == pytest.approx(4.1 * ulp)
    assert "2 are left, most in layers.0" in found.verdict()
    assert equipoise.agree(plain, near, precision="bf16", ulps=5).explained == (5, 0, 0)
    assert equipoise.agree(plain, near, precision="fp16", ulps=5).explained == (0, 2, 3)
    # without a precision nothing is claimed
    assert equipoise.agree(plain, near).explained is None
    assert not equipoise.agree(plain, near).serious


def test_the_margins_of_both_add_up():
    """One won by 3 ulps what the other won by 2: a score moved by 5 at least."""
    ulp = 2.0**-8
    pair = [
        measured([rows], [[steps * ulp] * 4], [[0.5] * 4])
        for rows, steps in ((ROWS, 3), (OTHER_ROWS, 2))
    ]
    assert equipoise.agree(*pair, precision="bf16").explained == (0, 0, 3)
    assert equipoise.agree(*pair, precision="bf16", ulps=5).explained == (3, 0, 0)


def test_the_level_of_the_scores_sets_the_ulp():
    margins = [[0.05] * 4]
    for level, explained in ((0.5, (0, 0, 3)), (20.0, (3, 0, 0))):
        pair = [measured([rows], margins, [[level] * 4]) for rows in (ROWS, OTHER_ROWS)]
        assert equipoise.agree(*pair, precision="bf16").explained == explained


def test_what_cannot_be_told_is_refused():
    with pytest.raises(ValueError, match="neither recording has margins"):
        equipoise.agree(A, B, precision="bf16")
    with pytest.raises(ValueError, match="no precision 'fp8'"):
        equipoise.agree(A, B, precision="fp8")
    with pytest.raises(ValueError, match="ulps must be a number above 0"):
        equipoise.agree(A, A, ulps=0)


def gates_by_hand(first, second, ours, theirs):
    """KL and moved of one token, expert by expert."""
    mine, other = dict(zip(first, ours)), dict(zip(second, theirs))
    experts = mine.keys() | other.keys()
    moved = sum(abs(mine.get(each, 0) - other.get(each, 0)) for each in experts) / 2
    if mine.keys() != other.keys():
        return None, moved
    return sum(mine[each] * np.log(mine[each] / other[each]) for each in experts), moved


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), top_k=st.integers(1, 4))
def test_gates_lie_as_far_apart_as_by_hand(seed, top_k):
    rng = np.random.default_rng(seed)
    rows = [np.array([rng.permutation(top_k + 1)[:top_k] for _ in range(12)]) for _ in range(2)]
    gates = [rng.dirichlet(np.ones(top_k), 12).astype(np.float32) for _ in range(2)]
    ones = [np.ones(12)]
    pair = [measured([row], ones, ones, [gate]) for row, gate in zip(rows, gates)]
    found = equipoise.agree(*pair).layers[0].gates
    by_hand = [gates_by_hand(*each) for each in zip(*rows, *(each.tolist() for each in gates))]
    divergences = [kl for kl, _ in by_hand if kl is not None]
    assert found.moved == pytest.approx(np.mean([moved for _, moved in by_hand]), abs=1e-6)
    assert found.kl == pytest.approx(np.mean(divergences or [0.0]), abs=1e-5)
    assert found.largest_kl == pytest.approx(max([0.0, *divergences]), abs=1e-5)
    assert found.kl >= 0


def test_half_the_precision_is_explained_by_it_and_another_model_is_not():
    recordings = []
    for seed, dtype in ((0, torch.float32), (0, torch.bfloat16), (1, torch.float32)):
        model = tiny("mixtral", seed).eval().to(dtype)
        balancing = equipoise.balance(model, "deepseek")
        with torch.no_grad(), balancing.record_experts(margins=True) as choices:
            for each in range(20):
                model(**batch(each))
        recordings.append(choices)
    trainer, engine, other = recordings
    rounded = equipoise.agree(trainer, engine, precision="bf16")
    assert rounded.explained.rounding > 0
    assert not rounded.serious
    assert rounded.layers[0].gates.kl < 1e-4
    assert equipoise.agree(trainer, engine, precision="fp32").serious
    wrong = equipoise.agree(trainer, other, precision="bf16")
    assert wrong.explained.rounding < 0.2 * sum(wrong.explained)
    assert wrong.explained.other > 0.4 * sum(wrong.explained)


def test_the_verb_tells_rounding_apart(tmp_path, capsys):
    ones = [[1.0] * 4]
    first = str(measured([ROWS], [[1e-3] * 4], ones, [[[0.5, 0.5]] * 4]).save(tmp_path / "a.npz"))
    second = str(
        measured([OTHER_ROWS], [[1e-3] * 4], ones, [[[0.5, 0.5]] * 4]).save(tmp_path / "b.npz")
    )
    page = tmp_path / "page.html"
    assert main(["agree", first, second, "--precision", "bf16", "--page", str(page)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "3 lie within 4 ulps of bf16, 0 follow one in a layer before, and nothing is left" in shown
    )
    assert "nothing is left" in page.read_text()
    assert (tmp_path / "figures/layers.csv").read_text().splitlines()[1].endswith(",3,0,0")
    with pytest.raises(SystemExit) as stop:
        main(["agree", first, second, "--precision", "fp32", "--json"])
    assert stop.value.code == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["explained"] == {"rounding": 0, "follows": 0, "other": 3}
    assert answer["layers"][0]["gates"]["moved"] == pytest.approx(3 / 8)
    assert main(["agree", first, second, "--ulps", "3"]) == 2
    assert "name it by --precision" in capsys.readouterr().err
