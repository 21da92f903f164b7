"""How much load a setting carries, and how many replicas a growth needs: by replay, never by formula."""

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from planner.candidates import Candidate, Rejection, check_asked, evaluate, missed_by_classes, missed_latencies
from planner.engine_config import EngineConfig
from planner.errors import BadPlan
from planner.executors import somewhere
from planner.metrics import distribution, e2e_s, itl_within, ttft_s
from planner.replay import replay
from planner.routing import Routing, deal
from planner.slo import Slo
from planner.step_time import StepTime
from traces.requests import RequestTrace

MOST_LOAD = 64.0
"""Headroom is not looked for beyond this multiple of the trace's own rate."""
LEAST_LOAD = 1.0 / 64.0
"""Nor below this share of it."""
RELATIVE_WIDTH = 0.02
"""The bracket around the breaking point is narrowed to this share of it."""
MOST_REPLICAS = 1024
"""More replicas are not looked for."""
LOADS = (0.25, 0.5, 0.7, 0.85, 1.0, 1.15, 1.3, 1.5, 2.0, 3.0, 4.0)
"""Multiples of the trace's rate at which the curve of latency against load is taken."""
MOST_WINDOWS = 10_000
"""A trace is not looked at in more pieces."""
HOUR_S = 3600.0
"""Width of the windows in which a trace is looked at piece by piece, seconds."""


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """The setting under a multiple of the trace's rate."""

    load: float
    """Multiple of the trace's own arrival rate."""
    requests_per_s: float
    """Requests offered per second; NaN when all arrive at once."""
    candidate: Candidate
    """What the replay gave."""


@dataclass(frozen=True, slots=True)
class Headroom:
    """The load at which the targets break."""

    met: LoadPoint | None
    """The largest load tried that meets every target below the smallest that does not; None = none does."""
    missed: LoadPoint | None
    """The smallest load tried above it that misses one; None = none up to `MOST_LOAD`."""
    points: tuple[LoadPoint, ...]
    """Every load tried, in order."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """The smallest number of replicas that meets the targets."""

    num_replicas: int | None
    """None when not even `MOST_REPLICAS` do, or one request alone misses them."""
    by_count: tuple[tuple[int, tuple[Candidate, ...]], ...]
    """(number of replicas, what each of them gave) for every number tried, in order."""
    share_confirmed: float
    """Share of the requests that the replay of that number confirms to have gone where the routing sends them, 0–1."""
    mean_excess: float
    """How many more outstanding requests than the least loaded replica had theirs, on average over all requests."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Latency against load."""

    points: tuple[LoadPoint, ...]
    """By growing load; those in which the queue grows for ever say so, their latencies depend on the trace's length."""
    knee: LoadPoint | None
    """The stable point with the most load per second of TTFT at the target's percentile, where a larger load was drawn
    to show it; None elsewhere, or when none is stable."""


@dataclass(frozen=True, slots=True)
class Window:
    """One stretch of the trace within one replay of all of it."""

    from_s: float
    """Seconds since the first arrival."""
    until_s: float
    """Seconds since the first arrival; not within."""
    num_requests: int
    """Requests that arrive in it."""
    num_gaps: int
    """Token gaps that end in it."""
    itl_at_percentile_s: float
    """Of those gaps, at the target's percentile, seconds; NaN without any, like the next two."""
    worst_gap_s: float
    """The longest of them, seconds."""
    ttft_at_percentile_s: float
    """Of those requests, at the target's percentile, seconds."""
    num_unfinished: int
    """Requests that have arrived by its end and are not through: the queue and the batch that it leaves behind."""
    violations: tuple[Rejection, ...]
    """Targets that are missed in it."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Everything that is asked about load."""

    headroom: Headroom
    """Where the targets break."""
    replicas: Replicas
    """What a growth needs."""
    curve: Curve
    """Latency against load."""
    windows: tuple[Window, ...]
    """The trace piece by piece."""


