"""The contest: every rule at every rate on every stream, over several processes.

    results = contest(plan_cells(streams, balancers), out="runs/arena")

A cell's figures appear in the folder when it is done, whole or not at all, under a name that
follows from everything the cell depends on. Called again, what is there is read and the rest is
run.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from equipoise.arena.cells import CELL_FORMAT, Cell, run_cells
from equipoise.arena.reference import StreamReference, reference_for
from equipoise.arena.streams.stream import Stream
from equipoise.balancing import method_spec
from equipoise.results.arena import ARENA_MANIFEST, ArenaManifest, CellResult
from equipoise.storage.atomic import UNFINISHED, write_json

ABANDONED = 3600.0
"""seconds without a change after which an unfinished file belongs to no running process"""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def plan_cells(
    streams: Iterable[Stream],
    balancers: Sequence[str],
    rates: Sequence[float] | None = None,
    *,
    devices: int | None = None,
    tally_every: int = 1,
) -> list[Cell]:
    """All cells; rules without a rate have one. Wrong names, rates and sizes are reported here, before
    anything runs.
    """
    for word, number in (("--devices", devices), ("--tally-every", tally_every)):
        if number is not None and number < 1:
            raise ValueError(f"{word} must be at least 1, not {number}")
    cells = []
    for stream in streams:
        for name in dict.fromkeys(balancers):
            tried = method_spec(name).rates_to_try
            for rate in dict.fromkeys(rates or tried) if tried else (None,):
                cell = Cell(stream, name, rate, devices or default_devices(stream), tally_every)
                cell.make_balancer()
                cells.append(cell)
    if devices and (bad := next((c.stream for c in cells if c.stream.num_experts % devices), None)):
        raise ValueError(
            f"the {bad.num_experts} experts of {bad.name} do not divide over {devices} devices"
        )
    return cells


def contest(
    cells: Sequence[Cell],
    *,
    out: str | Path | None = None,
    workers: int | None = None,
    on_cell: Callable[[int], None] = lambda cells: None,
) -> list[CellResult]:
    """Run what is not in the folder yet; the results in the order of the cells.

    Args:
        out: the folder; None: one that is removed afterwards.
        workers: processes; by default as many as there are processors. 1 runs in this process.
        on_cell: called with the number of cells that were finished.
    """
    with nullcontext(out) if out is not None else tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        _clear_old(place)
        asked: ArenaManifest = {"cells": [_cell_path(place, cell).name for cell in cells]}
        if _read_object(place / ARENA_MANIFEST) != asked:
            write_json(place / ARENA_MANIFEST, asked)
        missing = [cell for cell in cells if _read_object(_cell_path(place, cell)) is None]
        on_cell(len(cells) - len(missing))
        try:
            _run_missing(missing, place, workers or os.cpu_count() or 1, on_cell)
        except KeyboardInterrupt:
            done = sum(_cell_path(place, cell).exists() for cell in cells)
            kept = (
                f"{done} of {len(cells)} cells are in {out}, the same command continues"
                if out
                else "nothing was kept, since there is no --out"
            )
            raise KeyboardInterrupt(f"stopped: {kept}") from None
        return [CellResult(**_require_object(_cell_path(place, cell))) for cell in cells]


def _run_missing(
    missing: list[Cell], place: Path, workers: int, on_cell: Callable[[int], None]
) -> None:
    if workers == 1:
        for stream_cells in _group_by_stream(missing):
            reference = _find_reference(stream_cells[0].stream, place)
            for job in _group_by_balancer(stream_cells):
                on_cell(_run_job(job, reference, place))
        return
    kept = {name: os.environ.get(name) for name in THREADS}
    # read by a new process before it imports anything
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            _hand_out(missing, place, pool, on_cell)
    finally:
        for name, value in kept.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _hand_out(
    missing: list[Cell], place: Path, pool: ProcessPoolExecutor, on_cell: Callable[[int], None]
) -> None:
    """References first, of the largest streams before others; a stream's cells as soon as its
    reference is there.
    """
    order = sorted(_group_by_stream(missing), key=lambda cells: -cells[0].stream.num_experts)
    waiting: dict[Future[Any], list[Cell] | None] = {
        pool.submit(_find_reference, cells[0].stream, place): cells for cells in order
    }
    try:
        while waiting:
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                cells = waiting.pop(future)
                if cells is None:
                    on_cell(future.result())
                else:
                    reference = future.result()
                    waiting |= {
                        pool.submit(_run_job, job, reference, place): None
                        for job in _group_by_balancer(cells)
                    }
    except BaseException:
        _stop_pool(pool)
        raise


def _stop_pool(pool: ProcessPoolExecutor) -> None:
    """At once, not when the running cells are done: files are written whole or not at all, so
    nothing is lost but time.
    """
    workers = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.terminate()


def _clear_old(place: Path) -> None:
    """What a killed process left behind. Younger files may be another arena's, which works in the
    same folder.
    """
    for left in place.glob(f"{UNFINISHED}*"):
        with suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > ABANDONED:
                left.unlink()


def _group_by_stream(cells: Iterable[Cell]) -> list[list[Cell]]:
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.stream.identity, []).append(cell)
    return list(groups.values())


def _group_by_balancer(cells: Iterable[Cell]) -> list[list[Cell]]:
    """What one process runs at a time: a rule at all its rates."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.balancer, []).append(cell)
    return list(groups.values())


def _find_reference(stream: Stream, place: Path) -> StreamReference:
    path = place / f"{_safe_name(stream.name)}-reference-{_stream_digest(stream)}.json"
    if (found := _read_object(path)) is None:
        found = asdict(reference_for(stream))
        write_json(path, found)
    return StreamReference(**found)


def _run_job(cells: list[Cell], reference: StreamReference, place: Path) -> int:
    for cell, result in zip(cells, run_cells(cells, reference), strict=True):
        write_json(_cell_path(place, cell), asdict(result))
    return len(cells)


def _cell_path(place: Path, cell: Cell) -> Path:
    return place / f"{_safe_name(cell.stream.name)}-{cell.key}.json"


def _stream_digest(stream: Stream) -> str:
    return hashlib.sha256(f"{CELL_FORMAT}{stream.identity}".encode()).hexdigest()[:12]


def _safe_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)


def _read_object(path: Path) -> dict[str, Any] | None:
    """None where it is not there, or cannot be read: then it is made again."""
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _require_object(path: Path) -> dict[str, Any]:
    found = _read_object(path)
    if found is None:
        raise OSError(f"{path} was there and is gone: does another program write to this folder?")
    return found


def default_devices(stream: Stream) -> int:
    """Eight if they divide the experts, else the greatest number below that does."""
    return next(number for number in range(8, 0, -1) if stream.num_experts % number == 0)
