"""Which experts change in a lower precision: counted by hand, by torch in that precision, on the
same scores.
"""

import json
import shutil
from pydoc_data.topics import topics

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise
from equipoise.attach.find.routing_spec import PROBED_SCORES
from equipoise.cli import main
from equipoise.integrations.precision.choices import (
    SCORES_IN_ANY_DTYPE,
    RouterInput,
    compare_choices,
)
from equipoise.integrations.precision.examine_model import examine_model
from equipoise.integrations.precision.summary import count_octaves
from equipoise.results.router_precision import (
    MARGIN_OCTAVES,
    LayerPrecision,
    PrecisionEffect,
    RouterPrecision,
    number_ranges,
)
from equipoise.routing.rounding import PRECISIONS, ulp_at
from tests.attach.tools import batch, tiny
from tests.integrations.tiny_checkpoint import write_checkpoint

ALL = tuple(PRECISIONS.values())
T, D, E, K = 400, 32, 16, 4


def sets_by_hand(ranked):
    """Every token's experts, one comparison after another: of equal ones the lowest index."""
    rows = ranked.tolist()
    return [set(sorted(range(E), key=lambda expert: (-row[expert], expert))[:K]) for row in rows]


def flags_by_hand(ranked, other):
    pairs = zip(sets_by_hand(ranked), sets_by_hand(other))
    return [first != second for first, second in pairs]


@pytest.mark.parametrize("score", ["sigmoid", "softmax", "identity"])
@pytest.mark.parametrize("name", PRECISIONS)
def test_every_part_is_computed_in_the_precision(name, score):
    rng = torch.Generator().manual_seed(0)
    hidden = torch.randn(T, D, generator=rng)
    weight = torch.randn(E, D, generator=rng) / D**0.5
    bias = 0.1 * torch.randn(E, generator=rng).double()
    dtype, function = PRECISIONS[name].dtype, SCORES_IN_ANY_DTYPE[score]

    def logits_in(wanted):
        return hidden.to(wanted) @ weight.to(wanted).T

    found = compare_choices(RouterInput(logits_in, score, bias, K), ALL)
    lowered = logits_in(dtype)
    assert lowered.dtype == dtype
    scores = function(logits_in(torch.float64))
    from_lowered = function(lowered.double())
    exact = scores + bias
    wanted = {
        "logits": from_lowered + bias,
        "bias": scores + bias.to(dtype).double(),
        "both": from_lowered + bias.to(dtype).double(),
        "whole": (function(lowered) + bias.to(dtype)).double(),
    }
    for part, ranked in wanted.items():
        assert found.changed[name, part].tolist() == flags_by_hand(exact, ranked), part
    ordered = exact.sort(1, descending=True).values
    assert np.array_equal(found.margins, (ordered[:, K - 1] - ordered[:, K]).numpy())
    assert np.allclose(found.levels, ordered[:, K - 1 : K + 1].abs().amax(1).numpy())
    if name == "bf16":
        shares = {part: found.changed[name, part].mean() for part in wanted}
        assert max(shares.values()) < 0.1
        assert all(
            share > 0 for part, share in shares.items() if (score, part) != ("sigmoid", "bias")
        )


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.sampled_from([1e-3, 1.0, 300.0]))
def test_rounding_alone_changes_margins_below_one_ulp_only(seed, scale):
    """Rounding keeps the order, so only what becomes a tie can change."""
    scores = scale * torch.randn(256, E, generator=torch.Generator().manual_seed(seed)).double()
    found = compare_choices(RouterInput(scores.to, "identity", None, K), ALL)
    for each in ALL:
        changed = found.changed[each.name, "logits"]
        assert (found.margins[changed] <= ulp_at(found.levels[changed], each)).all()


def test_a_logit_that_overflows_is_a_change():
    scores = torch.tensor([[1e5, 2e5, 0.0], [3.0, 2.0, 1.0]])
    found = compare_choices(RouterInput(scores.to, "identity", None, 1), ALL)
    assert found.changed["fp16", "logits"].tolist() == [True, False]
    assert found.not_finite["fp16"].tolist() == [True, False]
    assert not found.not_finite["bf16"].any()


@pytest.mark.parametrize("name", PROBED_SCORES)
def test_scores_are_those_of_routing(name):
    logits = 5 * torch.randn(64, E)
    assert torch.allclose(SCORES_IN_ANY_DTYPE[name](logits), PROBED_SCORES[name](logits))
    assert SCORES_IN_ANY_DTYPE[name](logits.double()).dtype == torch.float64


