"""Train a small MoE layer whose shift is set for the router as it is after the optimizer's step."""

import torch

import equipoise

torch.manual_seed(0)
WIDTH, STEPS = 32, 30
teacher = torch.nn.Sequential(
    torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH)
)

for look_ahead in (0, 1024):
    torch.manual_seed(1)
    layer = equipoise.MoE(
        WIDTH,
        32,
        num_experts=16,
        top_k=2,
        balancer="curvature",
        look_ahead=look_ahead,
        init_std=0.1,
    )
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-2)
    imbalance = []
    for _ in range(STEPS):
        hidden = torch.randn(1024, WIDTH) + 0.5
        output, routing, tally, penalty, sample = layer(hidden)
        loss = (output - teacher(hidden).detach()).square().mean() + penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        layer.router.balancer.update(tally if sample is None else layer.router.fresh_tally(sample))
        imbalance.append(float(equipoise.metrics(tally.loads)["imbalance"]))
    mean = sum(imbalance) / STEPS
    print(f"look_ahead={look_ahead:<4d} loss {loss:.4f}  mean imbalance: {mean:.3f}")
