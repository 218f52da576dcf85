"""Trainings in processes of their own, on this machine or on a Ray cluster."""