def test_octaves():
    margins = np.array([0.0, 2.0**-40, 0.25, 0.49, 0.5, 1e9, np.inf])
    bins = dict(zip(MARGIN_OCTAVES, count_octaves(margins)))
    assert {octave: count for octave, count in bins.items() if count} == {
        MARGIN_OCTAVES[0]: 2,
        -2: 2,
        -1: 1,
        MARGIN_OCTAVES[-1]: 2,
    }


@pytest.mark.parametrize("name", ["deepseek_v3", "qwen3_moe", "gpt_oss", "gemma4"])
def test_what_is_compared_is_what_the_model_itself_chose(name):
    """Its own margins, from its own forward in float32, by the recorder."""
    model, ids = tiny(name).eval(), batch()["input_ids"]
    for key, buffer in model.named_buffers():
        if "correction_bias" in key:
            buffer.normal_(0.0, 0.1)
    found, skipped = examine_model(model, [ids], ALL)
    balancing = equipoise.balance(model, "deepseek")
    with torch.no_grad(), balancing.record_experts(margins=True) as recording:
        model(input_ids=ids, use_cache=False)
    assert not skipped
    assert list(found) == recording.layers
    for layer, router in found.items():
        assert router.source == ("logits" if name == "gemma4" else "product")
        assert router.choices.margins == pytest.approx(recording.margins[layer], abs=1e-5)
        assert router.choices.levels == pytest.approx(recording.levels[layer], abs=1e-5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("precision")
    torch.manual_seed(0)
    write_checkpoint(place / "model", "qwen3_moe")
    (place / "text.txt").write_text("\n".join(topics.values())[:20_000])
    return place


def run_verb(folder, capsys, *words):
    options = ["--text", str(folder / "text.txt"), "--batches", "2", *words]
    code = main(["doctor", str(folder / "model"), *options])
    return code, capsys.readouterr().out


def test_the_verb_on_a_model(folder, capsys, tmp_path):
    with pytest.raises(SystemExit) as stop:
        run_verb(folder, capsys, "--precision", "bf16,fp32", "--allow", "0.001", "--json")
    assert stop.value.code == 1
    found = json.loads(capsys.readouterr().out)
    assert found["serious"]
    first = found["layers"][0]
    assert first["tokens"] == sum(first["margins"]) == 2 * 4 * 128
    bf16, fp32 = first["effects"]
    assert 0.001 < bf16["logits"] <= found["any_layer"]["bf16"] < 0.1
    assert bf16["bias"] is None
    assert sum(bf16["changed_by_margin"]) == round(bf16["logits"] * first["tokens"])
    assert fp32["logits"] == 0
    page = tmp_path / "page.html"
    code, shown = run_verb(
        folder, capsys, "--precision", "bf16", "--allow", "0.5", "--page", str(page)
    )
    assert code == 0
    assert "bf16 will do: at most" in shown
    assert "<- ulp of bf16" in shown
    assert "bf16 will do" in page.read_text()
    assert (
        (tmp_path / "figures/margins.csv").read_text().startswith("layer,margin from,tokens,bf16")
    )


def test_a_shift_that_only_the_sidecar_has_is_its_bias(folder, tmp_path):
    """qwen3_moe has no bias of its own."""
    transformers = pytest.importorskip("transformers")
    shutil.copytree(folder / "model", tmp_path / "model")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model")
    balancing = equipoise.balance(model, "deepseek")
    shift = 0.1 * torch.randn(balancing.routers[0].found.spec.num_experts)
    balancing.routers[0].shift.set(shift)
    balancing.save(tmp_path / "model")
    text, few = folder / "text.txt", {"batches": 1, "batch_size": 1, "precisions": ["bf16"]}
    found = equipoise.router_precision(tmp_path / "model", text, **few)
    without = equipoise.router_precision(folder / "model", text, **few)
    assert without.layers[0].effect_of("bf16").bias is None
    assert found.layers[0].effect_of("bf16").bias is not None
    assert found.layers[0].margin != without.layers[0].margin


def test_a_trace_has_scores_and_a_recording_margins(folder, capsys, tmp_path):
    model, text = str(folder / "model"), str(folder / "text.txt")
    trace = equipoise.record(model, tmp_path / "trace", data=text, batches=1, batch_size=2)
    found = equipoise.router_precision(tmp_path / "trace", precisions=("bf16",))
    scores = torch.as_tensor(np.array(trace.record(0, 0).scores))
    wanted = compare_choices(
        RouterInput(scores.to, "identity", None, trace.top_k), [PRECISIONS["bf16"]]
    )
    effect = found.layers[0].effect_of("bf16")
    assert effect.logits == wanted.changed["bf16", "logits"].mean() > 0
    assert found.layers[0].source == "scores"

    choices = equipoise.attach.replay.ExpertChoices()
    margins, levels = np.array([1e-4, 0.5]), np.array([0.3, 0.3])
    choices.add_rows("layers.3", np.array([[0], [1]]), margins, levels=levels)
    path = choices.save(tmp_path / "trainer.npz")
    found = equipoise.router_precision(path, precisions=("bf16", "fp32"), allowed=0.1)
    assert found.layers[0].effect_of("bf16").below_ulp == 0.5
    assert found.layers[0].effect_of("bf16").logits is None
    assert "may change the experts of up to 50.0% of tokens" in found.verdicts[0]
    assert found.verdicts[1] == "fp32 will do: no token changes its experts."
    with pytest.raises(SystemExit):
        main(["doctor", str(path), "--precision", "bf16", "--page", str(tmp_path / "page.html")])
    assert "below" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--precision", "bf17"], "no precision 'bf17'"),
        (["--precision", "bf16"], "is a model: name a text"),
        (["--text", "x"], "--text goes with --precision"),
        (["--precision", "bf16", "--text", "x", "--trace", "y"], "name one"),
        (["--precision", "bf16", "--text", "x", "--allow", "2"], "a share of tokens from 0 to 1"),
        (["--precision", "bf16", "--text", "x", "--batches", "0"], "at least 1 batch"),
    ],
)
def test_mistakes_are_explained(folder, capsys, words, said):
    assert main(["doctor", str(folder / "model"), *words]) == 2
    assert said in capsys.readouterr().err


