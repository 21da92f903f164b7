"""The compiled scheduler, taken from one logged step to the next; newcomers are chosen so that the line fits."""

from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from planner import kernel
from planner.engine_config import EngineConfig
from planner.replay import (
    NO_NOISE,
    acceptance_pattern,
    kernel_blocks,
    limits_of,
    request_rows,
    requests_that_never_run,
    shared_prefixes,
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


class Work(NamedTuple):
    """What a line of the log says of a step."""

    num_prefill_reqs: int
    prefill_tokens: int
    num_decode_reqs: int
    num_decode_tokens: int


class Engine:
    """The compiled scheduler, taken from one logged step to the next.

    Rows of `requests` that were not let in yet may change places (`order` says which request of the trace stands
    where): the kernel takes them from the front. Requests that vLLM refuses are not among them.
    """

    def __init__(self, trace: RequestTrace, engine_config: EngineConfig) -> None:
        index = np.flatnonzero(~requests_that_never_run(trace, engine_config))
        self.index = index
        self.arrival_s = trace.arrival_s
        self.limits = limits_of(trace, engine_config, engine_config.enable_prefix_caching)
        self.accept = acceptance_pattern(engine_config)
        self.step_time = typed(StepTime(0, 0, 0))
        self.fresh = request_rows(trace, index)
        self.blocks, self.prefixes, self.table = kernel_blocks(self.fresh, *shared_prefixes(trace, index), self.limits)
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
            kernel.lay_out_blocks(self.state[0], self.blocks, self.table)
        self.oldest = self.num_flights = 0
        self.fell_idle = True
        self.admission: tuple[Saved, list[Sequence[int]]] | None = None

    @property
    def num_let_in(self) -> int:
        """Requests that are past the door."""
        return int(self.state["next_arrival"][0])

    def rows_like(self, work: Work, first_row: int) -> Iterator[int]:
        """Requests, from `first_row` on, with which an idle engine could have begun this step."""
        limits = self.limits
        caps = (limits.max_num_scheduled_tokens, limits.max_num_batched_tokens, limits.long_prefill_token_threshold)
        for row in range(first_row, len(self.fresh)):
            prompt = int(self.fresh["prompt_tokens"][row])
            cached = prompt - work.prefill_tokens
            is_whole = cached == 0 or (self.limits.caches_prefixes and cached % self.limits.block_size == 0)
            if work.num_prefill_reqs > 1 or (is_whole and cached >= 0) or (cached > 0 and work.prefill_tokens in caps):
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

    def let_in_again(self, saved: "Saved", chosen: Sequence[int]) -> Work:
        """Schedule from a saved state with these newcomers."""
        self.restore(saved)
        self._let_in(chosen)
        return self._schedule()

    def _without_newcomers(self, most_new: int) -> tuple["Saved | None", Work | None]:
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
            self.state[0], self.requests, self.running, self.queue, self.blocks, self.prefixes, self.table, self.groups,
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
            self.state[0], self.requests, self.running, self.queue, self.blocks, self.prefixes, self.table, self.accept,
            self.limits, self.flights[self.oldest], self.entries[self.oldest], self.gaps, self.events, self.caps,
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
        self.used = slice(self.used.start, max(self.used.stop, until))

    def save(self, first: int | None = None) -> "Saved":
        """What `restore` needs; requests that are through cannot change, unless an earlier state is taken up."""
        state = self.state[0]
        rows = [*self.running[: state["num_running"]], *self.queue[: state["num_queued"]], state["next_new"]]
        first = int(min(rows)) if first is None else first
        whole = tuple(values.copy() for values in self._whole)
        return Saved(
            first, self.requests[first:].copy(), self.order[first:].copy(), whole, self.oldest, self.num_flights
        )

    def restore(self, saved: "Saved") -> None:
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
            self.state, self.running, self.queue, self.blocks, self.table, self.flights, self.entries,
        )  # fmt: skip


class Saved(NamedTuple):
    """A state of the engine to go back to."""

    first: int
    """The first request that may change."""
    requests: npt.NDArray[Any]
    order: npt.NDArray[np.int64]
    whole: tuple[npt.NDArray[Any], ...]
    oldest: int
    num_flights: int
