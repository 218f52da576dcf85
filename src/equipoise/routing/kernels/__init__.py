"""Choice and count as operators, each with several back ends that give the same whole numbers.

operators.py, from_logits.py and moving_quantiles.py define them, backends.py picks the back end;
reference.py is the slow twin in plain torch, which runs everywhere; processor.py runs on the CPU
with the kernels of `selection/`; gpu/ holds Triton kernels.

One rule for ties everywhere: among equal shifted scores the lowest expert comes first.
"""
