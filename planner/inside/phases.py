"""A request's life, cut into phases that follow each other without a gap."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from planner import kernel
from planner.engine_config import DRAFTERS
from planner.inside.recording import (
    HeldBy,
    Recording,
    Share,
    prefill_part_ns,
    steps_between,
    window_of,
    with_events,
)
from planner.replay import Replay
from traces.requests import RequestTrace

MOST_STEPS = 50_000
"""Steps of which all events are held at once: with 256 requests running, 200 MB."""


class PhaseKind(StrEnum):
    """What a request does, or what is done to it."""

    ARRIVING = "arriving"
    """The next step was already decided when it arrived."""
    QUEUED = "queued"
    """It has not been admitted yet."""
    PREFILL = "prefill"
    """Its prompt is computed, up to the first token."""
    DECODE = "decode"
    """It gets one token a step, or more with drafts."""
    PASSED_OVER = "passed over"
    """It runs, but the step has no tokens for it."""
    PREEMPTED = "preempted"
    """It has lost its KV blocks and waits."""
    RECOMPUTE = "recompute"
    """What it lost is computed again, up to its next token."""
    IDLE = "idle"
    """No step runs."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of a request's life in which one thing happens."""

    kind: PhaseKind
    """What happens."""
    start_ns: int
    """Begin, nanoseconds on the clock of the replay."""
    end_ns: int
    """End; the next phase begins here."""
    num_steps: int
    """Engine steps it touches."""
    num_tokens: int
    """Tokens of this request scheduled in it."""
    beside_ns: int
    """The part of its own steps that prefill tokens of other requests take, nanoseconds."""
    held_by: HeldBy | None
    """While it waits: what keeps the head of the queue from starting."""
    is_head: bool
    """While it waits: whether it is the head itself."""

    @property
    def duration_s(self) -> float:
        """Seconds from begin to end."""
        return (self.end_ns - self.start_ns) / 1e9


@dataclass(frozen=True, slots=True)
class Life:
    """Everything that one request went through."""

    request: int
    """Row of the trace."""
    phases: tuple[Phase, ...]
    """From its arrival to its last token, or to the end of the replay if that never came; their durations in
    nanoseconds sum to E2E exactly. Empty when the request can never run."""
    is_finished: bool
    """Whether it got all its tokens."""
    ttft_s: float
    """Time to first token, seconds; NaN without one."""
    num_hit_tokens: int
    """Prompt tokens found in the prefix cache at its first admission."""
    num_preemptions: int
    """How often it was preempted."""
    budget_spenders: tuple[Share, ...]
    """Whose prefill tokens spent the budget while it waited for budget, the largest share first."""

    @property
    def e2e_s(self) -> float:
        """Seconds from arrival to the end of the last phase."""
        return (self.phases[-1].end_ns - self.phases[0].start_ns) / 1e9 if self.phases else float("nan")

    def of_kind(self, kind: PhaseKind) -> tuple[Phase, ...]:
        """All phases of one kind."""
        return tuple(phase for phase in self.phases if phase.kind is kind)

    def seconds_of(self, kind: PhaseKind) -> float:
        """Seconds spent in all phases of one kind."""
        return sum(phase.end_ns - phase.start_ns for phase in self.of_kind(kind)) / 1e9


def life_of(
    trace: RequestTrace,
    run: Replay,
    request: int,
    cancel: npt.NDArray[np.uint8] | None = None,
    on_piece: Callable[[], None] = lambda: None,
) -> Life:
    """Why one request took as long as it did.

    Parameters
    ----------
    trace : RequestTrace
        The trace of `run`.
    run : Replay
        With or without events; those that are missing cost one more replay for each of `life_pieces`.
    request : int
        Row of the trace.
    cancel : (1,) uint8, optional
        As for `replay`.
    on_piece : callable
        Called after each of `life_pieces`.
    """
    phases: tuple[Phase, ...] = ()
    spent: Counter[int] = Counter()
    if not run.never_runs[request]:
        from_ns, until_ns = _life_ns(run, request)
        acts, found = _Acts(run, request, from_ns), _Phases(from_ns)
        for steps in life_pieces(run, request):
            recording = Recording(with_events(trace, run, [window_of(run, steps)], cancel))
            found.go_on(acts, recording, steps, until_ns)
            spent.update(dict(recording.tokens_in(_budget_steps(run, found.found, steps), (kernel.PREFILLED,))))
            on_piece()
        found.extend(until_ns, IDLE, 0, 0)
        phases = tuple(found.found)
    return Life(
        request=request,
        phases=phases,
        is_finished=bool(run.is_finished[request]),
        ttft_s=float(run.first_token_s[request] - run.arrival_s[request]),
        num_hit_tokens=int(run.num_hit_tokens[request]),
        num_preemptions=int(run.num_preemptions[request]),
        budget_spenders=tuple(Share(*item) for item in sorted(spent.items(), key=lambda item: (-item[1], item[0]))),
    )


