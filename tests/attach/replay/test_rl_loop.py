"""A loop like GRPO: an engine samples in bf16, a trainer computes gradients in float32.

Hand-written, since TRL is not among what these tests are run with. Prompts in groups, rewards
compared within a group, a clipped ratio to the engine's own log-probabilities, several steps whose
weights go back to the engine. The engine gives what engines give: int16 experts of every token but
the last, sequence by sequence; the trainer pads to the left.
"""

import numpy as np
import pytest
import torch
from torch import nn

import equipoise
from equipoise.attach.replay import (
    ExpertChoices,
    place_in_batch,
    sequence_experts,
)
from tests.attach.families import NEWEST, VERSION, VOCABULARY
from tests.attach.tools import tiny

pytestmark = [
    pytest.mark.filterwarnings("ignore:forwards whose experts are replayed"),
    pytest.mark.skipif(VERSION < NEWEST, reason="its gates chose in their blocks before"),
]
PROMPTS, GROUP, NEW, STEPS = 6, 8, 10, 3
LENGTHS = (3, 5)
MODELS = ["deepseek_v3", "qwen3_moe"]  # with a bias of its own, and without


def make_model(name):
    """Experts that say something: as they are initialised, which one is taken hardly matters."""
    model = tiny(name)
    with torch.no_grad():
        for key, each in model.named_parameters():
            if ".experts." in key or "lm_head" in key:
                each.mul_(8)
    for key, buffer in model.named_buffers():
        if "correction_bias" in key:
            buffer.copy_(
                0.1 * torch.randn(buffer.shape, generator=torch.Generator().manual_seed(1))
            )
    return model


def make_engine(name, trainer):
    """The same weights, rounded; a bias stays in float32, as engines keep it."""
    engine = make_model(name)
    engine.load_state_dict(trainer.state_dict())
    return engine.to(torch.bfloat16).eval()


class Rollout:
    """Sequences of one length, with what an engine returns of each token."""

    def __init__(self, engine, prompts, rng):
        balancing = equipoise.balance(engine, "deepseek")
        ids, sampled = prompts, []
        with torch.no_grad():
            for _ in range(NEW):
                with balancing.record_experts() as recording:
                    logs = engine(input_ids=ids, use_cache=False).logits[:, -1].float()
                logs = logs.log_softmax(-1)
                token = torch.multinomial(logs.exp(), 1, generator=rng)
                sampled.append(logs.gather(1, token))
                ids = torch.cat([ids, token], 1)
        balancing.detach()
        self.ids, self.log_probs = ids, torch.cat(sampled, 1)
        # of all tokens but the last, which was never an input
        rows = np.stack([recording[layer] for layer in recording.layers], axis=1)
        self.routed = rows.reshape(len(ids), ids.shape[1] - 1, *rows.shape[1:]).astype(np.int16)

    def experts_of(self, row):
        return sequence_experts(self.routed[row], self.ids.shape[1])


class Batch:
    """Rollouts of several lengths, padded to the left."""

    def __init__(self, rollouts):
        length = max(each.ids.shape[1] for each in rollouts)
        pads = [length - each.ids.shape[1] for each in rollouts for _ in each.ids]
        self.ids = torch.cat(
            [nn.functional.pad(each.ids, (length - each.ids.shape[1], 0)) for each in rollouts]
        )
        self.mask = torch.stack([(torch.arange(length) >= pad).long() for pad in pads])
        self.engine_logs = torch.cat([each.log_probs for each in rollouts])
        sequences = [each.experts_of(row) for each in rollouts for row in range(len(each.ids))]
        self.experts = place_in_batch(sequences, self.mask)
        rewards = torch.tensor([[float(len(set(row[-NEW:]))) for row in self.ids.tolist()]])
        groups = rewards.view(-1, GROUP)
        spread = groups.std(1, keepdim=True) + 1e-4
        self.advantages = ((groups - groups.mean(1, keepdim=True)) / spread).view(-1, 1)

    def log_probs(self, model):
        """(B, NEW) of the sampled tokens."""
        positions = (self.mask.cumsum(1) - 1).clamp_min(0)
        logits = model(
            input_ids=self.ids, attention_mask=self.mask, position_ids=positions, use_cache=False
        ).logits
        logs = logits[:, -NEW - 1 : -1].float().log_softmax(-1)
        return logs.gather(2, self.ids[:, -NEW:, None]).squeeze(2)

    def loss(self, log_probs):
        ratio = (log_probs - self.engine_logs).exp()
        clipped = ratio.clamp(0.8, 1.2)
        return -torch.minimum(ratio * self.advantages, clipped * self.advantages).mean()

    def as_recording(self, names):
        """What the engine chose, token by token of the padded batch."""
        rows = self.experts.reshape(-1, *self.experts.shape[2:])
        return ExpertChoices({name: rows[:, place] for place, name in enumerate(names)})


