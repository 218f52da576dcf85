"""record: the scores of a trained model's routers over text, whatever kind of folder it lies in.

    trace = equipoise.record("runs/a", "scores/a")
    trace = equipoise.record("my-model", "scores/b", data="texts/")

A folder of `equipoise train` has a config.yaml, one of a Hugging Face model a config.json.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from equipoise.trace import Trace


def record(
    folder: str | Path,
    out: str | Path,
    *,
    data: str | None = None,
    batches: int = 30,
    batch_size: int | None = None,
    layers: Sequence[str] = (),
    sequence_length: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    on_batch: Callable[[], None] = lambda: None,
) -> Trace:
    """Run a model over text, and keep the scores of every router in a trace. Nothing learns.

    Args:
        folder: of a training, whose newest checkpoint is taken, or of a Hugging Face model.
        out: the folder of the trace; must not hold one.
        data: a text file or folder; by default, for a training, its own texts.
        batches: how many at most; fewer where the text ends.
        batch_size: sequences in each; by default the training's, or 8.
        layers: names of layers to keep, or patterns; all by default.
        sequence_length, device, dtype: of a Hugging Face model only; see record_model.
        on_batch: called after every batch.

    Example:
        >>> trace = equipoise.record("my-model", "scores", batches=40)  # doctest: +SKIP
    """
    folder = Path(folder)
    shared: dict[str, Any] = {"batches": batches, "layers": layers, "on_batch": on_batch}
    if batch_size is not None:
        shared["batch_size"] = batch_size
    of_models: dict[str, Any] = {
        "sequence_length": sequence_length,
        "device": device,
        "dtype": dtype,
    }
    given = {name: value for name, value in of_models.items() if value is not None}
    if (folder / "config.yaml").exists():
        if given:
            raise ValueError(
                f"--{next(iter(given)).replace('_', '-')} is for a Hugging Face model, and "
                f"{folder} is a training"
            )
        from equipoise.training.record_run import record_run

        return record_run(folder, out, data=data, **shared)
    if (folder / "config.json").exists():
        if data is None:
            raise ValueError("a Hugging Face model brings no texts along: name some by --data")
        from equipoise.integrations.huggingface.recording import record_model

        return record_model(folder, out, data=data, **shared, **given)
    raise ValueError(
        f"{folder} is not the folder of a training (there is no config.yaml in it), nor of a "
        "Hugging Face model (no config.json)"
    )
