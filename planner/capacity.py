"""How much load a setting carries, and how many replicas a growth needs: by replay, never by formula."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from planner.candidates import Candidate, evaluate
from planner.engine_config import EngineConfig
from planner.executors import num_threads
from planner.slo import Slo
from planner.step_time import StepTime
from traces.requests import PrefixHashes, RequestTrace

MOST_LOAD = 64.0
"""Headroom is not looked for beyond this multiple of the trace's own rate."""
LEAST_LOAD = 1.0 / 64.0
"""Nor below this share of it."""
RELATIVE_WIDTH = 0.02
"""The bracket around the breaking point is narrowed to this share of it."""
MOST_REPLICAS = 1024
"""More replicas are not looked for."""


class Routing(StrEnum):
    """How requests are dealt to replicas."""

    ROUND_ROBIN = "round_robin"
    """One after the other."""
    PREFIX_AFFINITY = "prefix_affinity"
    """Requests that begin alike go to the same replica; those without prefix hashes in turn."""


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


def scale_load(trace: RequestTrace, load: float) -> RequestTrace:
    """The same requests in the same order, `load` times as fast."""
    return RequestTrace(
        arrival_s=trace.arrival_s / load,
        prompt_tokens=trace.prompt_tokens,
        output_tokens=trace.output_tokens,
        source_row=trace.source_row,
        priority=trace.priority,
        max_tokens=trace.max_tokens,
        prefix_hashes=trace.prefix_hashes,
        receipt=trace.receipt,
    )


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
    cancel: npt.NDArray[np.uint8] | None = None,
) -> Replicas:
    """The smallest number of replicas under which every replica meets every target at `growth` times the rate.

    Doubles until the targets are met, then halves the bracket; every count that decides was replayed.
    """
    scaled = scale_load(trace, growth)
    by_count: dict[int, tuple[Candidate, ...]] = {}

    def meets(num_replicas: int) -> bool:
        if num_replicas not in by_count:
            parts = split(scaled, num_replicas, routing)
            by_count[num_replicas] = _evaluate_all(parts, engine_config, step_time, slo, cancel)
        return all(candidate.meets for candidate in by_count[num_replicas])

    low, high = 0, 1
    while not meets(high) and high < min(MOST_REPLICAS, len(trace)):
        low, high = high, min(2 * high, MOST_REPLICAS, len(trace))
    while meets(high) and high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if meets(middle) else (middle, high)
    return Replicas(high if meets(high) else None, tuple(sorted(by_count.items())))


def split(trace: RequestTrace, num_replicas: int, routing: Routing = Routing.ROUND_ROBIN) -> tuple[RequestTrace, ...]:
    """Deal the requests of a trace to replicas; each keeps its arrival times."""
    turn = np.arange(len(trace)) % num_replicas
    hashes = trace.prefix_hashes
    if routing is Routing.PREFIX_AFFINITY and hashes is not None:
        has_ids = np.diff(hashes.offsets) > 0
        turn[has_ids] = hashes.ids[hashes.offsets[:-1][has_ids]] % num_replicas
    return tuple(_part(trace, np.flatnonzero(turn == replica)) for replica in range(num_replicas))


def _part(trace: RequestTrace, index: npt.NDArray[np.intp]) -> RequestTrace:
    """The requests at `index`."""
    hashes = trace.prefix_hashes
    if hashes is not None:
        num_ids = np.diff(hashes.offsets)[index]
        begins = np.repeat(hashes.offsets[:-1][index] - np.concatenate([[0], np.cumsum(num_ids)[:-1]]), num_ids)
        ids = hashes.ids[begins + np.arange(len(begins))]
        hashes = PrefixHashes(ids, np.concatenate([[0], np.cumsum(num_ids)]), hashes.block_tokens)
    return RequestTrace(
        arrival_s=trace.arrival_s[index],
        prompt_tokens=trace.prompt_tokens[index],
        output_tokens=trace.output_tokens[index],
        source_row=trace.source_row[index],
        priority=None if trace.priority is None else trace.priority[index],
        max_tokens=None if trace.max_tokens is None else trace.max_tokens[index],
        prefix_hashes=hashes,
    )


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


def _evaluate_all(
    parts: tuple[RequestTrace, ...],
    engine_config: EngineConfig,
    step_time: StepTime,
    slo: Slo,
    cancel: npt.NDArray[np.uint8] | None,
) -> tuple[Candidate, ...]:
    """Every replica by itself, in threads."""
    with ThreadPoolExecutor(num_threads()) as threads:
        futures = [threads.submit(evaluate, part, engine_config, step_time, slo, cancel) for part in parts if len(part)]
        return tuple(future.result() for future in futures)


def _point(trace: RequestTrace, load: float, candidate: Candidate) -> LoadPoint:
    """A replayed load with its rate."""
    rate = (len(trace) - 1) * load / trace.span_s if trace.span_s > 0 else float("nan")
    return LoadPoint(load, rate, candidate)
