"""The longest pauses between two tokens, each with what caused it."""

from dataclasses import dataclass
from enum import StrEnum
from math import ceil, floor

import numpy as np
import numpy.typing as npt

from planner import kernel
from planner.inside.phases import Phase, PhaseKind, phases_between
from planner.inside.recording import HeldBy, Recording, Share, window_of, with_events
from planner.replay import Replay
from traces.requests import RequestTrace


class Cause(StrEnum):
    """What a gap is spent on."""

    PREFILL = "prefill beside"
    """Prefill tokens of other requests in the steps that decode this one."""
    PREEMPTED = "preempted"
    """The request lost its KV blocks: it waits, and what it lost is computed again."""
    BUDGET = "no budget"
    """The request runs, but others have spent the step's tokens."""
    SKIPPED = "skipped"
    """The request runs, but a preemption ended the step's first pass before its turn."""
    DECODE = "decode"
    """The step itself, prefill not counted: its fixed time and the requests that decode in it."""
    IDLE = "idle"
    """No step runs."""


@dataclass(frozen=True, slots=True)
class WorstGap:
    """One gap, or one that several streams have in common because the same step ends it."""

    request: int
    """Row of the trace; the first in the batch of those that share it."""
    num_requests: int
    """Streams that share it."""
    start_s: float
    """When the token before the gap appeared, seconds."""
    end_s: float
    """When the token after it appeared, seconds."""
    step: int
    """The step that ended it."""
    num_steps: int
    """Steps from one token to the next."""
    cause: Cause
    """What most of it is spent on."""
    parts: tuple[tuple[Cause, float], ...]
    """What it is spent on, the largest part first, seconds; they sum to the gap."""
    culprits: tuple[Share, ...]
    """Who got the tokens that it waited for, the largest share first: prefill tokens, or by BUDGET all tokens."""
    num_decodes: int
    """Requests that decode in the step that ends it."""
    num_preemptions: int
    """How often the request was preempted in it."""
    preempted_s: float
    """From the preemption to the step that starts to recompute, seconds."""
    num_recomputed: int
    """Tokens computed again before the next one appeared."""
    held_by: HeldBy | None
    """While it was preempted: what kept the queue from moving longest."""

    @property
    def gap_s(self) -> float:
        """Its length, seconds."""
        return self.end_s - self.start_s


def worst_gaps(
    trace: RequestTrace,
    run: Replay,
    num_gaps: int = 20,
    from_s: float = 0.0,
    until_s: float | None = None,
    cancel: npt.NDArray[np.uint8] | None = None,
) -> tuple[WorstGap, ...]:
    """The longest gaps that end between two moments, the longest first.

    Streams that wait for the same step since the step before it are one entry.

    Parameters
    ----------
    trace : RequestTrace
        The trace of `run`.
    run : Replay
        With or without events; those that are missing cost one more replay.
    num_gaps : int
        Most entries.
    from_s, until_s : float
        Seconds; the whole replay if not given.
    cancel : (1,) uint8, optional
        As for `replay`.
    """
    pauses = longest_pauses(run, num_gaps, from_s, run.end_s if until_s is None else until_s)
    recording = Recording(with_events(trace, run, [window_of(run, pause.steps) for pause in pauses], cancel))
    return tuple(_explained(recording, pause) for pause in pauses)


@dataclass(frozen=True, slots=True)
class Pause:
    """A gap that is found, but not explained."""

    steps: range
    """From the step that brought the token before it to the one that ends it."""
    start_ns: int
    """Its begin."""
    end_ns: int
    """Its end."""
    request: int
    """Row of the trace; -1 for the streams that have a token in both of two neighbouring steps."""
    num_requests: int
    """Streams that share it."""


def longest_pauses(run: Replay, num_gaps: int, from_s: float, until_s: float) -> tuple[Pause, ...]:
    """The longest gaps, those counted per step and those listed one by one, the earlier first among equals.

    Parameters
    ----------
    run : Replay
        Needs no events.
    num_gaps : int
        Most entries.
    from_s, until_s : float
        When they end, seconds.
    """
    end_ns = run.steps["end_ns"]
    # Looked up as whole numbers: for a float all ends would be made floats first. The first step of all ends no gap.
    first = max(1, int(np.searchsorted(end_ns, ceil(from_s * 1e9), "left")))
    stop = max(first, int(np.searchsorted(end_ns, floor(until_s * 1e9 + 0.5), "right")))
    has_gaps = run.steps["num_gaps"][first:stop] > 0
    shared = first + _largest(np.where(has_gaps, end_ns[first:stop] - end_ns[first - 1 : stop - 1], 0), num_gaps)
    listed = np.flatnonzero((run.gaps["step"] >= first) & (run.gaps["step"] < stop))
    listed = listed[_largest(run.gaps["gap_ns"][listed], num_gaps)]
    gap_ns = np.concatenate([end_ns[shared] - end_ns[shared - 1], run.gaps["gap_ns"][listed]])
    step = np.concatenate([shared, run.gaps["step"][listed]])
    request = np.concatenate([np.full(len(shared), -1), run.gaps["request"][listed]])
    count = np.concatenate([run.steps["num_gaps"][shared], np.ones(len(listed), np.int64)])
    chosen = np.lexsort((step, -gap_ns))[:num_gaps]
    found = []
    for gap, k, row, num in zip(
        gap_ns[chosen].tolist(), step[chosen].tolist(), request[chosen].tolist(), count[chosen].tolist(), strict=True
    ):
        start_ns = int(end_ns[k]) - gap
        # A step that only preempts takes no time and may end at the same moment; it comes later.
        first_step = k - 1 if row < 0 else int(np.searchsorted(end_ns, start_ns, "left"))
        found.append(Pause(range(first_step, k + 1), start_ns, int(end_ns[k]), row, num))
    return tuple(found)


