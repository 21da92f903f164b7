"""Who did what in which step: a replay's events, looked up by request and by step."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
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


def steps_between(run: Replay, from_ns: int, until_ns: int) -> range:
    """The steps that run at some time between two moments; not one that ends at the first or begins at the second."""
    first = int(np.searchsorted(run.steps["end_ns"], from_ns, "right"))
    return range(first, max(first, int(np.searchsorted(run.steps["start_ns"], until_ns, "left"))))


def with_events(
    trace: RequestTrace, run: Replay, windows_ns: Iterable[tuple[int, int]], cancel: npt.NDArray[np.uint8] | None = None
) -> Replay:
    """`run`, or the same replay once more if it has not the events of the steps scheduled in these windows.

    Parameters
    ----------
    trace : RequestTrace
        The trace of `run`.
    run : Replay
    windows_ns : iterable of (int, int)
        From when until when, nanoseconds; in any order, and they may overlap.
    cancel : (1,) uint8, optional
        As for `replay`.
    """
    wanted = merged(windows_ns)
    if all(any(low <= start and end <= high for low, high in run.windows_ns) for start, end in wanted):
        return run
    # All but the events is the same again, and to keep the rows of all steps takes longer than the replay.
    found = replay(
        trace,
        run.engine_config,
        run.step_time,
        windows_ns=wanted,
        what_if=run.what_if,
        keeps_steps=False,
        cancel=cancel,
    )
    return replace(run, events=found.events, windows_ns=found.windows_ns)


def window_of(run: Replay, steps: range) -> tuple[int, int]:
    """When a stretch of steps was scheduled, from the first to the last, nanoseconds."""
    sched_ns = run.steps["sched_ns"]
    return int(sched_ns[steps[0]]), int(sched_ns[steps[-1]]) + 1


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
        # Columns by themselves: to look for one request among millions of events takes a millisecond, to sort them 2 s.
        self._requests, self._steps = run.events["request"].copy(), run.events["step"].copy()
        held = run.events[run.events["kind"] == kernel.HELD]
        self._held = {step: (head, HELD_BY[code]) for step, _, head, code in held.tolist()}

    def of_request(self, request: int) -> npt.NDArray[Any]:
        """(e,) `kernel.EVENT` of one request, HELD left out."""
        events = self.run.events[np.flatnonzero(self._requests == request)]
        return np.asarray(events[events["kind"] != kernel.HELD])

    def of_step(self, step: int) -> npt.NDArray[Any]:
        """(e,) `kernel.EVENT` of one step, in the order they were decided."""
        return np.asarray(self.run.events[np.flatnonzero(self._steps == step)])

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
        events = self.run.events
        events = events[np.isin(events["kind"], kinds) & np.isin(self._steps, steps)]
        requests, position = np.unique(events["request"], return_inverse=True)
        tokens = np.zeros(len(requests), np.int64)
        np.add.at(tokens, position, events["tokens"])
        order = np.lexsort((requests, -tokens))
        return tuple(Share(*item) for item in zip(requests[order].tolist(), tokens[order].tolist(), strict=True))


def prefill_part_ns(run: Replay, steps: range) -> npt.NDArray[np.int64]:
    """How much of each of these steps its prefill tokens cost: the step-time equation with them less without them.

    Returns
    -------
    (k,) int64
        Nanoseconds, never negative.
    """
    rows = run.steps[steps.start : steps.stop]
    kv_read = rows["kv_decode_tokens"].astype(np.float64)
    equation = kernel.step_ns.py_func
    drafts = rows["num_draft_tokens"]
    seqs, tokens, attention = (rows[name] for name in ("num_scheduled", "prefill_tokens", "prefill_attention"))
    with_prefill = equation(run.step_time, seqs, tokens, kv_read, attention, drafts, rows["kv_prefill_tokens"])
    none = np.zeros(len(rows), np.int64)
    without = equation(run.step_time, seqs, none, kv_read, none, drafts)
    return np.asarray(np.maximum(with_prefill - without, 0), np.int64)
