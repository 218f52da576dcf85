"""Tiny models and batches, and a witness that counts without hooks of ours."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.attach.families import NEWEST, VERSION, VOCABULARY, WITH_BIAS, WITHOUT_BIAS, present

ROWS, LENGTH = 3, 12
BY_NAME = {family.name: family for family in present(WITH_BIAS + WITHOUT_BIAS)}


def tiny(name, seed=0):
    if name not in BY_NAME and VERSION < NEWEST:
        pytest.skip(f"this older transformers has no {name}, or none that can be balanced")
    return BY_NAME[name].model(seed).train()


def batch(seed=0, padded=False):
    rng = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (ROWS, LENGTH), generator=rng)
    mask = torch.ones_like(ids)
    if padded:
        mask[0, 7:] = 0
        mask[1, 10:] = 0
    return {"input_ids": ids, "attention_mask": mask, "use_cache": False}


def forward(model, inputs):
    """A loss of any model: its output's first tensor, squared."""
    output = model(**inputs)
    value = output.logits if hasattr(output, "logits") else output.last_hidden_state
    return value.float().square().mean()


def shift_of(balancing, place=0):
    return balancing.routers[place].applied_shift.clone()


def choice(block, hidden):
    """(indices, weights) of a sigmoid router: the gate's own since 5.13, the block's before."""
    output = block.gate(hidden)
    return (
        block.route_tokens_to_experts(output) if torch.is_tensor(output) else (output[2], output[1])
    )


def witnessed_loads(model, block_name, num_experts, inputs):
    """Count by hand: a copy of the model, one plain forward, and the indices its experts are called
    with.
    """
    model = copy.deepcopy(model)
    block = model.get_submodule(block_name)
    chosen = []
    if "Llama4" in type(model).__name__:  # its experts do not get the indices
        block.router.register_forward_hook(
            lambda _, args, output: chosen.append((output[0] > 0).nonzero()[:, 1])
        )
        tokens = 2
    else:
        block.experts.register_forward_pre_hook(lambda _, args: chosen.append(args[1].flatten()))
        tokens = None
    with torch.no_grad():
        model(**inputs)
    choices = chosen[0].view(ROWS * LENGTH, -1) if tokens is None else chosen[0].view(-1, tokens)
    kept = choices[inputs["attention_mask"].flatten().bool()]
    return torch.bincount(kept.flatten(), minlength=num_experts)
