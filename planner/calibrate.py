"""From a step log to a step-time model: the coefficients, how sure they are, and when to refuse.

`fit_step_time` is the only door. The equation is `kernel.step_ns`; this file finds its coefficients.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls
from scipy.special import ndtr, stdtrit

from planner.errors import UnfitStepLog
from planner.kernel import step_ns
from planner.step_time import Coefficient, Covered, StepTime, StepTimeFit, step_time_from_seconds
from traces.errors import Problem
from traces.steps import StepLog

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Columns = tuple[int, ...]

TERMS = tuple(field.removesuffix("_ns") for field in StepTime._fields[:7])
"""What a log can determine; time per draft token is given by hand."""
BASE, PER_SEQ, PER_PREFILL_TOKEN, ANY_PREFILL, PER_KV_TOKEN, PER_KV_TOKEN_MIXED, PER_ATTENTION = range(7)
_DECODE_TERMS = np.isin(np.arange(len(TERMS)), (BASE, PER_SEQ, PER_KV_TOKEN))
"""(7,) terms that decode-only steps determine; the others are what prefill adds."""
_PREFILL_TERMS = ~_DECODE_TERMS

MIN_STEPS = 30
"""Ten for each of the three terms that are always fitted."""
MIN_STEPS_OF_KIND = 5
"""Of decode-only steps and of steps with prefill: with fewer, one odd step decides d or p."""
MIN_BLOCKS = 20
"""A bootstrap over fewer blocks has too few values to draw from."""
MAX_BLOCKS = 500
NUM_FOLDS = 5
NUM_DRAWS = 400
MIN_GAIN = 0.01
"""A term must lower the held-out error by this share of it, and by two standard errors."""
NUM_WARM_UP = 10
WARM_UP_RATIO = 3.0
OUTLIER_RATIO = 4.0
MAX_OUTLIER_SHARE = 0.02
"""Of decode-only steps or those with prefill: if more are so far off, the server is like that, and queues feel it."""
NEAR_ZERO_RATIO = 0.25
"""A step cannot take a quarter of what its work takes elsewhere: noise makes steps longer, not shorter."""
MAX_NEAR_ZERO_SHARE = 0.05
"""Real logs have at most 0.3 % of such steps, those that logged the wait under async scheduling 38 % and more."""
SANE_STEP_S = (10e-6, 100.0)
PREFILL_SIZES = (0, *(2**power for power in range(6, 18)))
"""Edges between which predicted and measured prefill are compared."""


def fit_step_time(log: StepLog, num_kv_tokens: int | None = None) -> StepTimeFit:
    """Fit the step-time equation to a step log, or refuse with everything that stands against it.

    d (base, per_seq, per_kv_token) is fitted to the decode-only steps, the other terms to what steps with
    prefill take beyond it: an odd cost of some prefill size must not bend d, on which most gaps depend.

    Coefficients are non-negative and make the predicted total time equal the measured one, for decode-only
    steps and for steps with prefill: least squares with weights 1/predicted (variance in proportion to the
    mean). At the solution sum(weight·predicted·(measured − predicted)) = 0, and weight·predicted = 1. Queues
    depend on means: a fit of relative errors to right-skewed step times predicts too little total time, and
    every latency downstream comes out too low. For each kind by itself, because other flags mean another mix.

    base, per_seq and per_prefill_token are always fitted; a further term enters only if it lowers the error
    on held-out steps beyond noise. Same log, same result: whatever is random is seeded.

    Parameters
    ----------
    log : StepLog
        k engine steps.
    num_kv_tokens : int, optional
        Size of the KV cache, tokens: turns `log.kv_usage` into tokens. Default: from `log.facts`.

    Returns
    -------
    StepTimeFit
        Coefficients with 95 % intervals, held-out error, covered range, and what was left out.

    Raises
    ------
    UnfitStepLog
        The log cannot determine d or p; lists every reason, and what to record next.

    Source
    ------
    Weights: quasi-likelihood with variance proportional to the mean (Wedderburn 1974). Choice of
    terms: the smallest set that is worse than the best by no more than noise, like the one-standard-
    error rule (Breiman et al. 1984). Intervals: bootstrap over blocks of consecutive steps (Carlstein
    1986), percentiles widened for few blocks (Hesterberg 2015, "expanded percentile").
    """
    steps, notices = _as_steps(log, num_kv_tokens)
    work = (steps.num_seqs > 0) & (steps.time_s > 0) & ~log.recomputes
    problems = _work_problems(log, steps.take(work))
    if work.sum() < len(TERMS):
        raise _unfit(log, problems)
    always, optional = _columns(steps.take(work), notices)
    everything = _join(always, optional)
    kept, left_out = _leave_out(steps, work, log.recomputes, everything, notices)
    problems = problems or _work_problems(log, steps.take(kept))
    problems += _time_problems(log, steps, kept, everything)
    if problems:
        raise _unfit(log, problems)

    chosen, held_out_error = _choose_terms(steps.take(kept), always, optional)
    beta = _fit(steps.take(kept), chosen)
    blocks = _as_blocks(steps.take(kept), beta)
    problems = _slope_problems(log, blocks, beta, chosen)
    if problems:
        raise _unfit(log, problems)
    fit = _result(log, steps, kept, beta, chosen, held_out_error)
    return replace(fit, left_out=left_out, notices=(*notices, *_cautions(log, steps, fit)))


@dataclass(frozen=True, slots=True, eq=False)
class _Steps:
    """k steps as a linear problem: time = features @ coefficients."""

    features: Floats
    """(k, 7) in the order of `StepTime`; what the log does not know is zero."""
    time_s: Floats
    """(k,) measured, seconds."""
    weight: Floats
    """(k,) real steps that a row stands for."""

    @property
    def num_seqs(self) -> Floats:
        return self.features[:, PER_SEQ]

    @property
    def prefill_tokens(self) -> Floats:
        return self.features[:, PER_PREFILL_TOKEN]

    @property
    def has_prefill(self) -> Bools:
        return self.features[:, PER_PREFILL_TOKEN] > 0

    @property
    def kv_tokens(self) -> Floats:
        return self.features[:, PER_KV_TOKEN] + self.features[:, PER_KV_TOKEN_MIXED]

    def take(self, which: Bools | Ints) -> "_Steps":
        """Only the steps of a mask or index."""
        return _Steps(self.features[which], self.time_s[which], self.weight[which])


def _as_steps(log: StepLog, num_kv_tokens: int | None) -> tuple[_Steps, list[str]]:
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
    weight = np.ones(len(log)) if log.weight is None else log.weight
    return _Steps(features, log.step_s, weight), notices


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


def _work_problems(log: StepLog, steps: _Steps) -> list[Problem]:
    """What the work in the log cannot determine, whatever the times are."""
    problems = []
    num_steps, num_prefill = len(steps.time_s), int(steps.has_prefill.sum())
    num_decode = num_steps - num_prefill
    prefill = _column(log, "prefill_tokens")
    if num_steps < MIN_STEPS:
        problems.append(
            Problem(
                None,
                f"too few steps: {num_steps} with work in them",
                f"at least {MIN_STEPS}, ten for each of base, per_seq and per_prefill_token",
                "Record some minutes of traffic with --enable-logging-iteration-details.",
            )
        )
    if num_decode < MIN_STEPS_OF_KIND:
        problems.append(
            Problem(
                prefill,
                f"{num_decode or 'no'} decode-only steps (0 prefill tokens): d cannot be separated from p",
                f"at least {MIN_STEPS_OF_KIND} decode-only steps",
                "Record also while requests stream and no prompt arrives (vllm bench serve --request-rate 1).",
            )
        )
    if num_prefill < MIN_STEPS_OF_KIND:
        problems.append(
            Problem(
                prefill,
                f"{num_prefill or 'no'} steps with prefill tokens: p cannot be determined"
                + _visible_decode_time(steps),
                f"at least {MIN_STEPS_OF_KIND} steps with prefill tokens, of different sizes",
                "Record also while prompts of different lengths arrive (vllm bench serve --request-rate 1).",
            )
        )
    if num_decode == 0 < num_prefill and np.ptp(steps.prefill_tokens) == 0:
        problems.append(
            Problem(
                prefill,
                f"prefill tokens are constant ({steps.prefill_tokens[0]:,.0f} in every step): "
                "d and p cannot be told apart",
                "steps with different numbers of prefill tokens, 0 among them",
                "Record prompts of different lengths, and pauses between them.",
            )
        )
    return problems


def _visible_decode_time(steps: _Steps) -> str:
    """What can be said of d when p is out of reach."""
    decode = steps.take(~steps.has_prefill)
    if len(decode.time_s) == 0:
        return ""
    num_seqs = _percentile(decode.num_seqs, decode.weight, 0.5)
    usual = np.abs(decode.num_seqs - num_seqs) <= 0.1 * num_seqs
    mean_ms = np.average(decode.time_s[usual], weights=decode.weight[usual]) * 1e3
    return f" (d can be seen: {mean_ms:.3g} ms at {num_seqs:.0f} running)"


def _columns(steps: _Steps, notices: list[str]) -> tuple[Columns, tuple[Columns, ...]]:
    """Terms that are always fitted, and those that may enter if they help."""
    decode, prefill = steps.take(~steps.has_prefill), steps.take(steps.has_prefill)
    sizes = np.unique(prefill.prefill_tokens)
    always = [BASE]
    optional: list[Columns] = []
    if len(decode.time_s) and np.ptp(decode.num_seqs) > 0:
        always.append(PER_SEQ)
    else:
        notices.append(
            "Decode-only steps all have the same batch, so time per sequence cannot be separated from the base: "
            "it is left at 0, and a larger batch costs more than this model says. Record different loads."
        )
    if len(sizes):
        always.append(PER_PREFILL_TOKEN)
    # With one or two sizes an offset and a slope explain each other away.
    if len(sizes) > 2:
        optional.append((ANY_PREFILL,))
    elif len(sizes) == 1 and len(decode.time_s):
        notices.append(
            f"Every prefill is of {sizes[0]:,.0f} tokens: that smaller and larger ones cost in proportion is assumed."
        )
    # Decodes read their context in both kinds of steps: a cost in one that is free in the other misleads.
    if steps.kv_tokens.any():
        optional.append((PER_KV_TOKEN, PER_KV_TOKEN_MIXED))
    if steps.features[:, PER_ATTENTION].any():
        optional.append((PER_ATTENTION,))
    return tuple(always), tuple(optional)


def _leave_out(
    steps: _Steps, work: Bools, recomputes: Bools, columns: Columns, notices: list[str]
) -> tuple[Bools, tuple[tuple[str, int], ...]]:
    """Mask of the steps to fit, and (reason, steps) for the rest."""
    predicted = steps.features @ _fit_robust(steps.take(work), columns)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(work, steps.time_s / predicted, 1.0)
        deviation = np.abs(np.log(ratio))
    spread = 1.4826 * np.median(deviation[work])
    outlier = deviation > max(np.log(OUTLIER_RATIO), 6.0 * spread)
    early = np.arange(len(work)) < NUM_WARM_UP
    warm_up = early & work & (ratio > WARM_UP_RATIO) & _in_time_order(steps)
    outlier &= ~warm_up
    for kind in (steps.has_prefill, ~steps.has_prefill):
        count, total = (outlier & kind).sum(), (work & kind).sum()
        if count > max(1, MAX_OUTLIER_SHARE * total):
            notices.append(
                f"{count:,} steps ({count / total:.1%} of their kind) took over {OUTLIER_RATIO:.0f} times longer or "
                "shorter than their work explains. So many are part of how the server behaves: they are kept."
            )
            outlier &= ~kind
    for name, mask in (("warm-up", warm_up), ("outliers", outlier)):
        if mask.any():
            logged_s = steps.time_s * steps.weight
            notices.append(
                f"Left out as {name}: {mask.sum():,} of {work.sum():,} steps, "
                f"{logged_s[mask].sum() / logged_s[work].sum():.1%} of the logged time. Requests on the server "
                "waited for them; the plan does not."
            )
    reasons = (
        ("no work scheduled, or no time logged", ~work & ~recomputes),
        ("a preempted request computes its tokens again, after a context that is not known", recomputes),
        (f"warm-up: over {WARM_UP_RATIO:.0f} × the fit within the first {NUM_WARM_UP} steps", warm_up),
        (f"outliers: over {OUTLIER_RATIO:.0f} × off the fit", outlier),
    )
    left_out = tuple((reason, int(mask.sum())) for reason, mask in reasons if mask.any())
    return work & ~warm_up & ~outlier, left_out


def _time_problems(log: StepLog, steps: _Steps, kept: Bools, columns: Columns) -> list[Problem]:
    """Times that cannot be times of engine steps."""
    problems = []
    predicted = steps.features @ _fit_mean(steps.take(kept), columns)
    scheduled = steps.num_seqs > 0
    near_zero = scheduled & (steps.time_s < NEAR_ZERO_RATIO * predicted)
    share = near_zero.sum() / scheduled.sum()
    if share > MAX_NEAR_ZERO_SHARE:
        first = int(np.flatnonzero(near_zero)[np.argmax(steps.prefill_tokens[near_zero])])
        problems.append(
            Problem(
                _column(log, "step_time"),
                f"{share:.0%} of the step times are near zero and unrelated to the work, for instance "
                f"{steps.prefill_tokens[first]:,.0f} prefill tokens and {steps.num_seqs[first]:.0f} requests in "
                f"{steps.time_s[first] * 1e3:.3g} ms (row {log.source_row[first] + 1}): "
                "asynchronous scheduling logged the wait for a result, not the time on the GPU",
                "the time of whole engine steps",
                "Record the time from step to step (time stamps of a JSON log), or restart vLLM with "
                "--no-async-scheduling for the recording.",
                rows=tuple(int(row) for row in log.source_row[near_zero][:5]),
                num_rows=int(near_zero.sum()),
            )
        )
    typical_s = np.median(steps.time_s[kept])
    if not SANE_STEP_S[0] <= typical_s <= SANE_STEP_S[1]:
        problems.append(
            Problem(
                _column(log, "step_time"),
                f"the median step takes {typical_s:.3g} s, which no engine step does",
                f"{SANE_STEP_S[0] * 1e3:g} ms to {SANE_STEP_S[1]:g} s",
                "Check the unit of the column: put it into the name (step_ms, step_s, step_us).",
            )
        )
    return problems


def _choose_terms(steps: _Steps, always: Columns, optional: tuple[Columns, ...]) -> tuple[Columns, tuple[float, float]]:
    """The smallest set of terms that is as good on held-out steps as any, and its (mean, p95) error."""
    beta = _fit(steps, _join(always, optional))
    blocks = _as_blocks(steps, beta)
    # Both kinds of steps count alike: one decides d, the other p, and one of them is usually rare.
    half = np.where(
        steps.has_prefill,
        0.5 * steps.weight / steps.weight[steps.has_prefill].sum(),
        0.5 * steps.weight / steps.weight[~steps.has_prefill].sum(),
    )
    sets = [_join(always, extra) for size in range(len(optional) + 1) for extra in combinations(optional, size)]
    # Further terms must not explain p away.
    sets = [columns for columns in sets if columns == always or blocks.solve(columns)[PER_PREFILL_TOKEN] > 0]
    held_out = [blocks.predict_held_out(steps, columns) for columns in sets]
    scale = half / _floored(steps, steps.features @ beta)
    error = [
        np.bincount(blocks.block, scale * np.abs(steps.time_s - predicted)).astype(np.float64) for predicted in held_out
    ]
    best = min(error, key=np.sum)
    smallest = next(index for index, own in enumerate(error) if _no_worse(own, best))
    ape = np.abs(steps.time_s - held_out[smallest]) / steps.time_s
    mean_ape = float(np.average(ape, weights=steps.weight))
    return sets[smallest], (mean_ape, _percentile(ape, steps.weight, 0.95))


def _no_worse(own: Floats, best: Floats) -> bool:
    """Whether errors by block, (b,), are above the best ones by no more than the margin or noise."""
    noise = np.sqrt(len(own)) * np.std(own - best)
    return bool(np.sum(own - best) <= max(MIN_GAIN * np.sum(best), 2.0 * noise))


def _slope_problems(log: StepLog, blocks: "_Blocks", beta: Floats, chosen: Columns) -> list[Problem]:
    """A p that is negative, or that the log leaves open down to 0; never clamped silently."""
    if beta[PER_PREFILL_TOKEN] > 0:
        return []
    slope = []
    for gram, moment in blocks.resample():
        added = moment[1] - gram[1] @ _solve(gram[0], moment[0], _those(chosen, _DECODE_TERMS))
        slope.append(added[PER_PREFILL_TOKEN] / gram[1, PER_PREFILL_TOKEN, PER_PREFILL_TOKEN])
    low, high = np.quantile(slope, [0.025, 0.975]) * 1e6
    falls = high < 0
    return [
        Problem(
            _column(log, "step_time"),
            f"step time {'falls' if falls else 'does not grow'} as prefill tokens grow: p would be "
            f"{low:.3g} to {high:.3g} µs per token; "
            + ("a negative slope is not physical" if falls else "the log does not determine p"),
            "times that grow with the prefill tokens of the step",
            "Check that the time and token columns belong to the same step (an offset of one row does this) and "
            "that the times are not waits under asynchronous scheduling; record prompts of different lengths.",
        )
    ]


@dataclass(frozen=True, slots=True, eq=False)
class _Blocks:
    """Weighted normal equations of decode-only steps [0] and of steps with prefill [1], block by block."""

    block: Ints
    """(k,) block of each step."""
    gram: Floats
    """(b, 2, 7, 7) features' · W · features."""
    moment: Floats
    """(b, 2, 7) features' · W · time."""

    def solve(self, columns: Columns) -> Floats:
        """Coefficients from all blocks, (7,)."""
        return _solve_both(self.gram.sum(axis=0), self.moment.sum(axis=0), columns)

    def predict_held_out(self, steps: _Steps, columns: Columns) -> Floats:
        """Time of each step from a fit to the other folds, (k,) seconds."""
        fold = np.random.default_rng(0).permutation(len(self.gram)) % NUM_FOLDS
        predicted = np.empty_like(steps.time_s)
        for number in range(NUM_FOLDS):
            rest = fold != number
            beta = _solve_both(self.gram[rest].sum(axis=0), self.moment[rest].sum(axis=0), columns)
            held_out = ~rest[self.block]
            predicted[held_out] = steps.features[held_out] @ beta
        return predicted

    def resample(self) -> Iterator[tuple[Floats, Floats]]:
        """Normal equations of `NUM_DRAWS` bootstrap samples of the blocks."""
        num_blocks = len(self.gram)
        rng = np.random.default_rng(0)
        counts = rng.multinomial(num_blocks, np.full(num_blocks, 1 / num_blocks), NUM_DRAWS)
        gram = np.tensordot(counts, self.gram, axes=1)
        moment = np.tensordot(counts, self.moment, axes=1)
        # A sample without a single decode-only step, or step with prefill, says nothing about d, or p.
        both = np.all(gram[:, :, BASE, BASE] > 0, axis=1)
        return zip(gram[both], moment[both], strict=True)


