"""What the numbers mean: every latency, rate and count is defined here and nowhere else."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.replay import Replay

UNSTABLE_GROWTH = 0.05
"""`ttft_growth` above this is called unstable."""
MIN_REQUESTS_TO_JUDGE_STABILITY = 100
"""Fewer say nothing about whether a queue grows for ever."""


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """Values with how often each occurred, in increasing order."""

    value_s: npt.NDArray[np.float64]
    """(m,) seconds, increasing."""
    count: npt.NDArray[np.int64]
    """(m,) occurrences, at least 1 each."""
    num_until: npt.NDArray[np.int64] = field(init=False)
    """(m,) occurrences of values up to each."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_until", np.cumsum(self.count))

    @property
    def num(self) -> int:
        """Occurrences in all."""
        return int(self.num_until[-1]) if len(self.num_until) else 0

    def percentile(self, share: float) -> float:
        """The element at position int(share·n) of the n sorted values; NaN without values.

        At least `share` of all values are at or below it. Taken from the reference experiments, and used for
        every percentile of the product.
        """
        if len(self.count) == 0:
            return float("nan")
        position = min(int(share * self.num), self.num - 1)
        return float(self.value_s[np.searchsorted(self.num_until, position, side="right")])

    def share_within(self, limit_s: float) -> float:
        """Share of the values at or below `limit_s`, 0–1; NaN without values."""
        if len(self.count) == 0:
            return float("nan")
        return float(self.count[self.value_s <= limit_s].sum() / self.num)

    def excess_s(self, limit_s: float) -> float:
        """Sum of the parts of the values above `limit_s`, seconds."""
        return float((np.maximum(self.value_s - limit_s, 0.0) * self.count).sum())

    def excess_share(self, limit_s: float) -> float:
        """That sum ÷ the sum of all values, 0–1; NaN where nothing took any time."""
        total_s = self.excess_s(0.0)
        return self.excess_s(limit_s) / total_s if total_s > 0 else float("nan")


def distribution(values_s: npt.NDArray[Any]) -> Distribution:
    """The distribution of plain values, NaN left out."""
    value_s, count = np.unique(values_s[~np.isnan(values_s)], return_counts=True)
    return Distribution(value_s.astype(np.float64), count.astype(np.int64))


def pooled(parts: Sequence[Distribution]) -> Distribution:
    """All values of several distributions."""
    value_s, place = np.unique(np.concatenate([part.value_s for part in parts]), return_inverse=True)
    count = np.bincount(place, np.concatenate([part.count for part in parts]), len(value_s))
    return Distribution(value_s, count.astype(np.int64))


def itl(run: Replay) -> Distribution:
    """Inter-token latency: every gap between consecutive tokens of one request, pooled over all requests.

    Tokens of neighbouring steps are apart by the difference of the two steps' ends; those gaps are counted. The others
    (after a preemption, a step without budget, an idle engine) are listed one by one.
    """
    return _counted(
        np.concatenate([run.shared_gaps["gap_ns"], run.gaps["gap_ns"]]),
        np.concatenate([run.shared_gaps["count"], np.ones(len(run.gaps), np.int64)]),
    )


def itl_within(run: Replay, window_ns: tuple[int, int]) -> Distribution:
    """The gaps that end from the first nanosecond up to, not including, the second; `run` keeps its steps."""
    end_ns = run.steps["end_ns"]
    is_inside = (end_ns >= window_ns[0]) & (end_ns < window_ns[1])
    has_gaps = (run.steps["num_gaps"] > 0) & is_inside
    listed = run.gaps[is_inside[run.gaps["step"]]]
    return _counted(
        np.concatenate([np.diff(end_ns, prepend=0)[has_gaps], listed["gap_ns"]]),
        np.concatenate([run.steps["num_gaps"][has_gaps], np.ones(len(listed), np.int64)]),
    )


def _counted(gap_ns: npt.NDArray[np.int64], weight: npt.NDArray[np.int64]) -> Distribution:
    """Equal gaps together; `gap_ns` is used up."""
    bits = int(weight.max(initial=0)).bit_length()
    if int(gap_ns.max(initial=0)).bit_length() + bits < 64:
        # Both in one number: numpy sorts numbers ten times as fast as it finds an order, and sums need no order.
        # In place: fresh memory for half a million gaps costs as much as sorting them.
        gap_ns <<= bits
        gap_ns |= weight
        gap_ns.sort()
        weight = gap_ns & ((1 << bits) - 1)
        gap_ns >>= bits
    else:
        order = np.argsort(gap_ns)
        gap_ns, weight = gap_ns[order], weight[order]
    first = np.flatnonzero(np.diff(gap_ns, prepend=-1))
    return Distribution(gap_ns[first] / 1e9, np.add.reduceat(weight, first) if len(first) else weight)


