"""The step-time equation as a linear problem: features of steps, and coefficients that are never negative."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from planner.kernel import step_ns
from planner.step_time import TERMS, step_time_from_seconds
from traces.steps import StepLog

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Columns = tuple[int, ...]

BASE, PER_SEQ, PER_PREFILL_TOKEN, ANY_PREFILL, PER_KV_TOKEN, PER_KV_TOKEN_MIXED, PER_ATTENTION = range(7)
PER_KV_PREFILL_TOKEN, *BEYOND, PER_SEQ_BEYOND_128, PER_PADDING_SEQ = range(7, len(TERMS))
"""Columns, in the order of `TERMS`; `BEYOND` has the kinks in the cost of prefill."""
KINKS = {column: int(TERMS[column].rsplit("_", 1)[1]) for column in BEYOND}
"""Column → tokens of the step beyond which it counts."""
BATCH_SHAPE = (PER_SEQ_BEYOND_128, PER_PADDING_SEQ)
"""How d departs from a straight line in the batch."""
DECODE_TERMS = np.isin(np.arange(len(TERMS)), (BASE, PER_SEQ, PER_KV_TOKEN, *BATCH_SHAPE))
"""(t,) terms that decode-only steps determine; the others are what prefill adds."""
PREFILL_TERMS = ~DECODE_TERMS

MIN_BLOCKS = 20
"""A bootstrap over fewer blocks has too few values to draw from."""
MAX_BLOCKS = 500
NUM_FOLDS = 5
NUM_DRAWS = 400


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """k steps as a linear problem: time = features @ coefficients."""

    features: Floats
    """(k, t) in the order of `TERMS`; what the log does not know is zero."""
    time_s: Floats
    """(k,) measured, seconds."""
    weight: Floats
    """(k,) real steps that a row stands for."""

    @property
    def num_seqs(self) -> Floats:
        """Requests scheduled, (k,)."""
        return self.features[:, PER_SEQ]

    @property
    def prefill_tokens(self) -> Floats:
        """Prefill tokens, (k,)."""
        return self.features[:, PER_PREFILL_TOKEN]

    @property
    def has_prefill(self) -> Bools:
        """Whether there are any, (k,)."""
        return self.features[:, PER_PREFILL_TOKEN] > 0

    @property
    def kv_tokens(self) -> Floats:
        """Context tokens that decodes read, (k,)."""
        return self.features[:, PER_KV_TOKEN] + self.features[:, PER_KV_TOKEN_MIXED]

    def take(self, which: Bools | Ints) -> "Steps":
        """Only the steps of a mask or index."""
        return Steps(self.features[which], self.time_s[which], self.weight[which])


def as_steps(log: StepLog, num_kv_tokens: int | None) -> tuple[Steps, list[str]]:
    """The log as a linear problem, and what the user must know about its KV column."""
    kv_tokens, notices = _kv_decode_tokens(log, num_kv_tokens)
    has_prefill = log.prefill_tokens > 0
    features = np.zeros((len(log), len(TERMS)))
    features[:, BASE] = 1.0
    features[:, PER_SEQ] = log.num_prefill_reqs + log.num_decode_reqs
    features[:, PER_PREFILL_TOKEN] = log.prefill_tokens
    features[:, ANY_PREFILL] = has_prefill
    features[:, PER_KV_TOKEN] = np.where(has_prefill, 0.0, kv_tokens)
    features[:, PER_KV_TOKEN_MIXED] = np.where(has_prefill, kv_tokens, 0.0)
    if log.prefill_attention is not None:
        features[:, PER_ATTENTION] = log.prefill_attention
    if log.kv_prefill_tokens is not None:
        features[:, PER_KV_PREFILL_TOKEN] = log.kv_prefill_tokens
    num_seqs = log.num_prefill_reqs + log.num_decode_reqs
    for column in (*BEYOND, *BATCH_SHAPE):  # counts, so the equation itself can tell them
        unit = step_time_from_seconds(np.where(np.arange(len(TERMS)) == column, 1e-9, 0.0))
        features[:, column] = step_ns.py_func(unit, num_seqs, log.prefill_tokens, 0.0, 0.0)
    weight = np.ones(len(log)) if log.weight is None else log.weight
    return Steps(features, log.step_s, weight), notices


def _kv_decode_tokens(log: StepLog, num_kv_tokens: int | None) -> tuple[Floats, list[str]]:
    """Context tokens that decodes read, (k,); zeros when the log does not say."""
    if log.kv_decode_tokens is not None:
        return log.kv_decode_tokens, []
    if log.kv_usage is None:
        return np.zeros(len(log)), [
            "The log does not say how much context the decodes read. On GPUs their time grows with it: "
            "the model holds only for contexts like those of the log. Record KV cache usage too."
        ]
    facts = log.facts
    if num_kv_tokens is None and facts.num_gpu_blocks is not None and facts.block_size is not None:
        num_kv_tokens = (facts.num_gpu_blocks - 1) * facts.block_size  # one block is the null block
    if num_kv_tokens is None:
        return np.zeros(len(log)), [
            "The log gives KV cache usage as a share, and the size of the cache is not known: the time per "
            'context token is left out. Give the size in tokens (vLLM prints "KV cache size" at start-up).'
        ]
    tokens = np.where(log.num_decode_reqs > 0, log.kv_usage * num_kv_tokens, 0.0)
    return tokens, [
        f"Context read by decodes is approximated by KV cache usage × {num_kv_tokens:,} tokens, "
        "which counts the blocks of all running requests."
    ]


def fit_both(steps: Steps, columns: Columns) -> Floats:
    """Coefficients (t,): d from the decode-only steps, then p and its like from what prefill adds to it."""
    decode, prefill = steps.take(~steps.has_prefill), steps.take(steps.has_prefill)
    beta = fit_mean(decode, those(columns, DECODE_TERMS))
    added = replace(prefill, time_s=prefill.time_s - prefill.features @ beta)
    return beta + fit_mean(added, those(columns, PREFILL_TERMS))


def fit_mean(steps: Steps, columns: Columns) -> Floats:
    """Non-negative coefficients (t,), weights 1/predicted, iterated until the weights are their own."""
    predicted = np.ones_like(steps.time_s)
    for _ in range(200):
        beta = _weighted_fit(steps, columns, steps.weight / predicted)
        ratio = floored(steps, steps.features @ beta) / predicted
        predicted *= np.sqrt(ratio)  # a whole step may swing between two solutions for ever
        if np.max(np.abs(ratio - 1)) < 1e-9:
            break
    return beta


def fit_robust(steps: Steps, columns: Columns) -> Floats:
    """Non-negative coefficients (t,) that a few wild steps cannot move: Huber's weights on relative errors."""
    predicted = np.full(len(steps.time_s), np.median(steps.time_s))
    weight = np.ones_like(predicted)
    for _ in range(30):
        beta = _weighted_fit(steps, columns, steps.weight * weight / predicted**2)
        predicted = floored(steps, steps.features @ beta)
        miss = np.abs(steps.time_s / predicted - 1)
        limit = 1.345 * 1.4826 * max(float(np.median(miss)), 1e-6)
        weight = limit / np.maximum(miss, limit)
    return beta


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Weighted normal equations of decode-only steps [0] and of steps with prefill [1], block by block."""

    block: Ints
    """(k,) block of each step."""
    gram: Floats
    """(b, 2, t, t) features' · W · features."""
    moment: Floats
    """(b, 2, t) features' · W · time."""
    spread: Floats
    """(b, 2, t) `moment` with residuals as large as those of steps that the fit has not seen."""

    def solve(self, columns: Columns) -> Floats:
        """Coefficients from all blocks, (t,)."""
        return solve_both(self.gram.sum(axis=0), self.moment.sum(axis=0), columns)

    def predict_held_out(self, steps: Steps, columns: Columns) -> Floats:
        """Time of each step from a fit to the other folds, (k,) seconds."""
        fold = np.random.default_rng(0).permutation(len(self.gram)) % NUM_FOLDS
        predicted = np.empty_like(steps.time_s)
        for number in range(NUM_FOLDS):
            rest = fold != number
            beta = solve_both(self.gram[rest].sum(axis=0), self.moment[rest].sum(axis=0), columns)
            held_out = ~rest[self.block]
            predicted[held_out] = steps.features[held_out] @ beta
        return predicted

    def resample(self) -> tuple[Floats, Floats]:
        """Normal equations of at most `NUM_DRAWS` bootstrap samples of the blocks, (d, 2, t, t) and (d, 2, t)."""
        num_blocks = len(self.gram)
        rng = np.random.default_rng(0)
        counts = rng.multinomial(num_blocks, np.full(num_blocks, 1 / num_blocks), NUM_DRAWS)
        gram = np.tensordot(counts, self.gram, axes=1)
        moment = np.tensordot(counts, self.spread, axes=1)
        # A sample without a single decode-only step, or step with prefill, says nothing about d, or p.
        both = np.all(gram[:, :, BASE, BASE] > 0, axis=1)
        return gram[both], moment[both]

    def draws(self, columns: Columns) -> Floats:
        """Coefficients of the bootstrap samples, (d, t)."""
        gram, moment = self.resample()
        beta = solve_each(gram[:, 0], moment[:, 0], those(columns, DECODE_TERMS))
        left = moment[:, 1] - np.einsum("dij,dj->di", gram[:, 1], beta)
        return beta + solve_each(gram[:, 1], left, those(columns, PREFILL_TERMS))


