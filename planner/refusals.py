"""What stands against a step log, and what the user must know before trusting a fit to it."""

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from planner.errors import Gap, UnfitProblem, UnfitStepLog
from planner.regression import (
    BASE,
    DECODE_TERMS,
    PER_KV_TOKEN,
    PER_PREFILL_TOKEN,
    PER_SEQ,
    Blocks,
    Bools,
    Columns,
    Floats,
    Steps,
    fit_mean,
    fit_robust,
    floored,
    in_time_order,
    percentile,
    solve,
    those,
)
from planner.step_time import TERMS, Coefficient, StepTimeFit
from traces.steps import StepLog

MIN_STEPS = 30
"""Ten for each of the three terms that are always fitted."""
MIN_STEPS_OF_KIND = 5
"""Of decode-only steps and of steps with prefill: with fewer, one odd step decides d or p."""
NEAR_ZERO_RATIO = 0.25
"""A step cannot take a quarter of what its work takes elsewhere: noise makes steps longer, not shorter."""
MAX_NEAR_ZERO_SHARE = 0.05
"""Real logs have at most 0.3 % of such steps, those that logged the wait under async scheduling 38 % and more."""
REGIME_RATIO = 1.3
"""Equal work takes so much longer in one part of a file than in the other,"""
REGIME_SCATTER = 3.0
"""and the change is so many times what single steps scatter: on a shared machine that slows down it is below 2,"""
MIN_REGIME_SHARE = 0.1
"""and either part has this share of the steps: a slow spell is none."""
SANE_STEP_S = (10e-6, 100.0)
PREFILL_SIZES = (0, *(2**power for power in range(6, 18)))
"""Edges between which predicted and measured prefill are compared."""


def work_problems(log: StepLog, steps: Steps) -> list[UnfitProblem]:
    """What the work in the log cannot determine, whatever the times are."""
    problems: list[UnfitProblem] = []
    num_steps, num_prefill = len(steps.time_s), int(steps.has_prefill.sum())
    num_decode = num_steps - num_prefill
    prefill = column_of(log, "prefill_tokens")
    if num_steps < MIN_STEPS:
        problems.append(
            UnfitProblem(
                None,
                f"too few steps: {num_steps} with work in them",
                f"at least {MIN_STEPS}, ten for each of base, per_seq and per_prefill_token",
                "Record some minutes of traffic with --enable-logging-iteration-details.",
                gap=Gap.TOO_FEW_STEPS,
            )
        )
    if num_decode < MIN_STEPS_OF_KIND:
        problems.append(
            UnfitProblem(
                prefill,
                f"{num_decode or 'no'} decode-only steps (0 prefill tokens): d cannot be separated from p",
                f"at least {MIN_STEPS_OF_KIND} decode-only steps",
                "Record also while requests stream and no prompt arrives (vllm bench serve --request-rate 1).",
                gap=Gap.NO_DECODE_ONLY_STEPS,
            )
        )
    if num_prefill < MIN_STEPS_OF_KIND:
        problems.append(
            UnfitProblem(
                prefill,
                f"{num_prefill or 'no'} steps with prefill tokens: p cannot be determined"
                + _visible_decode_time(steps),
                f"at least {MIN_STEPS_OF_KIND} steps with prefill tokens, of different sizes",
                "Record also while prompts of different lengths arrive (vllm bench serve --request-rate 1).",
                gap=Gap.NO_PREFILL,
            )
        )
    if num_decode == 0 < num_prefill and np.ptp(steps.prefill_tokens) == 0:
        problems.append(
            UnfitProblem(
                prefill,
                f"prefill tokens are constant ({steps.prefill_tokens[0]:,.0f} in every step): "
                "d and p cannot be told apart",
                "steps with different numbers of prefill tokens, 0 among them",
                "Record prompts of different lengths, and pauses between them.",
                gap=Gap.PREFILL_SIZES,
            )
        )
    return problems