def itl_of_requests(run: Replay, is_member: npt.NDArray[np.bool_]) -> Distribution:
    """Inter-token latency pooled over some requests only.

    A request has a token in every step from its first to its last, but for those that its listed gaps pass over.

    Parameters
    ----------
    run : Replay
    is_member : (n,) bool
        The requests whose gaps count.
    """
    num_requests = len(is_member)
    listed = run.gaps[is_member[run.gaps["request"]]]
    num_listed = np.bincount(listed["request"], minlength=num_requests)
    num_passed = np.zeros(num_requests, np.int64)
    np.add.at(num_passed, listed["request"], listed["step"] - listed["last_step"])
    last = run.last_token_step
    first = last - (run.num_outputs - 1 - num_listed) - num_passed
    streams = is_member & (run.num_outputs > 1)
    # Of how many members a step brings the token after that of the step before; then before which step how many came.
    begins = np.concatenate([first[streams], listed["step"]])
    ends = np.concatenate([last[streams], listed["last_step"]])
    num_steps = int(last.max(initial=0)) + 1
    change = np.bincount(begins + 1, minlength=num_steps + 1) - np.bincount(ends + 1, minlength=num_steps + 1)
    num_before = np.concatenate([[0], np.cumsum(np.cumsum(change))])
    count = np.diff(num_before[run.shared_gaps["step"]], append=num_before[-1])
    has_any = count > 0
    return _counted(
        np.concatenate([run.shared_gaps["gap_ns"][has_any], listed["gap_ns"]]),
        np.concatenate([count[has_any], np.ones(len(listed), np.int64)]),
    )


def ttft_s(run: Replay) -> npt.NDArray[np.float64]:
    """Time to first token per request: first token − arrival, queueing included; NaN where there is none."""
    return run.first_token_s - run.arrival_s


def e2e_s(run: Replay) -> npt.NDArray[np.float64]:
    """Last token − arrival per finished request; NaN for the others."""
    return np.where(run.is_finished, run.last_token_s - run.arrival_s, np.nan)


def queue_s(run: Replay) -> npt.NDArray[np.float64]:
    """First scheduled − arrival per request; NaN where it never was."""
    return run.first_scheduled_s - run.arrival_s


def tpot_s(run: Replay) -> npt.NDArray[np.float64]:
    """Time per output token: (last − first token) ÷ (output tokens − 1); NaN below 2 tokens."""
    num_gaps = np.where(run.num_outputs > 1, run.num_outputs - 1, 1)
    return np.where(run.num_outputs > 1, (run.last_token_s - run.first_token_s) / num_gaps, np.nan)


@dataclass(frozen=True, slots=True)
class Spread:
    """A latency distribution in six numbers, seconds; NaN without values."""

    mean_s: float
    """Arithmetic mean."""
    p50_s: float
    """Percentile as in `Distribution.percentile`, like the next three."""
    p90_s: float
    """Nine in ten are at or below it."""
    p95_s: float
    """Nineteen in twenty are at or below it."""
    p99_s: float
    """Ninety-nine in a hundred are at or below it."""
    max_s: float
    """The largest."""


def spread(values: Distribution) -> Spread:
    """The six numbers of a distribution."""
    if len(values.count) == 0:
        nan = float("nan")
        return Spread(nan, nan, nan, nan, nan, nan)
    return Spread(
        mean_s=float((values.value_s * values.count).sum() / values.num),
        p50_s=values.percentile(0.50),
        p90_s=values.percentile(0.90),
        p95_s=values.percentile(0.95),
        p99_s=values.percentile(0.99),
        max_s=float(values.value_s[-1]),
    )


@dataclass(frozen=True, slots=True)
class Summary:
    """One replay in numbers."""

    outcome: str
    """As in `Replay`."""
    num_requests: int
    """Requests of the trace."""
    num_finished: int
    """Requests that got all their tokens."""
    num_never_run: int
    """Requests that cannot run under these settings."""
    num_steps: int
    """Engine steps."""
    num_gaps: int
    """Inter-token gaps in all."""
    itl: Spread
    """Inter-token latency, pooled gaps; its maximum is the worst gap."""
    itl_at_percentile_s: float
    """Pooled gaps at the percentile of the target, seconds."""
    itl_attainment: float
    """Share of the pooled gaps within the target, 0–1."""
    stalled_s: float
    """Stalled time: sum of the parts of gaps above the target, seconds over all requests."""
    stalled_share: float
    """Stalled time ÷ the sum of all gaps, 0–1; NaN without gaps."""
    ttft: Spread
    """Time to first token, queueing included."""
    ttft_at_percentile_s: float
    """TTFT at the percentile of the target, seconds."""
    tpot: Spread
    """Time per output token, per request."""
    e2e: Spread
    """Arrival to last token."""
    e2e_at_percentile_s: float
    """E2E at the percentile of the target, seconds."""
    queue: Spread
    """Arrival to first scheduled."""
    output_tokens_per_s: float
    """Output tokens ÷ makespan."""
    requests_per_s: float
    """Finished requests ÷ makespan."""
    makespan_s: float
    """First arrival to the last token."""
    num_preemptions: int
    """Over all requests."""
    num_recomputed_tokens: int
    """Computed tokens lost to preemptions."""
    hit_share: float
    """Share of the prompt tokens found in the prefix cache at admission, 0–1."""
    peak_running: int
    """Most requests running at once."""
    mean_decodes: float
    """Mean number of decodes over the steps that decode, weighted by step; NaN without any."""
    mean_kv_decode_tokens: float
    """Mean context tokens read by decodes over those steps; NaN without any."""
    max_step_tokens: int
    """Most tokens in one step, drafts and a drafter's own inputs included: what a budget could cut."""
    max_step_prefill_tokens: int
    """Most prefill tokens in one step."""
    peak_kv_usage: float
    """Most of the KV blocks in use after scheduling, 0–1."""
    ttft_growth: float
    """Mean TTFT of the last tenth of the arrivals ÷ span of the arrivals: how far the engine fell behind."""
    is_unstable: bool
    """The queue grows for as long as the trace lasts; latencies then say more about its length than about vLLM."""


