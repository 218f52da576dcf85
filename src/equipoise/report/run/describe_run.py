"""describe_run: a run in words: the sentence on top, short facts, and the four tiles.

"Times chance" is an imbalance over the one that chance alone would leave: of an evaluation, over
its floor (training/evaluation.py); where there was none yet, of the latest training batches, over
what independent tokens would leave in such a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from equipoise.report.frame import Tile
from equipoise.results.follow.run_follower import RunSnapshot
from equipoise.results.follow.step_bins import Row

LATEST_SHARE = 10
"""the latest of a training: a tenth of its rows"""
IMBALANCE_CELL, LOSS_CELL, IDLE_CELL, LAYER_CELLS = 3, 4, 5, 6
"""where they stand in a row of the table `curve`"""


class TimesChance(NamedTuple):
    """An imbalance, and what chance alone leaves there."""

    imbalance: float
    chance: float | None
    where: str

    @property
    def times(self) -> float | None:
        return self.imbalance / self.chance if self.chance else None


def scheme_of(run: RunSnapshot) -> str:
    """The balancer's name; empty where nobody knows it."""
    return str(_setting(run, "balancer") or "")


def run_label(run: RunSnapshot) -> str:
    """The balancer and its rate, as far as they are known."""
    rate = _setting(run, "update_rate")
    known = scheme_of(run) or ("not begun" if run.state == "waiting" else "balancer not known")
    return known if not isinstance(rate, int | float) else f"{known}, u = {rate:g}"


def run_sentence(run: RunSnapshot) -> str:
    """What it does now, and how even its loads are."""
    return f"{run.name} ({run_label(run)}) {_doing(run)}.{_evenness(run)}"


def _doing(run: RunSnapshot) -> str:
    total, at = total_steps(run), run.last_step
    of = f" of {total:,}" if total else ""
    step = "before its first step" if at is None else f"at step {at:,}{of}"
    if run.state == "waiting":
        return "has not begun: nothing is in its folder yet"
    if run.state == "finished":
        return f"has finished {at or total or 0:,} steps"
    return {
        "running": f"is running, {step}",
        "stopped": f"has stopped {step}",
        "failed": f"has failed {step}",
        "deleted": f"was deleted; this is what was read before, {step}",
    }[run.state]


def _evenness(run: RunSnapshot) -> str:
    level = times_chance(run)
    if level is None:
        return ""
    found = f" Its imbalance is {level.imbalance:.3g} {level.where}"
    if level.times is None:
        return found + "."
    return f"{found}, {level.times:.3g} times what chance alone leaves ({level.chance:.3g})."


def times_chance(run: RunSnapshot) -> TimesChance | None:
    """Of the last evaluation, or else of the latest training batches."""
    if run.evaluation is not None:
        step, found = run.evaluation
        if found.imbalance is not None:
            where = f"on the validation set at step {step:,}"
            return TimesChance(found.imbalance, found.floor, where)
    level = _latest_mean(run.tables.get("curve", []), IMBALANCE_CELL)
    return None if level is None else TimesChance(level, run.chance, "in the latest batches")


def run_facts(run: RunSnapshot) -> list[tuple[str, str]]:
    """What it is, as chips."""
    corpus = run.about.get("corpus")
    parameters = run.about.get("parameters")
    name = corpus.get("name", "") if isinstance(corpus, Mapping) else ""
    size = parameters.get("total") if isinstance(parameters, Mapping) else None
    versions = run.about.get("versions")
    version = versions.get("equipoise", "") if isinstance(versions, Mapping) else ""
    model = _setting(run, "preset") or _setting(run, "model")
    facts = [
        ("state", run.state),
        ("balancer", "" if run.state == "waiting" else run_label(run)),
        ("model", str(model) if isinstance(model, str) else ""),
        ("parameters", f"{size:,}" if isinstance(size, int) else ""),
        ("MoE layers", str(len(run.layers) or "")),
        ("steps", f"{total_steps(run) or 0:,}" if total_steps(run) else ""),
        ("corpus", str(name)),
        ("seed", "" if _setting(run, "seed") is None else str(_setting(run, "seed"))),
        ("version", str(version)),
        ("date", str(run.about.get("date") or "")),
        ("time left", _time_left(run)),
    ]
    return [(name, value) for name, value in facts if value]


