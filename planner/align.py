"""A server's log walked line by line with the requests that caused it: what each step computed, and who was in it.

`align` is the only door. It drives the compiled scheduler of `planner.kernel`, the one that replays and plans, one
step a line, so the share of lines that it explains says how well that scheduler describes the user's own server.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from planner import kernel
from planner.engine_config import EngineConfig, check_flags
from planner.errors import BadFlags
from planner.replay import NO_NOISE, acceptance_pattern, kernel_blocks, limits_of, prefix_ids, request_rows, typed
from planner.step_time import StepTime
from traces.requests import RequestTrace
from traces.steps import StepLog

MIN_SHARE_EXPLAINED = 0.9
"""With fewer steps explained, trace, flags and log do not belong together."""
WINDOW = 4
"""How many requests may have overtaken one that was sent before them."""
OVERTAKING_S = 1.0
"""How much later than the overtaken one they may have been sent, seconds."""
SURE_LINES = 20
"""A start counts when it explains so many lines in a row, or all that are left."""
LOST_LINES = 20
"""After so many lines in a row that nothing explains, the walk starts anew at an idle point."""
MAX_PERMUTED = 3
"""Of so many newcomers in one step all orders are tried; of more, none: they came after a stall, in order."""
MAX_RECONSIDERED = 64
"""So many lines with newcomers are looked at again when a later line does not fit."""
MAX_BYTES = 256 << 20
"""Memory for their states."""
NUM_DIFFERENCES = 5


class Work(NamedTuple):
    """What a line of the log says of a step."""

    num_prefill_reqs: int
    prefill_tokens: int
    num_decode_reqs: int
    num_decode_tokens: int


@dataclass(frozen=True, slots=True)
class Difference:
    """A line that the scheduler's rules do not explain."""

    source_row: int
    """Line of the file, counted from 0."""
    logged: Work
    """What it says."""
    simulated: Work
    """What the rules give."""


@dataclass(frozen=True, slots=True, eq=False)
class Alignment:
    """What the trace's requests did in each of the k steps of a log."""

    is_covered: npt.NDArray[np.bool_]
    """(k,) steps that the trace should explain: from the first that fits it to its last request's last."""
    is_explained: npt.NDArray[np.bool_]
    """(k,) steps whose requests and tokens the rules reproduce exactly."""
    steps: npt.NDArray[Any]
    """(k,) `kernel.STEP`: the hidden features of the explained steps; its times mean nothing."""
    follows: npt.NDArray[np.bool_]
    """(k,) explained steps that follow the one before without the engine falling idle."""
    admitted: npt.NDArray[np.int64]
    """(r,) rows of the trace in the order in which the engine admitted them."""
    differences: tuple[Difference, ...]
    """The first lines that are not explained."""

    @property
    def num_covered(self) -> int:
        """How many: m of "n of m steps explained"."""
        return int(self.is_covered.sum())

    @property
    def num_explained(self) -> int:
        """How many: n of "n of m steps explained"."""
        return int(self.is_explained.sum())

    @property
    def share_explained(self) -> float:
        """Explained ÷ covered steps, 0–1; 0 when the trace explains nothing."""
        return self.num_explained / self.num_covered if self.num_covered else 0.0