def life_pieces(run: Replay, request: int) -> tuple[range, ...]:
    """The steps of a request's life, cut into stretches of which memory holds all events; none if it never runs."""
    if run.never_runs[request]:
        return ()
    steps = steps_between(run, *_life_ns(run, request))
    return tuple(steps[k : k + MOST_STEPS] for k in range(0, len(steps), MOST_STEPS))


def _life_ns(run: Replay, request: int) -> tuple[int, int]:
    """From a request's arrival to its last token, or to the end of the replay if that never came; nanoseconds."""
    end_s = run.last_token_s[request] if run.is_finished[request] else run.end_s
    return round(run.arrival_s[request] * 1e9), round(end_s * 1e9)


def _budget_steps(run: Replay, phases: Sequence[Phase], steps: range) -> list[int]:
    """Those of some steps that fall in a phase that waits for budget."""
    found: list[int] = []
    for phase in phases:
        if phase.held_by is HeldBy.BUDGET:
            waited = steps_between(run, phase.start_ns, phase.end_ns)
            found.extend(range(max(waited.start, steps.start), min(waited.stop, steps.stop)))
    return found


def phases_between(recording: Recording, request: int, from_ns: int, until_ns: int) -> tuple[Phase, ...]:
    """One request's phases in a stretch of its life, merged as long as the same thing goes on.

    Parameters
    ----------
    recording : Recording
        With the events of all steps that run between the two.
    request : int
        Row of the trace.
    from_ns, until_ns : int
        Not before its arrival, not after its last token; nanoseconds.
    """
    phases = _Phases(from_ns)
    steps = steps_between(recording.run, from_ns, until_ns)
    phases.go_on(_Acts(recording.run, request, from_ns), recording, steps, until_ns)
    phases.extend(until_ns, IDLE, 0, 0)
    return tuple(phases.found)


class _What(NamedTuple):
    """What is the same all through a phase."""

    kind: PhaseKind
    held_by: HeldBy | None = None
    is_head: bool = False


IDLE = _What(PhaseKind.IDLE)
"""The engine pauses."""


