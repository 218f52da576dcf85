"""A search: every training of a grid.

grid       the search as a YAML file, and its trials
grids/     the built-in ones
sweep      run the trials, share them with other sweeps, refuse other grids
ranking    the best setting of each scheme
table      the result on the terminal
"""
