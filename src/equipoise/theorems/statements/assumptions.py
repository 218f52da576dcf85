"""What the paper assumes, each as a verdict of its own, before the statements that need it.

An assumption that does not hold refutes nothing: it says which half of the theory is about another
world than this training, and by how much. So it never counts as a failed statement.
"""

from __future__ import annotations

import numpy as np

from equipoise.optimum.arrays import Bools, Floats
from equipoise.optimum.loop import choose_top_k
from equipoise.optimum.solve import solve
from equipoise.theorems.evidence.draws import DRAWS, Draws
from equipoise.theorems.evidence.layer_paths import LAYER_PATHS, LayerPath
from equipoise.theorems.evidence.runs import STEPS
from equipoise.theorems.evidence.steps import UpdateStep, threshold_margins
from equipoise.theorems.registry import assumption
from equipoise.theorems.verdict import Slack, require_hypothesis

ASSUMPTION_STANDARD_ERRORS = 4.0
"""how far a sample may be from what is assumed by chance"""
BLOCKS = 32
"""pieces of a batch that stand for sequences, where their length is not known"""
COVERED_BINS = 32
"""of (0, 1), each of which must have been seen for a density to be called positive"""


@assumption("i.i.d. tokens", evidence=DRAWS)
def independent_tokens(draws: Draws) -> Slack:
    """Sec. 5.2: tokens are independent. Then loads of n successive tokens vary by
    n (K - sum pi^2); tokens of one text vary more (errata 20).

    The margin is 4 standard errors less those by which the inflation, the ratio of the two, is off
    1. Divide T by the inflation wherever a floor or statement 13 is compared.
    """
    n = _block_length(draws)
    require_hypothesis(n > 0, f"{len(draws.scores)} tokens are too few to cut into {BLOCKS} pieces")
    chosen = choose_top_k(draws.shifted, draws.top_k)
    inflation, error = variance_inflation(chosen, n)
    off = abs(inflation - 1) / error
    note = f"loads of {n} successive tokens vary {inflation:.2f} times as much as of independent"
    return Slack(ASSUMPTION_STANDARD_ERRORS - off, note)


def _block_length(draws: Draws) -> int:
    """A sequence where its length is known and there are enough; else a 32nd of the tokens."""
    tokens = len(draws.scores)
    if draws.sequence and tokens >= BLOCKS // 4 * draws.sequence and draws.sequence > 1:
        return draws.sequence
    return tokens // BLOCKS


def variance_inflation(chosen: Bools, n: int) -> tuple[float, float]:
    """Variance of the loads of n successive tokens over that of independent ones, and its standard
    error over the blocks.
    """
    blocks = len(chosen) // n
    loads = chosen[: blocks * n].reshape(blocks, n, -1).sum(1)
    pi = loads.mean(0) / n
    alone = n * (pi.sum() - (pi**2).sum()) or 1.0
    ratios = ((loads - n * pi) ** 2).sum(1) * blocks / (blocks - 1) / alone
    # chi-squared with about E - 1 degrees of freedom, if the sample happens to vary less
    least = np.sqrt(2 / (max(chosen.shape[1] - 1, 1) * blocks))
    return float(ratios.mean()), float(max(ratios.std(ddof=1) / np.sqrt(blocks), least))


@assumption("independent experts", evidence=DRAWS, meaning="correlation allowed, less the largest")
def independent_experts(draws: Draws) -> Slack:
    """Sec. 5.2: scores are independent between experts. A softmax gate's cannot be: its rows sum to
    1 (errata 13). Statements 12, 13 and the sampled form of 14 do not need it.

    The margin is the correlation allowed (0.1, and what chance does) less the largest found.
    """
    scores = draws.scores
    require_hypothesis(len(scores) >= 8, f"{len(scores)} tokens are too few for a correlation")
    require_hypothesis(bool((np.ptp(scores, axis=0) > 0).all()), "an expert's scores do not vary")
    most = float(np.abs(np.triu(np.atleast_2d(np.corrcoef(scores.T)), 1)).max())
    softmax = scores.shape[1] > 1 and np.ptp(scores.sum(1)) < 1e-3
    note = "rows of scores sum to a constant, as a softmax gate's; " if softmax else ""
    allowed = 0.0 if softmax else 0.1 + 5 / np.sqrt(len(scores))
    return Slack(allowed - most, f"{note}experts are correlated up to {most:.2f}")


