"""The real Trainer: steps, accumulates, evaluates, saves, resumes; adapters keep their sidecar."""

import warnings
from typing import ClassVar

import pytest
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

import equipoise
from tests.attach.families import VOCABULARY
from tests.attach.tools import batch, forward, shift_of, tiny

LENGTH = 8


class Text(torch.utils.data.Dataset):
    def __init__(self, rows=48):
        ids = torch.randint(
            3, VOCABULARY, (rows, LENGTH), generator=torch.Generator().manual_seed(0)
        )
        self.rows = [
            {"input_ids": row, "labels": row, "attention_mask": torch.ones(LENGTH).long()}
            for row in ids
        ]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, place):
        return self.rows[place]


def trainer(model, folder, balancing=None, **options):
    settings = {
        "max_steps": 4,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "save_strategy": "no",
        "seed": 1,
    }
    arguments = TrainingArguments(output_dir=str(folder), **{**settings, **options})
    callbacks = [] if balancing is None else [balancing.callback()]
    return Trainer(
        model=model, args=arguments, train_dataset=Text(), eval_dataset=Text(4), callbacks=callbacks
    )


@pytest.mark.parametrize("name", ["deepseek_v3", "mixtral"])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_trainer_steps_once_per_optimizer_step(name, checkpointed, tmp_path):
    model = tiny(name)
    balancing = equipoise.balance(model)
    run = trainer(
        model,
        tmp_path,
        balancing,
        eval_strategy="steps",
        eval_steps=1,
        gradient_checkpointing=checkpointed,
    )
    run.train()
    measured = balancing.metrics(loads=True)
    assert measured["step"] == 4
    rows, accumulation, top_k = 2, 2, 2
    counted = rows * accumulation * LENGTH * top_k
    assert {sum(loads) for loads in measured["loads"].values()} == {counted}
    logged = [entry for entry in run.state.log_history if "loss" in entry]
    assert all(entry["max_violation"] >= entry["imbalance"] >= 0 for entry in logged)
    assert shift_of(balancing).any()


def test_without_us_the_bias_stays_where_it_is(tmp_path):
    model = tiny("deepseek_v3")
    trainer(model, tmp_path).train()
    assert not model.model.layers[1].mlp.gate.e_score_correction_bias.any()


@pytest.mark.parametrize("rule", ["smebu", "quantile"])
@pytest.mark.parametrize("name", ["deepseek_v3", "mixtral", "minimax_m2"])
def test_a_resumed_training_repeats_the_unbroken_one(name, rule, tmp_path):
    """To the last bit: but the model must come from the checkpoint, since Trainer does not restore
    fused experts.
    """
    whole = tiny(name)
    unbroken = equipoise.balance(whole, rule)
    trainer(whole, tmp_path, unbroken, save_strategy="steps", save_steps=2).train()
    folder = tmp_path / "checkpoint-2"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    resumed = equipoise.balance(model, rule)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the experts or gates")
        trainer(model, tmp_path, resumed).train(resume_from_checkpoint=str(folder))
    assert resumed.metrics(loads=True) == unbroken.metrics(loads=True)
    assert torch.equal(shift_of(resumed), shift_of(unbroken))
    assert all(
        torch.equal(value, whole.state_dict()[key]) for key, value in model.state_dict().items()
    )


def test_experts_that_were_not_restored_are_reported(tmp_path):
    """transformers issue 48805; once Trainer restores them, this test says so, and the advice can
    go.
    """
    whole = tiny("deepseek_v3")
    trainer(whole, tmp_path, equipoise.balance(whole), save_strategy="steps", save_steps=2).train()
    model = tiny("deepseek_v3")
    run = trainer(model, tmp_path, equipoise.balance(model))
    with pytest.warns(
        UserWarning,
        match=r"of 1 routers \(model\.layers\.1\.mlp \.\.\.\) are not those of .*checkpoint-2",
    ):
        run.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_resuming_without_the_sidecar_is_refused(tmp_path):
    model = tiny("deepseek_v3")
    trainer(model, tmp_path, save_strategy="steps", save_steps=2, max_steps=2).train()
    balancing = equipoise.balance(model)
    with pytest.raises(FileNotFoundError, match=r"call balancing\.load"):
        trainer(model, tmp_path, balancing).train(resume_from_checkpoint=True)


def test_a_trainer_of_another_model_is_refused(tmp_path):
    balancing = equipoise.balance(tiny("deepseek_v3"))
    with pytest.raises(ValueError, match="trains another model"):
        trainer(tiny("deepseek_v3"), tmp_path, balancing).train()


