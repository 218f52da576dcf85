"""Balance a router of your own: gradient accumulation, padding, and a look at the loads."""

import torch

import equipoise

NUM_EXPERTS, TOP_K, WIDTH = 32, 4, 64
torch.manual_seed(0)
common = torch.randn(WIDTH)  # what all tokens share: it makes some experts everybody's favourite

gate = torch.nn.Linear(WIDTH, NUM_EXPERTS, bias=False)
experts = torch.nn.Parameter(torch.randn(NUM_EXPERTS, WIDTH) * 0.1)
balancer = equipoise.balancer("quantile", NUM_EXPERTS, top_k=TOP_K)
optimizer = torch.optim.AdamW([*gate.parameters(), experts], lr=1e-3)
sigmoid = equipoise.score_function("sigmoid")

for step in range(31):
    tally = 0
    for _ in range(2):  # two micro-batches make one optimizer step
        hidden = torch.randn(8, 128, WIDTH) + common
        padding = torch.arange(128) >= torch.randint(
            64, 129, (8, 1)
        )  # True where a token is padding
        scores = sigmoid(gate(hidden))
        routing = equipoise.route(
            scores, TOP_K, choose_by=balancer.adjust(scores), mask=padding, renormalize=True
        )
        output = (routing.gates.unsqueeze(-1) * experts[routing.experts]).sum(1)
        loss = (output - hidden.flatten(0, 1)).square().mean()
        loss.backward()
        tally = tally + balancer.tally(scores, routing)
    optimizer.step()
    optimizer.zero_grad()
    balancer.update(equipoise.reduce(tally))  # reduce() sums over ranks, and does nothing with one
    if step % 10 == 0:
        measured = equipoise.metrics(tally.loads)
        idle = equipoise.idle_share(tally.forwards, devices=8)
        print(
            f"step {step:2d}  loss {loss:.3f}  imbalance {measured['imbalance']:.3f}  idle on 8 "
            f"devices {idle:.1%}"
        )