def _largest(values: npt.NDArray[np.int64], num: int) -> npt.NDArray[np.intp]:
    """Where the largest values above 0 are, as many as asked for at most, the earlier ones among equals; in order."""
    least = max(1, int(np.partition(values, -num)[-num])) if 0 < num < len(values) else 1
    above = np.flatnonzero(values > least)
    equal = np.flatnonzero(values == least)[: num - len(above)]
    return np.sort(np.concatenate([above, equal]))


def _explained(recording: Recording, gap: Pause) -> WorstGap:
    """A gap with its cause: the phases of the request between the two tokens."""
    request = gap.request if gap.request >= 0 else _one_of(recording, gap)
    phases = phases_between(recording, request, gap.start_ns, gap.end_ns)
    spent = _spent_ns(phases)
    parts = sorted(((cause, ns / 1e9) for cause, ns in spent.items() if ns), key=lambda part: -part[1])
    cause = parts[0][0]
    waits = [phase for phase in phases if phase.kind is PhaseKind.PREEMPTED]
    longest_wait = max(waits, key=lambda phase: phase.end_ns - phase.start_ns, default=None)
    between, last = gap.steps[1:], gap.steps[-1]
    events = recording.of_request(request)
    is_loss = (events["kind"] == kernel.PREEMPTED) & np.isin(events["step"], between)
    return WorstGap(
        request=request,
        num_requests=gap.num_requests,
        start_s=gap.start_ns / 1e9,
        end_s=gap.end_ns / 1e9,
        step=last,
        num_steps=len(between),
        cause=cause,
        parts=tuple(parts),
        culprits=_culprits(recording, request, between, cause),
        num_decodes=int(recording.run.steps["num_decodes"][last]),
        num_preemptions=int(is_loss.sum()),
        preempted_s=sum(phase.end_ns - phase.start_ns for phase in waits) / 1e9,
        num_recomputed=sum(phase.num_tokens for phase in phases if phase.kind is PhaseKind.RECOMPUTE),
        held_by=longest_wait.held_by if longest_wait else None,
    )


def _one_of(recording: Recording, gap: Pause) -> int:
    """The first request of the batch that has a token in this step and in the one before."""
    before, after = (
        [int(request) for _, kind, request, _ in recording.of_step(step).tolist() if kind == kernel.TOKEN]
        for step in gap.steps
    )
    return next(request for request in after if request in before)


def _spent_ns(phases: tuple[Phase, ...]) -> dict[Cause, int]:
    """Nanoseconds of the phases by cause."""
    causes = {
        PhaseKind.PREEMPTED: Cause.PREEMPTED,
        PhaseKind.RECOMPUTE: Cause.PREEMPTED,
        PhaseKind.IDLE: Cause.IDLE,
    }
    spent = dict.fromkeys(Cause, 0)
    for phase in phases:
        duration_ns = phase.end_ns - phase.start_ns
        if phase.kind is PhaseKind.DECODE:
            spent[Cause.PREFILL] += phase.beside_ns
            spent[Cause.DECODE] += duration_ns - phase.beside_ns
        elif phase.kind is PhaseKind.PASSED_OVER:
            spent[Cause.BUDGET if phase.held_by is HeldBy.BUDGET else Cause.SKIPPED] += duration_ns
        else:
            spent[causes[phase.kind]] += duration_ns
    return spent


def _culprits(recording: Recording, request: int, steps: range, cause: Cause) -> tuple[Share, ...]:
    """Who got the tokens that the request waited for; nobody where it did not wait for tokens."""
    if cause is Cause.BUDGET:
        # It had nothing in the steps that passed it over; those that served it are no reason to wait.
        served = set(recording.of_request(request)["step"].tolist())
        kinds: tuple[int, ...] = (kernel.PREFILLED, kernel.DECODED)
        return recording.tokens_in([k for k in steps if k not in served], kinds)
    if cause in (Cause.PREFILL, Cause.DECODE):
        shares = recording.tokens_in(steps, (kernel.PREFILLED,))
        return tuple(share for share in shares if share.request != request)
    return ()