class BuiltIn(nn.Module):
    """A gate that was built with its experts: they are constants, and gates follow by the family's
    formula from the scores of all experts.
    """

    def __init__(self, name, gate, experts):
        super().__init__()
        self.name, self.gate, self.experts = name, gate, experts

    def forward(self, hidden):
        logits, _, own = self.gate(hidden)
        chosen = torch.where(self.experts < 0, own, self.experts)
        scores = logits.softmax(-1) if self.name == "qwen3_moe" else logits.sigmoid()
        gates = scores.gather(1, chosen)
        if self.gate.norm_topk_prob:
            gates = gates / (gates.sum(-1, keepdim=True) + 1e-20 * (self.name == "deepseek_v3"))
        return logits, gates * getattr(self.gate, "routed_scaling_factor", 1.0), chosen


def build_in(name, trainer, rows):
    """A copy without anything of ours, whose gates have experts of (tokens, layers, K) built in."""
    model = make_model(name)
    model.load_state_dict(trainer.state_dict())
    blocks = [
        each for each in model.modules() if hasattr(each, "gate") and hasattr(each, "experts")
    ]
    assert len(blocks) == rows.shape[1]
    for place, block in enumerate(blocks):
        block.gate = BuiltIn(name, block.gate, rows[:, place].long())
    return model


def gradients_of(model):
    """By the names that parameters have when nothing is built in."""
    return {
        key.replace("gate.gate", "gate"): each.grad
        for key, each in model.named_parameters()
        if each.grad is not None
    }


def check_gradients(found, wanted):
    assert found.keys() == wanted.keys()
    for key, gradient in found.items():
        assert gradient.isfinite().all(), key
        off = (gradient - wanted[key]).abs().max()
        assert off <= 1e-5 * wanted[key].abs().max(), key


def draw_batch(engine, rng):
    prompts = [
        torch.randint(3, VOCABULARY, (PROMPTS, length), generator=rng).repeat_interleave(GROUP, 0)
        for length in LENGTHS
    ]
    return Batch([Rollout(engine, each, rng) for each in prompts])


@pytest.mark.parametrize("name", MODELS)
def test_replay_takes_the_mismatch_away(name):
    trainer, rng = make_model(name), torch.Generator().manual_seed(0)
    balancing = equipoise.balance(trainer, "deepseek")
    optimizer = torch.optim.AdamW(trainer.parameters(), lr=1e-3)
    names = [router.name for router in balancing.routers]
    without, live, replayed = [], [], []
    for _ in range(STEPS):
        batch = draw_batch(make_engine(name, trainer), rng)
        engine = batch.as_recording(names)
        with torch.no_grad(), balancing.record_experts(margins=True) as choices:
            live.append(equipoise.policy_mismatch(batch.log_probs(trainer), batch.engine_logs))
        without.append(equipoise.agree(choices, engine, precision="bf16"))

        with balancing.replay(batch.experts) as report, balancing.record_experts() as taken:
            log_probs = batch.log_probs(trainer)
        replayed.append(equipoise.policy_mismatch(log_probs, batch.engine_logs))
        assert equipoise.agree(taken, engine).first is None
        # the last token of each sequence alone
        assert report.live_share == pytest.approx(len(batch.ids) / int(batch.mask.sum()))

        batch.loss(log_probs).backward()
        rows = torch.from_numpy(batch.experts).flatten(0, 1)
        built = build_in(name, trainer, rows)
        batch.loss(batch.log_probs(built)).backward()
        check_gradients(gradients_of(trainer), gradients_of(built))
        optimizer.step()
        optimizer.zero_grad()
        balancing.step()
    assert sum(each.tokens_differ for each in without) > 0
    assert np.mean([each.k3 for each in replayed]) < 0.2 * np.mean([each.k3 for each in live])
    assert max(each.extreme_share for each in live) > 0
    assert max(each.extreme_share for each in replayed) == 0
