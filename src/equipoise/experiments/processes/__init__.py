"""Trainings in processes of their own, on this machine or on a Ray cluster.

job          one training: its folder, its config, why it failed
attempt      one training brought to its end, with its lock, under a guard
guard        runs a command that must not outlive the process that started it
local, ray   engines: many attempts on this machine, or on a cluster
jobs         many trainings for a comparison, by the local engine or by all ranks of torchrun
display      progress of all of them on the terminal
"""
