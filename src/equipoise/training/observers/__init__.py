"""Observers: what is written down while a training runs. They see steps and evaluations, and change
nothing.

    base             the moments at which an observer is called
    metrics_file     metrics.jsonl: the figures of every step and evaluation
    trace_recorder   trace/: loads, shifts and scores, which the theorems read
    histograms       histograms/: distributions of scores and shifts at chosen steps
    tensorboard      event files, where that package is installed or --log-to asks for them
    progress_bar     a bar on the terminal
    log_lines        lines every 30 s where no terminal is

A new figure of the training log is a key of StepMetrics or EvaluationMetrics (results/run.py) and a
line in metrics_file.py.
"""

from equipoise.results.run import read_metrics
from equipoise.training.observers.base import Observer
from equipoise.training.observers.histograms import Histograms
from equipoise.training.observers.log_lines import LogLines
from equipoise.training.observers.metrics_file import MetricsFile
from equipoise.training.observers.progress_bar import ProgressBar
from equipoise.training.observers.tensorboard import TensorBoard, tensorboard_folder
from equipoise.training.observers.trace_recorder import TraceRecorder

__all__ = [
    "Histograms",
    "LogLines",
    "MetricsFile",
    "Observer",
    "ProgressBar",
    "TensorBoard",
    "TraceRecorder",
    "read_metrics",
    "tensorboard_folder",
]
