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
    segments = _segments(run)
    # A bucket sees the segment in force at its begin, and all that begin before its end.
    first = np.searchsorted(segments["start_ns"], borders_ns[:-1], "right") - 1
    stop = np.searchsorted(segments["start_ns"], borders_ns[1:], "left")
    first = np.clip(first, 0, max(len(segments) - 1, 0))
    stop = np.maximum(stop, first + 1)
    preempted = np.concatenate([[0], np.cumsum(segments["num_preempted"])])
    begun = np.searchsorted(segments["start_ns"], borders_ns, "left")
    # A step that only preempts takes no time; the last one of a replay may lie on its very end.
    begun[-1] = np.searchsorted(segments["start_ns"], borders_ns[-1], "right")

    def band(name: str) -> Band:
        return _band(segments[name], first, stop)

    return Timeline(
        start_s=borders_ns[:-1] / 1e9,
        end_s=borders_ns[1:] / 1e9,
        running=band("running"),
        waiting=band("waiting"),
        kv_usage=band("kv_usage"),
        prefill_tokens=band("prefill_tokens"),
        step_s=band("step_s"),
        num_preemptions=np.diff(preempted[begun]),
    )


SEGMENT = np.dtype(
    [
        ("start_ns", np.int64),
        ("running", np.float64),
        ("waiting", np.float64),
        ("kv_usage", np.float64),
        ("prefill_tokens", np.float64),
        ("step_s", np.float64),
        ("num_preempted", np.int64),
    ]
)
"""A stretch in which nothing changes: a step, or the pause before the next one."""


def _segments(run: Replay) -> npt.NDArray[Any]:
    """(m,) SEGMENT from time 0 to the end, in order of time."""
    steps = run.steps
    busy = np.zeros(len(steps), SEGMENT)
    busy["start_ns"] = steps["start_ns"]
    busy["running"] = steps["num_running"]
    busy["waiting"] = steps["num_waiting"]
    busy["kv_usage"] = 1.0 - steps["num_free_blocks"] / (run.engine_config.num_gpu_blocks - 1)
    busy["prefill_tokens"] = steps["prefill_tokens"]
    busy["step_s"] = (steps["end_ns"] - steps["start_ns"]) / 1e9
    busy["num_preempted"] = steps["num_preempted"]
    next_ns = np.append(steps["start_ns"][1:], np.iinfo(np.int64).max)
    has_pause = next_ns > steps["end_ns"]
    idle = np.zeros(int(has_pause.sum()) + 1, SEGMENT)
    idle["start_ns"][1:] = steps["end_ns"][has_pause]
    idle["waiting"][1:] = steps["num_waiting"][has_pause]
    # The first row is the time before the first step.
    both = np.concatenate([idle, busy])
    return both[np.argsort(both["start_ns"], kind="stable")]


def _band(values: npt.NDArray[Any], first: npt.NDArray[np.intp], stop: npt.NDArray[np.intp]) -> Band:
    """Minimum and maximum of values[first:stop] for every bucket."""
    if len(first) == 0:
        return Band(np.zeros(0), np.zeros(0))
    # reduceat takes pairs of borders; the one beyond the last value needs a value to stand on.
    pairs = np.stack([first, stop], axis=1).ravel()
    padded = np.append(values, values[-1])
    return Band(np.minimum.reduceat(padded, pairs)[::2], np.maximum.reduceat(padded, pairs)[::2])