def test_margins_that_are_no_numbers_are_not_safe(tmp_path):
    """No comparison with NaN is true, so bf16 seemed to change nothing."""
    choices = equipoise.attach.replay.ExpertChoices()
    rows, margins = np.array([[0], [1]]), np.array([np.nan, 0.5])
    choices.add_rows("layers.3", rows, margins, levels=np.array([0.3, 0.3]))
    choices.save(tmp_path / "recording.npz")
    with pytest.raises(
        ValueError, match=r"layers\.3 has 1 of 2 tokens whose margin or level is NaN"
    ):
        equipoise.router_precision(tmp_path / "recording.npz", precisions=["bf16"])


def effect(precision, **shares):
    named = dict.fromkeys(("logits", "bias", "both", "whole", "below_ulp", "not_finite"), 0.0)
    return PrecisionEffect(
        precision, ulp=1e-3, changed_by_margin=(), whole_by_margin=(), **(named | shares)
    )


def answer(*shares, **more):
    """A layer for each share of tokens that bf16 logits change."""
    layers = tuple(
        LayerPrecision(
            f"model.layers.{number}.mlp", 100, 8, 2, "product", 0.1, (),
            (effect("bf16", logits=share, both=share, **more),),
        )
        for number, share in enumerate(shares)
    )  # fmt: skip
    return RouterPrecision("m", 0.01, ("bf16",), layers, {"bf16": max(shares)}, {})


def test_verdicts_name_the_layers_to_keep():
    found = answer(0.0, 0.001, 0.0, 0.02, 0.053, 0.03, 0.0, 0.012)
    assert found.serious
    assert found.verdicts == [
        "bf16: keep the router's logits of layers 3-5, 7 in fp32: bf16 changes the experts of up "
        "to 5.3% of tokens (in model.layers.4.mlp)."
    ]
    assert not answer(0.001, 0.01).serious
    every = answer(0.02, 0.02, bias=0.03)
    assert "logits of every layer in fp32" in every.verdicts[0]
    assert "keep the bias of every layer in fp32" in every.verdicts[0]
    whole = answer(0.002, 0.001, whole=0.09)
    assert not whole.serious
    assert whole.verdicts == [
        "bf16 will do: at most 0.20% of tokens in a layer change their experts; keep the score "
        "function and the sum in fp32: in bf16 too, it is up to 9.0%."
    ]


def test_numbers_are_joined():
    assert number_ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
