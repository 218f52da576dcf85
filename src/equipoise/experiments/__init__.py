"""Many trainings: a comparison of schemes, a search, and what one training would cost.

schemes      the ways of balancing that are compared
compare      the same training under every scheme, into one folder
measure      a finished run beside the exact optimum
plan         what a training would cost
sweep/       every training of a grid, and the best setting of each scheme
processes/   trainings in processes of their own, here or on a Ray cluster
table        a comparison on the terminal
"""
