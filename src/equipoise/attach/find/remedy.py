"""What to write in a layer of one's own that cannot be balanced from outside."""

TEN_LINES = """In a layer of your own, write this instead:

    # in __init__
    self.balancer = equipoise.LayerBalancer("curvature", num_experts, top_k)

    # in forward, in place of topk; (..., experts) scores, mask=... where tokens are padding
    scores = self.gate(hidden).softmax(-1)
    routing = self.balancer(scores)
    gates, experts = routing.gates, routing.experts

    # in the loop, after optimizer.step(), once
    equipoise.step(model)
"""
