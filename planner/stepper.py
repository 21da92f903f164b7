"""The compiled scheduler, taken from one logged step to the next; newcomers are chosen so that the line fits."""

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from planner import kernel
from planner.engine_config import EngineConfig
from planner.replay import (
    NO_NOISE,
    acceptance_pattern,
    beginnings_of,
    kernel_blocks,
    limits_of,
    request_rows,
    requests_that_never_run,
    typed,
)
from planner.step_time import StepTime
from traces.requests import RequestTrace

WINDOW = 4
"""How many requests may have overtaken one that was sent before them."""
OVERTAKING_S = 1.0
"""How much later than the overtaken one they may have been sent, seconds."""
MAX_PERMUTED = 3
"""Of so many newcomers in one step all orders are tried; of more, none: they came after a stall, in order."""


MAX_WAITING = 1000
"""So many newcomers may wait where that matters."""
MAX_COUNTS = 100
"""So many other numbers of newcomers are tried where those who wait matter."""
CLOCK_S = 1e-8
"""Sums of seconds are rounded by less."""


class Work(NamedTuple):
    """What a line of the log says of a step."""

    num_prefill_reqs: int
    prefill_tokens: int
    num_decode_reqs: int
    num_decode_tokens: int


class Clock(NamedTuple):
    """When a step was scheduled, seconds on the log's clock."""

    scheduled_s: float
    """If the engine was busy."""
    start_s: float
    """If it was idle."""


