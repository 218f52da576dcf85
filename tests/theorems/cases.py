"""Problems, runs and doctored runs for the tests of the statements."""

from dataclasses import replace

import numpy as np

from equipoise.optimum.loop import FixedScores, deepseek_rule
from equipoise.theorems.evidence.runs import run_loop
from equipoise.theorems.evidence.steps import UpdateStep
from equipoise.trace import Trace, TraceWriter


def scores(tokens=64, experts=4, skew=0.5, seed=0):
    """Sigmoid scores of a gate that prefers some experts."""
    rng = np.random.default_rng(seed)
    return 1 / (1 + np.exp(-rng.normal(size=(tokens, experts)) - skew * rng.normal(size=experts)))


def lively(steps=150, rate=5e-3, **options):
    """A run on which many tokens move."""
    return run_loop(FixedScores(scores(**options), 2), deepseek_rule(rate), steps)


def settled(**options):
    """A run with u below u-bar, begun near balance: the paper's own hypotheses hold."""
    problem = FixedScores(scores(tokens=16, **options), 2)
    near = run_loop(problem, deepseek_rule(1e-3), 2000).path.shifts[-1]
    return run_loop(problem, deepseek_rule(1e-6), 1500, shift=near)


def lone_token(worth, moved, **changed):
    """One update of a batch of one token, which goes from experts 0 and 1 to experts 2 and 3."""
    before = np.array([[True, True, False, False]])
    step = UpdateStep(
        number=0,
        scores=np.array([worth]),
        top_k=2,
        target=np.full(4, 0.5),
        shift=np.zeros(4),
        shift_after=np.array(moved),
        loads=before.sum(0),
        step_size=np.full(4, 2 * abs(moved[0])),
        before=before,
        after=~before,
        loads_after=(~before).sum(0),
        rounding=1e-15,
    )
    return replace(step, **changed)


def step_where(run, wanted):
    return next(step for step in run if wanted(step))


def moved_wrongly(step):
    """The step, and one more token that moves the wrong way: from a preferred expert with too few
    tokens to another with too many.
    """
    still = (step.after == step.before).all(1)
    most, least = np.argmin(step.sign), np.argmax(step.sign)
    worth = np.where(still & step.after[:, least] & ~step.after[:, most], 1, np.nan)
    token = np.nanargmax(worth * (step.shifted[:, least] - step.shifted[:, most]))
    after = step.after.copy()
    after[token, most], after[token, least] = True, False
    return replace(step, after=after, loads_after=after.sum(0))


def recorded(folder, rule_u=1e-3, steps=3, kind=np.float32, tokens=64, start=0.0):
    """A trace as a training would write it: new scores at every step, all kept, in float32."""
    experts = 4
    shift = np.full(experts, start, kind)
    with TraceWriter(folder, top_k=2, layers=2) as writer:
        for n in range(steps):
            batch = scores(tokens=tokens, seed=n).astype(kind)
            loads = np.argsort(np.argsort(-(batch + shift), 1), 1) < 2
            gap = 2 * tokens / experts - loads.sum(0)
            after = (shift + kind(rule_u) * np.sign(gap)).astype(kind)
            sizes = np.divide(rule_u, np.abs(gap), out=np.zeros(experts), where=gap != 0)
            for layer in (0, 1):
                writer.append(
                    n,
                    layer,
                    shift=shift,
                    shift_after=after,
                    loads=loads.sum(0),
                    step_size=sizes,
                    scores=batch,
                    whole=True,
                )
            shift = after
    return Trace.open(folder)
