"""Balance a model whose MoE layers somebody wrote by hand, without touching them."""

import torch
from torch import nn

import equipoise

WIDTH, EXPERTS, TOP_K = 32, 16, 2


class SomebodysMoE(nn.Module):
    """A linear gate, a softmax, torch.topk: it knows nothing of a balancer."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.ffns = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))

    def forward(self, hidden):
        flat = hidden.view(-1, WIDTH)
        gates, chosen = torch.topk(self.gate(flat).softmax(-1), TOP_K, dim=-1)
        output = flat.clone()
        for number, ffn in enumerate(self.ffns):
            tokens, slot = (chosen == number).nonzero(as_tuple=True)
            output.index_add_(0, tokens, ffn(flat[tokens]) * gates[tokens, slot].unsqueeze(-1))
        return output.view_as(hidden)


torch.manual_seed(0)
model = nn.Sequential(*(SomebodysMoE() for _ in range(3)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
center = torch.randn(WIDTH)  # tokens have something in common, so some experts are liked by all

# found by their code; or named: routers="*.moe", routers=SomebodysMoE
balancing = equipoise.balance(model, "curvature", optimizer=optimizer)
print(balancing)

for step in range(40):
    hidden = torch.randn(8, 64, WIDTH) + center
    (model(hidden) - hidden.roll(1, 1)).square().mean().backward()
    optimizer.step()  # balances too
    optimizer.zero_grad()
    if step % 10 == 0 or step == 39:
        print(f"step {step:2d}  imbalance {balancing.metrics()['imbalance']:.3f}")

# balancing.save(folder) keeps the shifts: these layers have no place for them
balancing.detach()  # the layers as they were
