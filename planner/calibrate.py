"""From a step log to a step-time model: the coefficients, how sure they are, and when to refuse.

`fit_step_time` is the only door. The equation is `kernel.step_ns`; this file finds its coefficients.
"""

from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, stdtrit

from planner.align import Alignment, aligned_log
from planner.kernel import step_ns
from planner.noise import drift_notices, noise_of, pace_of
from planner.periods import starts_s, with_periods
from planner.refusals import cautions, regime_problems, slope_problems, time_problems, unfit, work_problems
from planner.regression import (
    ANY_PREFILL,
    BASE,
    BATCH_SHAPE,
    BEYOND,
    DECODE_TERMS,
    KINKS,
    PER_ATTENTION,
    PER_KV_PREFILL_TOKEN,
    PER_KV_TOKEN,
    PER_KV_TOKEN_MIXED,
    PER_PREFILL_TOKEN,
    PER_SEQ,
    PREFILL_TERMS,
    Bools,
    Columns,
    Floats,
    Ints,
    Steps,
    as_blocks,
    as_steps,
    fit_both,
    fit_robust,
    floored,
    in_time_order,
    percentile,
)
from planner.step_time import TERMS, Coefficient, Covered, StepTime, StepTimeFit, step_time_from_seconds
from traces.steps import StepLog

MIN_GAIN = 0.01
"""A term must lower the held-out error by this share of it, and by so many standard errors:"""
NUM_STANDARD_ERRORS = 2.5
NUM_STANDARD_ERRORS_OF_KINKS = 3.0
NUM_WARM_UP = 10
WARM_UP_RATIO = 3.0
OUTLIER_RATIO = 4.0
MAX_OUTLIER_SHARE = 0.02
"""Of decode-only steps or those with prefill: if more are so far off, the server is like that, and queues feel it."""
LATE = (*BEYOND, *BATCH_SHAPE)
"""Terms that can mimic others, so that they have to show what no other can."""


class HeldOut(NamedTuple):
    """Absolute relative error on steps that a fit did not see, 0–1."""

    mape: float
    median: float
    p95: float


def fit_step_time(log: StepLog, num_kv_tokens: int | None = None, alignment: Alignment | None = None) -> StepTimeFit:
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
    alignment : Alignment, optional
        The requests behind this very log: the fit then stands on the steps that they explain, with every step's
        context and attention known.

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
    log, overhead_s, period_notices = with_periods(log, None if alignment is None else alignment.follows)
    start_s = None
    if alignment is not None:
        is_sure = alignment.is_explained[alignment.admitted_in]
        start_s = starts_s(log, alignment.follows, alignment.admitted_in[is_sure], alignment.sent_s[is_sure])
        start_s = None if start_s is None else start_s[alignment.is_explained]
        log = aligned_log(log, alignment)
    steps, notices = as_steps(log, num_kv_tokens)
    notices += period_notices
    work = (steps.num_seqs > 0) & (steps.time_s > 0) & ~log.recomputes
    problems = work_problems(log, steps.take(work))
    if work.sum() < len(TERMS):
        raise unfit(log, problems)
    always, optional = _columns(steps.take(work), notices)
    everything = _join(always, optional)
    kept, left_out = _leave_out(steps, work, log.recomputes, everything, notices)
    problems = problems or work_problems(log, steps.take(kept))
    problems += time_problems(log, steps, kept, everything)
    problems = problems or regime_problems(log, steps, kept, always)
    if problems:
        raise unfit(log, problems)

    chosen, held_out_error = _choose_terms(steps.take(kept), always, optional)
    beta = fit_both(steps.take(kept), chosen)
    blocks = as_blocks(steps.take(kept), beta)
    problems = slope_problems(log, blocks, beta, chosen)
    if problems:
        raise unfit(log, problems)
    fit = replace(_result(log, steps, kept, beta, chosen, held_out_error), overhead_s=overhead_s)
    if log.weight is None and in_time_order(steps):
        fitted = steps.take(kept)
        predicted_s = floored(fitted, fitted.features @ beta)
        fit = replace(fit, noise=noise_of(fitted.time_s / predicted_s, fitted.has_prefill))
        if alignment is not None and start_s is not None:
            pace = pace_of(start_s[kept], fitted.time_s, predicted_s, fitted.has_prefill, alignment.trace_digest)
            fit = replace(fit, pace=pace)
            if pace is not None:
                notices += drift_notices(pace, start_s[kept], fitted.time_s, predicted_s)
    return replace(fit, left_out=left_out, notices=(*notices, *cautions(log, steps, fit)))


