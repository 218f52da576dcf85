"""Observers: what is written down while a training runs. They see steps and evaluations, and change
nothing.

    base             the moments at which an observer is called
    metrics_file     metrics.jsonl: the figures of every step and evaluation
    trace_recorder   trace/: loads, shifts and scores, which the theorems read
    histograms       histograms/: distributions of scores and shifts at chosen steps
    tensorboard      tensorboard/, where that package is installed
    progress_bar     a bar on the terminal

A new figure of the training log is a key of StepMetrics or EvaluationMetrics (results/run.py) and a
line in metrics_file.py.
"""

from equipoise.results.run import read_metrics
from equipoise.training.observers.base import Observer
from equipoise.training.observers.histograms import Histograms
from equipoise.training.observers.metrics_file import MetricsFile
from equipoise.training.observers.progress_bar import ProgressBar
from equipoise.training.observers.tensorboard import TensorBoard, has_tensorboard
from equipoise.training.observers.trace_recorder import TraceRecorder

__all__ = [
    "Histograms",
    "MetricsFile",
    "Observer",
    "ProgressBar",
    "TensorBoard",
    "TraceRecorder",
    "has_tensorboard",
    "read_metrics",
]
