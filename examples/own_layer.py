"""A MoE layer of one's own that owns its balancer: three lines in the layer, one in the loop."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import equipoise

WIDTH, EXPERTS, TOP_K = 32, 16, 2


class OwnMoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))
        self.balancer = equipoise.LayerBalancer("curvature", EXPERTS, TOP_K)

    def forward(self, hidden, padding=None):
        scores = self.gate(hidden).softmax(-1)
        routing = self.balancer(scores, mask=padding)  # in place of torch.topk
        output = hidden.clone()
        for number, expert in enumerate(self.experts):
            *tokens, slot = (routing.experts == number).nonzero(as_tuple=True)
            part = expert(hidden[tuple(tokens)]) * routing.gates[(*tokens, slot)].unsqueeze(-1)
            output = output.index_put(tuple(tokens), part, accumulate=True)
        return output  # a balancer with a penalty: add routing.penalty to the loss


torch.manual_seed(0)
layers = nn.ModuleList(OwnMoE() for _ in range(4))
optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-3)
center = torch.randn(WIDTH)  # tokens have something in common, so some experts are liked by all

for step in range(40):
    for _ in range(2):  # two micro-batches make one optimizer step
        hidden = torch.randn(4, 64, WIDTH) + center
        target = hidden.roll(1, 1)
        for layer in layers:  # what checkpointing runs twice counts once
            hidden = checkpoint(layer, hidden, use_reentrant=False)
        (hidden - target).square().mean().backward()
    optimizer.step()
    stepped = equipoise.step(layers)  # every balancer in the model, after the optimizer, once
    optimizer.zero_grad()
    if step % 10 == 0 or step == 39:
        measured = stepped.metrics()
        print(
            f"step {step:2d}  imbalance {measured['imbalance']:.3f}  worst layer "
            f"{measured['worst_layer']}"
        )
