"""The contest: every rule at every rate on every stream, over several processes.

    results = contest(plan_cells(streams, balancers), out="runs/arena")

Called again with the same folder, what is there is read and the rest is run (folder.py).
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from equipoise.arena.cells import Cell, run_cells
from equipoise.arena.folder import ArenaFolder
from equipoise.arena.reference import StreamReference
from equipoise.arena.streams.stream import Stream
from equipoise.arena.workers import JobNotes, end_with_parent, leave_on_signals, note_job
from equipoise.balancing import method_spec
from equipoise.results.arena import CellResult, DivergedCell
from equipoise.routing.measures.devices import default_devices
from equipoise.storage.output_path import output_path
from equipoise.storage.renamed import old_names

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
CellsDone = Callable[[int], None]
"""called with the number of cells that were finished just now"""

__getattr__ = old_names(__name__, {"plan": "plan_cells"})


def plan_cells(
    streams: Iterable[Stream],
    balancers: Sequence[str],
    rates: Sequence[float] | None = None,
    *,
    devices: int | None = None,
    tally_every: int = 1,
) -> list[Cell]:
    """All cells; a rule without a rate has one. Wrong names, rates and sizes are reported here,
    before anything runs.
    """
    for word, number in (("--devices", devices), ("--tally-every", tally_every)):
        if number is not None and number < 1:
            raise ValueError(f"{word} must be at least 1, not {number}")
    cells = []
    for stream in streams:
        for name in dict.fromkeys(balancers):
            tried = method_spec(name).rates_to_try
            for rate in dict.fromkeys(rates or tried) if tried else (None,):
                cell = Cell(
                    stream, name, rate, devices or default_devices(stream.num_experts), tally_every
                )
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
    on_cell: CellsDone = lambda cells: None,
    on_diverged: Callable[[DivergedCell], None] = lambda cell: None,
) -> list[CellResult]:
    """Run what is not in the folder yet; the results in the order of the cells, without those that
    diverged.

    Args:
        cells: from plan_cells.
        out: the folder; None: one that is removed afterwards.
        workers: processes; by default as many as there are processors. 1 runs in this process.
        on_cell: called with the number of cells that were finished.
        on_diverged: called at the end with each cell that has no figures, since its shift became
            NaN or infinite.

    Raises:
        ChildProcessError: when a worker was killed. What is finished is in the folder.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, not {workers}")
    with _folder_for(out) as path:
        folder = ArenaFolder(path)
        folder.enter(cells)
        missing = [cell for cell in cells if not folder.has_cell(cell)]
        on_cell(len(cells) - len(missing))
        try:
            temporary = path if out is None else None
            _run_missing(missing, folder, workers or os.cpu_count() or 1, on_cell, temporary)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"stopped: {_what_is_kept(cells, folder, out)}") from None
        except ChildProcessError as error:
            raise ChildProcessError(f"{error}: {_what_is_kept(cells, folder, out)}") from None
        ended = [folder.load_cell(cell) for cell in cells]
        for each in ended:
            if isinstance(each, DivergedCell):
                on_diverged(each)
        return [each for each in ended if isinstance(each, CellResult)]


@contextmanager
def _folder_for(out: str | Path | None) -> Iterator[Path]:
    """The folder that was asked for, or one that is removed also where a signal ends us."""
    if out is not None:
        yield output_path(out)
        return
    with tempfile.TemporaryDirectory(prefix="equipoise-arena-") as path, leave_on_signals():
        yield Path(path)


def _what_is_kept(cells: Sequence[Cell], folder: ArenaFolder, out: str | Path | None) -> str:
    done = sum(folder.cell_path(cell).exists() for cell in cells)
    if out is None:
        return "nothing was kept, since there is no --out"
    return f"{done} of {len(cells)} cells are in {out}, the same command continues"


def _run_missing(
    missing: list[Cell],
    folder: ArenaFolder,
    workers: int,
    on_cell: CellsDone,
    temporary: Path | None,
) -> None:
    """In this process, or in workers, which delete `temporary` if this process is killed."""
    if workers == 1:
        for stream_cells in _group_by_stream(missing):
            reference = folder.find_reference(stream_cells[0].stream)
            for job in _group_by_balancer(stream_cells):
                on_cell(_run_job(job, reference, folder))
        return
    context = multiprocessing.get_context("spawn")
    notes = JobNotes(context)
    pool = ProcessPoolExecutor(
        workers,
        mp_context=context,
        initializer=end_with_parent,
        initargs=(notes.queue, temporary),
    )
    with _one_thread_each(), pool:
        _hand_out(missing, folder, pool, notes, on_cell)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """New processes read these variables before they import anything."""
    kept = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    try:
        yield
    finally:
        for name, value in kept.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _hand_out(
    missing: list[Cell],
    folder: ArenaFolder,
    pool: ProcessPoolExecutor,
    notes: JobNotes,
    on_cell: CellsDone,
) -> None:
    """References first, of the largest streams before others; a stream's cells as soon as its
    reference is there.
    """
    order = sorted(_group_by_stream(missing), key=lambda cells: -cells[0].stream.num_experts)
    waiting: dict[Future[Any], list[Cell] | None] = {
        pool.submit(_find_reference, cells[0].stream, folder): cells for cells in order
    }
    try:
        while waiting:
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            notes.collect()
            for future in done:
                cells = waiting.pop(future)
                if cells is None:
                    on_cell(future.result())
                    continue
                reference = future.result()
                for job in _group_by_balancer(cells):
                    waiting[pool.submit(_run_job, job, reference, folder)] = None
    except BrokenProcessPool:
        raise ChildProcessError(notes.describe_killed(pool)) from None
    except BaseException:
        _stop_pool(pool)
        raise


def _stop_pool(pool: ProcessPoolExecutor) -> None:
    """At once, not when the running cells are done: files are written whole or not at all, so that
    only time is lost.
    """
    workers = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.terminate()


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


def _find_reference(stream: Stream, folder: ArenaFolder) -> StreamReference:
    note_job(f"the reference of {stream.name}")
    return folder.find_reference(stream)


def _run_job(cells: list[Cell], reference: StreamReference, folder: ArenaFolder) -> int:
    note_job(f"{cells[0].balancer} on {cells[0].stream.name}")
    for cell, result in zip(cells, run_cells(cells, reference), strict=True):
        folder.save_cell(cell, result)
    return len(cells)