class _Acts:
    """What one request does step by step; `read` the steps, then `enter` and `leave` each of them in order."""

    def __init__(self, run: Replay, request: int, from_ns: int) -> None:
        self.run, self.request = run, request
        # Times in seconds come from whole nanoseconds; half a nanosecond is no time.
        self.arrival_ns = round(run.arrival_s[request] * 1e9)
        self.has_token = bool(run.first_token_s[request] * 1e9 < from_ns + 0.5)
        self.was_admitted = bool(run.first_scheduled_s[request] * 1e9 < from_ns - 0.5)
        self.is_preempted = self.is_recomputing = self.has_read = False

    def read(self, recording: Recording, steps: range) -> None:
        """Take in what is recorded of these steps; they follow those before."""
        self.recording, self.first = recording, steps.start
        self.prefill_part_ns = prefill_part_ns(self.run, steps)
        rows = recording.of_request(self.request)
        rows = rows[(rows["step"] >= steps.start) & (rows["step"] < steps.stop)]
        events: list[tuple[int, int, int, int]] = rows.tolist()
        self.tokens = {k: num for k, kind, _, num in events if kind in (kernel.PREFILLED, kernel.DECODED)}
        self.prefilled = {k: num for k, kind, _, num in events if kind == kernel.PREFILLED}
        marked = (kernel.PREEMPTED, kernel.ADMITTED, kernel.RESUMED)
        self.mark = {k: kind for k, kind, _, _ in events if kind in marked}
        self.token_steps = {k for k, kind, _, _ in events if kind == kernel.TOKEN}
        if self.has_read:
            return
        self.has_read = True
        # In the middle of its life the first thing that it does tells what went before.
        if self.mark or self.tokens:
            self.is_preempted = self.was_admitted and next(iter(self.mark.values()), None) == kernel.RESUMED
        else:
            self.is_preempted = self.was_admitted and bool(self.run.num_preemptions[self.request] > 0)
        first_chunk = next(iter(self.tokens), -1)
        self.is_recomputing = self.has_token and not self.is_preempted and first_chunk in self.prefilled

    def enter(self, k: int) -> None:
        """Take in what step k decides about the request."""
        mark = self.mark.get(k)
        if mark == kernel.PREEMPTED:
            self.is_preempted, self.is_recomputing = True, False
        elif mark == kernel.RESUMED:
            self.is_preempted = False
            self.is_recomputing = self.run.what_if.swap_ns_per_token is None
        elif mark == kernel.ADMITTED:
            self.was_admitted = True

    def leave(self, k: int) -> None:
        """Take in what step k delivers."""
        if k in self.token_steps:
            self.has_token, self.is_recomputing = True, False

    def what(self, k: int) -> _What:
        """What the request does while step k runs."""
        if k in self.tokens:
            if self.is_recomputing:
                return _What(PhaseKind.RECOMPUTE)
            return _What(PhaseKind.DECODE if self.has_token else PhaseKind.PREFILL)
        step = self.run.steps[k]
        if step["sched_ns"] < self.arrival_ns:
            return _What(PhaseKind.ARRIVING)
        if self.was_admitted and not self.is_preempted:
            return _What(PhaseKind.PASSED_OVER, self._passed_over_by(step))
        head, held_by = self.recording.held(k) or (-1, None)
        return _What(PhaseKind.PREEMPTED if self.is_preempted else PhaseKind.QUEUED, held_by, head == self.request)

    def beside_ns(self, k: int) -> int:
        """What prefill tokens of others take of step k, if the request is in its batch."""
        if k not in self.tokens:
            return 0
        tokens = int(self.run.steps["prefill_tokens"][k])
        others = tokens - self.prefilled.get(k, 0)
        return int(self.prefill_part_ns[k - self.first]) * others // max(tokens, 1)

    def _passed_over_by(self, step: Any) -> HeldBy | None:
        """Why pass 1 had no tokens for a running request."""
        config = self.run.engine_config
        extra = DRAFTERS[config.speculative_method].num_extra_inputs
        tokens = int(step["prefill_tokens"] + step["num_decodes"] + step["num_draft_tokens"])
        budget = config.max_num_scheduled_tokens or config.max_num_batched_tokens
        inputs_left = config.max_num_batched_tokens - tokens - extra * int(step["num_scheduled"])
        if tokens >= budget or inputs_left <= extra:
            return HeldBy.BUDGET
        return HeldBy.PREEMPTION if step["num_preempted"] > 0 else None


class _Phases:
    """Phases that follow each other, joined as long as the same thing goes on."""

    def __init__(self, from_ns: int) -> None:
        self.found: list[Phase] = []
        self.end_ns = from_ns

    def go_on(self, acts: _Acts, recording: Recording, steps: range, until_ns: int) -> None:
        """Go on through these steps, at most until a moment."""
        acts.read(recording, steps)
        rows = recording.run.steps[steps.start : steps.stop]
        for k, start_ns, end_ns in zip(steps, rows["start_ns"].tolist(), rows["end_ns"].tolist(), strict=True):
            acts.enter(k)
            self.extend(start_ns, IDLE, 0, 0)
            self.extend(min(end_ns, until_ns), acts.what(k), acts.tokens.get(k, 0), acts.beside_ns(k))
            acts.leave(k)

    def extend(self, until_ns: int, what: _What, num_tokens: int, beside_ns: int) -> None:
        """Go on until a moment; nothing if that takes no time."""
        if until_ns <= self.end_ns:
            return
        start_ns, self.end_ns = self.end_ns, until_ns
        num_steps = 0 if what is IDLE else 1
        before = self.found[-1] if self.found else None
        if before and (before.kind, before.held_by, before.is_head) == what:
            start_ns = before.start_ns
            num_steps += before.num_steps
            num_tokens += before.num_tokens
            beside_ns += before.beside_ns
            self.found.pop()
        self.found.append(
            Phase(what.kind, start_ns, until_ns, num_steps, num_tokens, beside_ns, what.held_by, what.is_head)
        )