def summarise(
    run: Replay,
    itl_target_s: float,
    itl_percentile: float = 0.99,
    ttft_percentile: float = 0.99,
    e2e_percentile: float = 0.99,
) -> Summary:
    """All numbers of one replay.

    Parameters
    ----------
    run : Replay
    itl_target_s : float
        Target for `itl_attainment` and `stalled_s`, seconds.
    itl_percentile, ttft_percentile, e2e_percentile : float
        Percentiles of the targets, 0–1.
    """
    gaps, ttft, e2e = itl(run), distribution(ttft_s(run)), distribution(e2e_s(run))
    totals = run.totals
    usable = run.engine_config.num_gpu_blocks - 1
    any_token = run.num_outputs > 0
    makespan_s = float(run.last_token_s[any_token].max() - run.arrival_s[0]) if any_token.any() else float("nan")
    growth = _ttft_growth(run)
    return Summary(
        outcome=run.outcome,
        num_requests=len(run.arrival_s),
        num_finished=int(run.is_finished.sum()),
        num_never_run=int(run.never_runs.sum()),
        num_steps=totals.num_steps,
        num_gaps=gaps.num,
        itl=spread(gaps),
        itl_at_percentile_s=gaps.percentile(itl_percentile),
        itl_attainment=gaps.share_within(itl_target_s),
        stalled_s=gaps.excess_s(itl_target_s),
        stalled_share=gaps.excess_share(itl_target_s),
        ttft=spread(ttft),
        ttft_at_percentile_s=ttft.percentile(ttft_percentile),
        tpot=spread(distribution(tpot_s(run))),
        e2e=spread(e2e),
        e2e_at_percentile_s=e2e.percentile(e2e_percentile),
        queue=spread(distribution(queue_s(run))),
        output_tokens_per_s=float(run.num_outputs.sum()) / makespan_s,
        requests_per_s=float(run.is_finished.sum()) / makespan_s,
        makespan_s=makespan_s,
        num_preemptions=int(run.num_preemptions.sum()),
        num_recomputed_tokens=int(run.num_recomputed.sum()),
        hit_share=float(run.num_hit_tokens.sum() / max(run.prompt_tokens[~run.never_runs].sum(), 1)),
        peak_running=totals.peak_running,
        mean_decodes=_mean(totals.num_decodes, totals.num_decoding_steps),
        mean_kv_decode_tokens=_mean(totals.kv_decode_tokens, totals.num_decoding_steps),
        max_step_tokens=totals.max_inputs,
        max_step_prefill_tokens=totals.max_prefill_tokens,
        peak_kv_usage=1.0 - totals.least_free_blocks / usable,
        ttft_growth=growth,
        is_unstable=run.outcome != "done" or growth > UNSTABLE_GROWTH,
    )


def _mean(total: int, num: int) -> float:
    """Total ÷ number; NaN of none."""
    return total / num if num else float("nan")


def _ttft_growth(run: Replay) -> float:
    """How far the engine has fallen behind at the end of the arrivals, as a share of their span.

    In a queue offered ρ times what it can do, the wait grows by 1 − 1/ρ seconds per second. 0 when there are too
    few requests to judge, or when the wait is no longer than it was half-way (a burst, not a trend).
    """
    waits_s = ttft_s(run)[~run.never_runs]
    span_s = float(run.arrival_s[-1] - run.arrival_s[0]) if len(run.arrival_s) else 0.0
    if len(waits_s) < MIN_REQUESTS_TO_JUDGE_STABILITY or span_s == 0.0:
        return 0.0
    tenth = len(waits_s) // 10
    last, middle = waits_s[-tenth:], waits_s[len(waits_s) // 2 - tenth : len(waits_s) // 2]
    if np.isnan(last).all() or np.isnan(middle).all():
        return float("inf")  # nobody there ever got a token
    last_s, middle_s = float(np.nanmean(last)), float(np.nanmean(middle))
    return last_s / span_s if last_s > 1.5 * middle_s else 0.0