def find_capacity(
    trace: RequestTrace,
    engine_config: EngineConfig,
    step_time: StepTime,
    slo: Slo,
    *,
    growth: float = 1.0,
    routing: Routing = Routing.ROUND_ROBIN,
    loads: tuple[float, ...] = LOADS,
    width_s: float = HOUR_S,
    executor: Executor | None = None,
    on_point: Callable[[LoadPoint], None] | None = None,
    cancel: npt.NDArray[np.uint8] | None = None,
) -> Capacity:
    """Everything that is asked about load; see the functions of its parts.

    `on_point` is called with each replay of the whole trace or of a replica's part, under the load that it bears.
    """
    asked = (trace, engine_config, step_time, slo)
    check_asked(trace, engine_config, slo)
    _num_windows(trace, width_s)
    with somewhere(executor) as where:
        return Capacity(
            headroom=find_headroom(*asked, on_point=on_point, cancel=cancel),
            replicas=find_replicas(
                *asked, growth=growth, routing=routing, executor=where, on_point=on_point, cancel=cancel
            ),
            curve=latency_curve(*asked, loads=loads, executor=where, on_point=on_point, cancel=cancel),
            windows=by_window(*asked, width_s=width_s, cancel=cancel),
        )


def scale_load(trace: RequestTrace, load: float) -> RequestTrace:
    """The same requests in the same order, `load` times as fast."""
    return replace(trace, arrival_s=trace.arrival_s / load)


def find_headroom(
    trace: RequestTrace,
    engine_config: EngineConfig,
    step_time: StepTime,
    slo: Slo,
    *,
    on_point: Callable[[LoadPoint], None] | None = None,
    cancel: npt.NDArray[np.uint8] | None = None,
) -> Headroom:
    """Bracket the load at which the targets break by doubling, then halve the bracket.

    Whether targets are met need not fall once and for all as load grows; what is reported is a load that meets
    them and a load at most 2 % above it that does not, both replayed.
    """
    points: dict[float, LoadPoint] = {}

    def meets(load: float) -> bool:
        if load not in points:
            scaled = scale_load(trace, load)
            points[load] = _point(trace, load, evaluate(scaled, engine_config, step_time, slo, cancel))
            if on_point is not None:
                on_point(points[load])
        return points[load].candidate.meets

    low, high = _bracket(meets)
    while low is not None and high is not None and high - low > RELATIVE_WIDTH * low:
        middle = (low + high) / 2
        low, high = (middle, high) if meets(middle) else (low, middle)
    return Headroom(
        met=None if low is None else points[low],
        missed=None if high is None else points[high],
        points=tuple(points[load] for load in sorted(points)),
    )


def find_replicas(
    trace: RequestTrace,
    engine_config: EngineConfig,
    step_time: StepTime,
    slo: Slo,
    *,
    growth: float = 1.0,
    routing: Routing = Routing.ROUND_ROBIN,
    executor: Executor | None = None,
    on_point: Callable[[LoadPoint], None] | None = None,
    cancel: npt.NDArray[np.uint8] | None = None,
) -> Replicas:
    """The smallest number of replicas under which every replica meets every target at `growth` times the rate.

    Doubles until the targets are met, then halves the bracket; every count that decides was replayed.
    """
    scaled = scale_load(trace, growth)
    by_count: dict[int, tuple[Candidate, ...]] = {}
    excess: dict[int, npt.NDArray[np.int64]] = {}

    def meets(num_replicas: int) -> bool:
        if num_replicas not in by_count:
            dealt = deal(scaled, num_replicas, routing, engine_config, step_time, where, cancel)
            futures = [where.submit(evaluate, p, engine_config, step_time, slo, cancel) for p in dealt.parts if len(p)]
            by_count[num_replicas] = tuple(future.result() for future in futures)
            if on_point is not None:
                for candidate in by_count[num_replicas]:
                    on_point(_point(trace, growth / num_replicas, candidate))
            excess[num_replicas] = dealt.excess
        return all(candidate.meets for candidate in by_count[num_replicas])

    with somewhere(executor) as where:
        low, high = 0, 1
        while not meets(high) and high < min(MOST_REPLICAS, len(trace)):
            low, high = high, min(2 * high, MOST_REPLICAS, len(trace))
        while meets(high) and high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if meets(middle) else (middle, high)
        return Replicas(
            num_replicas=high if meets(high) else None,
            by_count=tuple(sorted(by_count.items())),
            share_confirmed=float((excess[high] == 0).mean()),
            mean_excess=float(excess[high].mean()),
        )


