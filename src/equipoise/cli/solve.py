"""`equipoise solve`: a file of scores in; loads, value, proof and time out."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from equipoise.cli.verb import Verb, add_json_flag
from equipoise.storage.json_files import json_text
from equipoise.storage.optional import import_optional

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from equipoise.optimum import Evaluation, Solution
    from equipoise.optimum.balance_costs import BalanceCost


def _add_solve_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", help="scores (tokens, experts): .npy, .npz or .safetensors"
    )
    parser.add_argument(
        "--top-k", type=int, required=True, metavar="K", help="experts each token takes"
    )
    parser.add_argument(
        "--name",
        help="which array of a .npz or .safetensors FILE (default: 'scores', or the only one)",
    )
    parser.add_argument(
        "--target",
        metavar="FILE",
        help="loads wanted, one for each expert, or device (default: all equal)",
    )
    parser.add_argument(
        "--devices",
        type=int,
        metavar="D",
        help="loads right for D devices, each a block of consecutive experts; and what even "
        "devices and even experts give up",
    )
    parser.add_argument(
        "--shift", metavar="FILE", help="a shift to start from, and to compare with the optimum"
    )
    parser.add_argument(
        "--out", metavar="FILE", help="write experts, loads and shift here: .npz or .safetensors"
    )
    add_json_flag(parser)


def _run_solve_verb(options: argparse.Namespace) -> None:
    """Solve, check the proof, then write and print."""
    from equipoise.storage.arrays import check_arrays_path, read_array, write_arrays

    if options.out is not None:
        check_arrays_path(options.out)
    scores = read_array(options.file, options.name)
    target = None if options.target is None else read_array(options.target, default="target")
    shift = None if options.shift is None else read_array(options.shift, default="shift")
    solution, evaluation = _solve_and_check(scores, options.top_k, target, shift, options.devices)
    costs = _balance_costs(scores, options.top_k, options.devices)
    if options.out is not None:
        write_arrays(options.out, _solution_arrays(solution))
    if options.json:
        print(json_text(_solution_figures(solution, evaluation, costs)))
    else:
        _show_solution(solution, evaluation, costs, scores)


def _solve_and_check(
    scores: Any, top_k: int, target: Any, shift: Any, devices: int | None
) -> tuple[Solution, Evaluation | None]:
    from equipoise import evaluate, solve

    console = import_optional("rich.console", extra="report").Console(stderr=True)
    with console.status("reading scores") as status:
        solution = solve(
            scores, top_k, target=target, devices=devices, shift=shift, progress=status.update
        )
        status.update("checking the proof")
        solution.verify(scores)
        if shift is None:
            return solution, None
        status.update("what the given shift achieves")
        return solution, evaluate(
            scores, top_k, shift, target=target, devices=devices, optimum=solution
        )


def _balance_costs(scores: Any, top_k: int, devices: int | None) -> list[BalanceCost]:
    """Of even devices and of even experts, where devices were asked for."""
    from equipoise import balance_costs

    return [] if devices is None else balance_costs(scores, top_k, [devices, scores.shape[1]])


def _solution_arrays(solution: Solution) -> dict[str, np.ndarray]:
    import numpy as np

    return {
        "experts": solution.experts,
        "loads": solution.loads,
        "shift": solution.shift,
        "value": np.array([solution.value]),
        "dual_value": np.array([solution.dual_value]),
    }


def _solution_figures(
    solution: Solution, evaluation: Evaluation | None, costs: Sequence[BalanceCost]
) -> dict[str, object]:
    """What --json prints."""
    figures: dict[str, object] = {
        "tokens": len(solution.experts),
        "experts": len(solution.loads),
        "top_k": solution.top_k,
        "value": solution.value,
        "dual_value": solution.dual_value,
        "gap": solution.gap,
        "rounding_bound": solution.rounding_bound,
        "rounded_target": solution.rounded_target,
        "seconds": solution.seconds,
        "loading_seconds": solution.loading_seconds,
        "passes": solution.passes,
        "loads": solution.loads.tolist(),
        "shift": solution.shift.tolist(),
    }
    if costs:
        figures["device_loads"] = solution.device_loads.tolist()
        figures["given_up"] = {
            f"{cost.devices} {what}": cost.given_up
            for cost, what in zip(costs, ("devices", "experts"), strict=True)
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


def _show_solution(
    solution: Solution,
    evaluation: Evaluation | None,
    costs: Sequence[BalanceCost],
    scores: Any,
) -> None:
    from rich.console import Console

    from equipoise.results.terminal_table import terminal_table

    T, E = scores.shape
    table = terminal_table((), title=f"{T:,} tokens, {E} experts, top-{solution.top_k}")
    for row in _solution_rows(solution, T):
        table.add_row(*row)
    if costs:
        table.add_section()
        for cost, what in zip(costs, ("devices", "experts"), strict=True):
            table.add_row(f"{cost.devices} even {what} give up", f"{100 * cost.given_up:.4f} %")
    if evaluation is not None:
        table.add_section()
        table.add_row("the given shift: imbalance", f"{evaluation.imbalance:.4f}")
        table.add_row("max violation", f"{evaluation.max_violation:.4f}")
        table.add_row("affinity given up", f"{100 * evaluation.given_up:.4f} %")
        table.add_row("distance of its dual", f"{evaluation.dual_gap:.4g}")
    Console().print(table)


def _solution_rows(solution: Solution, num_tokens: int) -> list[tuple[str, str]]:
    import numpy as np

    loads = np.unique(solution.device_loads)
    shown = ", ".join(f"{load:,}" for load in loads[:4]) + (" ..." if len(loads) > 4 else "")
    rounded = "  (floor or ceiling of the target)" if solution.rounded_target else ""
    return [
        ("loads" if solution.place is None else "loads of devices", shown + rounded),
        ("value", f"{solution.value:,.9g}"),
        ("mean score of a choice", f"{solution.value / (num_tokens * solution.top_k):.6g}"),
        ("gap to the dual", f"{solution.gap:.3g}  (rounding allows {solution.rounding_bound:.2g})"),
        ("shift, least to greatest", f"{solution.shift.min():.6g} to {solution.shift.max():.6g}"),
        ("time, solving", f"{solution.seconds:.3f} s, {solution.passes:.1f} passes"),
        ("time, loading kernels", f"{solution.loading_seconds:.3f} s"),
    ]


SOLVE = Verb(
    "solve",
    help="the exact optimum of the assignment problem for a file of scores",
    description="Give every token K experts and every expert its load so that the sum of scores is "
    "greatest; with proof.",
    examples=(
        "equipoise solve scores.npy --top-k 6",
        "equipoise solve layers.safetensors --name layer3 --top-k 8 --shift shift.npy",
        "equipoise solve scores.npy --top-k 6 --devices 8",
        "equipoise solve scores.npy --top-k 6 --out optimum.npz --json",
    ),
    add_options=_add_solve_options,
    run=_run_solve_verb,
    extra="report",
)
