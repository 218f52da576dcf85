"""`equipoise place`: experts on devices, from recorded loads."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.cli.verb import Verb, add_json_flag
from equipoise.storage.atomic import write_bytes
from equipoise.storage.json_files import json_text
from equipoise.storage.native_output import native_output_dropped
from equipoise.storage.optional import import_optional
from equipoise.storage.output_path import output_path

if TYPE_CHECKING:
    from rich.console import Console

    from equipoise.placement import Placement, PlacementRow

_WAYS = {
    "linear": "linear blocks, as engines begin",
    "eplb": "EPLB",
    "placed": "this placement",
    "bound": "no placement is below",
}


def _add_place_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "trace",
        metavar="TRACE",
        help="a trace or run, or loads (batches, layers, experts): .npy, .npz, .safetensors, .json",
    )
    parser.add_argument(
        "--devices", type=int, required=True, metavar="N", help="that share each layer's experts"
    )
    parser.add_argument(
        "--nodes",
        type=int,
        default=1,
        metavar="N",
        help="where they divide the groups, a group stays in one node (default: %(default)s)",
    )
    parser.add_argument(
        "--redundant",
        type=int,
        default=0,
        metavar="N",
        help="copies beyond the first of each expert, a layer (default: %(default)s)",
    )
    parser.add_argument(
        "--groups", type=int, metavar="N", help="of experts (default: those of the trace)"
    )
    parser.add_argument(
        "--distinct",
        action="store_true",
        help="no device holds two copies of one expert: vllm-ascend",
    )
    parser.add_argument(
        "--exact-seconds",
        type=float,
        default=5.0,
        metavar="S",
        help="for the integer program of a small layer; 0: none (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the search (default: %(default)s)")
    parser.add_argument(
        "--device-hours",
        type=float,
        default=1000.0,
        metavar="H",
        help="that the experts take now, for the table (default: %(default)s)",
    )
    parser.add_argument(
        "--out", metavar="FOLDER", help="write the maps of vLLM, SGLang and vllm-ascend here"
    )
    parser.add_argument(
        "--model-layers",
        type=int,
        metavar="N",
        help="layers of the model, dense ones too, for SGLang (default: as names say)",
    )
    parser.add_argument("--picture", metavar="FILE", help="draw devices before and after: .png")
    add_json_flag(parser, "the placement and its figures as JSON")


def _run_place_verb(options: argparse.Namespace) -> None:
    from equipoise import place
    from equipoise.placement.result import check_hours

    if options.picture is not None:
        _check_picture(options.picture)
    check_hours(options.device_hours)
    console = import_optional("rich.console", extra="report").Console(stderr=True)
    with console.status("reading loads") as status, native_output_dropped():
        made = place(
            options.trace,
            devices=options.devices,
            nodes=options.nodes,
            redundant=options.redundant,
            groups=options.groups,
            distinct=options.distinct,
            exact_seconds=options.exact_seconds,
            seed=options.seed,
            progress=status.update,
        )
    written: dict[str, Path | str] = {}
    if options.out is not None:
        written = made.save(output_path(options.out), model_layers=options.model_layers)
    if options.picture is not None:
        _draw_picture(made, output_path(options.picture))
    if options.json:
        print(json_text(made.to_dict(options.device_hours)))
    else:
        _show_placement(made, options.device_hours, written)


def _check_picture(path: str) -> None:
    if output_path(path).suffix.lower() != ".png":
        raise ValueError(f"{path}: the picture is written as .png")


def _draw_picture(made: Placement, path: Path) -> None:
    from equipoise.drawing.palette import load_palette
    from equipoise.placement.picture import draw_placement
    from equipoise.report.animation.files import encode_png

    write_bytes(path, encode_png(draw_placement(made), load_palette()))


def _show_placement(made: Placement, device_hours: float, written: dict[str, Path | str]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    _print_table(console, _title_of(made), made.rows(device_hours))
    if made.held_out:
        half = made.batches - made.batches // 2
        title = f"placed by the first half of the batches, judged on the other {half}"
        console.print()
        _print_table(console, title, made.rows(device_hours, held_out=True))
    proved = sum(layer.proved for layer in made.layers)
    console.print(
        f"\n{proved} of {len(made.layers)} layers are proved best. {made.seconds:.1f} s",
        markup=False,
    )
    for name, what in written.items():
        line = f"wrote {what}" if isinstance(what, Path) else f"no {name}.json: {what}"
        console.print(line, markup=False, soft_wrap=True)


def _title_of(made: Placement) -> str:
    cluster = made.cluster
    kept = f", groups within {cluster.nodes} nodes" if cluster.hierarchical else ""
    return (
        f"{cluster.num_experts} experts + {cluster.redundant} copies on {cluster.devices} devices"
        f"{kept}; {len(made.layers)} layers, {made.batches} batches"
    )


def _print_table(console: Console, title: str, rows: list[PlacementRow]) -> None:
    from equipoise.results.terminal_table import terminal_table

    table = terminal_table(("", "fullest / mean", "idle share", "device hours"), title=title)
    for row in rows:
        table.add_row(
            _WAYS[row.way],
            f"{row.fullest:.3f}",
            f"{row.idle_share:.1%}",
            f"{row.device_hours:,.1f}",
        )
    console.print(table)


PLACE = Verb(
    "place",
    help="which expert on which device, from recorded loads",
    description="Put the experts of every layer, and redundant copies of them, on devices so that "
    "the fullest device, mean over batches, has least to do; beside linear blocks, DeepSeek's EPLB "
    "and a proved bound, and on batches that were not seen.",
    examples=(
        "equipoise place runs/a --devices 4",
        "equipoise place loads.npy --devices 8 --redundant 8 --distinct --out placed",
        "equipoise place loads.npy --devices 8 --nodes 2 --groups 4 --json",
        "equipoise place loads.npy --devices 4 --picture devices.png",
    ),
    add_options=_add_place_options,
    run=_run_place_verb,
    extra="report",
)
