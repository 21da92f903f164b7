"""All compiled code: the scheduler of vLLM 0.32 and the step-time equation.

State is rows of structured arrays; a helper takes a row (or an array and a row number) and changes it. The clock is
int64 nanoseconds. Work per step grows with the running requests, never with the trace. Nothing here looks at a
request's true output length except `process_output`, which plays the model; the scheduler sees `max_tokens` only.

Order: dtypes, `replay` (the engine loop), `schedule` and its two passes, the step-time equation, `process_output`,
block verbs.

Source: vLLM 0.32, v1/engine/core.py (`EngineCore.step`, `step_with_batch_queue`), v1/core/sched/scheduler.py
(`Scheduler.schedule`, `update_from_output`), v1/core/kv_cache_manager.py (`allocate_slots`).
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

REQUEST = np.dtype(
    [
        ("arrival_ns", np.int64),
        ("prompt_tokens", np.int64),
        ("output_tokens", np.int64),  # the truth; read by process_output alone
        ("max_tokens", np.int64),  # what the scheduler is told
        ("num_known", np.int64),  # prompt plus outputs already processed
        ("num_computed", np.int64),  # advanced when a step is scheduled, not when it ends
        ("num_placeholders", np.int64),  # outputs that scheduled, unprocessed steps will bring (async only)
        ("num_outputs", np.int64),
        ("num_blocks", np.int64),
        ("num_preemptions", np.int64),
        ("num_recomputed", np.int64),  # computed tokens lost to preemptions
        ("first_scheduled_ns", np.int64),  # -1 until it happens, like all times below
        ("first_token_ns", np.int64),
        ("last_token_ns", np.int64),
        ("last_token_step", np.int64),
        ("worst_gap_ns", np.int64),
        ("is_finished", np.bool_),
    ]
)
STEP = np.dtype(
    [
        ("sched_ns", np.int64),
        ("start_ns", np.int64),
        ("end_ns", np.int64),
        ("num_running", np.int64),  # this and the next two right after scheduling
        ("num_waiting", np.int64),
        ("num_free_blocks", np.int64),
        ("num_scheduled", np.int64),
        ("num_decodes", np.int64),
        ("prefill_tokens", np.int64),
        ("kv_decode_tokens", np.int64),
        ("prefill_attention", np.float64),
        ("num_preempted", np.int64),
        ("num_gaps", np.int64),  # tokens of this step whose previous token came from the step before
    ]
)
GAP = np.dtype([("gap_ns", np.int64), ("request", np.int64), ("step", np.int64)])
EVENT = np.dtype([("step", np.int64), ("kind", np.int64), ("request", np.int64), ("tokens", np.int64)])
FLIGHT = np.dtype(
    [
        ("num_entries", np.int64),
        ("step", np.int64),  # -1 when the step was not worth a row
        ("end_ns", np.int64),
        ("num_preempted", np.int64),
    ]
)
ENTRY = np.dtype(
    [
        ("request", np.int64),
        ("tokens", np.int64),
        ("samples", np.bool_),
        ("num_preemptions", np.int64),  # of the request when scheduled: tells stale output
    ]
)
ENGINE = np.dtype(
    [
        ("now_ns", np.int64),
        ("gpu_free_ns", np.int64),
        ("num_running", np.int64),
        ("num_resumable", np.int64),  # preempted requests, waiting in front of the never-run ones
        ("next_new", np.int64),  # first request that was never admitted
        ("next_arrival", np.int64),  # first request that has not arrived
        ("must_announce_finished", np.bool_),
        ("num_free_blocks", np.int64),
        ("token_budget", np.int64),  # of the step being scheduled, like the next three
        ("input_budget", np.int64),
        ("threshold", np.int64),
        ("num_preempted", np.int64),
        ("num_steps", np.int64),
        ("num_gaps", np.int64),
        ("num_events", np.int64),
    ]
)

SCHEDULED, PREEMPTED, ADMITTED, RESUMED, TOKEN, FINISHED = range(6)
"""Kinds of `EVENT`; its `tokens` are those scheduled, lost, or (for the last three) hit or delivered."""

DONE, STALLED, STEP_LIMIT, CANCELLED = range(4)
"""How a replay ended."""


class Limits(NamedTuple):
    """What the scheduler is bound by; scalars only."""

    max_num_batched_tokens: int
    max_num_scheduled_tokens: int
    max_num_seqs: int
    """The admission cap: `max_num_active_seqs` where that is set."""
    long_prefill_token_threshold: int
    is_threshold_adaptive: bool
    is_prefill_chunked: bool
    max_model_len: int
    block_size: int
    num_gpu_blocks: int
    """The null block included."""
    watermark_blocks: int
    reserves_full_isl: bool
    is_async: bool


@njit(cache=True, nogil=True)
def replay(requests, state, limits, step_time, records_events, max_steps, cancel):
    """Run the engine until nothing is left; the rows of `requests` are changed in place.

    Parameters
    ----------
    requests : (n,) REQUEST
        Ordered by arrival; made by `planner.replay`.
    state : (1,) ENGINE
        Zeros; the engine's state, and at the end the clock and the free blocks. The caller owns it because
        numba frees an array of ours as soon as only a row of it is in use.
    limits : Limits
    step_time : StepTime
    records_events : bool
        Whether to write `EVENT` rows (who ran, was evicted, …); needed to look inside, not for numbers.
    max_steps : int
        Stop after this many recorded steps.
    cancel : (1,) uint8
        Stop soon after another thread makes it non-zero.

    Returns
    -------
    outcome : int
        DONE, STALLED, STEP_LIMIT or CANCELLED.
    steps : (k,) STEP
    gaps : (g,) GAP
        Gaps between tokens that did not come from neighbouring steps; the others are counted in `steps`.
    events : (e,) EVENT
    """
    depth = 2 if limits.is_async else 1
    cap = min(limits.max_num_seqs, len(requests))
    engine = state[0]
    engine.num_free_blocks = limits.num_gpu_blocks - 1  # block 0 is the null block
    running = np.empty(cap + 1, np.int64)
    resumable = np.empty(len(requests) + 1, np.int64)
    flights = np.zeros(2, FLIGHT)
    entries = np.empty((2, cap + 1), ENTRY)
    steps = np.empty(1024, STEP)
    gaps = np.empty(1024, GAP)
    events = np.empty(1024 if records_events else 0, EVENT)
    oldest, num_flights = 0, 0
    outcome = DONE
    while True:
        admit_arrivals(engine, requests)
        if not has_requests(engine) and num_flights == 0:
            if engine.next_arrival == len(requests):
                break
            engine.now_ns = requests[engine.next_arrival].arrival_ns
            continue
        if engine.num_steps >= max_steps:
            outcome = STEP_LIMIT
            break
        if cancel[0] != 0:
            outcome = CANCELLED
            break
        if engine.num_steps == len(steps):
            steps = grown(steps)
        if engine.num_gaps + cap > len(gaps):
            gaps = grown_to(gaps, engine.num_gaps + cap)
        if records_events and engine.num_events + 6 * cap > len(events):
            events = grown_to(events, engine.num_events + 6 * cap)

        if has_requests(engine):
            is_busy = num_flights == 1 and flights[oldest].num_entries > 0
            slot = (oldest + num_flights) % 2
            flight = flights[slot]
            schedule(engine, requests, running, resumable, limits, step_time, flight, entries[slot], steps, events)
            num_flights += 1
            is_empty = flight.num_entries == 0 and flight.num_preempted == 0
            if is_empty and not is_busy and num_waiting(engine) + engine.num_running > 0:
                if engine.next_arrival == len(requests):
                    outcome = STALLED
                    break
                engine.now_ns = max(engine.now_ns, requests[engine.next_arrival].arrival_ns)
            if num_flights < depth and (flight.num_entries > 0 or has_requests(engine)):
                continue
        flight = flights[oldest]
        engine.now_ns = max(engine.now_ns, flight.end_ns)
        process_output(engine, requests, running, resumable, limits, flight, entries[oldest], steps, gaps, events)
        oldest = (oldest + 1) % 2
        num_flights -= 1
    num_steps, num_gaps, num_events = engine.num_steps, engine.num_gaps, engine.num_events
    return outcome, steps[:num_steps].copy(), gaps[:num_gaps].copy(), events[:num_events].copy()


@njit(cache=True, nogil=True)
def admit_arrivals(engine, requests):
    """Put everything that has arrived by now into the waiting queue."""
    while engine.next_arrival < len(requests) and requests[engine.next_arrival].arrival_ns <= engine.now_ns:
        engine.next_arrival += 1


@njit(cache=True, nogil=True)
def num_waiting(engine):
    """Preempted requests plus arrivals that were never admitted."""
    return engine.num_resumable + engine.next_arrival - engine.next_new


@njit(cache=True, nogil=True)
def has_requests(engine):
    """Whether the engine calls schedule() at all; finished ids still to be announced cost one more call."""
    return engine.num_running > 0 or num_waiting(engine) > 0 or engine.must_announce_finished


@njit(cache=True, nogil=True)
def schedule(engine, requests, running, resumable, limits, step_time, flight, entries, steps, events):
    """One call of schedule(): decide the batch, start it, write its row.

    Source: vLLM 0.32, v1/core/sched/scheduler.py, Scheduler.schedule.
    """
    engine.must_announce_finished = False
    engine.threshold = threshold_of_this_step(engine, limits)
    engine.token_budget = limits.max_num_scheduled_tokens
    engine.input_budget = limits.max_num_batched_tokens
    engine.num_preempted = 0
    flight.num_entries = 0
    schedule_running(engine, requests, running, resumable, limits, flight, entries, events)
    if engine.num_preempted == 0:
        schedule_waiting(engine, requests, running, resumable, limits, flight, entries, events)
    start_step(engine, requests, limits, step_time, flight, entries, steps, events)


@njit(cache=True, nogil=True)
def threshold_of_this_step(engine, limits):
    """The long-prefill cap in force, 0 = none; a request that is alone is never capped."""
    num_eligible = engine.num_running + num_waiting(engine)
    if num_eligible <= 1 or limits.long_prefill_token_threshold == 0:
        return 0
    if limits.is_threshold_adaptive:
        return max(limits.long_prefill_token_threshold, limits.max_num_batched_tokens // num_eligible)
    return limits.long_prefill_token_threshold


@njit(cache=True, nogil=True)
def schedule_running(engine, requests, running, resumable, limits, flight, entries, events):
    """Pass 1: running requests in their order; short of blocks, the last one is preempted."""
    index = 0
    while index < engine.num_running and engine.token_budget > 0 and engine.input_budget > 0:
        request = requests[running[index]]
        num_tokens = tokens_wanted(request, engine, limits)
        if num_tokens == 0:
            index += 1
            continue
        is_victim = False
        while not is_victim and not allocate(request, engine, limits, num_tokens):
            engine.num_running -= 1
            victim = running[engine.num_running]
            is_victim = engine.num_running == index
            preempt(victim, requests, engine, resumable, events)
        if is_victim:
            break
        add_entry(running[index], num_tokens, engine, flight, entries)
        index += 1


@njit(cache=True, nogil=True)
def tokens_wanted(request, engine, limits):
    """Tokens a running request gets in this step, budgets and caps applied; 0 = it is passed over."""
    if (
        request.num_placeholders > 0
        and request.num_computed + 2 - request.num_placeholders >= request.prompt_tokens + request.max_tokens
    ):
        return 0  # the step in flight certainly brings its last token
    num_tokens = request.num_known + request.num_placeholders - request.num_computed
    if 0 < engine.threshold < num_tokens:
        num_tokens = engine.threshold
    num_tokens = min(num_tokens, engine.token_budget, engine.input_budget)
    return min(num_tokens, limits.max_model_len - request.num_computed - 1)


@njit(cache=True, nogil=True)
def schedule_waiting(engine, requests, running, resumable, limits, flight, entries, events):
    """Pass 2: the head of the waiting queue, again and again, until something stops it."""
    while (
        engine.token_budget > 0
        and engine.input_budget > 0
        and num_waiting(engine) > 0
        and engine.num_running < limits.max_num_seqs
    ):
        is_resumed = engine.num_resumable > 0
        head = resumable[engine.num_resumable - 1] if is_resumed else engine.next_new
        request = requests[head]
        num_tokens = request.num_known
        if 0 < engine.threshold < num_tokens:
            num_tokens = engine.threshold
        most = min(engine.token_budget, engine.input_budget)
        if not limits.is_prefill_chunked and num_tokens > most:
            break
        num_tokens = min(num_tokens, most)
        if not may_admit(request, engine, limits, num_tokens):
            break
        allocate(request, engine, limits, num_tokens)
        if is_resumed:
            engine.num_resumable -= 1
        else:
            engine.next_new += 1
            request.first_scheduled_ns = max(engine.now_ns, engine.gpu_free_ns)
        running[engine.num_running] = head
        engine.num_running += 1
        add_entry(head, num_tokens, engine, flight, entries)
        record(engine, events, RESUMED if is_resumed else ADMITTED, head, 0)


@njit(cache=True, nogil=True)
def add_entry(index, num_tokens, engine, flight, entries):
    """Put a request into the batch and take its tokens from both budgets."""
    entry = entries[flight.num_entries]
    entry.request = index
    entry.tokens = num_tokens
    flight.num_entries += 1
    engine.token_budget -= num_tokens
    engine.input_budget -= num_tokens


@njit(cache=True, nogil=True)
def start_step(engine, requests, limits, step_time, flight, entries, steps, events):
    """Count the batch as computed, charge its time, write its row."""
    num_decodes, total_tokens, kv_decode_tokens, prefill_attention = 0, 0, 0, 0.0
    for j in range(flight.num_entries):
        entry = entries[j]
        request = requests[entry.request]
        context = request.num_computed
        request.num_computed += entry.tokens
        entry.samples = request.num_computed >= request.num_known + request.num_placeholders
        entry.num_preemptions = request.num_preemptions
        total_tokens += entry.tokens
        if entry.samples and entry.tokens == 1:
            num_decodes += 1
            kv_decode_tokens += context + 1
        else:
            prefill_attention += entry.tokens * (context + 0.5 * entry.tokens)
        if entry.samples and limits.is_async:
            request.num_placeholders += 1
        record(engine, events, SCHEDULED, entry.request, entry.tokens)
    start_ns = max(engine.now_ns, engine.gpu_free_ns)
    end_ns = start_ns
    if flight.num_entries > 0:
        end_ns += step_ns(
            step_time, flight.num_entries, total_tokens - num_decodes, kv_decode_tokens, prefill_attention
        )
    engine.gpu_free_ns = end_ns
    flight.end_ns = end_ns
    flight.num_preempted = engine.num_preempted
    flight.step = -1
    if flight.num_entries > 0 or engine.num_preempted > 0:
        flight.step = engine.num_steps
        step = steps[engine.num_steps]
        step.sched_ns = engine.now_ns
        step.start_ns = start_ns
        step.end_ns = end_ns
        step.num_running = engine.num_running
        step.num_waiting = num_waiting(engine)
        step.num_free_blocks = engine.num_free_blocks
        step.num_scheduled = flight.num_entries
        step.num_decodes = num_decodes
        step.prefill_tokens = total_tokens - num_decodes
        step.kv_decode_tokens = kv_decode_tokens
        step.prefill_attention = prefill_attention
        step.num_preempted = engine.num_preempted
        step.num_gaps = 0
        engine.num_steps += 1


@njit(cache=True, nogil=True)
def step_ns(step_time: Any, num_seqs: Any, prefill_tokens: Any, kv_decode_tokens: Any, prefill_attention: Any) -> Any:
    """*The* equation: time of one step in whole nanoseconds.

    Calibration fits it, the replay charges it. `step_ns.py_func` takes arrays.

    Parameters
    ----------
    step_time : StepTime
        Coefficients.
    num_seqs : int or (k,) int64
        Requests scheduled in the step.
    prefill_tokens : int or (k,) int64
        Prompt (or recomputed) tokens scheduled in the step.
    kv_decode_tokens : int or (k,) float64
        Context tokens read by the decoding requests, their new token included, summed.
    prefill_attention : float or (k,) float64
        Sum over prefilling requests of chunk·(context before the chunk + chunk/2), token².

    Returns
    -------
    int or (k,) int64
        Nanoseconds. The first three terms are whole by construction, as in the recordings of the real
        scheduler; the further terms are summed in float64 and rounded once.
    """
    has_prefill = prefill_tokens > 0
    whole_ns = step_time.base_ns + step_time.per_seq_ns * num_seqs + step_time.per_prefill_token_ns * prefill_tokens
    further_ns = (
        step_time.any_prefill_ns * has_prefill
        + step_time.per_kv_token_ns * kv_decode_tokens * (1 - has_prefill)
        + step_time.per_kv_token_mixed_ns * kv_decode_tokens * has_prefill
        + step_time.per_prefill_attention_ns * prefill_attention
    )
    return whole_ns + np.int64(np.rint(further_ns))


@njit(cache=True, nogil=True)
def process_output(engine, requests, running, resumable, limits, flight, entries, steps, gaps, events):
    """Deliver a step's tokens in batch order; finished requests return their blocks at once.

    Source: vLLM 0.32, v1/core/sched/scheduler.py, Scheduler.update_from_output.
    """
    num_finished = 0
    for j in range(flight.num_entries):
        entry = entries[j]
        request = requests[entry.request]
        if not entry.samples or request.is_finished:
            continue
        # Output of a step scheduled before a preemption is still delivered, but changes no other count.
        is_stale = entry.num_preemptions != request.num_preemptions
        if limits.is_async and not is_stale:
            request.num_placeholders -= 1
        request.num_known += 1
        deliver_token(entry.request, request, engine, flight, steps, gaps, events)
        if request.num_outputs == request.output_tokens or request.num_known >= limits.max_model_len:
            request.is_finished = True
            engine.must_announce_finished = True
            release(request, engine)
            record_at(engine, events, flight.step, FINISHED, entry.request, 0)
            if is_stale:
                remove(entry.request, engine, resumable)
            else:
                num_finished += 1
    if num_finished > 0:
        num_kept = 0
        for j in range(engine.num_running):
            if not requests[running[j]].is_finished:
                running[num_kept] = running[j]
                num_kept += 1
        engine.num_running = num_kept


@njit(cache=True, nogil=True)
def deliver_token(index, request, engine, flight, steps, gaps, events):
    """Note when a token appeared and how long after the one before it."""
    request.num_outputs += 1
    record_at(engine, events, flight.step, TOKEN, index, 1)
    if request.num_outputs == 1:
        request.first_token_ns = flight.end_ns
    else:
        gap_ns = flight.end_ns - request.last_token_ns
        request.worst_gap_ns = max(request.worst_gap_ns, gap_ns)
        if request.last_token_step == flight.step - 1:
            steps[flight.step].num_gaps += 1
        else:
            gap = gaps[engine.num_gaps]
            gap.gap_ns = gap_ns
            gap.request = index
            gap.step = flight.step
            engine.num_gaps += 1
    request.last_token_ns = flight.end_ns
    request.last_token_step = flight.step


@njit(cache=True, nogil=True)
def blocks_for(num_tokens, limits):
    """KV blocks that so many tokens fill."""
    return (min(num_tokens, limits.max_model_len) + limits.block_size - 1) // limits.block_size


@njit(cache=True, nogil=True)
def allocate(request, engine, limits, num_tokens):
    """True if `request` now owns blocks for `num_tokens` more; False, nothing changed, if the pool is short."""
    num_new = max(0, blocks_for(request.num_computed + num_tokens, limits) - request.num_blocks)
    if num_new > engine.num_free_blocks:
        return False
    request.num_blocks += num_new
    engine.num_free_blocks -= num_new
    return True


@njit(cache=True, nogil=True)
def may_admit(request, engine, limits, num_tokens):
    """Whether a waiting request may start: its chunk fits and, with the reservation, all that is known of it.

    The reservation is a check only; nothing is set aside. The watermark holds while anything is running.
    """
    num_wanted = blocks_for(num_tokens, limits)
    if limits.reserves_full_isl:
        num_wanted = max(num_wanted, blocks_for(request.num_known, limits))
    if engine.num_running > 0:
        num_wanted += limits.watermark_blocks
    return num_wanted <= engine.num_free_blocks


@njit(cache=True, nogil=True)
def release(request, engine):
    """Give all blocks back."""
    engine.num_free_blocks += request.num_blocks
    request.num_blocks = 0


@njit(cache=True, nogil=True)
def preempt(index, requests, engine, resumable, events):
    """Free a running request's blocks and put it at the front of the waiting queue, to be computed again."""
    victim = requests[index]
    release(victim, engine)
    record(engine, events, PREEMPTED, index, victim.num_computed)
    victim.num_recomputed += victim.num_computed
    victim.num_computed = 0
    victim.num_placeholders = 0
    victim.num_preemptions += 1
    resumable[engine.num_resumable] = index
    engine.num_resumable += 1
    engine.num_preempted += 1


