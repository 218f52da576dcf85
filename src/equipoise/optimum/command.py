"""`equipoise solve`: a file of scores in; loads, value, proof and time out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.optimum.evaluate import Evaluation, evaluate
from equipoise.optimum.solve import Solution, solve
from equipoise.storage.arrays import read_array, write_arrays
from equipoise.storage.optional import import_optional


@dataclass(frozen=True)
class Request:
    """What the command line asked for."""

    file: str
    top_k: int
    name: str | None = None
    target: str | None = None
    shift: str | None = None
    out: str | None = None
    as_json: bool = False


def run(request: Request) -> None:
    """Solve, check the proof, then write and print."""
    scores = read_array(request.file, request.name)
    target = None if request.target is None else read_array(request.target, default="target")
    shift = None if request.shift is None else read_array(request.shift, default="shift")
    solution, evaluation = _solved(scores, request, target, shift)
    if request.out is not None:
        write_arrays(request.out, _arrays(solution))
    if request.as_json:
        print(json.dumps(_figures(solution, evaluation), indent=2))
    else:
        _show(solution, evaluation, scores)


def _solved(
    scores: Any, request: Request, target: Any, shift: Any
) -> tuple[Solution, Evaluation | None]:
    console = import_optional("rich.console", extra="report").Console(stderr=True)
    with console.status("reading scores") as status:
        solution = solve(scores, request.top_k, target=target, shift=shift, progress=status.update)
        status.update("checking the proof")
        solution.verify(scores)
        if shift is None:
            return solution, None
        status.update("what the given shift achieves")
        return solution, evaluate(scores, request.top_k, shift, target=target, optimum=solution)


def _arrays(solution: Solution) -> dict[str, Any]:
    return {
        "experts": solution.experts,
        "loads": solution.loads,
        "shift": solution.shift,
        "value": np.array([solution.value]),
        "dual_value": np.array([solution.dual_value]),
    }


def _figures(solution: Solution, evaluation: Evaluation | None) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "tokens": len(solution.experts),
        "experts": len(solution.loads),
        "top_k": solution.top_k,
        "value": solution.value,
        "dual_value": solution.dual_value,
        "gap": solution.gap,
        "rounding_bound": solution.rounding_bound,
        "rounded_target": solution.rounded_target,
        "seconds": solution.seconds,
        "passes": solution.passes,
        "loads": solution.loads.tolist(),
        "shift": solution.shift.tolist(),
    }
    if evaluation is not None:
        figures["given_shift"] = {
            "value": evaluation.value,
            "given_up": evaluation.given_up,
            "dual_gap": evaluation.dual_gap,
            "imbalance": evaluation.imbalance,
            "max_violation": evaluation.max_violation,
            "loads": evaluation.loads.tolist(),
        }
    return figures


def _show(solution: Solution, evaluation: Evaluation | None, scores: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    T, E = scores.shape
    console = Console()
    table = Table(
        title=f"{T:,} tokens, {E} experts, top-{solution.top_k}",
        title_justify="left",
        show_header=False,
    )
    table.add_column("what")
    table.add_column("figure", justify="right")
    loads = np.unique(solution.loads)
    shown = ", ".join(f"{load:,}" for load in loads[:4]) + (" ..." if len(loads) > 4 else "")
    rows = [
        (
            "loads",
            shown + ("  (floor or ceiling of the target)" if solution.rounded_target else ""),
        ),
        ("value", f"{solution.value:,.9g}"),
        ("mean score of a choice", f"{solution.value / (T * solution.top_k):.6g}"),
        ("gap to the dual", f"{solution.gap:.3g}  (rounding allows {solution.rounding_bound:.2g})"),
        ("shift, least to greatest", f"{solution.shift.min():.6g} to {solution.shift.max():.6g}"),
        ("time", f"{solution.seconds:.3f} s, {solution.passes:.1f} passes"),
    ]
    for row in rows:
        table.add_row(*row)
    if evaluation is not None:
        table.add_section()
        table.add_row("the given shift: imbalance", f"{evaluation.imbalance:.4f}")
        table.add_row("max violation", f"{evaluation.max_violation:.4f}")
        table.add_row("affinity given up", f"{100 * evaluation.given_up:.4f} %")
        table.add_row("distance of its dual", f"{evaluation.dual_gap:.4g}")
    console.print(table)