def align(log: StepLog, trace: RequestTrace, engine_config: EngineConfig) -> Alignment:
    """Explain a server's log by the requests it served.

    Each line is one call of the scheduler. Requests are let in, in the order they were sent, as many as the line's
    requests in the context phase demand; who is computed how far, who is preempted, and what the prefix cache
    holds, follows from the rules alone. Where near-simultaneous requests reached the engine in another order
    than they were sent, the line's tokens tell which. What ran before the trace (a warm-up) or after it is not
    covered; after a stretch that nothing explains, the walk starts anew where the engine was idle.

    Every request is taken to end on its length limit, as in `replay`.

    Parameters
    ----------
    log : StepLog
        k steps in the order they ran; from a server log, with `num_decode_tokens`.
    trace : RequestTrace
        n requests, ordered by the time they were sent.
    engine_config : EngineConfig
        The flags of that server.

    Returns
    -------
    Alignment

    Raises
    ------
    BadFlags
        From `check_flags`, or flags under which the lines do not tell enough.

    Source
    ------
    vLLM 0.32, v1/utils.py, compute_iteration_details: a request is in the context phase until its first output
    token is scheduled; one that was preempted later counts as decoding while it is computed again.
    """
    check_flags(engine_config)
    if engine_config.scheduling_policy != "fcfs" or engine_config.speculative_method is not None:
        raise BadFlags(
            "flags",
            "the log cannot be aligned under the priority policy or speculative decoding: its lines do not say who "
            "waited, or how many drafts were accepted. Calibrate without the trace.",
        )
    walk = _Walk(log, trace, engine_config)
    line, row = 0, 0
    while (start := walk.find_start(line, row)) is not None:
        line = walk.run(*start)
        row = walk.num_let_in
    covered = np.zeros(len(log), np.bool_)
    if walk.covered:
        covered[min(walk.covered) : max(walk.covered) + 1] = True
    return Alignment(
        is_covered=covered,
        is_explained=walk.is_explained,
        steps=walk.steps,
        follows=walk.follows & walk.is_explained,
        admitted=np.array(walk.admitted, np.int64),
        differences=tuple(walk.differences[:NUM_DIFFERENCES]),
    )


def alignment_sentence(alignment: Alignment, num_steps: int) -> str:
    """How many steps of a log the rules explain."""
    outside = num_steps - alignment.num_covered
    said = f"{alignment.num_explained:,} of {alignment.num_covered:,} steps explained by the trace under these flags"
    return f"{said}; {outside:,} more lie before or after it." if outside else f"{said}."


def difference_sentence(difference: Difference) -> str:
    """What a line says, and what the rules give."""
    logged, simulated = difference.logged, difference.simulated
    return (
        f"logged {logged.num_prefill_reqs} context requests with {logged.prefill_tokens:,} tokens and "
        f"{logged.num_decode_reqs} generation requests with {logged.num_decode_tokens:,}; the rules give "
        f"{simulated.num_prefill_reqs} with {simulated.prefill_tokens:,} and {simulated.num_decode_reqs} with "
        f"{simulated.num_decode_tokens:,}"
    )


def aligned_log(log: StepLog, alignment: Alignment) -> StepLog:
    """The explained steps of a log, with the features that its lines do not tell."""
    which = alignment.is_explained
    steps = alignment.steps[which]
    return replace(
        log,
        step_s=log.step_s[which],
        num_prefill_reqs=steps["num_scheduled"] - steps["num_decodes"],
        prefill_tokens=steps["prefill_tokens"].copy(),
        num_decode_reqs=steps["num_decodes"].copy(),
        source_row=log.source_row[which],
        kv_decode_tokens=steps["kv_decode_tokens"].astype(np.float64),
        kv_usage=None,
        prefill_attention=steps["prefill_attention"].copy(),
        kv_prefill_tokens=steps["kv_prefill_tokens"].astype(np.float64),
        weight=None,
        num_decode_tokens=None,
        stamp_s=None if log.stamp_s is None else log.stamp_s[which],
    )