@njit(cache=True, nogil=True)
def remove(index, engine, resumable):
    """Take a request that stale output finished out of the waiting queue."""
    num_kept = 0
    for j in range(engine.num_resumable):
        if resumable[j] != index:
            resumable[num_kept] = resumable[j]
            num_kept += 1
    engine.num_resumable = num_kept


@njit(cache=True, nogil=True)
def record(engine, events, kind, index, num_tokens):
    """Write an event of the step being scheduled."""
    record_at(engine, events, engine.num_steps, kind, index, num_tokens)


@njit(cache=True, nogil=True)
def record_at(engine, events, step, kind, index, num_tokens):
    """Write an event of `step`; without room for events nothing is recorded."""
    if len(events) > 0:
        event = events[engine.num_events]
        event.step = step
        event.kind = kind
        event.request = index
        event.tokens = num_tokens
        engine.num_events += 1


@njit(cache=True, nogil=True)
def grown(rows):
    """The same rows with room for as many again."""
    return grown_to(rows, len(rows) + 1)


@njit(cache=True, nogil=True)
def grown_to(rows, num_rows):
    """The same rows with room for at least `num_rows`, never less than twice as many as before."""
    larger = np.empty(max(2 * len(rows), num_rows), rows.dtype)
    larger[: len(rows)] = rows
    return larger
