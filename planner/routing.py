"""How requests are dealt to replicas."""

import heapq
from concurrent.futures import Executor
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from planner.engine_config import EngineConfig
from planner.replay import replay
from planner.step_time import StepTime
from traces.requests import RequestTrace

MOST_ROUNDS = 8
"""How often a least-loaded deal is replayed and dealt again."""
Places = npt.NDArray[np.int64]


class Routing(StrEnum):
    """How requests are dealt to replicas."""

    ROUND_ROBIN = "round_robin"
    """One after the other."""
    LEAST_LOADED = "least_loaded"
    """To the replica with the fewest outstanding requests; of several, to the one that has waited longest for one."""
    PREFIX_AFFINITY = "prefix_affinity"
    """Requests that begin alike go to the same replica; those without prefix hashes in turn."""


@dataclass(frozen=True, slots=True, eq=False)
class Deal:
    """Which replica gets which request."""

    place: Places
    """(n,) replica of each request."""
    parts: tuple[RequestTrace, ...]
    """The requests of each replica, at their arrival times."""
    excess: Places
    """(n,) outstanding requests of that replica beyond the fewest of any, in the replay of this very deal; 0 = the
    choice is confirmed. Zeros where the routing does not look at load."""


def deal(
    trace: RequestTrace,
    num_replicas: int,
    routing: Routing,
    engine_config: EngineConfig,
    step_time: StepTime,
    executor: Executor,
    cancel: npt.NDArray[np.uint8] | None = None,
) -> Deal:
    """Deal the requests of a trace to replicas.

    Round robin and affinity look at the requests alone. The least loaded replica depends on when earlier requests end,
    which depends on where they went: a deal is replayed, and the requests are dealt again by when they ended, until the
    replay confirms every choice. A confirmed deal is what replicas side by side get from such a router, since a
    choice depends on earlier ones only. Each round confirms some more from the front, which long traces would need
    hundreds of; after `MOST_ROUNDS` the deal with the least excess is taken as it is, and says how far off it was.
    """
    if routing is Routing.LEAST_LOADED and num_replicas > 1:
        return _least_loaded(trace, num_replicas, engine_config, step_time, executor, cancel)
    place = np.arange(len(trace)) % num_replicas
    hashes = trace.prefix_hashes
    if routing is Routing.PREFIX_AFFINITY and hashes is not None:
        has_ids = np.diff(hashes.offsets) > 0
        place[has_ids] = hashes.ids[hashes.offsets[:-1][has_ids]] % num_replicas
    return Deal(place, _parts(trace, place, num_replicas), np.zeros(len(trace), np.int64))


def _least_loaded(
    trace: RequestTrace,
    num_replicas: int,
    engine_config: EngineConfig,
    step_time: StepTime,
    executor: Executor,
    cancel: npt.NDArray[np.uint8] | None,
) -> Deal:
    """Deal, replay and deal again until the replay confirms the deal."""
    place = np.arange(len(trace)) % num_replicas
    best: Deal | None = None
    for _ in range(MOST_ROUNDS):
        parts = _parts(trace, place, num_replicas)
        futures = [executor.submit(ends_s, part, engine_config, step_time, cancel) for part in parts]
        end_s = np.empty(len(trace))
        for replica, future in enumerate(futures):
            end_s[place == replica] = future.result()
        _, excess = follow(trace.arrival_s, end_s, num_replicas, place)
        if best is None or excess.sum() < best.excess.sum():
            best = Deal(place, parts, excess)
        if not excess.any():
            break
        place, _ = follow(trace.arrival_s, end_s, num_replicas)
    assert best is not None
    return best


def ends_s(
    trace: RequestTrace,
    engine_config: EngineConfig,
    step_time: StepTime,
    cancel: npt.NDArray[np.uint8] | None = None,
) -> npt.NDArray[np.float64]:
    """When each request of one replica leaves it: (n,) seconds; a refused one at once, one that stalls never."""
    if len(trace) == 0:
        return np.empty(0)
    run = replay(trace, engine_config, step_time, cancel=cancel)
    return np.where(run.never_runs, run.arrival_s, np.where(run.is_finished, run.last_token_s, np.inf))


def follow(
    arrival_s: npt.NDArray[np.float64],
    end_s: npt.NDArray[np.float64],
    num_replicas: int,
    place: Places | None = None,
) -> tuple[Places, Places]:
    """Follow a least-loaded router through a trace.

    Parameters
    ----------
    arrival_s, end_s : (n,) float64
        When each request comes and leaves.
    num_replicas : int
    place : (n,) int64, optional
        Where each went; without, each goes where the rule sends it.

    Returns
    -------
    place : (n,) int64
    excess : (n,) int64
        Outstanding requests there beyond the fewest of any replica.
    """
    outstanding = np.zeros(num_replicas, np.int64)
    last = np.arange(num_replicas) - num_replicas
    leaving: list[tuple[float, int]] = []
    went, excess = np.empty(len(arrival_s), np.int64), np.empty(len(arrival_s), np.int64)
    for i, at_s in enumerate(arrival_s.tolist()):
        while leaving and leaving[0][0] <= at_s:
            outstanding[heapq.heappop(leaving)[1]] -= 1
        fewest = outstanding.min()
        if place is None:
            candidates = np.flatnonzero(outstanding == fewest)
            replica = int(candidates[last[candidates].argmin()])
        else:
            replica = int(place[i])
        went[i], excess[i] = replica, outstanding[replica] - fewest
        outstanding[replica] += 1
        last[replica] = i
        heapq.heappush(leaving, (float(end_s[i]), replica))
    return went, excess


def _parts(trace: RequestTrace, place: Places, num_replicas: int) -> tuple[RequestTrace, ...]:
    """The requests of each replica."""
    return tuple(trace.at(np.flatnonzero(place == replica)) for replica in range(num_replicas))
