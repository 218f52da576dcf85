"""The verbs that replay scores: demo, arena, tune, record."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from equipoise.storage.optional import import_optional


def add(verbs: Any) -> None:
    _add_demo(verbs)
    _add_arena(verbs)
    _add_tune(verbs)
    _add_record(verbs)


def _add_demo(verbs: Any) -> None:
    demo = verbs.add_parser(
        "demo",
        help="the balancers at work on a stream of skewed, drifting scores",
        description="Route a stream of skewed, drifting scores with every balancer and compare "
        "how even the loads become.",
        epilog="examples:\n  equipoise demo\n  equipoise demo --drift 0.02 --balancers deepseek "
        "quantile\n"
        "  equipoise demo --steps 50 --json > demo.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    demo.add_argument(
        "--balancers", nargs="+", metavar="NAME", help="which ones (default: all that set a shift)"
    )
    demo.add_argument(
        "--steps", type=int, default=60, help="batches in the stream (default: %(default)s)"
    )
    demo.add_argument(
        "--tokens", type=int, default=8192, help="tokens in a batch (default: %(default)s)"
    )
    demo.add_argument("--experts", type=int, default=64, help="experts (default: %(default)s)")
    demo.add_argument(
        "--top-k", type=int, default=6, help="experts each token takes (default: %(default)s)"
    )
    demo.add_argument(
        "--drift",
        type=float,
        default=0.005,
        help="how fast the experts' likes wander (default: %(default)s)",
    )
    demo.add_argument("--seed", type=int, default=0, help="of the stream (default: %(default)s)")
    demo.add_argument(
        "--json", action="store_true", help="print the results as JSON instead of a table"
    )
    demo.set_defaults(run=_demo)


def _demo(options: argparse.Namespace) -> None:
    from equipoise.arena import demo

    settings = demo.Settings(
        tuple(options.balancers or demo.CAUSAL),
        options.steps,
        options.tokens,
        options.experts,
        options.top_k,
        options.drift,
        options.seed,
    )
    if options.json:
        print(json.dumps([row._asdict() for row in demo.run(settings)], indent=2))
        return
    import_optional("rich", extra="report")
    demo.show(settings)


def _add_arena(verbs: Any) -> None:
    arena = verbs.add_parser(
        "arena",
        help="every balancer and rate on the same scores, made or recorded",
        description="Replay streams of scores under every balancer and rate: how even, how fast, "
        "and at what cost.",
        epilog="examples:\n  equipoise arena\n  equipoise arena drift --balancers deepseek "
        "curvature --rates 1e-4 1e-3\n"
        "  equipoise arena runs/a/trace --out runs/arena       go on where it stopped by giving "
        "the same command again\n"
        "  equipoise arena e256-groups --devices 64 --json > cells.json\n"
        "  equipoise arena drift topics --page arena.html",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    arena.add_argument(
        "streams",
        nargs="*",
        metavar="STREAM",
        help="a built-in one, or a trace: FOLDER or FOLDER:LAYER",
    )
    arena.add_argument(
        "--balancers",
        nargs="+",
        metavar="NAME",
        default=(),
        help="which ones (default: seven causal ones)",
    )
    arena.add_argument(
        "--rates",
        nargs="+",
        type=float,
        metavar="U",
        help="for every rule that has a rate (default: its own)",
    )
    arena.add_argument(
        "--tally-every",
        type=int,
        default=1,
        metavar="N",
        help="rules learn from every N-th token only",
    )
    arena.add_argument(
        "--every-rate", action="store_true", help="show every rate in the table, not only the best"
    )
    arena.add_argument(
        "--page",
        metavar="FILE",
        help="write an HTML page too: the frontier, all cells, all over time",
    )
    _add_contest_options(arena)
    arena.set_defaults(run=_arena)


def _add_contest_options(verb: argparse.ArgumentParser) -> None:
    """What arena and tune have in common."""
    verb.add_argument("--steps", type=int, help="batches (default: the stream's own)")
    verb.add_argument(
        "--tokens", type=int, help="tokens in a batch of a built-in stream (default: its own)"
    )
    verb.add_argument(
        "--seed", type=int, default=0, help="of built-in streams (default: %(default)s)"
    )
    verb.add_argument(
        "--devices", type=int, help="that share the experts, for idle time (default: 8)"
    )
    verb.add_argument(
        "--out",
        metavar="FOLDER",
        help="keep each cell's figures here, and go on with what is there",
    )
    verb.add_argument(
        "--workers", type=int, metavar="N", help="processes (default: as many as processors)"
    )
    verb.add_argument(
        "--json", action="store_true", help="print the results as JSON instead of a table"
    )


def _contest(options: argparse.Namespace, **more: Any) -> Any:
    """What was asked of arena and of tune."""
    from equipoise.arena import command

    same = ("balancers", "rates", "steps", "tokens", "seed", "devices", "out", "workers")
    return command.Request(
        **{name: getattr(options, name) for name in same}, as_json=options.json, **more
    )


def _arena(options: argparse.Namespace) -> None:
    from equipoise.arena import command

    if options.page:
        _check_page(options.page)
    more = {
        "streams": options.streams,
        "tally_every": options.tally_every,
        "every_rate": options.every_rate,
    }
    results = command.run(_contest(options, **more))
    if options.page:
        from equipoise.report.arena.page import write_page
        from equipoise.results.arena import ArenaResults

        title = ", ".join(options.streams) or "the default streams"
        path = write_page(ArenaResults(title, results), Path(options.page))
        print(f"the page: {path}", file=sys.stderr if options.json else sys.stdout)


def _check_page(path: str) -> None:
    """What would keep the page from being written is told before minutes of work."""
    import_optional("plotly.offline", extra="report")
    if Path(path).is_dir():
        raise ValueError(
            f"{path} is a folder: --page takes the name of a file, such as "
            f"{Path(path) / 'arena.html'}"
        )
    Path(path).parent.mkdir(parents=True, exist_ok=True)


def _add_tune(verbs: Any) -> None:
    tune = verbs.add_parser(
        "tune",
        help="which balancer and rate suit this stream of scores, with the evidence",
        description="Replay a stream under the causal balancers at several rates, and recommend "
        "one if the evidence allows.",
        epilog="examples:\n  equipoise tune drift\n"
        "  equipoise record runs/a --out scores/a\n  equipoise tune scores/a:blocks.1 --json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    tune.add_argument(
        "stream", metavar="STREAM", help="a built-in one, or a layer of a trace: FOLDER:LAYER"
    )
    tune.add_argument(
        "--balancers",
        nargs="+",
        metavar="NAME",
        default=(),
        help="which ones (default: all causal ones)",
    )
    tune.add_argument(
        "--rates",
        nargs="+",
        type=float,
        metavar="U",
        help="for every rule that has a rate (default: its own)",
    )
    _add_contest_options(tune)
    tune.set_defaults(run=_tune)


def _tune(options: argparse.Namespace) -> None:
    from equipoise.arena import tune

    tune.run(_contest(options, streams=[options.stream]))


def _add_record(verbs: Any) -> None:
    record = verbs.add_parser(
        "record",
        help="run a trained model over text and keep its routers' scores",
        description="Run a model over text, and keep the scores of every router in a trace: the "
        "newest checkpoint of a "
        "training, or a Hugging Face model's folder (safetensors only; no code of it is run). "
        "Nothing learns.",
        epilog="examples:\n  equipoise record runs/a --out scores/a\n"
        "  equipoise record runs/a --text my_texts/ --steps 50 --out scores/b\n"
        "  equipoise record my-model/ --text my_texts/ --batch-size 4 --sequence-length 1024 "
        "--out scores/c\n"
        "  equipoise arena scores/c",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    record.add_argument(
        "folder", metavar="MODEL_DIR", help="the folder of a training, or of a Hugging Face model"
    )
    record.add_argument(
        "--out", required=True, metavar="FOLDER", help="where the trace goes: a new folder"
    )
    record.add_argument(
        "--text",
        "--data",
        dest="data",
        help="a text file or folder (default, for a training: its own texts)",
    )
    record.add_argument(
        "--steps",
        dest="batches",
        type=int,
        default=30,
        metavar="N",
        help="batches (default: %(default)s)",
    )
    record.add_argument(
        "--batch-size", type=int, help="sequences in a batch (default: the training's, or 8)"
    )
    record.add_argument(
        "--layer", nargs="+", default=(), metavar="NAME", help="only these; * stands for anything"
    )
    own = record.add_argument_group("of a Hugging Face model only")
    own.add_argument(
        "--sequence-length",
        type=int,
        metavar="N",
        help="tokens in a sequence (default: 512 at most)",
    )
    own.add_argument(
        "--device", help="cpu (default), cuda, or auto to spread it over what there is"
    )
    own.add_argument(
        "--dtype", help="to compute in, such as float32 (default: as the weights are stored)"
    )
    record.set_defaults(run=_record)


def _record(options: argparse.Namespace) -> None:
    folder = Path(options.folder)
    same: dict[str, Any] = {
        "data": options.data,
        "batches": options.batches,
        "layers": options.layer,
    }
    ours = {name: getattr(options, name) for name in ("sequence_length", "device", "dtype")}
    ours = {name: value for name, value in ours.items() if value is not None}
    if options.batch_size is not None:
        same["batch_size"] = options.batch_size
    if (folder / "config.yaml").exists():
        if ours:
            raise ValueError(
                f"--{next(iter(ours)).replace('_', '-')} is for a Hugging Face model, and "
                f"{folder} is a training"
            )
        from equipoise.arena.record import record
    elif (folder / "config.json").exists():
        if options.data is None:
            raise ValueError("a Hugging Face model brings no texts along: name some by --text")
        from equipoise.integrations.huggingface.recording import record_model as record  # type: ignore[assignment]
    else:
        raise ValueError(
            f"{folder} is not the folder of a training (there is no config.yaml in it), nor of a "
            "Hugging Face "
            "model (no config.json)"
        )
    with _bar(options.batches) as advance:
        trace = record(folder, options.out, **same, **ours, on_batch=advance)
    kept = len(trace.steps(0))
    few = "" if kept == options.batches else f" (of {options.batches}: the text ended)"
    layers = "1 layer" if len(trace.layers) == 1 else f"{len(trace.layers)} layers"
    print(f"{options.out}: {kept} batches{few} of {layers}. Next: equipoise arena {options.out}")


@contextlib.contextmanager
def _bar(batches: int) -> Iterator[Callable[[], None]]:
    """A progress bar on the terminal's error stream, if somebody looks and rich is there."""
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        job = bar.add_task("batches", total=batches)
        yield lambda: bar.advance(job)