class Engine:
    """The compiled scheduler, taken from one logged step to the next.

    Rows of `requests` that were not let in yet may change places (`order` says which request of the trace stands
    where): the kernel takes them from the front. Requests that vLLM refuses are not among them. Those of which it is
    known in what order they were admitted stand in that order from the beginning.
    """

    def __init__(self, trace: RequestTrace, engine_config: EngineConfig, admitted: Sequence[int] = ()) -> None:
        self.trace, self.engine_config = trace, engine_config
        index = np.flatnonzero(~requests_that_never_run(trace, engine_config))
        index[np.isin(index, admitted)] = list(dict.fromkeys(admitted))
        self.index = index
        self.arrival_s = trace.arrival_s
        self.limits = limits_of(trace, engine_config, engine_config.enable_prefix_caching)
        self.accept = acceptance_pattern(engine_config)
        self.minds_waiting = self.limits.by_priority or self.limits.long_prefill_token_threshold > 0
        self.step_time = typed(StepTime(0, 0, 0))
        self.fresh = request_rows(trace, index)
        self.spans, self.paths, self.table = kernel_blocks(self.fresh, beginnings_of(trace, index), self.limits)
        self.num_branches = int(self.paths["branch"].max(initial=-1)) + 1
        self.was_cached: dict[int, int] = {}
        """How many blocks of each branch ever were in the prefix cache, from its beginning on."""
        self.depth = 2 if self.limits.is_async else 1
        cap = min(self.limits.max_num_seqs, len(index))
        self.running = np.zeros(cap + 1, np.int64)
        self.queue = np.zeros(len(index) + 1, np.int64)
        self.groups = np.zeros((self.limits.block_size, 1), np.int64)
        self.flights = np.zeros(2, kernel.FLIGHT)
        self.entries = np.zeros((2, cap + 1), kernel.ENTRY)
        self.step = np.zeros(1, kernel.STEP)
        self.gaps = np.zeros(cap * (1 + self.limits.num_spec_tokens), kernel.GAP)
        self.events, self.caps = np.zeros(0, kernel.EVENT), np.zeros(0, kernel.CAP)
        self.state = np.zeros(1, kernel.ENGINE)
        self.requests, self.order = self.fresh.copy(), index.copy()
        self.used = slice(0, 0)
        self.reset(0)

    def reset(self, row: int) -> None:
        """An idle engine with an empty cache, before request `row` of the trace."""
        self.requests[self.used] = self.fresh[self.used]
        self.order[self.used] = self.index[self.used]
        self.used = slice(row, row)
        self.state[:] = 0
        self.state["num_free_blocks"] = self.limits.num_gpu_blocks - 1
        self.state["next_new"] = self.state["next_arrival"] = row
        if self.limits.tracks_blocks:
            self.spans[:] = 0
            kernel.lay_out_blocks(self.state[0], self.spans, self.table)
            self.was_cached.clear()
        self.oldest = self.num_flights = 0
        self.offset_s = 0.0
        self.fell_idle = True
        self.others: list[Callable[[], Work | None]] = []

    @property
    def num_let_in(self) -> int:
        """Requests that are past the door."""
        return int(self.state["next_arrival"][0])

    def now_s(self, clock: Clock, was_idle: bool) -> float:
        """When a step was scheduled, on the trace's clock."""
        return (clock.start_s if was_idle else clock.scheduled_s) + self.offset_s + CLOCK_S

    @property
    def last_entries(self) -> npt.NDArray[Any]:
        """(e,) `kernel.ENTRY`: the step that was scheduled last."""
        at = (self.oldest + self.num_flights - 1) % 2
        entries: npt.NDArray[Any] = self.entries[at][: self.flights[at]["num_entries"]]
        return entries

    @property
    def num_unsure_tokens(self) -> int:
        """By how many tokens the context of the requests in the last step may be off, at most; summed."""
        return 0

    def rows_like(self, work: Work, first_row: int) -> Iterator[int]:
        """Requests, from `first_row` on, with which an idle engine could have begun this step."""
        limits = self.limits
        budget = limits.max_num_batched_tokens - limits.num_extra_inputs
        caps = (min(budget, limits.max_num_scheduled_tokens), limits.long_prefill_token_threshold)
        is_cut = work.prefill_tokens in caps or (limits.is_threshold_adaptive and work.prefill_tokens >= caps[1])
        for row in range(first_row, len(self.fresh)):
            cached = int(self.fresh["prompt_tokens"][row]) - work.prefill_tokens
            is_whole = cached == 0 or (limits.caches_prefixes and cached % limits.block_size == 0)
            if work.num_prefill_reqs > 1 or (is_whole and cached >= 0) or (cached > 0 and is_cut):
                yield row

    def take(self, line: Work, clock: Clock) -> Work | None:
        """Take the step that explains a line best; None when no request is left to do anything.

        The engine first delivers what it must and schedules without newcomers; then with as many as the line demands
        in the order they were sent; then with others that were sent at nearly the same time. Where those who wait
        matter as well, it first lets in whoever has arrived by the clock.
        """
        self.others = []
        saved, work = self._without_newcomers(line)
        self.fell_idle = work is None
        if saved is None or self.num_let_in == len(self.fresh) or (work == line and not self._may_mistake()):
            return work
        if work is None:
            self.offset_s = self.arrival_s[self.order[self.num_let_in]] - clock.start_s
        num_new = line.num_prefill_reqs - (work.num_prefill_reqs if work is not None else 0)
        choices = self._choices(num_new, line.num_prefill_reqs, self.now_s(clock, work is None))
        for at, chosen in enumerate(choices):
            if self._let_in_again(saved, chosen) == line:
                self.others = [partial(self._let_in_again, saved, other) for other in choices[at + 1 :]]
                return line
        if choices:
            return self._let_in_again(saved, choices[0])
        return work

    def _let_in_again(self, saved: "Saved", chosen: Sequence[int]) -> Work:
        """Schedule from a saved state with these newcomers."""
        self.restore(saved)
        self._let_in(chosen)
        return self._schedule()

    def _without_newcomers(self, line: Work) -> tuple["Saved | None", Work | None]:
        """Deliver and schedule until a batch comes out, None when the engine is idle; and the state before that.

        The state is kept only where newcomers may be needed.
        """
        saved = None
        while True:
            if self.num_flights == self.depth:
                self._deliver()
            while self.num_flights > 0 and not self._has_requests():
                self._deliver()
            if self._may_need_newcomers(line):
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

    def _may_need_newcomers(self, line: Work) -> bool:
        """Whether it can make a difference to a line who has come since the last one."""
        limits = self.limits
        return (
            line.num_prefill_reqs > 0
            or (limits.long_prefill_token_threshold > 0 and line.num_decode_tokens > line.num_decode_reqs)
            or (limits.by_priority and int(self.state["num_queued"][0]) > 0)
        )

    def _may_mistake(self) -> bool:
        """Whether the step just scheduled admits somebody in whose place a newcomer could have been."""
        return self.limits.by_priority and bool(self.last_entries["is_admission"].any())

    def _has_requests(self) -> bool:
        """Whether the engine calls schedule() at all."""
        return bool(kernel.has_requests(self.state[0]))

    def _schedule(self) -> Work:
        """One call of schedule(), in the words of the log."""
        self.state["num_steps"] = 0
        at = (self.oldest + self.num_flights) % 2
        kernel.schedule(
            self.state[0], self.requests, self.running, self.queue, self.spans, self.paths, self.table, self.groups,
            self.limits, self.step_time, NO_NOISE, self.flights[at], self.entries[at], self.step, self.events,
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
            self.state[0], self.requests, self.running, self.queue, self.spans, self.paths, self.table, self.accept,
            self.limits, self.flights[self.oldest], self.entries[self.oldest], self.gaps, self.events, self.caps,
        )  # fmt: skip
        self.oldest = (self.oldest + 1) % 2
        self.num_flights -= 1

    def _choices(self, num_new: int, num_context: int, now_s: float) -> list[Sequence[int]]:
        """Which requests may have come since the last step, in what order; the likeliest first.

        As they were sent, as many as the line demands, or as the clock says where those who wait matter as well. Then
        some that were sent at nearly the same time before others.
        """
        first, last = self.num_let_in, len(self.fresh)
        counts = [min(num_new, last - first)] if num_new > 0 else []
        if self.minds_waiting:
            sent_s = self.arrival_s[self.order[first : first + MAX_WAITING]]
            arrived = int(np.searchsorted(sent_s, now_s, side="right"))
            # Under a threshold that is no floor it matters only whether there is a second request.
            most = len(sent_s) if self.limits.is_threshold_adaptive else min(len(sent_s), max(num_new, 0) + 1)
            counts = self._urgent(num_context + 1) if self.limits.by_priority else list(range(most + 1))
            others = sorted(set(counts) - {arrived}, key=lambda count: abs(count - arrived))
            counts = [arrived, *others[:MAX_COUNTS]]
        choices: list[Sequence[int]] = [range(first, first + count) for count in counts]
        if not 0 < num_new <= MAX_PERMUTED:
            return choices
        sent_s = self.arrival_s[self.order[first : first + num_new + WINDOW]]
        places = range(first, first + len(sent_s))
        for chosen in permutations(places, min(num_new, len(places))):
            waiting = set(places)
            late_s = 0.0
            for place in chosen:
                late_s = max(late_s, sent_s[place - first] - sent_s[min(waiting) - first])
                waiting.remove(place)
            if late_s <= OVERTAKING_S and chosen != tuple(choices[0]):
                choices.append(chosen)
        return choices

    def _urgent(self, num_heads: int) -> list[int]:
        """How many may have come by priority: none, and up to each that is among the first so many that wait."""
        first = self.num_let_in
        waiting = self.requests["priority"][self.queue[: self.state["num_queued"][0]]]
        heads = sorted(waiting.tolist())[:num_heads]
        counts = [0]
        for count, priority in enumerate(self.requests["priority"][first : first + MAX_WAITING].tolist(), 1):
            if len(heads) < num_heads or priority < heads[-1]:
                insort(heads, priority)
                del heads[num_heads:]
                counts.append(count)
        return counts

    def _let_in(self, places: Sequence[int]) -> None:
        """Let the requests at these places arrive, in this order; those they overtake keep theirs."""
        if not places:
            return
        first, until = self.num_let_in, max(places) + 1
        order = [*places, *(place for place in range(first, until) if place not in places)]
        self.requests[first:until] = self.requests[order]
        self.order[first:until] = self.order[order]
        self.state["next_arrival"] += len(places)
        if self.limits.by_priority:
            self.state["next_new"] += len(places)
            for row in range(first, first + len(places)):
                kernel.push(row, self.state[0], self.requests, self.queue, self.limits)
        self.used = slice(self.used.start, max(self.used.stop, until))

    def save(self, first: int | None = None) -> "Saved":
        """What `restore` needs; requests that are through cannot change, unless an earlier state is taken up."""
        state = self.state[0]
        running = self.running[: state["num_running"]]
        rows = [*running, *self.queue[: state["num_queued"]], state["next_new"]]
        first = int(min(rows)) if first is None else first
        # Of the table only what is held counts, and in what order the rows that were ever used come next.
        num_slots, width = int(state["peak_running"]), int(self.requests["num_spans"][running].max(initial=1))
        return Saved(
            first, self.requests[first:].copy(), self.order[first:].copy(), tuple(x.copy() for x in self._whole),
            self.table[:num_slots, :width].copy(), self.spans[: max(state["num_span_rows"], self.num_branches)].copy(),
            self.oldest, self.num_flights, self.offset_s,
        )  # fmt: skip

    def restore(self, saved: "Saved") -> None:
        """Go back to a saved state."""
        self.requests[saved.first :] = saved.requests
        self.order[saved.first :] = saved.order
        for values, before in zip(self._whole, saved.whole, strict=True):
            values[:] = before
        if self.limits.tracks_blocks:
            num_slots, width = saved.table.shape
            self.table[num_slots:-1, 0] = np.arange(num_slots + 1, len(self.table))
            self.table[:num_slots, :width] = saved.table
            self.spans[: len(saved.spans)] = saved.spans
        self.oldest, self.num_flights, self.offset_s = saved.oldest, saved.num_flights, saved.offset_s

    @property
    def num_bytes(self) -> int:
        """Size of a saved state, at most."""
        arrays = (self.requests, self.order, self.table, self.spans, *self._whole)
        return sum(values.nbytes for values in arrays)

    @property
    def _whole(self) -> tuple[npt.NDArray[Any], ...]:
        """The arrays that are saved as they are."""
        return (self.state, self.running, self.queue, self.flights, self.entries)


class Saved(NamedTuple):
    """A state of the engine to go back to."""

    first: int
    """The first request that may change."""
    requests: npt.NDArray[Any]
    order: npt.NDArray[np.int64]
    whole: tuple[npt.NDArray[Any], ...]
    table: npt.NDArray[np.int64]
    spans: npt.NDArray[Any]
    oldest: int
    num_flights: int
    offset_s: float
