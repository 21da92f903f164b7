"""The engine over time: what every step had, in as many buckets as a screen has pixels."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.replay import Replay


@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """The smallest and the largest value that a quantity has within each of N buckets; no mean hides a peak."""

    low: npt.NDArray[np.float64]
    """(N,)"""
    high: npt.NDArray[np.float64]
    """(N,)"""


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """N buckets of equal length. Between steps nothing runs, is prefilled or held."""

    start_s: npt.NDArray[np.float64]
    """(N,) begin of each bucket, seconds."""
    end_s: npt.NDArray[np.float64]
    """(N,) end of each bucket, seconds."""
    running: Band
    """Requests that run, after scheduling."""
    waiting: Band
    """Requests that wait, as the scheduler saw them when it decided the step."""
    kv_usage: Band
    """Share of the KV blocks in use after scheduling, 0–1."""
    prefill_tokens: Band
    """Prefill tokens in one step."""
    step_s: Band
    """Time of one step, seconds."""
    num_preemptions: npt.NDArray[np.int64]
    """(N,) preemptions in the steps that begin in the bucket; its end counts only for the last bucket."""


def timeline(run: Replay, num_buckets: int = 600, from_s: float = 0.0, until_s: float | None = None) -> Timeline:
    """What happened between two moments, at most `num_buckets` values each.

    Parameters
    ----------
    run : Replay
        Needs no events.
    num_buckets : int
        At least 1.
    from_s, until_s : float
        Seconds; the whole replay if not given. An empty replay or window has no buckets.
    """
    until_s = run.end_s if until_s is None else until_s
    if len(run.steps) == 0 or until_s <= from_s:
        num_buckets = 0
    borders_ns = np.linspace(from_s * 1e9, until_s * 1e9, num_buckets + 1)
    # Looked up as whole numbers: for floats all times would be made floats first.
    begun = np.searchsorted(run.steps["start_ns"], np.floor(borders_ns).astype(np.int64), "right")
    begins = np.searchsorted(run.steps["start_ns"], np.ceil(borders_ns).astype(np.int64), "left")
    origin = max(int(begun[0]) - 1, 0)
    steps = run.steps[origin : begins[-1]]
    # A bucket sees the last step before its begin, or the pause after that one, and all that begin before its end.
    before, stop = begun[:-1] - 1 - origin, begins[1:] - origin
    busy, waiting = _buckets(steps, borders_ns, before, stop)
    usable = run.engine_config.num_gpu_blocks - 1
    # A step that only preempts takes no time; the last one of a replay may lie on its very end.
    begins[-1] = begun[-1]
    preempted = np.cumsum(np.append(0, run.steps["num_preempted"][begins[0] : begins[-1]]))
    return Timeline(
        start_s=borders_ns[:-1] / 1e9,
        end_s=borders_ns[1:] / 1e9,
        running=busy.band(steps["num_running"]),
        waiting=waiting.band(steps["num_waiting"]),
        kv_usage=busy.band(1.0 - steps["num_free_blocks"] / usable),
        prefill_tokens=busy.band(steps["prefill_tokens"]),
        step_s=busy.band((steps["end_ns"] - steps["start_ns"]) / 1e9),
        num_preemptions=np.diff(preempted[begins - begins[0]]),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Buckets:
    """Which values each of N buckets sees."""

    first: npt.NDArray[np.intp]
    """(N,) the first one,"""
    stop: npt.NDArray[np.intp]
    """(N,) and the one after the last; none where it is not greater."""
    sees_nothing: npt.NDArray[np.bool_]
    """(N,) whether there is a time in it when the value is 0."""

    def band(self, values: npt.NDArray[Any]) -> Band:
        """The smallest and the largest of the values that each bucket sees; none is below 0."""
        # reduceat takes pairs of borders; the one beyond the last value needs a value to stand on.
        pairs, padded = np.stack([self.first, self.stop], axis=1).ravel(), np.append(values, 0)
        low, high = (extreme.reduceat(padded, pairs)[::2].astype(np.float64) for extreme in (np.minimum, np.maximum))
        return Band(np.where(self.sees_nothing, 0.0, low), np.where(self.first < self.stop, high, 0.0))


def _buckets(
    steps: npt.NDArray[Any],
    borders_ns: npt.NDArray[np.float64],
    before: npt.NDArray[np.intp],
    stop: npt.NDArray[np.intp],
) -> tuple[_Buckets, _Buckets]:
    """What a bucket sees of what only steps have, and of what lasts through the pause after a step.

    Parameters
    ----------
    steps : (k,) kernel.STEP
    borders_ns : (N + 1,) float64
        Of the buckets, nanoseconds.
    before : (N,) int
        The last step that has begun when a bucket begins; -1 = none.
    stop : (N,) int
        The first step that begins after its end.
    """
    start_ns, end_ns = (np.append(steps[name], 0) for name in ("start_ns", "end_ns"))
    num_pauses = np.cumsum(np.append(0, end_ns[:-2] < start_ns[1:-1]))
    since = np.maximum(before, 0)
    # The last step that it sees is over before its end, so nothing runs until the next one begins.
    is_over = end_ns[stop - 1] < borders_ns[1:]
    has_pause = (before < 0) | is_over | (num_pauses[stop - 1] > num_pauses[since])
    runs_on = (before >= 0) & (end_ns[since] > borders_ns[:-1])
    return _Buckets(before + ~runs_on, stop, has_pause), _Buckets(since, stop, before < 0)