def repeat_command(run: RunSnapshot) -> str:
    """The command that trains it again; empty for a model that is not ours."""
    if not run.about:
        return ""
    return f"equipoise train --config {run.name}/config.yaml --out {run.name}-again"


def run_tiles(run: RunSnapshot) -> list[Tile]:
    """Imbalance over chance, the worst layer, idle time, loss. Bodies are plain text here."""
    return [_chance_tile(run), _layer_tile(run), _idle_tile(run), _loss_tile(run)]


def _chance_tile(run: RunSnapshot) -> Tile:
    level = times_chance(run)
    if level is None:
        return Tile("imbalance over chance", "-", "no step was made yet")
    chance = "" if level.chance is None else f"; chance alone leaves {level.chance:.3g}"
    value = f"{level.imbalance:.3g}" if level.times is None else f"{level.times:.3g} times"
    return Tile("imbalance over chance", value, f"{level.imbalance:.3g} {level.where}{chance}")


def _layer_tile(run: RunSnapshot) -> Tile:
    curve = run.tables.get("curve", [])
    means = [_latest_mean(curve, LAYER_CELLS + n) for n in range(len(run.layers))]
    known = [(value, name) for value, name in zip(means, run.layers) if value is not None]
    if not known:
        return Tile("worst layer", "-", "not recorded yet")
    value, name = max(known)
    return Tile(
        "worst layer", name, f"its fullest expert has {1 + value:.3g} times its share, lately"
    )


def _idle_tile(run: RunSnapshot) -> Tile:
    curve = run.tables.get("curve", [])
    latest, whole = _latest_mean(curve, IDLE_CELL), _mean_of(curve, IDLE_CELL)
    if latest is None or whole is None:
        return Tile("idle device time", "-", "not recorded: it needs the loads of single forwards")
    return Tile("idle device time", f"{latest:.1%}", f"of 8 devices, lately; {whole:.1%} so far")


def _loss_tile(run: RunSnapshot) -> Tile:
    training = _latest_mean(run.tables.get("curve", []), LOSS_CELL)
    lately = "" if training is None else f"{training:.4g} in the latest batches"
    if run.evaluation is not None and run.evaluation[1].loss is not None:
        step, found = run.evaluation
        return Tile("validation loss", f"{found.loss:.4g}", f"at step {step:,}; {lately}")
    if training is None:
        return Tile("loss", "-", "not recorded: a trace has loads and shifts only")
    return Tile("training loss", f"{training:.4g}", "lately; no evaluation yet")


def total_steps(run: RunSnapshot) -> int | None:
    """Of the whole training; None where nobody knows."""
    wanted = run.settings.get("steps")
    return wanted if isinstance(wanted, int) else None


def _time_left(run: RunSnapshot) -> str:
    total, row = total_steps(run), run.newest
    if run.state != "running" or row is None or not total:
        return ""
    speed, step = row.get("tokens_per_second"), row["step"]
    if not speed or not step:
        return ""
    seconds = row["tokens"] / step / speed * max(0, total - step)
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:,.0f} min"


def _setting(run: RunSnapshot, name: str) -> Any:
    """Of config.yaml or the trace; of result.json where both are gone."""
    found = run.settings.get(name)
    if found is None and run.result is not None:
        return run.result.get(name)
    return found


def _latest_mean(rows: Sequence[Row], cell: int) -> float | None:
    return _mean_of(rows[-max(1, len(rows) // LATEST_SHARE) :], cell)


def _mean_of(rows: Sequence[Row], cell: int) -> float | None:
    values = [row[cell] for row in rows if cell < len(row)]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