def _columns(steps: Steps, notices: list[str]) -> tuple[Columns, tuple[Columns, ...]]:
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
    optional += [(column,) for column in (PER_ATTENTION, PER_KV_PREFILL_TOKEN) if steps.features[:, column].any()]
    # A kink needs sizes on both sides of it, or offset and slope can do the same.
    tokens = np.unique(prefill.prefill_tokens + prefill.num_seqs)
    for column in BEYOND:
        if np.sum(tokens > KINKS[column]) > 1 < np.sum(tokens <= KINKS[column]):
            optional.append((column,))
    optional += [(column,) for column in BATCH_SHAPE if len(np.unique(decode.features[:, column])) > 1]
    return tuple(always), tuple(optional)


def _leave_out(
    steps: Steps, work: Bools, recomputes: Bools, columns: Columns, notices: list[str]
) -> tuple[Bools, tuple[tuple[str, int], ...]]:
    """Mask of the steps to fit, and (reason, steps) for the rest."""
    predicted = steps.features @ fit_robust(steps.take(work), columns)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(work, steps.time_s / predicted, 1.0)
        deviation = np.abs(np.log(ratio))
    spread = 1.4826 * np.median(deviation[work])
    outlier = deviation > max(np.log(OUTLIER_RATIO), 6.0 * spread)
    early = np.arange(len(work)) < NUM_WARM_UP
    warm_up = early & work & (ratio > WARM_UP_RATIO) & in_time_order(steps)
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


def _choose_terms(steps: Steps, always: Columns, optional: tuple[Columns, ...]) -> tuple[Columns, HeldOut]:
    """The smallest set of terms that is as good on held-out steps as any, and its error there.

    Kinks enter last, one by one, and what helps beside them: they can mimic any other term, so they have to show
    what no other can.
    """
    beta = fit_both(steps, _join(always, optional))
    blocks = as_blocks(steps, beta)
    scale = _half_and_half(steps) / floored(steps, steps.features @ beta)

    def error(columns: Columns) -> Floats:
        """Held-out error of both kinds of steps by block, (2, b); infinite when further terms explain p away."""
        if columns != always and blocks.solve(columns)[PER_PREFILL_TOKEN] <= 0:
            return np.full((2, len(blocks.gram)), np.inf)
        squared = scale * (steps.time_s - blocks.predict_held_out(steps, columns)) ** 2
        kinds = (~steps.has_prefill, steps.has_prefill)
        return np.stack([np.bincount(blocks.block, squared * kind, len(blocks.gram)) for kind in kinds])

    plain = [group for group in optional if group[0] not in LATE]
    sets = [_join(always, extra) for size in range(len(plain) + 1) for extra in combinations(plain, size)]
    errors = [error(columns) for columns in sets]
    best = min(errors, key=np.sum).sum(axis=0)
    chosen, own = next(
        one for one in zip(sets, errors, strict=True) if _is_no_worse(one[1].sum(axis=0), best, NUM_STANDARD_ERRORS)
    )
    rest = [group for group in optional if group[0] not in chosen]
    while True:
        # A term of d is judged where d is fitted: what prefill leaves unexplained would drown it.
        gains = {}
        for group in rest:
            better, kind = error(chosen + group), int(not DECODE_TERMS[group[0]])
            num_standard_errors = NUM_STANDARD_ERRORS_OF_KINKS if group[0] in LATE else NUM_STANDARD_ERRORS
            if not _is_no_worse(own[kind], better[kind], num_standard_errors):
                gains[group] = float(np.sum(better[kind]) / np.sum(own[kind]))
        if not gains:
            break
        group = min(gains, key=lambda one: gains[one])
        rest.remove(group)
        if fit_both(steps, chosen + group)[PER_PREFILL_TOKEN] > 0:
            chosen, own = chosen + group, error(chosen + group)
    ape = np.abs(steps.time_s - blocks.predict_held_out(steps, chosen)) / steps.time_s
    return chosen, HeldOut(
        mape=float(np.average(ape, weights=steps.weight)),
        median=percentile(ape, steps.weight, 0.5),
        p95=percentile(ape, steps.weight, 0.95),
    )


