"""A stretch of a replay as a file for the trace viewers of Chrome and Perfetto."""

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.inside.phases import Phase, phases_between
from planner.inside.recording import Recording, prefill_part_ns, steps_between, window_of, with_events
from planner.inside.words import WAITS, request_name, wait_in_words
from planner.replay import Replay
from traces.requests import RequestTrace

ENGINE, REQUESTS = 1, 2
"""Process numbers of the two groups of tracks."""


def chrome_trace(
    trace: RequestTrace,
    run: Replay,
    from_s: float,
    until_s: float,
    max_steps: int = 2000,
    max_requests: int = 1000,
) -> str:
    """What happened between two moments, as JSON in the Trace Event Format; times in microseconds.

    Steps are slices on the engine's track, every request has a track of its own with its phases, and running,
    waiting and KV use are counters. The window ends early after `max_steps` steps, and only the first
    `max_requests` requests get tracks; `otherData` says what was left out.

    Parameters
    ----------
    trace : RequestTrace
        The trace of `run`.
    run : Replay
        With or without events; those that are missing cost one more replay.
    from_s, until_s : float
        Seconds.
    max_steps, max_requests : int
        Bounds on the size.

    Source
    ------
    Trace Event Format (Google, 2016): complete events "X", counters "C", metadata "M".
    """
    from_ns, until_ns = round(from_s * 1e9), round(until_s * 1e9)
    steps = steps_between(run, from_ns, until_ns)
    is_cut = len(steps) > max_steps
    if is_cut:
        until_ns = int(run.steps["start_ns"][steps[max_steps]])
        steps = steps[:max_steps]
    members = _requests_between(run, from_ns, until_ns)
    events = [*_names(trace, members[:max_requests]), *_steps(run, steps)]
    if steps:
        recording = Recording(with_events(trace, run, [window_of(run, steps)]))
        for request in members[:max_requests].tolist():
            events.extend(_slices(trace, recording, request, from_ns, until_ns))
    document = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "source": "simulated by vLLM Capacity Planner",
            "from_s": from_ns / 1e9,
            "until_s": until_ns / 1e9,
            "window_was_cut": is_cut,
            "requests_left_out": max(0, len(members) - max_requests),
        },
    }
    return json.dumps(document)


def _requests_between(run: Replay, from_ns: int, until_ns: int) -> npt.NDArray[np.intp]:
    """Rows of the requests that were there at some time between two moments, in order of arrival."""
    gone_s = np.where(run.is_finished, run.last_token_s, np.inf)
    is_there = ~run.never_runs & (run.arrival_s * 1e9 < until_ns) & (gone_s * 1e9 > from_ns)
    return np.flatnonzero(is_there)


def _names(trace: RequestTrace, members: npt.NDArray[np.intp]) -> list[dict[str, Any]]:
    """What the tracks are called."""

    def name(what: str, pid: int, tid: int, text: str) -> dict[str, Any]:
        return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": text}}

    return [
        name("process_name", ENGINE, 0, "engine"),
        name("thread_name", ENGINE, 1, "steps"),
        name("process_name", REQUESTS, 0, "requests"),
        *(name("thread_name", REQUESTS, _track(trace, i), request_name(trace, i)) for i in members.tolist()),
    ]


def _track(trace: RequestTrace, request: int) -> int:
    """The number of a request's track: its data row, counted from 1."""
    return int(trace.source_row[request]) + 1


def _steps(run: Replay, steps: range) -> list[dict[str, Any]]:
    """A slice per step, and the counters as they are while it runs."""
    usable = run.engine_config.num_gpu_blocks - 1
    events = []
    for k, prefill_ns in zip(steps, prefill_part_ns(run, steps).tolist(), strict=True):
        step = run.steps[k]
        prefill_tokens, num_decodes = int(step["prefill_tokens"]), int(step["num_decodes"])
        args = {
            "step": k,
            "prefill_tokens": prefill_tokens,
            "prefill_ms": prefill_ns / 1e6,
            "decodes": num_decodes,
            "preempted": int(step["num_preempted"]),
            "waiting": int(step["num_waiting"]),
            "free_blocks": int(step["num_free_blocks"]),
        }
        start_ns, end_ns = int(step["start_ns"]), int(step["end_ns"])
        name = f"{num_decodes} decodes" if prefill_tokens == 0 else f"{num_decodes} decodes + {prefill_tokens} prefill"
        events.append(_slice(name, ENGINE, 1, start_ns, end_ns, args))
        counters = {
            "running": int(step["num_running"]),
            "waiting": int(step["num_waiting"]),
            "KV use %": 100.0 * (1.0 - int(step["num_free_blocks"]) / usable),
        }
        events.extend(
            {"ph": "C", "name": counter, "pid": ENGINE, "ts": start_ns / 1e3, "args": {"value": value}}
            for counter, value in counters.items()
        )
    return events


def _slices(
    trace: RequestTrace, recording: Recording, request: int, from_ns: int, until_ns: int
) -> list[dict[str, Any]]:
    """The phases of one request as far as they lie in the window."""
    run = recording.run
    arrival_ns = round(run.arrival_s[request] * 1e9)
    end_ns = until_ns
    if run.is_finished[request]:
        end_ns = min(end_ns, round(run.last_token_s[request] * 1e9))
    phases = phases_between(recording, request, max(arrival_ns, from_ns), min(end_ns, round(run.end_s * 1e9)))
    return [
        _slice(str(phase.kind), REQUESTS, _track(trace, request), phase.start_ns, phase.end_ns, _arguments(phase))
        for phase in phases
    ]


def _arguments(phase: Phase) -> dict[str, Any]:
    """What the viewer shows when a slice is chosen."""
    args: dict[str, Any] = {"steps": phase.num_steps, "tokens": phase.num_tokens}
    if phase.beside_ns:
        args["prefill_of_others_ms"] = phase.beside_ns / 1e6
    if phase.kind in WAITS:
        args["why"] = wait_in_words(phase.kind, phase.held_by, phase.is_head)
    return args


def _slice(name: str, pid: int, tid: int, start_ns: int, end_ns: int, args: dict[str, Any]) -> dict[str, Any]:
    """A complete event."""
    return {
        "ph": "X",
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": start_ns / 1e3,
        "dur": (end_ns - start_ns) / 1e3,
        "args": args,
    }