def latency_curve(
    trace: RequestTrace,
    engine_config: EngineConfig,
    step_time: StepTime,
    slo: Slo,
    *,
    loads: tuple[float, ...] = LOADS,
    executor: Executor | None = None,
    on_point: Callable[[LoadPoint], None] | None = None,
    cancel: npt.NDArray[np.uint8] | None = None,
) -> Curve:
    """Latencies at multiples of the trace's rate, and the knee: beyond it, waiting grows faster than load.

    Source
    ------
    L. Kleinrock, Power and deterministic rules of thumb for probabilistic problems in computer communications,
    ICC 1979: the knee is where throughput ÷ response time is largest.
    """
    with somewhere(executor) as where:
        futures = [
            where.submit(evaluate, scale_load(trace, load), engine_config, step_time, slo, cancel)
            for load in sorted(loads)
        ]
        points = []
        for load, future in zip(sorted(loads), futures, strict=True):
            points.append(_point(trace, load, future.result()))
            if on_point is not None:
                on_point(points[-1])
    stable = [p for p in points if not p.candidate.summary.is_unstable and p.candidate.summary.ttft_at_percentile_s > 0]
    knee = max(stable, key=lambda p: p.load / p.candidate.summary.ttft_at_percentile_s, default=None)
    return Curve(tuple(points), None if knee is points[-1] else knee)


def by_window(
    trace: RequestTrace,
    engine_config: EngineConfig,
    step_time: StepTime,
    slo: Slo,
    *,
    width_s: float = HOUR_S,
    cancel: npt.NDArray[np.uint8] | None = None,
) -> tuple[Window, ...]:
    """One replay of the whole trace, looked at piece by piece: which hour breaks a target, and what it leaves behind.

    A gap belongs to the window in which it ends, a TTFT or an E2E to the one in which its request arrives, and so does
    everything of a class. The last window lasts until the replay ends.
    """
    run = replay(trace, engine_config, step_time, cancel=cancel)
    waits_s, lasts_s = ttft_s(run), e2e_s(run)
    end_s = np.where(run.never_runs, run.arrival_s, np.where(run.is_finished, run.last_token_s, np.inf))
    num_windows = _num_windows(trace, width_s)
    found = []
    for k in range(num_windows):
        from_s = k * width_s
        until_s = (k + 1) * width_s if k < num_windows - 1 else max(run.end_s, trace.span_s) + 1e-9
        arrives = (run.arrival_s >= from_s) & (run.arrival_s < until_s)
        gaps = itl_within(run, (round(from_s * 1e9), round(until_s * 1e9)))
        gap_s, wait_s = gaps.percentile(slo.itl_percentile), distribution(waits_s[arrives])
        worst_s = float(gaps.value_s[-1]) if gaps.num else float("nan")
        first_s = wait_s.percentile(slo.ttft_percentile)
        last_s = distribution(lasts_s[arrives]).percentile(slo.e2e_percentile)
        if not (arrives & ~run.never_runs).any():
            first_s = last_s = 0.0  # nobody waits
        found.append(
            Window(
                from_s=from_s,
                until_s=until_s,
                num_requests=int(arrives.sum()),
                num_gaps=gaps.num,
                itl_at_percentile_s=gap_s,
                worst_gap_s=worst_s,
                ttft_at_percentile_s=wait_s.percentile(slo.ttft_percentile),
                num_unfinished=int(((run.arrival_s < until_s) & (end_s >= until_s)).sum()),
                violations=(
                    *missed_latencies(gap_s, worst_s, first_s, last_s, gaps.excess_share(slo.itl_s), slo),
                    *missed_by_classes(trace, run, slo, arrives),
                ),
            )
        )
    return tuple(found)


def _num_windows(trace: RequestTrace, width_s: float) -> int:
    """Into how many windows a trace is cut; refused where nobody would look through them."""
    num = trace.span_s // width_s + 1
    if num > MOST_WINDOWS:
        raise BadPlan("stretches", f"{width_s:g} s cut this trace into {num:,.0f}; allowed: at most {MOST_WINDOWS:,}")
    return int(num)


def _bracket(meets: Callable[[float], bool]) -> tuple[float | None, float | None]:
    """A load that meets the targets and one twice as large that does not; None where there is none."""
    load = 1.0
    if meets(load):
        while load < MOST_LOAD and meets(2 * load):
            load *= 2
        return (load, None) if load >= MOST_LOAD else (load, 2 * load)
    while load > LEAST_LOAD and not meets(load / 2):
        load /= 2
    return (None, load) if load <= LEAST_LOAD else (load / 2, load)


def _point(trace: RequestTrace, load: float, candidate: Candidate) -> LoadPoint:
    """A replayed load with its rate."""
    rate = (len(trace) - 1) * load / trace.span_s if trace.span_s > 0 else float("nan")
    return LoadPoint(load, rate, candidate)
