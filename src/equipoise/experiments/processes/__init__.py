"""Trainings in processes of their own, on this machine or on a Ray cluster.

job          one training, or other work: its folder, its command, why it failed
last_step    the newest line of a training that may be running
attempt      one job brought to its end, with its lock, under a guard
guard        runs a command that must not outlive the process that started it
local, ray   engines: many attempts on this machine, or on a cluster
engines      either of them by its name
jobs         many trainings for a comparison, by the local engine or by all ranks of torchrun
display      progress of all of them on the terminal
"""