def test_a_skipped_step_is_dropped(tmp_path):
    balancing = equipoise.balance(tiny("deepseek_v3"))
    forward(balancing.model, batch()).backward()

    class Skipped:
        step_was_skipped = True

    with pytest.warns(UserWarning, match="dropped"):
        balancing.callback().on_optimizer_step(None, None, None, optimizer=Skipped())
    assert balancing.metrics()["step"] == 0


@pytest.mark.parametrize("name", ["deepseek_v3", "afmoe", "minimax_m2", "ernie4_5_moe"])
def test_save_pretrained_keeps_the_bias(name, tmp_path):
    model = tiny(name).to(torch.bfloat16)
    balancing = equipoise.balance(model, "proportional", update_rate=0.0137)
    forward(model, batch()).backward()
    balancing.step()
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    kept = again.state_dict()[balancing.routers[0].found.bias.path].flatten()
    assert torch.equal(kept, shift_of(balancing))


def test_a_state_is_saved_whole(tmp_path):
    balancing = equipoise.balance(tiny("mixtral"), "smebu")
    forward(balancing.model, batch()).backward()
    balancing.step()
    balancing.anneal(7)
    path = balancing.save(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["equipoise.safetensors"]
    other = equipoise.balance(tiny("mixtral"), "smebu").load(path)
    assert torch.equal(shift_of(other), shift_of(balancing))
    assert [router.anneal_left for router in other.routers] == [7, 7]
    assert other.metrics()["step"] == 1


def test_states_of_others_are_refused(tmp_path):
    equipoise.balance(tiny("mixtral"), "smebu").save(tmp_path)
    with pytest.raises(ValueError, match="another balancer"):
        equipoise.balance(tiny("mixtral"), "deepseek").load(tmp_path)
    with pytest.raises(ValueError, match="of another model"):
        equipoise.balance(tiny("deepseek_v3"), "smebu").load(tmp_path)
    with pytest.raises(FileNotFoundError, match="is not there"):
        equipoise.balance(tiny("mixtral")).load(tmp_path / "nowhere")


def test_reporters_are_given_the_metrics(tmp_path):
    """Trainer's own reporters (TensorBoard, W&B) stand before our callback, as this one does."""

    class Reporter(TrainerCallback):
        rows: ClassVar = []

        def on_log(self, args, state, control, logs=None, **kwargs):
            self.rows.append(dict(logs))

    model = tiny("deepseek_v3")
    run = trainer(model, tmp_path, equipoise.balance(model))
    run.callback_handler.callbacks.insert(0, Reporter())
    run.train()
    losses = [row for row in Reporter.rows if "loss" in row]
    assert len(losses) == 4
    assert all(row["max_violation"] >= row["imbalance"] >= 0 for row in losses)


def test_callbacks_given_before_ours_see_the_metrics_and_run_once(tmp_path):
    calls = []

    class Reporter(TrainerCallback):
        def on_init_end(self, *args, **kwargs):
            calls.append("init")

        def on_train_begin(self, *args, **kwargs):
            calls.append("begin")

        def on_log(self, args, state, control, logs=None, **kwargs):
            calls.append("imbalance" in logs)

    model = tiny("deepseek_v3")
    balancing = equipoise.balance(model)
    plain = trainer(model, tmp_path)
    Trainer(
        model=model,
        args=plain.args,
        train_dataset=Text(),
        callbacks=[Reporter(), balancing.callback()],
    ).train()
    # the last row is of the whole training, and has no loss of a step
    assert calls == ["init", "begin", True, True, True, True, False]


@pytest.mark.parametrize("name", ["deepseek_v3", "mixtral"])
def test_the_best_model_comes_with_its_own_shift(name, tmp_path):
    model = tiny(name)
    balancing = equipoise.balance(model, update_rate=0.5)
    best = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    run = trainer(
        model,
        tmp_path,
        balancing,
        load_best_model_at_end=True,
        metric_for_best_model="early",
        greater_is_better=True,
        **best,
    )
    run.compute_metrics = lambda _: {"early": -balancing.steps}
    with warnings.catch_warnings():
        # transformers issue 48805: it does not restore fused experts
        warnings.filterwarnings("ignore", message="the experts or gates")
        run.train()
    assert run.state.best_model_checkpoint.endswith("checkpoint-1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        saved = equipoise.balance(tiny(name)).load(tmp_path / "checkpoint-1")
    assert torch.equal(shift_of(balancing), shift_of(saved))
    assert balancing.steps == 1
