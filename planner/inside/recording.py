"""Who did what in which step: a replay's events, looked up by request and by step."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from planner import kernel
from planner.replay import Replay, replay
from traces.requests import RequestTrace


class HeldBy(StrEnum):
    """What keeps the head of the waiting queue, and with it everybody behind, from starting."""

    SEAT = "no seat"
    """`max_num_seqs` requests are running."""
    BUDGET = "no budget"
    """The step's tokens are spent."""
    BLOCKS = "no KV blocks"
    """Too few blocks are free for what admission asks."""
    WHOLE_PROMPT = "prompt does not fit in one piece"
    """Chunked prefill is off."""
    PREEMPTION = "preemption"
    """Somebody was preempted in this step, so nobody is admitted in it."""


HELD_BY = {
    kernel.NO_SEAT: HeldBy.SEAT,
    kernel.NO_BUDGET: HeldBy.BUDGET,
    kernel.NO_BLOCKS: HeldBy.BLOCKS,
    kernel.NOT_WHOLE: HeldBy.WHOLE_PROMPT,
    kernel.PREEMPTION: HeldBy.PREEMPTION,
}
"""The kernel's numbers."""


class Share(NamedTuple):
    """A request and a number of tokens: scheduled, hit or lost."""

    request: int
    """Row of the trace."""
    num_tokens: int
    """Tokens."""


def with_events(trace: RequestTrace, run: Replay, windows_ns: Iterable[tuple[int, int]]) -> Replay:
    """`run`, or the same replay once more if it has not the events of the steps scheduled in these windows.

    Parameters
    ----------
    trace : RequestTrace
        The trace of `run`.
    run : Replay
    windows_ns : iterable of (int, int)
        From when until when, nanoseconds; in any order, and they may overlap.
    """
    wanted = merged(windows_ns)
    if all(any(low <= start and end <= high for low, high in run.windows_ns) for start, end in wanted):
        return run
    return replay(trace, run.engine_config, run.step_time, windows_ns=wanted, what_if=run.what_if)


def recording_of(trace: RequestTrace, run: Replay, stretches: Iterable[tuple[int, int]]) -> "Recording":
    """The events of some stretches of steps, each from its first step to its last; at the cost of `with_events`."""
    sched_ns = run.steps["sched_ns"]
    return Recording(with_events(trace, run, [(int(sched_ns[a]), int(sched_ns[b]) + 1) for a, b in stretches]))


def merged(windows_ns: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Windows in order, those that touch joined, empty ones left out."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(window for window in windows_ns if window[0] < window[1]):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return tuple(joined)


class Recording:
    """The events of a replay by request and by step; rows of requests as in the trace."""

    def __init__(self, run: Replay) -> None:
        self.run = run
        events = run.events
        self._by_request = events[np.argsort(events["request"], kind="stable")]
        self._by_step = events[np.argsort(events["step"], kind="stable")]
        held = events[events["kind"] == kernel.HELD]
        self.prefill_part_ns = prefill_part_ns(run)
        self._held = {step: (head, HELD_BY[code]) for step, _, head, code in held.tolist()}

    def of_request(self, request: int) -> npt.NDArray[Any]:
        """(e,) `kernel.EVENT` of one request, HELD left out."""
        first, last = np.searchsorted(self._by_request["request"], [request, request + 1])
        events = self._by_request[first:last]
        return np.asarray(events[events["kind"] != kernel.HELD])

    def of_step(self, step: int) -> npt.NDArray[Any]:
        """(e,) `kernel.EVENT` of one step, in the order they were decided."""
        first, last = np.searchsorted(self._by_step["step"], [step, step + 1])
        return np.asarray(self._by_step[first:last])

    def held(self, step: int) -> tuple[int, HeldBy] | None:
        """The head of the waiting queue after a step was scheduled, and why it stands there; None = nobody waits."""
        return self._held.get(step)

    def tokens_in(self, steps: Sequence[int], kinds: tuple[int, ...]) -> tuple[Share, ...]:
        """Who got how many tokens in these steps, the largest share first.

        Parameters
        ----------
        steps : sequence of int
        kinds : tuple of int
            `kernel.PREFILLED`, `kernel.DECODED`, or both.
        """
        tokens: dict[int, int] = {}
        for k in steps:
            for _, kind, request, num in self.of_step(k).tolist():
                if kind in kinds:
                    tokens[request] = tokens.get(request, 0) + num
        return tuple(Share(*item) for item in sorted(tokens.items(), key=lambda item: (-item[1], item[0])))


def prefill_part_ns(run: Replay) -> npt.NDArray[np.int64]:
    """How much of each step its prefill tokens cost: the step-time equation with them less without them.

    Returns
    -------
    (k,) int64
        Nanoseconds, never negative.
    """
    steps = run.steps
    kv_read = steps["kv_decode_tokens"].astype(np.float64)
    equation = kernel.step_ns.py_func
    drafts = steps["num_draft_tokens"]
    seqs, tokens, attention = (steps[name] for name in ("num_scheduled", "prefill_tokens", "prefill_attention"))
    with_prefill = equation(run.step_time, seqs, tokens, kv_read, attention, drafts, steps["kv_prefill_tokens"])
    none = np.zeros(len(steps), np.int64)
    without = equation(run.step_time, seqs, none, kv_read, none, drafts)
    return np.asarray(np.maximum(with_prefill - without, 0), np.int64)