def _visible_decode_time(steps: Steps) -> str:
    """What can be said of d when p is out of reach."""
    decode = steps.take(~steps.has_prefill)
    if len(decode.time_s) == 0:
        return ""
    num_seqs = percentile(decode.num_seqs, decode.weight, 0.5)
    usual = np.abs(decode.num_seqs - num_seqs) <= 0.1 * num_seqs
    mean_ms = np.average(decode.time_s[usual], weights=decode.weight[usual]) * 1e3
    return f" (d can be seen: {mean_ms:.3g} ms at {num_seqs:.0f} running)"


def time_problems(log: StepLog, steps: Steps, kept: Bools, columns: Columns) -> list[UnfitProblem]:
    """Times that cannot be times of engine steps."""
    problems: list[UnfitProblem] = []
    predicted = steps.features @ fit_mean(steps.take(kept), columns)
    scheduled = steps.num_seqs > 0
    near_zero = scheduled & (steps.time_s < NEAR_ZERO_RATIO * predicted)
    share = near_zero.sum() / scheduled.sum()
    if share > MAX_NEAR_ZERO_SHARE:
        first = int(np.flatnonzero(near_zero)[np.argmax(steps.prefill_tokens[near_zero])])
        problems.append(
            UnfitProblem(
                column_of(log, "step_time"),
                f"{share:.0%} of the step times are near zero and unrelated to the work, for instance "
                f"{steps.prefill_tokens[first]:,.0f} prefill tokens and {steps.num_seqs[first]:.0f} requests in "
                f"{steps.time_s[first] * 1e3:.3g} ms (row {log.source_row[first] + 1}): "
                "asynchronous scheduling logged the wait for a result, not the time on the GPU",
                "the time of whole engine steps",
                "Record the time from step to step (time stamps of a JSON log), or restart vLLM with "
                "--no-async-scheduling for the recording.",
                rows=tuple(int(row) for row in log.source_row[near_zero][:5]),
                num_rows=int(near_zero.sum()),
                gap=Gap.HIDDEN_TIMES,
            )
        )
    typical_s = np.median(steps.time_s[kept])
    if not SANE_STEP_S[0] <= typical_s <= SANE_STEP_S[1]:
        problems.append(
            UnfitProblem(
                column_of(log, "step_time"),
                f"the median step takes {typical_s:.3g} s, which no engine step does",
                f"{SANE_STEP_S[0] * 1e3:g} ms to {SANE_STEP_S[1]:g} s",
                "Check the unit of the column: put it into the name (step_ms, step_s, step_us).",
                gap=Gap.UNIT,
            )
        )
    return problems


def regime_problems(log: StepLog, steps: Steps, kept: Bools, columns: Columns) -> list[UnfitProblem]:
    """Two servers, or two ways to run one, one after the other in one file.

    The file is cut where the residuals of one fit to all change most. Either part gets a fit of its own; where equal
    work takes so much longer in one than in the other, and single steps scatter less than that, no one model holds.
    A machine that slows down for a while scatters more than it changes.
    """
    steps, source_row = steps.take(kept), log.source_row[kept]
    if not in_time_order(steps):
        return []
    num_steps = len(steps.time_s)
    residual = np.log(steps.time_s / floored(steps, steps.features @ fit_robust(steps, columns)))
    residual = np.clip(residual - np.median(residual), -1.0, 1.0)
    before = np.arange(1, num_steps)
    drift = np.cumsum(residual)[:-1] - before * residual.mean()
    cut = int(np.argmax(np.abs(drift) / np.sqrt(before * (num_steps - before) / num_steps))) + 1
    is_first = np.arange(num_steps) < cut
    parts = [steps.take(is_first), steps.take(~is_first)]
    share = cut / num_steps
    least = min(min(part.has_prefill.sum(), (~part.has_prefill).sum()) for part in parts)
    if not MIN_REGIME_SHARE < share < 1.0 - MIN_REGIME_SHARE or least < MIN_STEPS_OF_KIND:
        return []
    own = [floored(steps, steps.features @ fit_robust(part, columns)) for part in parts]
    change = np.log(own[1] / own[0])
    scatter = 1.4826 * np.abs(np.log(steps.time_s / np.where(is_first, own[0], own[1])))
    # A change of p alone shows in the steps with prefill only.
    levels = [
        (float(np.median(change[kind])), REGIME_SCATTER * float(np.median(scatter[kind])))
        for kind in (steps.has_prefill, ~steps.has_prefill)
    ]
    level, limit = max(levels, key=lambda one: abs(one[0]) - one[1])
    if abs(level) < max(float(np.log(REGIME_RATIO)), limit):
        return []
    return [
        UnfitProblem(
            column_of(log, "step_time"),
            f"two regimes in one file: from row {source_row[cut] + 1} on equal work takes {np.exp(level):.2g} × the "
            "time it took before",
            "steps of one server under one way to run it",
            "Split the file there and calibrate each part; a plan holds for the server that it was recorded on.",
            rows=(int(source_row[cut]),),
            num_rows=num_steps - cut,
            gap=Gap.MIXED_REGIMES,
        )
    ]