def _half_and_half(steps: Steps) -> Floats:
    """Weights (k,) by which both kinds of steps count alike: one decides d, the other p, and one is usually rare."""
    share = np.empty_like(steps.weight)
    for kind in (steps.has_prefill, ~steps.has_prefill):
        share[kind] = 0.5 * steps.weight[kind] / steps.weight[kind].sum()
    return share


def _is_no_worse(own: Floats, best: Floats, num_standard_errors: float) -> bool:
    """Whether errors by block, (b,), are above the best ones by no more than the margin or noise."""
    if not np.isfinite(own).all() or not np.isfinite(best).all():
        return bool(np.isfinite(own).all())
    noise = np.sqrt(len(own)) * np.std(own - best)
    return bool(np.sum(own - best) <= max(MIN_GAIN * np.sum(best), num_standard_errors * noise))


def _result(log: StepLog, steps: Steps, kept: Bools, beta: Floats, chosen: Columns, held_out: HeldOut) -> StepTimeFit:
    """The fit as the rest of the product sees it."""
    fitted = steps.take(kept)
    blocks = as_blocks(fitted, beta)
    draws = blocks.draws(chosen)
    low, high = beta.copy(), beta.copy()
    for kind, terms in enumerate((DECODE_TERMS, PREFILL_TERMS)):
        num_blocks = int(np.count_nonzero(blocks.gram[:, kind, BASE, BASE]))
        ends = np.quantile(draws[:, terms], _interval_levels(num_blocks), axis=0)
        low[terms], high[terms] = np.minimum(ends[0], beta[terms]), np.maximum(ends[1], beta[terms])
    coefficients = tuple(
        Coefficient(TERMS[column], float(beta[column]), float(low[column]), float(high[column])) for column in chosen
    )
    step_time = step_time_from_seconds(beta)
    predicted_s = _predict(step_time, steps.features)
    decode = fitted.take(~fitted.has_prefill)
    num_seqs = round(percentile(decode.num_seqs, decode.weight, 0.5))
    context = percentile(decode.kv_tokens / decode.num_seqs, decode.weight, 0.5)
    total_s = np.sum(steps.time_s[kept] * steps.weight[kept])
    return StepTimeFit(
        step_time=step_time,
        coefficients=coefficients,
        draws=draws,
        log=replace(log, kv_decode_tokens=steps.kv_tokens) if steps.kv_tokens.any() else log,
        kept=kept,
        left_out=(),
        predicted_s=predicted_s,
        held_out_mape=held_out.mape,
        held_out_p95=held_out.p95,
        held_out_median=held_out.median,
        total_time_ratio=float(np.sum(predicted_s[kept] * steps.weight[kept]) / total_s),
        typical_num_seqs=num_seqs,
        typical_decode_s=float(decode_only_s(step_time, np.array([num_seqs]), context)[0]),
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
        kv_prefill_tokens=features[:, PER_KV_PREFILL_TOKEN],
    )
    return predicted_ns / 1e9


def decode_only_s(step_time: StepTime, num_seqs: Ints, context: float) -> Floats:
    """d: time of decode-only steps.

    Parameters
    ----------
    step_time : StepTime
    num_seqs : (k,) int64
        Requests in each step.
    context : float
        Tokens of context that each request reads.

    Returns
    -------
    (k,) float64
        Seconds.
    """
    features = np.zeros((len(num_seqs), len(TERMS)))
    features[:, BASE], features[:, PER_SEQ], features[:, PER_KV_TOKEN] = 1.0, num_seqs, num_seqs * context
    return _predict(step_time, features)


def _interval_levels(num_blocks: int) -> tuple[float, float]:
    """Percentiles of the draws that make a 95 % interval from this many blocks with steps of the kind."""
    num_blocks = max(num_blocks, 2)
    low = float(ndtr(-np.sqrt(num_blocks / (num_blocks - 1)) * stdtrit(num_blocks - 1, 0.975)))
    return low, 1.0 - low


def _join(always: Columns, groups: tuple[Columns, ...]) -> Columns:
    return always + tuple(column for group in groups for column in group)


def _source(log: StepLog) -> str:
    """File and short digest."""
    if log.receipt is None:
        return f"step log ({log.digest[:8]})"
    return f"{log.receipt.file_name} ({log.receipt.file_digest[:8]})"