def as_blocks(steps: Steps, beta: Floats) -> Blocks:
    """Cut steps into blocks long enough to be independent, weighted for the fit `beta`."""
    predicted = floored(steps, steps.features @ beta)
    num_steps = len(predicted)
    order, length = np.arange(num_steps), 1
    if in_time_order(steps):
        residual = (steps.time_s - predicted) / np.sqrt(predicted)
        length = min(4 * _memory(residual), num_steps // MIN_BLOCKS)
    else:
        order = np.random.default_rng(0).permutation(num_steps)
    length = max(length, -(-num_steps // MAX_BLOCKS))
    num_blocks = num_steps // length
    block = np.empty(num_steps, dtype=np.int64)
    block[order] = np.arange(num_steps) * num_blocks // num_steps

    own = np.where(steps.has_prefill[:, None], PREFILL_TERMS, DECODE_TERMS)
    weighted = steps.features * (steps.weight / floored(steps, (steps.features * own) @ beta))[:, None]
    kind = steps.has_prefill.astype(np.int64)
    cell = 2 * block + kind
    unseen_s = predicted + (steps.time_s - predicted) / (1.0 - _leverage(steps, weighted, beta))
    gram = np.zeros((2 * num_blocks, len(TERMS), len(TERMS)))
    moment, spread = np.zeros((2, 2 * num_blocks, len(TERMS)))
    used = np.flatnonzero(weighted.any(axis=0))
    for i in used:
        moment[:, i] = np.bincount(cell, weighted[:, i] * steps.time_s, 2 * num_blocks)
        spread[:, i] = np.bincount(cell, weighted[:, i] * unseen_s, 2 * num_blocks)
        for j in used:
            gram[:, i, j] = np.bincount(cell, weighted[:, i] * steps.features[:, j], 2 * num_blocks)
    shape = (num_blocks, 2, len(TERMS))
    return Blocks(block, gram.reshape(*shape, len(TERMS)), moment.reshape(shape), spread.reshape(shape))


def _leverage(steps: Steps, weighted: Floats, beta: Floats) -> Floats:
    """How much each step pulls the fit to itself, (k,), 0 to 0.9: a few long prefills decide p, and hide their noise.

    Source
    ------
    MacKinnon and White 1985, HC3.
    """
    leverage = np.zeros(len(steps.time_s))
    for kind, terms in ((~steps.has_prefill, DECODE_TERMS), (steps.has_prefill, PREFILL_TERMS)):
        columns = terms & (beta > 0)
        features, own = steps.features[kind][:, columns], weighted[kind][:, columns]
        leverage[kind] = np.einsum("ij,ij->i", own, features @ np.linalg.pinv(features.T @ own))
    return np.clip(leverage, 0.0, 0.9)


def in_time_order(steps: Steps) -> bool:
    """Whether rows may be taken to follow each other in time.

    A server goes back and forth between decode-only steps and steps with prefill. A sorted table of
    measurements does not, and a block of it would hold a whole regime.
    """
    return int(np.count_nonzero(np.diff(steps.has_prefill))) >= 10


def _memory(residual: Floats) -> int:
    """Steps until the autocorrelation of the residuals has fallen under 0.1."""
    centred = residual - residual.mean()
    spectrum = np.abs(np.fft.rfft(centred, 2 * len(centred))) ** 2
    correlation = np.fft.irfft(spectrum)[: len(centred)]
    return max(1, int(np.argmax(correlation < 0.1 * correlation[0])))


def floored(steps: Steps, predicted: Floats) -> Floats:
    """Predictions kept off zero, so that no step gets a boundless weight."""
    return np.maximum(predicted, 1e-6 * np.mean(np.abs(steps.time_s)))


def _weighted_fit(steps: Steps, columns: Columns, weight: Floats) -> Floats:
    """One non-negative weighted least-squares fit, (t,)."""
    index = np.array(columns)
    features = steps.features.T[index]
    weighted = features * weight
    gram, moment = np.zeros((len(TERMS), len(TERMS))), np.zeros(len(TERMS))
    gram[np.ix_(index, index)] = weighted @ features.T
    moment[index] = weighted @ steps.time_s
    return solve(gram, moment, columns)


def solve_both(gram: Floats, moment: Floats, columns: Columns) -> Floats:
    """`fit_both` from normal equations (2, t, t), (2, t) whose weights are given."""
    beta = solve(gram[0], moment[0], those(columns, DECODE_TERMS))
    return beta + solve(gram[1], moment[1] - gram[1] @ beta, those(columns, PREFILL_TERMS))


def those(columns: Columns, terms: Bools) -> Columns:
    """The columns that are among these terms."""
    return tuple(column for column in columns if terms[column])


def solve(gram: Floats, moment: Floats, columns: Columns) -> Floats:
    """Non-negative solution of the normal equations in `columns`, zero elsewhere, (t,)."""
    index = np.array(columns)
    scale = np.sqrt(np.maximum(np.diag(gram)[index], np.finfo(float).tiny))
    values, vectors = np.linalg.eigh(gram[np.ix_(index, index)] / np.outer(scale, scale))
    known = values > 1e-12 * values[-1]
    root = np.sqrt(values[known])
    square = root[:, None] * vectors[:, known].T
    target = (vectors[:, known].T @ (moment[index] / scale)) / root
    beta = np.zeros(len(TERMS))
    beta[index] = nnls(square, target)[0] / scale
    return beta


def solve_each(gram: Floats, moment: Floats, columns: Columns) -> Floats:
    """`solve` for many normal equations, (d, t, t) and (d, t) → (d, t)."""
    index = np.array(columns)
    scale = np.sqrt(np.maximum(np.diagonal(gram, axis1=1, axis2=2)[:, index], np.finfo(float).tiny))
    scaled = gram[:, index[:, None], index] / (scale[:, :, None] * scale[:, None, :])
    values, vectors = np.linalg.eigh(scaled)
    with np.errstate(divide="ignore", invalid="ignore"):
        target = np.einsum("dji,dj->di", vectors, moment[:, index] / scale) / values
        free = np.einsum("dij,dj->di", vectors, target) / scale
    beta = np.zeros_like(moment)
    beta[:, index] = free
    # The free solution is the non-negative one where it is not negative; elsewhere one by one.
    for row in np.flatnonzero((values[:, 0] <= 1e-12 * values[:, -1]) | ~(free >= 0).all(axis=1)):
        beta[row] = solve(gram[row], moment[row], columns)
    return beta


def percentile(values: Floats, weight: Floats, share: float) -> float:
    """Smallest value that `share` of the weight does not exceed."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(reached, share * reached[-1])])
