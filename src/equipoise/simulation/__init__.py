"""A training at the size of a cluster, layer by layer: what each balancer's unevenness costs.

settings    what is simulated: a model, a cluster, a stream, balancers
layer       one layer through all steps, under every balancer
costs       from the fullest devices to device hours
shard       some layers in a process of their own, for the engines of `equipoise sweep`
simulate    all of it
"""