def slope_problems(log: StepLog, blocks: "Blocks", beta: Floats, chosen: Columns) -> list[UnfitProblem]:
    """A p that is negative, or that the log leaves open down to 0; never clamped silently."""
    if beta[PER_PREFILL_TOKEN] > 0:
        return []
    slope = []
    for gram, moment in zip(*blocks.resample(), strict=True):
        added = moment[1] - gram[1] @ solve(gram[0], moment[0], those(chosen, DECODE_TERMS))
        slope.append(added[PER_PREFILL_TOKEN] / gram[1, PER_PREFILL_TOKEN, PER_PREFILL_TOKEN])
    low, high = np.quantile(slope, [0.025, 0.975]) * 1e6
    falls = high < 0
    return [
        UnfitProblem(
            column_of(log, "step_time"),
            f"step time {'falls' if falls else 'does not grow'} as prefill tokens grow: p would be "
            f"{low:.3g} to {high:.3g} µs per token; "
            + ("a negative slope is not physical" if falls else "the log does not determine p"),
            "times that grow with the prefill tokens of the step",
            "Check that the time and token columns belong to the same step (an offset of one row does this) and "
            "that the times are not waits under asynchronous scheduling; record prompts of different lengths.",
            gap=Gap.PREFILL_SIZES,
        )
    ]


def cautions(log: StepLog, steps: Steps, fit: StepTimeFit) -> Iterator[str]:
    """What the user must know before trusting a fit that was not refused."""
    yield from _cautions_on_slopes(fit)
    yield from _cautions_on_context(steps.take(fit.kept), fit)
    yield from _cautions_on_sizes(steps, fit)
    if fit.held_out_mape > 0.25:
        yield f"Single steps scatter: {fit.held_out_mape:.0%} mean error on steps that the fit did not see."
    column = column_of(log, "step_time")
    is_wait = "elapsed" in column or (column == "step_time" and log.facts.async_scheduling)
    if is_wait and math.isnan(fit.overhead_s):
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


def _cautions_on_context(steps: Steps, fit: StepTimeFit) -> Iterator[str]:
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


def _cautions_on_sizes(steps: Steps, fit: StepTimeFit) -> Iterator[str]:
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


def column_of(log: StepLog, role: str) -> str:
    """The column of the user's file that plays a part; the part itself when no file is known."""
    columns = dict(log.receipt.columns) if log.receipt is not None else {}
    return columns.get(role, role)


def unfit(log: StepLog, problems: list[UnfitProblem]) -> UnfitStepLog:
    """The refusal that lists these problems."""
    return UnfitStepLog("step log" if log.receipt is None else log.receipt.file_name, tuple(problems), log.facts)