@assumption("positive density", evidence=DRAWS, meaning="share of (0, 1)")
def positive_density(draws: Draws) -> Slack:
    """Sec. 5.6 (c_K > 0): every expert's density is positive on all of (0, 1) (errata 17).

    Of a law that is known; of tokens, whether each of 32 bins of (0, 1) was seen. The margin is
    minus the share that the worst expert leaves out.
    """
    if draws.expected is not None:
        positive = draws.expected.law.positive_density
        return Slack(0.0 if positive else -1.0, "the law's own density")
    bins = np.floor(draws.scores * COVERED_BINS).astype(np.int64)
    inside = (bins >= 0) & (bins < COVERED_BINS)
    seen = np.array([np.unique(b[i]).size for b, i in zip(bins.T, inside.T)])
    left_out = 1 - seen.min() / COVERED_BINS
    note = f"scores of expert {seen.argmin()} leave out {left_out:.0%} of (0, 1)"
    return Slack(0.0 - left_out, note)


@assumption("p* in the domain", evidence=DRAWS, meaning="1 less the diameter of p*")
def optimum_in_domain(draws: Draws) -> Slack:
    """Sec. 5.5, Lemma 16: p* lies in {max - min <= 1 - kappa}, for some kappa > 0 (errata 18).

    The margin is 1 less the diameter of p*: the largest kappa there is.
    """
    E = draws.shift.size
    require_hypothesis(draws.top_k < E, "K = E: every shift gives the same loads")
    if draws.expected is not None:
        best = draws.expected.minimiser()
    else:
        rows = len(draws.scores) - len(draws.scores) % E
        require_hypothesis(rows > 0, "fewer tokens than experts")
        best = np.asarray(solve(draws.scores[:rows], draws.top_k).shift)
    diameter = float(np.ptp(best))
    return Slack(1 - diameter, f"the diameter of p* is {diameter:.3g}")


@assumption("diameter of the shift", evidence=LAYER_PATHS, meaning="1 less the largest diameter")
def shift_in_domain(path: LayerPath) -> Slack:
    """Sec. 5.5: diam(p) <= 1 - kappa along the training, which the paper shows by its figure 4.

    The margin is 1 less the largest diameter of all recorded shifts: the largest kappa there is.
    """
    diameters = np.ptp(path.shifts, axis=1)
    require_hypothesis(bool(diameters.any()), "no shift has moved")
    most = float(diameters.max())
    return Slack(1 - most, f"the largest diameter of {len(diameters)} shifts is {most:.3g}")


@assumption("stationary scores", evidence=LAYER_PATHS)
def stationary_scores(path: LayerPath) -> Slack:
    """Sec. 5: batches of different steps have one law. Two whole batches, each half and half of a
    random order of tokens, would then choose alike under one shift.

    The margin is 4 standard errors, inflated as the tokens' variance is, less those by which the
    worst expert's share differs.
    """
    require_hypothesis(len(path.batches) >= 2, "fewer than two batches of a layer were kept whole")
    first, last = path.batches[0], path.batches[-1]
    choices = [choose_top_k(each + path.shifts[0], path.top_k) for each in (first, last)]
    require_hypothesis(min(map(len, choices)) >= 4 * BLOCKS, "batches of too few tokens")
    shares = np.array([each.mean(0) for each in choices])
    errors = np.array([_share_errors(each) for each in choices])
    off = np.abs(shares[0] - shares[1]) / np.sqrt((errors**2).sum(0))
    worst = int(off.argmax())
    note = (
        f"between steps {path.batch_steps[0]} and {path.batch_steps[-1]} the share of expert "
        f"{worst} went from {shares[0, worst]:.3g} to {shares[1, worst]:.3g}"
    )
    return Slack(ASSUMPTION_STANDARD_ERRORS - float(off[worst]), note)


def _share_errors(chosen: Bools) -> Floats:
    """(E) standard errors of the shares of tokens, over pieces of the batch: tokens of one text are
    not independent.
    """
    n = len(chosen) // BLOCKS
    pieces = chosen[: n * BLOCKS].reshape(BLOCKS, n, -1).mean(1)
    pi = chosen.mean(0)
    alone = np.sqrt(np.maximum(pi * (1 - pi), 1 / len(chosen)) / len(chosen))
    return np.maximum(pieces.std(0, ddof=1) / np.sqrt(BLOCKS), alone)


@assumption("no ties", evidence=STEPS, meaning="least margin, in score")
def no_ties(step: UpdateStep) -> Slack:
    """Statements 2 to 7: no token's K-th and (K+1)-th shifted scores are equal, before an update
    and after it (errata 3).

    The margin is the least distance between the two; -1 for each token that has none.
    """
    margins = np.minimum(step.margins, threshold_margins(step.shifted_after, step.top_k))
    require_hypothesis(bool(np.isfinite(margins).all()), "K = E: nothing is left out")
    tied = int((margins <= 0).sum())
    if tied:
        return Slack(-float(tied), f"{tied} tokens are tied")
    return Slack(float(margins.min()), "the least margin, in score")