def _as_blocks(steps: _Steps, beta: Floats) -> _Blocks:
    """Cut steps into blocks long enough to be independent, weighted for the fit `beta`."""
    predicted = _floored(steps, steps.features @ beta)
    num_steps = len(predicted)
    order, length = np.arange(num_steps), 1
    if _in_time_order(steps):
        residual = (steps.time_s - predicted) / np.sqrt(predicted)
        length = min(4 * _memory(residual), num_steps // MIN_BLOCKS)
    else:
        order = np.random.default_rng(0).permutation(num_steps)
    length = max(length, -(-num_steps // MAX_BLOCKS))
    num_blocks = num_steps // length
    block = np.empty(num_steps, dtype=np.int64)
    block[order] = np.arange(num_steps) * num_blocks // num_steps

    own = np.where(steps.has_prefill[:, None], _PREFILL_TERMS, _DECODE_TERMS)
    weighted = steps.features * (steps.weight / _floored(steps, (steps.features * own) @ beta))[:, None]
    kind = steps.has_prefill.astype(np.int64)
    gram = np.zeros((num_blocks, 2, len(TERMS), len(TERMS)))
    moment = np.zeros((num_blocks, 2, len(TERMS)))
    np.add.at(gram, (block, kind), weighted[:, :, None] * steps.features[:, None, :])
    np.add.at(moment, (block, kind), weighted * steps.time_s[:, None])
    return _Blocks(block, gram, moment)


def _in_time_order(steps: _Steps) -> bool:
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


def _fit(steps: _Steps, columns: Columns) -> Floats:
    """Coefficients (7,): d from the decode-only steps, then p and its like from what prefill adds to it."""
    decode, prefill = steps.take(~steps.has_prefill), steps.take(steps.has_prefill)
    beta = _fit_mean(decode, _those(columns, _DECODE_TERMS))
    added = replace(prefill, time_s=prefill.time_s - prefill.features @ beta)
    return beta + _fit_mean(added, _those(columns, _PREFILL_TERMS))


def _fit_mean(steps: _Steps, columns: Columns) -> Floats:
    """Non-negative coefficients (7,), weights 1/predicted, iterated until the weights are their own."""
    predicted = np.ones_like(steps.time_s)
    for _ in range(200):
        beta = _weighted_fit(steps, columns, steps.weight / predicted)
        ratio = _floored(steps, steps.features @ beta) / predicted
        predicted *= np.sqrt(ratio)  # a whole step may swing between two solutions for ever
        if np.max(np.abs(ratio - 1)) < 1e-9:
            break
    return beta


def _fit_robust(steps: _Steps, columns: Columns) -> Floats:
    """Non-negative coefficients (7,) that a few wild steps cannot move: Huber's weights on relative errors."""
    predicted = np.full(len(steps.time_s), np.median(steps.time_s))
    weight = np.ones_like(predicted)
    for _ in range(30):
        beta = _weighted_fit(steps, columns, steps.weight * weight / predicted**2)
        predicted = _floored(steps, steps.features @ beta)
        miss = np.abs(steps.time_s / predicted - 1)
        limit = 1.345 * 1.4826 * max(float(np.median(miss)), 1e-6)
        weight = limit / np.maximum(miss, limit)
    return beta


def _floored(steps: _Steps, predicted: Floats) -> Floats:
    """Predictions kept off zero, so that no step gets a boundless weight."""
    return np.maximum(predicted, 1e-6 * np.mean(np.abs(steps.time_s)))


def _weighted_fit(steps: _Steps, columns: Columns, weight: Floats) -> Floats:
    """One non-negative weighted least-squares fit, (7,)."""
    weighted = steps.features * weight[:, None]
    return _solve(weighted.T @ steps.features, weighted.T @ steps.time_s, columns)


def _solve_both(gram: Floats, moment: Floats, columns: Columns) -> Floats:
    """`_fit` from normal equations (2, 7, 7), (2, 7) whose weights are given."""
    beta = _solve(gram[0], moment[0], _those(columns, _DECODE_TERMS))
    return beta + _solve(gram[1], moment[1] - gram[1] @ beta, _those(columns, _PREFILL_TERMS))


def _those(columns: Columns, terms: Bools) -> Columns:
    return tuple(column for column in columns if terms[column])


def _solve(gram: Floats, moment: Floats, columns: Columns) -> Floats:
    """Non-negative solution of the normal equations in `columns`, zero elsewhere, (7,)."""
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


def _result(
    log: StepLog, steps: _Steps, kept: Bools, beta: Floats, chosen: Columns, held_out: tuple[float, float]
) -> StepTimeFit:
    """The fit as the rest of the product sees it."""
    fitted = steps.take(kept)
    blocks = _as_blocks(fitted, beta)
    draws = np.array([_solve_both(gram, moment, chosen) for gram, moment in blocks.resample()])
    low, high = np.quantile(draws, _interval_levels(len(blocks.gram)), axis=0)
    low, high = np.minimum(low, beta), np.maximum(high, beta)
    coefficients = tuple(
        Coefficient(TERMS[column], float(beta[column]), float(low[column]), float(high[column])) for column in chosen
    )
    step_time = step_time_from_seconds(beta)
    predicted_s = _predict(step_time, steps.features)
    decode = fitted.take(~fitted.has_prefill)
    num_seqs = round(_percentile(decode.num_seqs, decode.weight, 0.5))
    context = _percentile(decode.kv_tokens / decode.num_seqs, decode.weight, 0.5)
    typical = np.array([[1.0, num_seqs, 0.0, 0.0, num_seqs * context, 0.0, 0.0]])
    total_s = np.sum(steps.time_s[kept] * steps.weight[kept])
    return StepTimeFit(
        step_time=step_time,
        coefficients=coefficients,
        draws=draws,
        num_steps=len(log),
        kept=kept,
        left_out=(),
        predicted_s=predicted_s,
        measured_s=log.step_s,
        held_out_mape=held_out[0],
        held_out_p95=held_out[1],
        total_time_ratio=float(np.sum(predicted_s[kept] * steps.weight[kept]) / total_s),
        typical_num_seqs=num_seqs,
        typical_decode_s=float(_predict(step_time, typical)[0]),
        covered=Covered(
            max_num_seqs=int(fitted.num_seqs.max()),
            max_prefill_tokens=int(fitted.prefill_tokens.max()),
            max_kv_decode_tokens=float(fitted.kv_tokens.max()) if fitted.kv_tokens.any() else float("nan"),
        ),
        notices=(),
        source=_source(log),
        digest=log.digest,
    )


def _predict(step_time: StepTime, features: Floats) -> Floats:
    """Time that the kernel would charge for each step, (k,) seconds."""
    predicted_ns: Ints = step_ns.py_func(
        step_time,
        features[:, PER_SEQ].astype(np.int64),
        features[:, PER_PREFILL_TOKEN].astype(np.int64),
        features[:, PER_KV_TOKEN] + features[:, PER_KV_TOKEN_MIXED],
        features[:, PER_ATTENTION],
    )
    return predicted_ns / 1e9


def _interval_levels(num_blocks: int) -> tuple[float, float]:
    """Percentiles of the draws that make a 95 % interval from this many blocks."""
    low = float(ndtr(-np.sqrt(num_blocks / (num_blocks - 1)) * stdtrit(num_blocks - 1, 0.975)))
    return low, 1.0 - low


def _cautions(log: StepLog, steps: _Steps, fit: StepTimeFit) -> Iterator[str]:
    """What the user must know before trusting a fit that was not refused."""
    yield from _cautions_on_slopes(fit)
    yield from _cautions_on_context(steps.take(fit.kept), fit)
    yield from _cautions_on_sizes(steps, fit)
    if fit.held_out_mape > 0.25:
        yield f"Single steps scatter: {fit.held_out_mape:.0%} mean error on steps that the fit did not see."
    column = _column(log, "step_time")
    if "elapsed" in column or (column == "step_time" and log.facts.async_scheduling):
        yield (
            "vLLM's elapsed time is the wait for the result of a step, under asynchronous scheduling too. From step "
            "to step it takes longer, by 5 to 10 % on one server: real gaps are that much longer than planned."
        )


def _cautions_on_slopes(fit: StepTimeFit) -> Iterator[str]:
    """Say so when d or p is known roughly only."""
    base, per_seq, p = fit.draws[:, BASE], fit.draws[:, PER_SEQ], _coefficient(fit, PER_PREFILL_TOKEN)
    assert p is not None
    half_width = (p.high - p.low) / (2 * p.value)
    if half_width > 0.2:
        yield (
            f"p is not well determined by steps of 0 to {fit.covered.max_prefill_tokens:,} prefill tokens: "
            f"{p.value * 1e6:.3g} µs per token, 95 % interval {p.low * 1e6:.3g} to {p.high * 1e6:.3g} "
            f"(±{half_width:.0%}). Record longer prompts, or more of them."
        )
    low, high = np.quantile(base + per_seq * fit.typical_num_seqs, [0.025, 0.975])
    if high - low > 0.2 * (high + low):
        yield (
            f"d at {fit.typical_num_seqs} running is not well determined: 95 % interval "
            f"{low * 1e3:.3g} to {high * 1e3:.3g} ms before context. Record longer."
        )


def _cautions_on_context(steps: _Steps, fit: StepTimeFit) -> Iterator[str]:
    """Say so when the cost of context cannot be seen, because it rises and falls with the batch."""
    decode = steps.take(~steps.has_prefill)
    if not decode.kv_tokens.any() or _coefficient(fit, PER_KV_TOKEN):
        return
    varies = np.ptp(decode.kv_tokens) > 0 and np.ptp(decode.num_seqs) > 0
    if not varies or np.corrcoef(decode.kv_tokens, decode.num_seqs)[0, 1] > 0.95:
        yield (
            "Context grows in step with the batch in this log, so its cost is inside the time per sequence: "
            "longer contexts cost more than this model says. Record requests of different lengths."
        )


def _cautions_on_sizes(steps: _Steps, fit: StepTimeFit) -> Iterator[str]:
    """Say so when prefill of some size costs much less or more than in proportion."""
    ratios = {}
    for low, high in pairwise(PREFILL_SIZES):
        which = fit.kept & (steps.prefill_tokens > low) & (steps.prefill_tokens <= high)
        if which.sum() >= 2 * MIN_STEPS_OF_KIND:
            measured_s = np.sum((steps.time_s * steps.weight)[which])
            ratios[f"{low + 1:,} to {high:,}"] = np.sum((fit.predicted_s * steps.weight)[which]) / measured_s
    worst = max(ratios, key=lambda size: abs(ratios[size] - 1), default=None)
    if worst is not None and abs(ratios[worst] - 1) > 0.15:
        yield (
            f"Prefill does not cost in proportion to its tokens: steps of {worst} are predicted "
            f"{abs(ratios[worst] - 1):.0%} too {'long' if ratios[worst] > 1 else 'short'} on average."
        )


def _coefficient(fit: StepTimeFit, column: int) -> Coefficient | None:
    return next((one for one in fit.coefficients if one.name == TERMS[column]), None)


def _join(always: Columns, groups: tuple[Columns, ...]) -> Columns:
    return always + tuple(column for group in groups for column in group)


def _percentile(values: Floats, weight: Floats, share: float) -> float:
    """Smallest value that `share` of the weight does not exceed."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(reached, share * reached[-1])])


def _column(log: StepLog, role: str) -> str:
    """The column of the user's file that plays a part; the part itself when no file is known."""
    columns = dict(log.receipt.columns) if log.receipt is not None else {}
    return columns.get(role, role)


def _source(log: StepLog) -> str:
    """File and short digest."""
    if log.receipt is None:
        return f"step log ({log.digest[:8]})"
    return f"{log.receipt.file_name} ({log.receipt.file_digest[:8]})"


def _unfit(log: StepLog, problems: list[Problem]) -> UnfitStepLog:
    return UnfitStepLog("step log" if log.receipt is None else log.receipt.file_name, tuple(problems))