class _Walk:
    """The state of one alignment."""

    def __init__(self, log: StepLog, trace: RequestTrace, engine_config: EngineConfig) -> None:
        tokens = log.num_decode_reqs if log.num_decode_tokens is None else log.num_decode_tokens
        columns = (log.num_prefill_reqs, log.prefill_tokens, log.num_decode_reqs, tokens)
        self.lines = [Work(*row) for row in np.column_stack(columns).tolist()]
        self.source_row = log.source_row
        self.engine = _Engine(trace, engine_config)
        self.is_explained = np.zeros(len(log), np.bool_)
        self.follows = np.zeros(len(log), np.bool_)
        self.steps = np.zeros(len(log), kernel.STEP)
        self.admitted: list[int] = []
        self.differences: list[Difference] = []
        self.covered: list[int] = []
        self.num_let_in = 0

    def find_start(self, first_line: int, first_row: int) -> tuple[int, int] | None:
        """The next line, and the request, from which the rules explain what follows."""
        for line in range(first_line, len(self.lines)):
            work = self.lines[line]
            if work.num_decode_reqs == 0 and work.num_prefill_reqs > 0:
                for row in self.engine.rows_like(work, first_row):
                    if self._num_explained(line, row) >= min(SURE_LINES, len(self.lines) - line):
                        return line, row
        return None

    def run(self, line: int, row: int) -> int:
        """Walk from a start to the end of the trace, or until lost; returns the line after."""
        engine = self.engine
        engine.reset(row)
        admissions: deque[_Admission] = deque(maxlen=max(1, min(MAX_RECONSIDERED, MAX_BYTES // engine.num_bytes)))
        num_lost = 0
        while line < len(self.lines) and num_lost < LOST_LINES:
            simulated = engine.take(self.lines[line])
            if simulated is None:
                break
            if simulated != self.lines[line] and num_lost == 0 and self._reconsider(admissions, line):
                simulated = self.lines[line]
            if engine.admission is not None:
                admissions.append(_Admission(line, *engine.admission))
            self._record(line, simulated)
            num_lost = 0 if self.is_explained[line] else num_lost + 1
            line += 1
        self.admitted += engine.order[row : engine.num_let_in].tolist()
        self.num_let_in = engine.num_let_in
        return line

    def _reconsider(self, admissions: "deque[_Admission]", line: int) -> bool:
        """Whether this line is explained once newcomers of an earlier one came in another order; if so, they did."""
        engine = self.engine
        now, admission = engine.save(admissions[0].before.first if admissions else None), engine.admission
        for past in reversed(admissions):
            for chosen in past.others:
                work = engine.let_in_again(past.before, chosen)
                if work == self.lines[past.line] and all(
                    engine.take(self.lines[later]) == self.lines[later] for later in range(past.line + 1, line + 1)
                ):
                    self._walk_again(admissions, past, chosen, line)
                    return True
        engine.restore(now)
        engine.admission = admission
        return False

    def _walk_again(
        self, admissions: "deque[_Admission]", past: "_Admission", chosen: Sequence[int], line: int
    ) -> None:
        """Take the lines up to this one again, with other newcomers in an earlier one."""
        while admissions and admissions[-1].line >= past.line:
            admissions.pop()
        engine = self.engine
        self._record(past.line, engine.let_in_again(past.before, chosen))
        for later in range(past.line + 1, line + 1):
            if engine.admission is not None:
                admissions.append(_Admission(later - 1, *engine.admission))
            self._record(later, engine.take(self.lines[later]))

    def _record(self, line: int, simulated: Work | None) -> None:
        """Keep what the engine did in a line."""
        self.covered.append(line)
        self.is_explained[line] = simulated == self.lines[line]
        self.follows[line] = not self.engine.fell_idle
        self.steps[line] = self.engine.step[0]
        if simulated is not None and simulated != self.lines[line]:
            self.differences.append(Difference(int(self.source_row[line]), self.lines[line], simulated))

    def _num_explained(self, line: int, row: int) -> int:
        """How many lines in a row a start explains, at most `SURE_LINES`."""
        self.engine.reset(row)
        num = 0
        while num < SURE_LINES and line + num < len(self.lines):
            if self.engine.take(self.lines[line + num]) != self.lines[line + num]:
                break
            num += 1
        return num


class _Engine:
    """The compiled scheduler, taken from one logged step to the next.

    Rows of `requests` that were not let in yet may change places (`order` says which request stands where): the
    kernel takes them from the front.
    """

    def __init__(self, trace: RequestTrace, engine_config: EngineConfig) -> None:
        index = np.arange(len(trace))
        self.arrival_s = trace.arrival_s
        self.limits = limits_of(engine_config, engine_config.enable_prefix_caching)
        self.accept = acceptance_pattern(engine_config)
        self.step_time = typed(StepTime(0, 0, 0))
        self.fresh = request_rows(trace, index)
        self.blocks, self.keys, self.table = kernel_blocks(self.fresh, *prefix_ids(trace, index), self.limits)
        self.depth = 2 if self.limits.is_async else 1
        cap = min(self.limits.max_num_seqs, len(trace))
        self.running = np.zeros(cap + 1, np.int64)
        self.queue = np.zeros(len(trace) + 1, np.int64)
        self.flights = np.zeros(2, kernel.FLIGHT)
        self.entries = np.zeros((2, cap + 1), kernel.ENTRY)
        self.step = np.zeros(1, kernel.STEP)
        self.gaps = np.zeros(cap * (1 + self.limits.num_spec_tokens), kernel.GAP)
        self.events = np.zeros(0, kernel.EVENT)
        self.state = np.zeros(1, kernel.ENGINE)
        self.reset(0)

    def reset(self, row: int) -> None:
        """An idle engine with an empty cache, before request `row` of the trace."""
        self.requests = self.fresh.copy()
        self.order = np.arange(len(self.fresh))
        self.state[:] = 0
        self.state["num_free_blocks"] = self.limits.num_gpu_blocks - 1
        self.state["next_new"] = self.state["next_arrival"] = row
        if self.limits.tracks_blocks:
            kernel.lay_out_blocks(self.state[0], self.blocks, self.keys, self.table)
        self.oldest = self.num_flights = 0
        self.fell_idle = True
        self.admission: tuple[_Saved, list[Sequence[int]]] | None = None

    @property
    def num_let_in(self) -> int:
        """Requests that are past the door."""
        return int(self.state["next_arrival"][0])

    def rows_like(self, work: Work, first_row: int) -> Iterator[int]:
        """Requests, from `first_row` on, with which an idle engine could have begun this step."""
        for row in range(first_row, len(self.fresh)):
            prompt = int(self.fresh["prompt_tokens"][row])
            cached = prompt - work.prefill_tokens
            is_whole = cached == 0 or (self.limits.caches_prefixes and cached % self.limits.block_size == 0)
            if work.num_prefill_reqs > 1 or is_whole or work.prefill_tokens < prompt:
                yield row

    def take(self, line: Work) -> Work | None:
        """Take the step that explains a line best; None when no request is left to do anything.

        The engine first delivers what it must and schedules without newcomers; then with as many as the line demands
        in the order they were sent; then with others that were sent at nearly the same time.
        """
        self.admission = None
        saved, work = self._without_newcomers(line.num_prefill_reqs)
        self.fell_idle = work is None
        if work == line or saved is None:
            return work
        num_new = line.num_prefill_reqs - (work.num_prefill_reqs if work is not None else 0)
        num_new = min(num_new, len(self.fresh) - self.num_let_in)
        if num_new <= 0:
            return work
        self.restore(saved)
        choices = self._choices(num_new)
        for at, chosen in enumerate(choices):
            if self.let_in_again(saved, chosen) == line:
                self.admission = (saved, choices[at + 1 :])
                return line
        return self.let_in_again(saved, choices[0])

    def let_in_again(self, saved: "_Saved", chosen: Sequence[int]) -> Work:
        """Schedule from a saved state with these newcomers."""
        self.restore(saved)
        self._let_in(chosen)
        return self._schedule()

    def _without_newcomers(self, most_new: int) -> tuple["_Saved | None", Work | None]:
        """Deliver and schedule until a batch comes out, None when the engine is idle; and the state before that.

        The state is kept only where newcomers may be needed.
        """
        saved = None
        while True:
            if self.num_flights == self.depth:
                self._deliver()
            while self.num_flights > 0 and not self._has_requests():
                self._deliver()
            if most_new > 0:
                saved = self.save()
            if not self._has_requests():
                return saved, None
            is_busy = self.num_flights == 1 and self.flights[self.oldest]["num_entries"] > 0
            work = self._schedule()
            flight = self.flights[(self.oldest + self.num_flights - 1) % 2]
            if flight["num_entries"] > 0:
                return saved, work
            has_work = self.state["num_running"][0] + self.state["num_queued"][0] > 0
            if has_work and not is_busy and flight["num_preempted"] == 0:
                return saved, None

    def _has_requests(self) -> bool:
        """Whether the engine calls schedule() at all."""
        return bool(kernel.has_requests(self.state[0]))

    def _schedule(self) -> Work:
        """One call of schedule(), in the words of the log."""
        self.state["num_steps"] = 0
        at = (self.oldest + self.num_flights) % 2
        kernel.schedule(
            self.state[0], self.requests, self.running, self.queue, self.blocks, self.keys, self.table, self.limits,
            self.step_time, NO_NOISE, self.flights[at], self.entries[at], self.step, self.events,
        )  # fmt: skip
        self.num_flights += 1
        entries = self.entries[at][: self.flights[at]["num_entries"]]
        requests = self.requests[entries["request"]]
        promised = requests["num_placeholders"] - entries["samples"] * (1 + entries["drafts"]) * self.limits.is_async
        is_context = requests["num_outputs"] + promised == 0
        num_context, context_tokens = int(is_context.sum()), int(entries["tokens"][is_context].sum())
        return Work(
            num_context, context_tokens, len(entries) - num_context, int(entries["tokens"].sum()) - context_tokens
        )

    def _deliver(self) -> None:
        """Process the oldest step's output."""
        self.state["num_gaps"] = 0
        kernel.process_output(
            self.state[0], self.requests, self.running, self.queue, self.blocks, self.keys, self.table, self.accept,
            self.limits, self.flights[self.oldest], self.entries[self.oldest], self.step, self.gaps, self.events,
        )  # fmt: skip
        self.oldest = (self.oldest + 1) % 2
        self.num_flights -= 1

    def _choices(self, num_new: int) -> list[Sequence[int]]:
        """Which requests may come in next, in what order: as they were sent first, then some before others."""
        first = self.num_let_in
        sent_s = self.arrival_s[self.order[first : first + num_new + WINDOW]]
        places = range(first, first + len(sent_s))
        if num_new > MAX_PERMUTED:
            return [places[:num_new]]
        choices: list[Sequence[int]] = []
        for chosen in permutations(places, num_new):
            waiting = set(places)
            late_s = 0.0
            for place in chosen:
                late_s = max(late_s, sent_s[place - first] - sent_s[min(waiting) - first])
                waiting.remove(place)
            if late_s <= OVERTAKING_S:
                choices.append(chosen)
        return choices

    def _let_in(self, places: Sequence[int]) -> None:
        """Let the requests at these places arrive, in this order; those they overtake keep theirs."""
        first, until = self.num_let_in, max(places) + 1
        order = [*places, *(place for place in range(first, until) if place not in places)]
        self.requests[first:until] = self.requests[order]
        self.order[first:until] = self.order[order]
        self.state["next_arrival"] += len(places)

    def save(self, first: int | None = None) -> "_Saved":
        """What `restore` needs; requests that are through cannot change, unless an earlier state is taken up."""
        state = self.state[0]
        rows = [*self.running[: state["num_running"]], *self.queue[: state["num_queued"]], state["next_new"]]
        first = int(min(rows)) if first is None else first
        whole = tuple(values.copy() for values in self._whole)
        return _Saved(
            first, self.requests[first:].copy(), self.order[first:].copy(), whole, self.oldest, self.num_flights
        )

    def restore(self, saved: "_Saved") -> None:
        """Go back to a saved state."""
        self.requests[saved.first :] = saved.requests
        self.order[saved.first :] = saved.order
        for values, before in zip(self._whole, saved.whole, strict=True):
            values[:] = before
        self.oldest, self.num_flights = saved.oldest, saved.num_flights

    @property
    def num_bytes(self) -> int:
        """Size of a saved state, at most."""
        return self.requests.nbytes + self.order.nbytes + sum(values.nbytes for values in self._whole)

    @property
    def _whole(self) -> tuple[npt.NDArray[Any], ...]:
        """The arrays that are saved as they are."""
        return (
            self.state, self.running, self.queue, self.blocks, self.keys, self.table, self.flights, self.entries,
        )  # fmt: skip


class _Saved(NamedTuple):
    """A state of the engine to go back to."""

    first: int
    """The first request that may change."""
    requests: npt.NDArray[Any]
    order: npt.NDArray[np.int64]
    whole: tuple[npt.NDArray[Any], ...]
    oldest: int
    num_flights: int


class _Admission(NamedTuple):
    """A line whose newcomers may have been others."""

    line: int
    before: _Saved
    """The state in which they came."""
    others: list[Sequence[int]]
    """Who else may have come, in what order."""
