"""TRL's GRPOTrainer on what an engine in bf16 sampled, under replay of the experts it chose.

The trainer is the class that docs/precision.md shows. TRL hands what its `rollout_func` returns
beside log-probabilities to reward functions alone, so two of its methods are overridden: experts
are laid beside the padded batch, which TRL shuffles and splits with it, and the loss is computed
under replay.
"""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import equipoise
from equipoise.attach.replay import ExpertChoices
from tests.attach.families import NEWEST, VERSION
from tests.attach.replay.test_rl_loop import (
    build_in,
    check_gradients,
    gradients_of,
    make_engine,
    make_model,
)
from tests.integrations.tiny_checkpoint import byte_tokenizer

pytestmark = [
    pytest.mark.filterwarnings("ignore:forwards whose experts are replayed"),
    pytest.mark.skipif(VERSION < NEWEST, reason="its gates chose in their blocks before"),
]
PROMPTS, GROUP, NEW, STEPS = 16, 8, 12, 3
PAD, EOS = 0, 2


class Rollouts:
    """An engine in bf16 with the trainer's present weights: one sequence after another."""

    def __init__(self, name):
        self.name = name

    def __call__(self, prompts, trainer):
        engine = make_engine(self.name, trainer.model)
        balancing = equipoise.balance(engine, "deepseek")
        tokenized = [trainer.processing_class(prompt)["input_ids"] for prompt in prompts]
        sampled = [self._sample(engine, balancing, ids) for ids in tokenized]
        completions, logprobs, experts = map(list, zip(*sampled))
        return {
            "prompt_ids": tokenized,
            "completion_ids": completions,
            "logprobs": logprobs,
            "experts": experts,
        }

    def _sample(self, engine, balancing, ids):
        with balancing.record_experts() as recording:
            found = engine.generate(
                torch.tensor([ids]),
                do_sample=True,
                top_k=0,
                max_new_tokens=NEW,
                eos_token_id=EOS,
                pad_token_id=PAD,
                return_dict_in_generate=True,
                output_logits=True,
            )
        completion = found.sequences[0, len(ids) :]
        logs = torch.cat(found.logits).float().log_softmax(-1).gather(1, completion[:, None])
        # the prompt at once, then token by token: all but the last, in their order
        routed = np.stack([recording[layer] for layer in recording.layers], axis=1)
        return completion.tolist(), logs[:, 0].tolist(), routed.astype(np.int16)


def documented_class(balancing):
    """As a reader has it."""
    text = (Path(__file__).parents[3] / "docs" / "precision.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    (block,) = (each for each in blocks if "GRPOTrainer" in each)
    names = {"torch": torch, "balancing": balancing}
    exec(compile(block, "docs/precision.md", "exec"), names)
    return names["ReplayingTrainer"], names["GRPOTrainer"]


def measuring_class(name, balancing):
    """It computes every loss without replay too, and compares both with the engine; and gradients
    with those of a model that has the engine's experts built in.
    """
    from trl.trainer.utils import add_fused_lm_head

    documented, plain = documented_class(balancing)

    class MeasuringTrainer(documented):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.without, self.replayed, self.paddings = [], [], set()

        def _get_per_token_logps_and_entropies(self, *args, **kwargs):
            found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
            self.log_probs = found[0].detach()
            return found

        def _compute_loss(self, model, inputs):
            sides = [inputs[f"{part}_mask"].sum(1).tolist() for part in ("prompt", "completion")]
            self.paddings.update(zip(*sides))
            with torch.no_grad(), balancing.record_experts() as live:
                plain._compute_loss(self, model, inputs)
            self.without.append(self._compare(live, inputs))
            with balancing.record_experts() as taken:
                loss = super()._compute_loss(model, inputs)
            self.replayed.append(self._compare(taken, inputs))
            self.split_off = inputs
            return loss

        def _compare(self, recording, inputs):
            """Experts and log-probabilities against the engine's."""
            rows = inputs["experts"].flatten(0, 1).numpy()
            names = [router.name for router in balancing.routers]
            engine = ExpertChoices({name: rows[:, place] for place, name in enumerate(names)})
            mismatch = equipoise.policy_mismatch(
                self.log_probs, inputs["sampling_per_token_logps"], inputs["completion_mask"]
            )
            return equipoise.agree(recording, engine), mismatch

        def training_step(self, model, inputs, *args, **kwargs):
            before = {key: each.clone() for key, each in gradients_of(model).items()}
            loss = super().training_step(model, inputs, *args, **kwargs)
            self._check_built_in(before)
            return loss

        def _check_built_in(self, before):
            built = build_in(name, self.model, self.split_off["experts"].flatten(0, 1))
            add_fused_lm_head(built, outputs=("log_probs", "entropy"))
            plain._compute_loss(self, built, self.split_off).backward()
            found = gradients_of(self.model)
            check_gradients(
                {key: each - before.get(key, 0) for key, each in found.items()}, gradients_of(built)
            )

    return MeasuringTrainer


def mean_k3(compared):
    return np.mean([mismatch.k3 for _, mismatch in compared])


def distinct_tokens(completion_ids, **_):
    return [float(len(set(ids))) for ids in completion_ids]


@pytest.mark.parametrize(("name", "checkpointing"), [("deepseek_v3", False), ("qwen3_moe", True)])
def test_trls_grpo_trainer_replays(name, checkpointing, tmp_path):
    pytest.importorskip("trl", reason="a slow test fetches TRL")
    from datasets import Dataset
    from trl import GRPOConfig

    model = make_model(name)
    balancing = equipoise.balance(model, "deepseek")
    trainer = measuring_class(name, balancing)(
        model=model,
        reward_funcs=distinct_tokens,
        rollout_func=Rollouts(name),
        processing_class=byte_tokenizer(),
        train_dataset=Dataset.from_dict({"prompt": [str(3**n) for n in range(48)]}),
        args=GRPOConfig(
            str(tmp_path),
            bf16=False,
            use_cpu=True,
            gradient_checkpointing=checkpointing,
            per_device_train_batch_size=PROMPTS * GROUP // 2,
            gradient_accumulation_steps=2,
            num_generations=GROUP,
            max_completion_length=NEW,
            max_steps=STEPS,
            learning_rate=1e-3,
            router_aux_loss_coef=0.0,
            report_to="none",
            save_strategy="no",
        ),
    )
    trainer.train()

    assert len(trainer.without) == len(trainer.replayed) == 2 * STEPS
    # padded on both sides
    assert all(len(set(lengths)) > 1 for lengths in zip(*trainer.paddings))
    assert sum(found.tokens_differ for found, _ in trainer.without) > 0
    assert all(found.first is None for found, _ in trainer.replayed)
    live, replayed = mean_k3(trainer.without), mean_k3(trainer.replayed)
    assert replayed < 0.2 * live
    assert max(mismatch.extreme_share for _, mismatch in trainer.replayed) == 0
