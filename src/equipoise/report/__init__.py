"""From a results folder to one page that needs nothing else."""

from equipoise.report.page import report

__all__ = ["report"]
