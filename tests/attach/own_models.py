"""Layers as people write them: each chooses in its own way, and notes what its experts receive."""

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, EXPERTS, TOP_K = 16, 6, 2


class OwnLayer(nn.Module):
    """A linear gate and a loop over experts; `choose` is what differs."""

    top_k = TOP_K

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.ffns = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))
        self.received = []
        self.gates = None

    def forward(self, hidden):
        gates, experts = self.choose(hidden)
        self.gates = gates.detach()
        return hidden + self.run_experts(hidden, gates, experts)

    def run_experts(self, hidden, gates, experts):
        output = torch.zeros_like(hidden)
        received = []
        for place, ffn in enumerate(self.ffns):
            *token, slot = (experts == place).nonzero(as_tuple=True)
            received.append(len(slot))
            part = ffn(hidden[tuple(token)]) * gates[(*token, slot)].unsqueeze(-1)
            output = output.index_put(tuple(token), part, accumulate=True)
        self.received.append(received)
        return output


class SoftmaxThenTopK(OwnLayer):
    def choose(self, hidden):
        return torch.topk(self.gate(hidden).softmax(-1), self.top_k, dim=-1)


class TopKThenSoftmax(OwnLayer):
    """As mixtral, nanoMoE and makeMoE."""

    def choose(self, hidden):
        logits, experts = self.gate(hidden).topk(k=self.top_k)
        return F.softmax(logits, dim=-1), experts


class SigmoidRenormalized(OwnLayer):
    def choose(self, hidden):
        gates, experts = pick(self.gate(hidden).sigmoid(), self.top_k)
        return gates / gates.sum(-1, keepdim=True), experts


def pick(scores, top_k):
    """A helper function, as many have."""
    chosen = torch.topk(input=scores, k=top_k, dim=scores.dim() - 1, sorted=False)
    return chosen.values, chosen.indices


class OneHot(OwnLayer):
    """argmax, a one-hot dispatch, and gates from the mask; with a softmax by hand before it."""

    top_k = 1

    def choose(self, hidden):
        logits = self.gate(hidden)
        logits = logits - logits.max(dim=-1, keepdim=True).values
        scores = logits.exp() / logits.exp().sum(-1, keepdim=True)
        experts = scores.argmax(dim=-1)
        mask = F.one_hot(experts, EXPERTS).to(scores.dtype)
        return (scores * mask).sum(-1, keepdim=True), experts.unsqueeze(-1)


class Largest(OwnLayer):
    """torch.max, which no reading of code can tell from other uses: it must be named."""

    top_k = 1

    def choose(self, hidden):
        gates, experts = torch.max(self.gate(hidden).softmax(-1), dim=-1, keepdim=True)
        return gates, experts


class InGroups(OwnLayer):
    """As DeepSeek-V3: the best 2 of 3 groups, by the sum of their two best."""

    def choose(self, hidden):
        scores = self.gate(hidden).sigmoid()
        grouped = scores.unflatten(-1, (3, 2))
        kept = grouped.topk(2, dim=-1).values.sum(-1).topk(2, dim=-1).indices
        allowed = torch.zeros(*scores.shape[:-1], 3).scatter(-1, kept, 1.0)
        masked = scores.masked_fill(allowed.repeat_interleave(2, -1) == 0, -torch.inf)
        experts = masked.topk(self.top_k, dim=-1).indices
        return scores.gather(-1, experts), experts


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.w_g = nn.Linear(WIDTH, EXPERTS, bias=False)

    def forward(self, hidden):
        return torch.topk(self.w_g(hidden).softmax(-1), TOP_K)


class WithGate(OwnLayer):
    """The gate chooses, under names of its own."""

    def __init__(self):
        super().__init__()
        self.gate = None
        self.selector = Gate()

    def choose(self, hidden):
        return self.selector(hidden)


class CalledExperts(SoftmaxThenTopK):
    """The list is called `experts`, as in minimind."""

    def __init__(self):
        super().__init__()
        self.experts = self.ffns


class Noisy(OwnLayer):
    """Two linear maps, one for noise, and flat tokens."""

    def __init__(self):
        super().__init__()
        self.noise_gate = nn.Linear(WIDTH, EXPERTS)

    def forward(self, hidden):
        batch, length, width = hidden.shape
        return super().forward(hidden.view(-1, width)).view(batch, length, width)

    def choose(self, hidden):
        logits = self.gate(hidden)
        logits = logits + torch.randn_like(logits) * F.softplus(self.noise_gate(hidden))
        best, experts = logits.topk(self.top_k, dim=-1)
        sparse = torch.full_like(logits, -torch.inf).scatter(-1, experts, best)
        return sparse.softmax(-1).gather(-1, experts), experts


FOUND = [
    SoftmaxThenTopK,
    TopKThenSoftmax,
    SigmoidRenormalized,
    OneHot,
    InGroups,
    WithGate,
    CalledExperts,
    Noisy,
]


class OwnModel(nn.Module):
    def __init__(self, layer, layers=2, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(layer() for _ in range(layers))

    def forward(self, hidden):
        hidden = self.embed(hidden)
        for block in self.blocks:
            hidden = block(hidden)
        return hidden

    def received(self):
        """(layers, E) over all forwards since it was asked last."""
        found = [torch.tensor(block.received).sum(0).tolist() for block in self.blocks]
        for block in self.blocks:
            block.received.clear()
        return found


def hidden_states(seed=0, rows=3, length=40):
    return torch.randn(rows, length, WIDTH, generator=torch.Generator().manual_seed(seed))
