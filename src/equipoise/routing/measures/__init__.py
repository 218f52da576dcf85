"""Where unevenness costs: the fullest device of a forward, a flooded sequence, a dropped token.

    devices      loads of devices, and the time they wait for each other
    sequences    loads within each sequence, each rank's tokens or any other part of a batch
    capacity     choices that a capacity would drop, and which
    churn        tokens that an update sends elsewhere

`equipoise.routing.metrics` and `load_metrics` measure loads of any of these.
"""
