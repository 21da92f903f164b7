"""All compiled code: the scheduler of vLLM 0.32 and the step-time equation.

State is rows of structured arrays; a helper takes a row (or an array and a row number) and changes it. The clock is
int64 nanoseconds. Nothing here looks at a request's true output length except `process_output`, which plays the model,
and `fall_asleep`, which sets the alarm for it; the scheduler sees `max_tokens` only.

Whoever just decodes, one token a step, is asleep: not in `running`, in no step's entries, only counted. A request wakes
for its last token, and all do before a step that the budget or the pool might not serve in full, or that writes events.
So a step costs what it admits, prefills and finishes, whatever is running; without anybody asleep the rules are the
same, and so is every byte that comes out.

KV blocks are a count as long as their identity cannot matter. With prefix caching they have an identity
(`Limits.tracks_blocks`) as soon as they are in the cache and somebody might find them. `paths` says how each request
goes through the tree of all beginnings, so that two blocks are alike where branch and place are. `spans` holds the
cache, blocks in a row that were found, held and freed together being one row, and the queue of the free blocks, in
which those that nobody can find are counts; `table` says which spans each running request holds. Where it is off these
arrays are empty.

Order: dtypes, `replay` (the engine loop), `schedule` and its two passes, the step-time equation, `process_output`,
sleep, the waiting queue, block verbs, event rows.

Source: vLLM 0.32, v1/engine/core.py (`EngineCore.step`, `step_with_batch_queue`), v1/core/sched/scheduler.py
(`Scheduler.schedule`, `update_from_output`), v1/core/sched/async_scheduler.py, v1/core/kv_cache_manager.py
(`get_computed_blocks`, `allocate_slots`, `free`), v1/core/block_pool.py.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

Rows = npt.NDArray[Any]
# Without numba's reference counts, which took most of the time: arrays belong to whoever calls, and none is made here.
UNCOUNTED: dict[str, Any] = {"_nrt": False}
compiled: Any = njit(cache=True, nogil=True, **UNCOUNTED)
# What every step goes through; handing the arrays over took most of the rest.
inlined: Any = njit(cache=True, nogil=True, forceinline=True, **UNCOUNTED)

REQUEST = np.dtype(
    [
        ("arrival_ns", np.int64),
        ("prompt_tokens", np.int64),
        ("output_tokens", np.int64),  # the truth; read by process_output alone
        ("max_tokens", np.int64),  # what the scheduler is told
        ("priority", np.int64),  # lower runs first
        ("classes", np.int64),  # a bit for each class of targets that it belongs to
        ("identity", np.int64),  # which request of the trace: tells its own blocks, and its draws of acceptance
        ("first_path", np.int64),  # its first row of `paths`
        ("num_shared_blocks", np.int64),  # leading blocks that another request might have as well
        ("num_known", np.int64),  # prompt plus outputs already processed
        ("num_computed", np.int64),  # advanced when a step is scheduled, not when it ends
        ("num_drafts", np.int64),  # draft tokens attached for the next step
        ("num_placeholders", np.int64),  # outputs that scheduled, unprocessed steps will bring (async only)
        ("is_chunk", np.bool_),  # still prefilling after the last step it was scheduled in
        ("num_outputs", np.int64),
        ("num_blocks", np.int64),
        ("num_registered", np.int64),  # leading blocks that are in the prefix cache
        ("num_listed", np.int64),  # leading blocks that somebody might find there, in spans
        ("num_spans", np.int64),  # that it holds
        ("slot", np.int64),  # row of `table` while it holds blocks
        ("seat", np.int64),  # grows from admission to admission: the order of the running requests
        ("asleep_since", np.int64),  # the first step of its sleep; 0 = awake
        ("num_preemptions", np.int64),
        ("num_recomputed", np.int64),  # computed tokens lost to preemptions
        ("num_hit_tokens", np.int64),  # found in the prefix cache at its first admission
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
        ("num_draft_tokens", np.int64),
        ("kv_decode_tokens", np.int64),
        ("kv_prefill_tokens", np.int64),
        ("prefill_attention", np.float64),
        ("num_preempted", np.int64),
        ("num_gaps", np.int64),  # tokens of this step whose previous token came from the step before
    ]
)
PEAK = np.dtype([("step", np.int64), ("gap_ns", np.int64)])
SHARED_GAP = np.dtype([("gap_ns", np.int64), ("count", np.int64), ("step", np.int64)])  # the first step it holds for
GAP = np.dtype([("gap_ns", np.int64), ("request", np.int64), ("last_step", np.int64), ("step", np.int64)])
EVENT = np.dtype([("step", np.int32), ("kind", np.int32), ("request", np.int32), ("tokens", np.int32)])
FLIGHT = np.dtype(
    [
        ("num_entries", np.int64),
        ("num_asleep", np.int64),  # requests that decode in this step without an entry
        ("num_gaps", np.int64),  # as in `STEP`
        ("step", np.int64),  # -1 when the step was not worth a row
        ("end_ns", np.int64),
        ("num_preempted", np.int64),
        ("is_recorded", np.bool_),  # whether the step writes events
    ]
)
ENTRY = np.dtype(
    [
        ("request", np.int64),
        ("tokens", np.int64),
        ("drafts", np.int64),  # of these tokens
        ("is_admission", np.bool_),
        ("samples", np.bool_),
        ("num_preemptions", np.int64),  # of the request when scheduled: tells stale output
    ]
)
ENGINE = np.dtype(
    [
        ("now_ns", np.int64),
        ("gpu_free_ns", np.int64),
        ("num_running", np.int64),  # those asleep included
        ("num_asleep", np.int64),
        ("num_seated", np.int64),  # admissions so far
        ("newest_asleep", np.int64),  # no seat asleep is behind this one
        ("asleep_tokens", np.int64),  # computed so far by those asleep
        ("asleep_blocks", np.int64),  # that those asleep take in the step being scheduled
        ("next_taker", np.int64),  # of those asleep: who takes, and who registers a block next in this step
        ("next_registrar", np.int64),
        ("num_peaks", np.int64),
        ("processed_ns", np.int64),  # end of the last step whose output was processed
        ("num_queued", np.int64),  # in `queue`: preempted requests, or by priority everything that waits
        ("next_new", np.int64),  # first request that waits outside `queue`
        ("next_arrival", np.int64),  # first request that has not arrived
        ("must_announce_finished", np.bool_),
        ("num_free_blocks", np.int64),
        ("free_slot", np.int64),  # head of the list of free rows of `table`
        ("unused_span", np.int64),  # head of the list of rows of `spans` that are not used any more
        ("num_span_rows", np.int64),  # rows of `spans` that ever were, row 0 included
        ("num_free_hits", np.int64),  # of the last lookup: hit blocks that nobody holds
        ("index", np.int64),  # of pass 1 in `running`
        ("token_budget", np.int64),  # of the step being scheduled, like the next three
        ("input_budget", np.int64),
        ("threshold", np.int64),
        ("num_preempted", np.int64),
        ("num_futile", np.int64),  # preemptions since the last token
        ("num_swapped", np.int64),  # tokens moved out and in by this step
        ("held_by", np.int64),  # why nobody more was admitted
        ("oldest", np.int64),  # of the steps in flight
        ("num_flights", np.int64),
        ("next_window", np.int64),  # first of the recorded windows that is not over
        ("num_steps", np.int64),
        ("num_decoding_steps", np.int64),  # this and the next six: over all steps so far
        ("num_decodes", np.int64),
        ("kv_decode_tokens", np.int64),
        ("peak_running", np.int64),
        ("least_free_blocks", np.int64),
        ("max_inputs", np.int64),  # what a step took of the input budget
        ("max_prefill_tokens", np.int64),
        ("num_shared", np.int64),
        ("num_gaps", np.int64),
        ("num_events", np.int64),
    ]
)
PATH = np.dtype([("branch", np.int64), ("until", np.int64)])
"""A request's blocks before `until`, and behind those of the row before; its last row, without end, is its own."""
SPAN = np.dtype(
    [
        # Blocks in a row, with the same holders; row 0 stands for the ends of the free queue.
        ("branch", np.int32),  # -1: nobody can find them
        ("first", np.int32),  # their places in the requests that have them
        ("until", np.int32),
        ("num_holders", np.int32),
        ("rest", np.int32),  # the span that was cut off here last, for those who hold both
        ("next_alike", np.int32),  # of the same branch in the order of registration; of unused rows, the next one
        ("last_alike", np.int32),
        ("next_free", np.int32),  # in the free queue, while nobody holds it
        ("last_free", np.int32),
        # Ends of the list of the spans on the branch with the number of this row, nothing to do with the span.
        ("branch_first", np.int32),
        ("branch_last", np.int32),
    ]
)

CAP = np.dtype(
    [
        ("kind", np.int64),  # of the values that are held against it, one of those below
        ("classes", np.int64),  # bits; gaps are not told apart by class
        ("limit_ns", np.int64),
        ("most_above", np.int64),  # so many values may be above the limit
        ("num_above", np.int64),
        ("longest_ns", np.int64),
        ("most_share", np.float64),  # of the excess over the limit in the sum of all values; inf = whatever it is
        ("num_left", np.int64),  # values that may still come, at most
        ("sum_ns", np.float64),
        ("excess_ns", np.float64),
    ]
)
GAPS, FIRST_TOKENS, LAST_TOKENS, WORST_GAPS = range(4)
"""Kinds of `CAP`: every gap; arrival to first token; arrival to last token; the longest gap of a finished request."""

NEVER = 1 << 62
"""A number that no block has."""

PREFILLED, DECODED, PREEMPTED, ADMITTED, RESUMED, TOKEN, FINISHED, HELD = range(8)
"""Kinds of `EVENT`; its `tokens` are those scheduled, scheduled, lost, hit, hit, delivered (1), 0, one of the next.

Who is prefilled in a step and who decodes is told apart as in `STEP`. HELD names the request at the head of the waiting
queue and what kept it there."""

NO_SEAT, NO_BUDGET, NO_BLOCKS, NOT_WHOLE, PREEMPTION = range(1, 6)
"""What keeps the head of the waiting queue from starting: no seat; no budget; no KV blocks; its prompt does not fit the
budget in one piece; somebody was preempted in this step."""

DONE, STALLED, STEP_LIMIT, CANCELLED, NEEDS_BLOCKS, LIVELOCK, MISSED, FULL = range(8)
"""How a replay ended. NEEDS_BLOCKS: a preempted request may find its own blocks again, so run it with `tracks_blocks`.
LIVELOCK: running requests preempt each other, or themselves, for ever. MISSED: too much is above one of the caps.
FULL: none of these; `replay` makes room."""

NS_PER_S = 1_000_000_000
MOST_FUTILE = 100_000
"""Preemptions without a single token in between that count as a livelock; vLLM itself would go on."""


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
    by_priority: bool
    caches_prefixes: bool
    """Whether prefix caching is on."""
    tracks_blocks: bool
    """Whether blocks have an identity; needed with prefix caching once something could hit."""
    num_spec_tokens: int
    """Draft tokens per step, 0 = no speculative decoding."""
    num_lookahead_tokens: int
    """KV slots a drafter wants beyond the step's own."""
    num_extra_inputs: int
    """Inputs that a drafter adds per request, taken from the input budget."""
    drops_last_hit: bool
    """Whether the drafter recomputes the last hit block."""
    evicts_fewest_computed: bool
    """Not what vLLM does: the victim is whom least has been computed for."""
    swaps: bool
    """Not what vLLM does: a preempted request keeps its computed tokens, in CPU memory."""
    swap_ns_per_token: int
    """What moving one token there or back adds to the step."""


def replay(
    requests: Rows,
    state: Rows,
    spans: Rows,
    paths: Rows,
    table: Rows,
    accept: Rows,
    limits: Limits,
    step_time: Any,
    noise: Rows,
    windows: Rows,
    caps: Rows,
    keeps_steps: bool,
    max_steps: int,
    cancel: Rows,
) -> tuple[int, Rows, Rows, Rows, Rows]:
    """Run the engine until nothing is left; the rows of the arrays are changed in place.

    Parameters
    ----------
    requests : (n,) REQUEST
        Ordered by arrival; made by `planner.replay`.
    state : (1,) ENGINE
        Zeros; the engine's state, and at the end the clock, the free blocks, and the totals.
    spans : (s,) SPAN
        Zeros; as many rows as KV blocks, and as branches.
    paths : (p,) PATH
        Only read.
    table : (seats + 1, blocks of the longest request) int64
        Of each span that a request holds: row·2³² + the block before which it ends, for this request. The last row is
        scratch. These three have no rows unless `limits.tracks_blocks`.
    accept : (a,) int64
        Acceptance pattern of drafts, taken round robin.
    limits : Limits
    step_time : StepTime
    noise : (3, m) float64
        Factors on step times: of decode-only steps and of steps with prefill, taken in turn by step, and by second of
        the clock, the last one for all that come after; m = 0 turns them off.
    windows : (w, 2) int64
        From when until when to write `EVENT` rows (who ran, was evicted, …), in order and apart: all events of the
        steps that are scheduled in a window, in which nobody is asleep. Needed to look inside, not for numbers.
    caps : (c,) CAP
        The replay ends after the step with which one of them is missed for good.
    keeps_steps : bool
        Whether the rows of the steps are returned; they take far more memory than all the rest.
    max_steps : int
        Stop after this many recorded steps.
    cancel : (1,) uint8
        Stop soon after another thread makes it non-zero.

    Returns
    -------
    outcome : int
        One of the seven above.
    steps : (k,) STEP
        No rows unless kept.
    shared : (s,) SHARED_GAP
        Gaps between tokens of neighbouring steps, in order of time; equal ones in a row are one row.
    gaps : (g,) GAP
        Gaps between tokens that did not come from neighbouring steps.
    events : (e,) EVENT
    """
    cap = min(limits.max_num_seqs, len(requests))
    most_per_step = cap * (1 + limits.num_spec_tokens)
    engine = state[0]
    engine["num_free_blocks"] = engine["least_free_blocks"] = limits.num_gpu_blocks - 1  # block 0 is the null block
    if limits.tracks_blocks:
        lay_out_blocks(engine, spans, table)
    running, alarms = np.empty(cap + 1, np.int64), np.empty(cap + 1, np.int64)
    groups = np.zeros((limits.block_size, cap + 1 if limits.tracks_blocks else 1), np.int64)
    queue = np.empty(len(requests) + 1, np.int64)
    flights, entries = np.zeros(2, FLIGHT), np.empty((2, cap + 1), ENTRY)
    # What a step may add; then what has become too small is made larger, and the loop goes on.
    room = np.array([int(keeps_steps), 1, 1, most_per_step, (5 * cap + most_per_step + 1) * (len(windows) > 0)])
    # The steps must be a power of two, as `step_row` wants it.
    steps, peaks = np.empty(1024 if keeps_steps else 4, STEP), np.empty(1024, PEAK)
    shared = np.empty(1024 + 3 * len(requests), SHARED_GAP)  # most often enough; memory not touched costs nothing
    gaps, events = np.empty(1024 + most_per_step, GAP), np.empty(2 * int(room[4]), EVENT)
    while True:
        outcome = run(
            requests, state, running, queue, spans, paths, table, accept, limits, step_time, noise, windows, caps,
            alarms, groups, flights, entries, steps, peaks, shared, gaps, events, room, max_steps, cancel,
        )  # fmt: skip
        if outcome != FULL:
            break
        steps = grown(steps, engine["num_steps"], room[0]) if keeps_steps else steps
        peaks = grown(peaks, engine["num_peaks"], room[1])
        shared = grown(shared, engine["num_shared"], room[2])
        gaps = grown(gaps, engine["num_gaps"], room[3])
        events = grown(events, engine["num_events"], room[4])
    num_steps = engine["num_steps"] if keeps_steps else 0
    num_shared, num_gaps, num_events = engine["num_shared"], engine["num_gaps"], engine["num_events"]
    return outcome, steps[:num_steps], shared[:num_shared], gaps[:num_gaps], events[:num_events]


def grown(rows: Rows, num_rows: int, room: int) -> Rows:
    """The same rows, in twice the room if there is not enough."""
    if num_rows + room <= len(rows):
        return rows
    larger = np.empty(2 * len(rows), rows.dtype)
    larger.view(np.uint8)[: num_rows * rows.itemsize] = rows[:num_rows].view(np.uint8)  # not field by field
    return larger


@compiled
def run(
    requests, state, running, queue, spans, paths, table, accept, limits, step_time, noise, windows, caps, alarms,
    groups, flights, entries, steps, peaks, shared, gaps, events, room, max_steps, cancel,
):  # fmt: skip
    """The engine loop, until it ends or one of the growing arrays lacks `room` for what a step may add.

    Source: vLLM 0.32, v1/engine/core.py, EngineCore.step and step_with_batch_queue.
    """
    depth = 2 if limits.is_async else 1
    engine = state[0]
    outcome = DONE
    while True:
        admit_arrivals(engine, requests, queue, limits)
        if not has_requests(engine) and engine.num_flights == 0:
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
        if lacks_room(engine, steps, peaks, shared, gaps, events, room):
            return FULL

        if has_requests(engine):
            is_busy = engine.num_flights == 1 and has_work(flights[engine.oldest])
            slot = (engine.oldest + engine.num_flights) % 2
            flight = flights[slot]
            flight.is_recorded = is_in_window(engine, windows)
            settle(
                engine, requests, running, alarms, groups, peaks, limits, flights, entries, flight.is_recorded
            )  # fmt: skip
            schedule(
                engine, requests, running, queue, spans, paths, table, groups, limits, step_time, noise, flight,
                entries[slot], steps, events,
            )  # fmt: skip
            engine.num_flights += 1
            if flight.num_preempted > 0 and limits.caches_prefixes and not limits.tracks_blocks:
                outcome = NEEDS_BLOCKS
                break
            if engine.num_futile > MOST_FUTILE:
                outcome = LIVELOCK
                break
            is_empty = not has_work(flight) and flight.num_preempted == 0
            if is_empty and not is_busy and num_waiting(engine) + engine.num_running > 0:
                if engine.next_arrival == len(requests):
                    outcome = STALLED
                    break
                engine.now_ns = max(engine.now_ns, requests[engine.next_arrival].arrival_ns)
            if engine.num_flights < depth and (has_work(flight) or has_requests(engine)):
                continue
        flight = flights[engine.oldest]
        if not limits.is_async:
            wake_due(engine, requests, running, alarms, groups, peaks, limits, flights, entries)
        engine.now_ns = max(engine.now_ns, flight.end_ns)
        process_output(
            engine, requests, running, queue, spans, paths, table, accept, limits, flight, entries[engine.oldest],
            gaps, events, caps,
        )  # fmt: skip
        close_step(engine, flight, peaks, steps, shared, caps)
        engine.oldest = (engine.oldest + 1) % 2
        engine.num_flights -= 1
        if is_missed(caps):
            outcome = MISSED
            break
    wake_all(engine, requests, running, alarms, groups, peaks, limits, flights, entries)
    return outcome


@inlined
def lacks_room(engine, steps, peaks, shared, gaps, events, room):
    """Whether what one more step may add could be too much for one of the growing arrays."""
    return (
        (room[0] > 0 and engine.num_steps + room[0] > len(steps))
        or engine.num_peaks + room[1] > len(peaks)
        or engine.num_shared + room[2] > len(shared)
        or engine.num_gaps + room[3] > len(gaps)
        or engine.num_events + room[4] > len(events)
    )


@inlined
def admit_arrivals(engine, requests, queue, limits):
    """Put everything that has arrived by now into the waiting queue."""
    while engine.next_arrival < len(requests) and requests[engine.next_arrival].arrival_ns <= engine.now_ns:
        engine.next_arrival += 1
        if limits.by_priority:
            push(engine.next_arrival - 1, engine, requests, queue, limits)
            engine.next_new = engine.next_arrival


@inlined
def num_waiting(engine):
    """Requests in the queue, and arrivals that were never admitted."""
    return engine.num_queued + engine.next_arrival - engine.next_new


@inlined
def num_awake(engine):
    """How many of the running requests stand in `running`."""
    return engine.num_running - engine.num_asleep


@inlined
def has_work(flight):
    """Whether anything is computed in a step."""
    return flight.num_entries + flight.num_asleep > 0


@inlined
def has_requests(engine):
    """Whether the engine calls schedule() at all; finished ids still to be announced cost one more call."""
    return engine.num_running > 0 or num_waiting(engine) > 0 or engine.must_announce_finished


@inlined
def is_in_window(engine, windows):
    """Whether a step that is scheduled now writes events."""
    while engine.next_window < len(windows) and windows[engine.next_window, 1] <= engine.now_ns:
        engine.next_window += 1
    return engine.next_window < len(windows) and windows[engine.next_window, 0] <= engine.now_ns


@inlined
def schedule(
    engine, requests, running, queue, spans, paths, table, groups, limits, step_time, noise, flight, entries, steps,
    events,
):  # fmt: skip
    """One call of schedule(): decide the batch, start it, write its row.

    Source: vLLM 0.32, v1/core/sched/scheduler.py, Scheduler.schedule.
    """
    engine.must_announce_finished = False
    engine.threshold = threshold_of_this_step(engine, limits)
    engine.token_budget = limits.max_num_scheduled_tokens - engine.num_asleep
    engine.input_budget = limits.max_num_batched_tokens - engine.num_asleep
    engine.num_free_blocks -= engine.asleep_blocks
    engine.num_preempted = 0
    engine.num_swapped = 0
    engine.held_by = PREEMPTION
    flight.num_entries = 0
    flight.num_asleep = engine.num_asleep
    flight.num_gaps = 0
    schedule_running(engine, requests, running, queue, spans, paths, table, groups, limits, flight, entries, events)
    if engine.num_preempted == 0:
        schedule_waiting(engine, requests, running, queue, spans, paths, table, limits, flight, entries, events)
    start_step(engine, requests, limits, step_time, noise, flight, entries, steps, events)
    if flight.step >= 0 and num_waiting(engine) > 0:
        record(flight, engine, events, flight.step, HELD, queue_head(engine, queue, limits), engine.held_by)


@inlined
def threshold_of_this_step(engine, limits):
    """The long-prefill cap in force, 0 = none; a request that is alone is never capped."""
    num_eligible = engine.num_running + num_waiting(engine)
    if num_eligible <= 1 or limits.long_prefill_token_threshold == 0:
        return 0
    if limits.is_threshold_adaptive:
        return max(limits.long_prefill_token_threshold, limits.max_num_batched_tokens // num_eligible)
    return limits.long_prefill_token_threshold


@inlined
def schedule_running(engine, requests, running, queue, spans, paths, table, groups, limits, flight, entries, events):
    """Pass 1: running requests in their order; short of blocks, one of them is preempted."""
    engine.index = 0
    engine.next_taker = engine.next_registrar = 1
    while (
        engine.index < num_awake(engine) and engine.token_budget > 0 and engine.input_budget > limits.num_extra_inputs
    ):
        row = running[engine.index]
        request = requests[row]
        num_tokens = tokens_wanted(request, engine, limits)
        if num_tokens == 0:
            engine.index += 1
            continue
        serve_asleep(request.seat, engine, requests, spans, paths, table, groups, limits)
        is_victim = False
        while not is_victim and not allocate(request, engine, spans, paths, table, limits, num_tokens, 0):
            position = victim_position(engine, requests, running, limits)
            is_victim = running[position] == row
            preempt(position, engine, requests, running, queue, spans, paths, table, limits, flight, entries, events)
        if is_victim:
            break
        num_drafts = num_tokens + request.num_computed - request.num_known - request.num_placeholders
        num_drafts = max(0, min(num_drafts, request.num_drafts))
        request.num_drafts = 0
        add_entry(row, num_tokens, num_drafts, False, engine, limits, flight, entries)
        engine.index += 1
    serve_asleep(engine.num_seated, engine, requests, spans, paths, table, groups, limits)


@inlined
def tokens_wanted(request, engine, limits):
    """Tokens a running request gets in this step, budgets and caps applied; 0 = it is passed over."""
    if (
        request.num_placeholders > 0
        and request.num_computed + 2 - request.num_placeholders >= request.prompt_tokens + request.max_tokens
    ):
        return 0  # the step in flight certainly brings its last token
    num_tokens = request.num_known + request.num_drafts + request.num_placeholders - request.num_computed
    if 0 < engine.threshold < num_tokens:
        num_tokens = engine.threshold
    num_tokens = min(num_tokens, engine.token_budget, engine.input_budget - limits.num_extra_inputs)
    return min(num_tokens, limits.max_model_len - request.num_computed - 1)


@compiled
def victim_position(engine, requests, running, limits):
    """Who is preempted: the last admitted, or by priority the least urgent, on ties the earliest in the list."""
    position = num_awake(engine) - 1
    if limits.evicts_fewest_computed:
        for j in range(num_awake(engine) - 2, -1, -1):
            if requests[running[j]].num_computed < requests[running[position]].num_computed:
                position = j
    elif limits.by_priority:
        position = 0
        for j in range(1, num_awake(engine)):
            worst, other = requests[running[position]], requests[running[j]]
            if other.priority > worst.priority or (
                other.priority == worst.priority and other.arrival_ns > worst.arrival_ns
            ):
                position = j
    return position


@compiled
def preempt(position, engine, requests, running, queue, spans, paths, table, limits, flight, entries, events):
    """Free a running request's blocks and let it wait, to be computed again.

    By priority it may already be in this step's batch; then it is taken out, and its budget returned.
    """
    row = running[position]
    victim = requests[row]
    engine.num_running -= 1
    for j in range(position, num_awake(engine)):
        running[j] = running[j + 1]
    if position < engine.index:
        engine.index -= 1
        withdraw_entry(row, engine, limits, flight, entries)
    if limits.tracks_blocks:  # what it alone has, it may find again
        list_blocks(victim, victim.num_registered, engine, spans, paths, table, limits)
    release(victim, engine, spans, table, limits)
    record(flight, engine, events, engine.num_steps, PREEMPTED, row, victim.num_computed)
    if limits.swaps:
        engine.num_swapped += victim.num_computed
    else:
        victim.num_recomputed += victim.num_computed
        victim.num_computed = 0
    victim.num_placeholders = 0
    victim.num_drafts = 0
    victim.num_preemptions += 1
    engine.num_preempted += 1
    engine.num_futile += 1
    push(row, engine, requests, queue, limits)


@inlined
def withdraw_entry(row, engine, limits, flight, entries):
    """Take a request out of the batch being built, if it is in it."""
    num_kept = 0
    for j in range(flight.num_entries):
        entry = entries[j]
        if entry.request == row:
            engine.token_budget += entry.tokens
            engine.input_budget += entry.tokens + limits.num_extra_inputs
        else:
            entries[num_kept] = entries[j]
            num_kept += 1
    flight.num_entries = num_kept


@inlined
def schedule_waiting(engine, requests, running, queue, spans, paths, table, limits, flight, entries, events):
    """Pass 2: the head of the waiting queue, again and again, until something stops it."""
    may_pad = limits.num_spec_tokens > 0
    for j in range(flight.num_entries):
        may_pad = may_pad and not requests[entries[j].request].is_chunk
    has_running = flight.num_entries > 0
    engine.held_by = NO_BUDGET
    while (
        engine.token_budget > 0
        and engine.input_budget > limits.num_extra_inputs
        and num_waiting(engine) > 0
        and engine.num_running < limits.max_num_seqs
    ):
        row = queue_head(engine, queue, limits)
        request = requests[row]
        num_hits = look_up(request, engine, spans, paths, table, limits)
        num_hit_tokens = num_hits * limits.block_size
        most = min(engine.token_budget, engine.input_budget - limits.num_extra_inputs)
        # Nothing of it is computed, unless it returns from CPU memory; then nothing is looked up.
        num_tokens, num_drafts = request.num_known - request.num_computed - num_hit_tokens, 0
        is_padded = may_pad and num_tokens == 1 and (has_running or num_hits > 0)
        if is_padded and num_hit_tokens + 2 + limits.num_spec_tokens <= limits.max_model_len:
            num_drafts = limits.num_spec_tokens
            num_tokens += num_drafts
            if num_tokens > most:
                return
        if 0 < engine.threshold < num_tokens:
            num_tokens = engine.threshold
        if not limits.is_prefill_chunked and num_tokens > most:
            engine.held_by = NOT_WHOLE
            return
        num_tokens = min(num_tokens, most)
        if not may_admit(request, engine, limits, num_tokens, num_hits):
            engine.held_by = NO_BLOCKS
            return
        allocate(request, engine, spans, paths, table, limits, num_tokens, num_hits)
        is_resumed = request.num_preemptions > 0
        if not is_resumed:
            request.first_scheduled_ns = max(engine.now_ns, engine.gpu_free_ns)
            request.num_hit_tokens = num_hit_tokens
        pop(engine, requests, queue, limits)
        running[num_awake(engine)] = row
        engine.num_running += 1
        request.seat = engine.num_seated
        engine.num_seated += 1
        engine.num_swapped += request.num_computed
        request.num_computed += num_hit_tokens
        num_drafts = min(num_drafts, num_tokens - 1)
        add_entry(row, num_tokens, num_drafts, True, engine, limits, flight, entries)
        record(flight, engine, events, engine.num_steps, RESUMED if is_resumed else ADMITTED, row, num_hit_tokens)
    if engine.num_running >= limits.max_num_seqs:
        engine.held_by = NO_SEAT


@inlined
def add_entry(row, num_tokens, num_drafts, is_admission, engine, limits, flight, entries):
    """Put a request into the batch and take its tokens from both budgets."""
    entry = entries[flight.num_entries]
    entry.request = row
    entry.tokens = num_tokens
    entry.drafts = num_drafts
    entry.is_admission = is_admission
    flight.num_entries += 1
    engine.token_budget -= num_tokens
    engine.input_budget -= num_tokens + limits.num_extra_inputs


@inlined
def start_step(engine, requests, limits, step_time, noise, flight, entries, steps, events):
    """Count the batch as computed, charge its time, write its row."""
    num_decodes, prefill_tokens, num_draft_tokens = flight.num_asleep, 0, 0
    engine.asleep_tokens += flight.num_asleep
    kv_decode_tokens, kv_prefill_tokens, prefill_attention = engine.asleep_tokens, 0, 0.0
    for j in range(flight.num_entries):
        entry = entries[j]
        request = requests[entry.request]
        context = request.num_computed
        num_tokens = entry.tokens - entry.drafts
        request.num_computed += entry.tokens
        request.is_chunk = request.num_computed < request.num_known + request.num_placeholders
        entry.samples = not request.is_chunk
        entry.num_preemptions = request.num_preemptions
        num_draft_tokens += entry.drafts
        is_decode = entry.samples and num_tokens == 1
        if is_decode:
            num_decodes += 1
            kv_decode_tokens += context + 1
        else:
            prefill_tokens += num_tokens
            kv_prefill_tokens += context
            prefill_attention += num_tokens * (context + 0.5 * num_tokens)
        if entry.samples and limits.is_async:
            request.num_placeholders += 1 + entry.drafts
            request.num_drafts = limits.num_spec_tokens
        kind = DECODED if is_decode else PREFILLED
        record(flight, engine, events, engine.num_steps, kind, entry.request, entry.tokens)
    start_ns = max(engine.now_ns, engine.gpu_free_ns)
    end_ns = start_ns
    if has_work(flight):
        plain_ns = step_ns(
            step_time, flight.num_asleep + flight.num_entries, prefill_tokens, kv_decode_tokens, prefill_attention,
            num_draft_tokens, kv_prefill_tokens,
        )  # fmt: skip
        end_ns += noisy_ns(plain_ns, noise, prefill_tokens > 0, engine.num_steps, start_ns)
    end_ns += engine.num_swapped * limits.swap_ns_per_token
    engine.gpu_free_ns = end_ns
    flight.end_ns = end_ns
    flight.num_preempted = engine.num_preempted
    flight.step = -1
    if has_work(flight) or engine.num_preempted > 0:
        flight.step = engine.num_steps
        step = step_row(steps, engine.num_steps)
        step.sched_ns = engine.now_ns
        step.start_ns = start_ns
        step.end_ns = end_ns
        step.num_running = engine.num_running
        step.num_waiting = num_waiting(engine)
        step.num_free_blocks = engine.num_free_blocks
        step.num_scheduled = flight.num_asleep + flight.num_entries
        step.num_decodes = num_decodes
        step.prefill_tokens = prefill_tokens
        step.num_draft_tokens = num_draft_tokens
        step.kv_decode_tokens = kv_decode_tokens
        step.kv_prefill_tokens = kv_prefill_tokens
        step.prefill_attention = prefill_attention
        step.num_preempted = engine.num_preempted
        step.num_gaps = 0  # counted when its output is processed
        engine.num_steps += 1
        num_scheduled = step.num_scheduled
        engine.num_decoding_steps += num_decodes > 0
        engine.num_decodes += num_decodes
        engine.kv_decode_tokens += kv_decode_tokens
        engine.peak_running = max(engine.peak_running, engine.num_running)
        engine.least_free_blocks = min(engine.least_free_blocks, engine.num_free_blocks)
        num_inputs = prefill_tokens + num_decodes + num_draft_tokens + limits.num_extra_inputs * num_scheduled
        engine.max_inputs = max(engine.max_inputs, num_inputs)
        engine.max_prefill_tokens = max(engine.max_prefill_tokens, prefill_tokens)


@inlined
def step_row(steps, step):
    """The row of a step; only the last ones have one where the rows are not kept."""
    return steps[step & (len(steps) - 1)]


@inlined
def step_ns(
    step_time: Any,
    num_seqs: Any,
    prefill_tokens: Any,
    kv_decode_tokens: Any,
    prefill_attention: Any,
    num_draft_tokens: Any = 0,
    kv_prefill_tokens: Any = 0,
) -> Any:
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
    num_draft_tokens : int or (k,) int64
        Draft tokens verified in the step.
    kv_prefill_tokens : int or (k,) float64
        Tokens of context that prefilling requests had before their chunk, summed.

    Returns
    -------
    int or (k,) int64
        Nanoseconds. The first three terms and the drafts are whole by construction, as in the recordings of the real
        scheduler; the further terms are summed in float64 and rounded once.

    Source
    ------
    vLLM 0.32, config/vllm.py, `VllmConfig._set_cudagraph_sizes`: a decode-only step is padded up to the next batch
    size that was captured as a CUDA graph.
    """
    has_prefill = prefill_tokens > 0
    num_tokens = prefill_tokens + num_seqs
    # Captured sizes: 1, 2, 4, then every 8 up to 256, every 16 up to 512; larger batches run as they are.
    graph_grain = 1 + (num_seqs > 2) + 6 * (num_seqs > 4) + 8 * (num_seqs > 256) - 15 * (num_seqs > 512)
    whole_ns = (
        step_time.base_ns
        + step_time.per_seq_ns * num_seqs
        + step_time.per_prefill_token_ns * prefill_tokens
        + step_time.per_draft_token_ns * num_draft_tokens
    )
    further_ns = (
        step_time.any_prefill_ns * has_prefill
        + step_time.per_kv_token_ns * kv_decode_tokens * (1 - has_prefill)
        + step_time.per_kv_token_mixed_ns * kv_decode_tokens * has_prefill
        + step_time.per_prefill_attention_ns * prefill_attention
        + step_time.per_kv_prefill_token_ns * kv_prefill_tokens
        + step_time.per_token_beyond_128_ns * np.maximum(num_tokens - 128, 0) * has_prefill
        + step_time.per_token_beyond_256_ns * np.maximum(num_tokens - 256, 0) * has_prefill
        + step_time.per_token_beyond_512_ns * np.maximum(num_tokens - 512, 0) * has_prefill
        + step_time.per_seq_beyond_128_ns * np.maximum(num_seqs - 128, 0) * (1 - has_prefill)
        + step_time.per_padding_seq_ns * (-num_seqs % graph_grain) * (1 - has_prefill)
    )
    return whole_ns + np.int64(np.rint(further_ns))


@inlined
def noisy_ns(plain_ns, noise, has_prefill, step, start_ns):
    """The time of a step with its noise, whole nanoseconds."""
    if noise.shape[1] == 0:
        return plain_ns
    pace = noise[2, min(start_ns // NS_PER_S, noise.shape[1] - 1)]
    return np.int64(np.rint(plain_ns * noise[int(has_prefill), step % noise.shape[1]] * pace))


@inlined
def process_output(
    engine, requests, running, queue, spans, paths, table, accept, limits, flight, entries, gaps, events, caps
):
    """Deliver a step's tokens in batch order; finished requests return their blocks at once.

    Source: vLLM 0.32, v1/core/sched/scheduler.py, Scheduler.update_from_output, and AsyncScheduler.
    """
    num_finished = 0
    for j in range(flight.num_entries):
        entry = entries[j]
        request = requests[entry.request]
        if not entry.samples or request.is_finished:
            continue
        # Output of a step scheduled before a preemption is still delivered, but changes no other count.
        is_stale = entry.num_preemptions != request.num_preemptions
        num_accepted = 0
        if entry.drafts > 0 and not entry.is_admission:
            num_accepted = min(accept[(request.identity + request.num_outputs) % len(accept)], entry.drafts)
        if not is_stale:
            request.num_computed -= entry.drafts - num_accepted
            if limits.is_async:
                request.num_placeholders -= entry.drafts - num_accepted
        for _ in range(num_accepted + 1):
            request.num_known += 1
            if limits.is_async and not is_stale:
                request.num_placeholders -= 1
            deliver_token(entry.request, request, engine, flight, gaps, events, caps)
            if request.num_outputs == request.output_tokens or request.num_known >= limits.max_model_len:
                request.is_finished = True
                break
        if limits.is_async and not is_stale:
            register(request, engine, spans, paths, table, limits, request.num_computed - request.num_placeholders)
        if request.is_finished:
            engine.must_announce_finished = True
            hold_against(caps, LAST_TOKENS, request.classes, flight.end_ns - request.arrival_ns, 1)
            hold_against(caps, WORST_GAPS, request.classes, request.worst_gap_ns, 1)
            release(request, engine, spans, table, limits)
            record(flight, engine, events, flight.step, FINISHED, entry.request, 0)
            if is_stale:
                remove(entry.request, engine, requests, queue, limits)
            else:
                num_finished += 1
        elif not limits.is_async and not request.is_chunk:
            request.num_drafts = limits.num_spec_tokens
    if num_finished > 0:
        num_kept = 0
        for j in range(num_awake(engine)):
            if not requests[running[j]].is_finished:
                running[num_kept] = running[j]
                num_kept += 1
        engine.num_running = engine.num_asleep + num_kept


@inlined
def close_step(engine, flight, peaks, steps, shared, caps):
    """Deliver the tokens of those asleep and count the gaps of the step.

    `peaks` are the gaps that no later one has reached: whoever sleeps since a step finds the longest of his own there.
    """
    if flight.step < 0:
        return
    gap_ns = flight.end_ns - engine.processed_ns
    engine.processed_ns = flight.end_ns
    if flight.num_asleep > 0:
        flight.num_gaps += flight.num_asleep
        engine.num_futile = 0
        at = engine.num_peaks
        while at > 0 and peaks[at - 1].gap_ns <= gap_ns:
            at -= 1
        peaks[at].step = flight.step
        peaks[at].gap_ns = gap_ns
        engine.num_peaks = at + 1
    step_row(steps, flight.step).num_gaps = flight.num_gaps
    if flight.num_gaps > 0:
        if engine.num_shared == 0 or shared[engine.num_shared - 1].gap_ns != gap_ns:
            shared[engine.num_shared].gap_ns = gap_ns
            shared[engine.num_shared].count = 0
            shared[engine.num_shared].step = flight.step
            engine.num_shared += 1
        shared[engine.num_shared - 1].count += flight.num_gaps
        hold_against(caps, GAPS, 1, gap_ns, flight.num_gaps)


@inlined
def hold_against(caps, kind, classes, value_ns, num):
    """Count so many equal values where they are above a cap."""
    for j in range(len(caps)):
        cap = caps[j]
        if cap.kind == kind and cap.classes & classes != 0:
            cap.num_left -= num
            cap.sum_ns += float(num) * value_ns
            if value_ns > cap.limit_ns:
                cap.num_above += num
                cap.longest_ns = max(cap.longest_ns, value_ns)
                cap.excess_ns += float(num) * (value_ns - cap.limit_ns)


@inlined
def is_missed(caps):
    """Whether one of the caps can no longer be kept, whatever comes.

    The excess is the smallest share of the sum if each value that is left takes just the limit: less would only make
    the sum smaller, and more adds as much to the excess as to the sum.
    """
    for j in range(len(caps)):
        cap = caps[j]
        if cap.num_above > cap.most_above:
            return True
        all_ns = cap.sum_ns + float(cap.num_left) * cap.limit_ns
        if cap.num_above > 0 and cap.excess_ns > cap.most_share * all_ns:
            return True
    return False


@inlined
def deliver_token(row, request, engine, flight, gaps, events, caps):
    """Note when a token appeared and how long after the one before it."""
    request.num_outputs += 1
    engine.num_futile = 0
    record(flight, engine, events, flight.step, TOKEN, row, 1)
    if request.num_outputs == 1:
        request.first_token_ns = flight.end_ns
        hold_against(caps, FIRST_TOKENS, request.classes, flight.end_ns - request.arrival_ns, 1)
    else:
        gap_ns = flight.end_ns - request.last_token_ns
        request.worst_gap_ns = max(request.worst_gap_ns, gap_ns)
        if request.last_token_step == flight.step - 1:
            flight.num_gaps += 1
        else:
            gap = gaps[engine.num_gaps]
            gap.gap_ns = gap_ns
            gap.request = row
            gap.last_step = request.last_token_step
            gap.step = flight.step
            engine.num_gaps += 1
            hold_against(caps, GAPS, 1, gap_ns, 1)
    request.last_token_ns = flight.end_ns
    request.last_token_step = flight.step


@inlined
def settle(engine, requests, running, alarms, groups, peaks, limits, flights, entries, is_recorded):
    """Before a step is scheduled: wake whom it concerns, let those fall asleep who will just decode for a while.

    `running` and the entries of a step have those awake only; the others are counts. Nobody sleeps through a step
    that writes events, one with drafts, or one in which the budget or the pool could run out.
    """
    wake_due(engine, requests, running, alarms, groups, peaks, limits, flights, entries)
    if limits.num_spec_tokens == 0 and not is_recorded:
        fall_asleep(engine, requests, running, alarms, groups, limits)
        engine.asleep_blocks = groups[engine.num_steps % limits.block_size, 0]
        if may_sleep_on(engine, requests, running, limits):
            return
    wake_all(engine, requests, running, alarms, groups, peaks, limits, flights, entries)
    engine.asleep_blocks = 0


@inlined
def may_sleep_on(engine, requests, running, limits):
    """Whether a step serves all who are asleep in full, whatever their place among those awake."""
    engine.threshold = threshold_of_this_step(engine, limits)
    engine.token_budget = engine.input_budget = np.int64(1) << 62
    budget = min(limits.max_num_scheduled_tokens, limits.max_num_batched_tokens) - engine.num_asleep
    num_blocks = engine.asleep_blocks
    for j in range(num_awake(engine)):
        request = requests[running[j]]
        num_tokens = tokens_wanted(request, engine, limits)
        if num_tokens > budget:
            if request.seat < engine.newest_asleep:
                return False
            num_tokens = budget
        if num_tokens > 0:
            budget -= num_tokens
            num_blocks += num_new_blocks(request, limits, num_tokens, 0)
    return budget >= 0 and num_blocks <= engine.num_free_blocks


@inlined
def fall_asleep(engine, requests, running, alarms, groups, limits):
    """Whoever is sure to get one token in each of the next steps needs no visit until its last one."""
    in_flight = 1 if limits.is_async else 0
    last_step = engine.num_steps - 1
    num_kept = 0
    for j in range(num_awake(engine)):
        row = running[j]
        request = requests[row]
        num_left = min(request.output_tokens, request.max_tokens, limits.max_model_len - request.prompt_tokens)
        num_left -= request.num_outputs + in_flight
        if (
            num_left < 2
            or request.num_placeholders != in_flight
            or request.num_known + in_flight - request.num_computed != 1
            or (in_flight == 0 and (request.num_outputs == 0 or request.last_token_step != last_step))
        ):
            running[num_kept] = row
            num_kept += 1
            continue
        if engine.num_asleep == 0:
            engine.asleep_tokens = 0
            engine.newest_asleep = -1
            engine.num_peaks = 0
        request.asleep_since = engine.num_steps
        engine.asleep_tokens += request.num_computed
        engine.newest_asleep = max(engine.newest_asleep, request.seat)
        join_group(row, engine, requests, groups, limits)
        set_alarm(engine.num_steps + num_left, row, engine, alarms)


@inlined
def wake_due(engine, requests, running, alarms, groups, peaks, limits, flights, entries):
    """Wake those whose last token is in flight."""
    num_before = engine.num_asleep
    while engine.num_asleep > 0 and alarms[0] >> 32 <= engine.num_steps:
        stop_alarm(engine, alarms)
    if engine.num_asleep < num_before:
        wake(num_before, engine, requests, running, alarms, groups, peaks, limits, flights, entries)


@compiled
def wake_all(engine, requests, running, alarms, groups, peaks, limits, flights, entries):
    """Nobody sleeps any more."""
    num_before = engine.num_asleep
    engine.num_asleep = 0
    if num_before > 0:
        wake(num_before, engine, requests, running, alarms, groups, peaks, limits, flights, entries)


@compiled
def wake(num_before, engine, requests, running, alarms, groups, peaks, limits, flights, entries):
    """Those whose alarms stand behind the others': back among the running, and into the step in flight.

    Their rows come out as if they had been visited in every step.
    """
    first = engine.num_asleep
    for j in range(first, num_before):
        alarms[j] &= 0xFFFFFFFF
        catch_up(alarms[j], engine, requests, groups, peaks, limits)
    sort_by_seat(alarms, first, num_before, requests)
    at, j = engine.num_running - num_before - 1, num_before - 1
    while j >= first:
        if at >= 0 and requests[running[at]].seat > requests[alarms[j]].seat:
            running[at + j - first + 1] = running[at]
            at -= 1
        else:
            running[at + j - first + 1] = alarms[j]
            j -= 1
    until = first
    for j in range(first, num_before):
        is_in_flight = engine.num_flights > 0 and requests[alarms[j]].asleep_since < engine.num_steps
        requests[alarms[j]].asleep_since = 0
        if is_in_flight:
            alarms[until] = alarms[j]
            until += 1
    flight, batch = flights[engine.oldest], entries[engine.oldest]
    at, j = flight.num_entries - 1, until - 1
    while j >= first:
        to = at + j - first + 1
        if at >= 0 and requests[batch[at].request].seat > requests[alarms[j]].seat:
            batch[to] = batch[at]
            at -= 1
        else:
            entry = batch[to]
            entry.request = alarms[j]
            entry.tokens = 1
            entry.drafts = 0
            entry.is_admission = False
            entry.samples = True
            entry.num_preemptions = requests[alarms[j]].num_preemptions
            j -= 1
    flight.num_entries += until - first
    flight.num_asleep -= until - first


@compiled
def catch_up(row, engine, requests, groups, peaks, limits):
    """Write into a request what happened to it while it slept; its token in flight is still to come."""
    request = requests[row]
    num_steps = engine.num_steps - request.asleep_since
    num_flights = min(engine.num_flights, num_steps)
    num_tokens = num_steps - num_flights
    leave_group(row, engine, requests, groups, limits)
    request.num_computed += num_steps
    engine.asleep_tokens -= request.num_computed
    request.num_known += num_tokens
    request.num_outputs += num_tokens
    if limits.is_async:
        request.num_placeholders += num_flights
    if not limits.tracks_blocks:
        request.num_blocks = blocks_for(request.num_computed, limits)
    if num_tokens > 0:
        request.last_token_ns = engine.processed_ns
        request.last_token_step = engine.num_steps - 1 - num_flights
        low, high = 0, engine.num_peaks - 1
        while low < high:
            middle = (low + high) // 2
            if peaks[middle].step < request.asleep_since:
                low = middle + 1
            else:
                high = middle
        request.worst_gap_ns = max(request.worst_gap_ns, peaks[low].gap_ns)


@inlined
def join_group(row, engine, requests, groups, limits):
    """Count a request among those who need a block in the same steps; blocks with an identity need the seats, too."""
    request = requests[row]
    group = groups[(request.asleep_since - request.num_computed) % limits.block_size]
    group[0] += 1
    if limits.tracks_blocks:
        at = group[0]
        while at > 1 and requests[group[at - 1]].seat > request.seat:
            group[at] = group[at - 1]
            at -= 1
        group[at] = row


@inlined
def leave_group(row, engine, requests, groups, limits):
    """Undo `join_group`."""
    request = requests[row]
    group = groups[(request.asleep_since - request.num_computed) % limits.block_size]
    if limits.tracks_blocks:
        at = 1
        while group[at] != row:
            at += 1
        for j in range(at, group[0]):
            group[j] = group[j + 1]
    group[0] -= 1


@inlined
def serve_asleep(seat, engine, requests, spans, paths, table, groups, limits):
    """The block verbs of those asleep before a seat: who starts a block takes one, who has filled one registers it.

    A block counts as filled when its last token is known at the moment of scheduling, as in `allocate`: synchronously
    the token scheduled now is, asynchronously it is in flight.
    """
    if not limits.tracks_blocks or engine.num_asleep == 0:
        return
    group = groups[engine.num_steps % limits.block_size]
    while engine.next_taker <= group[0] and requests[group[engine.next_taker]].seat < seat:
        request = requests[group[engine.next_taker]]
        take_blocks(1, engine, spans)
        request.num_blocks += 1
        engine.next_taker += 1
    known = 0 if limits.is_async else 1
    group = groups[(engine.num_steps + known) % limits.block_size]
    while engine.next_registrar <= group[0] and requests[group[engine.next_registrar]].seat < seat:
        request = requests[group[engine.next_registrar]]
        num_tokens = request.num_computed + engine.num_steps - request.asleep_since + known
        register(request, engine, spans, paths, table, limits, num_tokens)
        engine.next_registrar += 1


@inlined
def set_alarm(step, row, engine, alarms):
    """One more asleep, until a step; a heap of step·2³² + row, the earliest on top."""
    alarm = step << 32 | row
    at = engine.num_asleep
    engine.num_asleep += 1
    while at > 0 and alarm < alarms[(at - 1) // 2]:
        alarms[at] = alarms[(at - 1) // 2]
        at = (at - 1) // 2
    alarms[at] = alarm


@inlined
def stop_alarm(engine, alarms):
    """One less asleep: the earliest alarm goes behind the others."""
    engine.num_asleep -= 1
    alarm, first = alarms[engine.num_asleep], alarms[0]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= engine.num_asleep:
            break
        if child + 1 < engine.num_asleep and alarms[child + 1] < alarms[child]:
            child += 1
        if alarm <= alarms[child]:
            break
        alarms[at] = alarms[child]
        at = child
    alarms[at] = alarm
    alarms[engine.num_asleep] = first


@inlined
def sort_by_seat(rows, first, end, requests):
    """Shell's sort of some requests, in place."""
    distance = (end - first) // 2
    while distance > 0:
        for j in range(first + distance, end):
            row, at = rows[j], j
            while at >= first + distance and requests[rows[at - distance]].seat > requests[row].seat:
                rows[at] = rows[at - distance]
                at -= distance
            rows[at] = row
        distance //= 2


@inlined
def queue_head(engine, queue, limits):
    """Row of the request at the head of the waiting queue."""
    if limits.by_priority:
        return queue[0]
    return queue[engine.num_queued - 1] if engine.num_queued > 0 else engine.next_new


@inlined
def runs_before(row, other, requests):
    """Whether one waiting request goes before another under the priority policy; rows are in order of arrival."""
    if requests[row].priority != requests[other].priority:
        return requests[row].priority < requests[other].priority
    return row < other


@compiled
def push(row, engine, requests, queue, limits):
    """Let a request wait: on top of the stack of preempted ones, or by priority in its place of the heap."""
    at = engine.num_queued
    engine.num_queued += 1
    if limits.by_priority:
        while at > 0 and runs_before(row, queue[(at - 1) // 2], requests):
            queue[at] = queue[(at - 1) // 2]
            at = (at - 1) // 2
    queue[at] = row


@compiled
def pop(engine, requests, queue, limits):
    """Take the head off the waiting queue."""
    if not limits.by_priority and engine.num_queued == 0:
        engine.next_new += 1
        return
    engine.num_queued -= 1
    if limits.by_priority:
        row = queue[engine.num_queued]
        at = 0
        while True:
            child = 2 * at + 1
            if child >= engine.num_queued:
                break
            if child + 1 < engine.num_queued and runs_before(queue[child + 1], queue[child], requests):
                child += 1
            if runs_before(row, queue[child], requests):
                break
            queue[at] = queue[child]
            at = child
        queue[at] = row


@compiled
def remove(row, engine, requests, queue, limits):
    """Take a request that stale output finished out of the waiting queue; rare, so the queue is built anew."""
    num_queued = engine.num_queued
    engine.num_queued = 0
    for j in range(num_queued):
        if queue[j] != row:
            push(queue[j], engine, requests, queue, limits)


@inlined
def blocks_for(num_tokens, limits):
    """KV blocks that so many tokens fill."""
    return (min(num_tokens, limits.max_model_len) + limits.block_size - 1) // limits.block_size


@inlined
def num_new_blocks(request, limits, num_tokens, num_hits):
    """Blocks to be taken so that `num_tokens` more tokens (and a drafter's lookahead) have room."""
    until = request.num_computed + num_hits * limits.block_size + num_tokens + limits.num_lookahead_tokens
    return max(0, blocks_for(until, limits) - request.num_blocks - num_hits)


@inlined
def may_admit(request, engine, limits, num_tokens, num_hits):
    """Whether a waiting request may start: its chunk fits and, with the reservation, all that is known of it.

    The reservation is a check only; nothing is set aside. The watermark holds while anything is running. Hit blocks
    that nobody holds leave the free list when taken, so they cost as much as new ones.
    """
    num_wanted = num_new_blocks(request, limits, num_tokens, num_hits)
    if limits.reserves_full_isl:
        num_wanted = max(num_wanted, blocks_for(request.num_known, limits) - num_hits)
    if engine.num_running > 0:
        num_wanted += limits.watermark_blocks
    return num_wanted + engine.num_free_hits <= engine.num_free_blocks


@inlined
def allocate(request, engine, spans, paths, table, limits, num_tokens, num_hits):
    """True if `request` now owns blocks for `num_tokens` more; False, nothing changed, if the pool is short.

    Hit blocks are those of the last lookup. Full blocks of known tokens enter the prefix cache here, before they are
    computed, as in vLLM.
    """
    num_new = num_new_blocks(request, limits, num_tokens, num_hits)
    num_free_hits = engine.num_free_hits if num_hits > 0 else 0
    if num_new + num_free_hits > engine.num_free_blocks:
        return False
    engine.num_free_blocks -= num_new + num_free_hits
    if limits.tracks_blocks:
        if request.num_blocks == 0:
            take_slot(request, engine, table)
        hold_hits(request, engine, spans, table, num_hits)
        take_blocks(num_new, engine, spans)
    request.num_blocks += num_hits + num_new
    request.num_registered += num_hits
    request.num_listed += num_hits
    num_computed = request.num_computed + num_hits * limits.block_size + num_tokens
    register(request, engine, spans, paths, table, limits, min(num_computed, request.num_known))
    return True


@inlined
def look_up(request, engine, spans, paths, table, limits):
    """Number of leading blocks found in the prefix cache; where, goes to the scratch row of `table`.

    Of blocks that are alike the one registered first is found. One walk along each branch is enough: whoever last had a
    block had one before it as well, registered no later and given back no earlier, so that one is no further behind in
    the list. The last known token is always computed again, so a prompt that ends on a block border never hits its last
    block. Nothing changes by looking, not even the order of eviction.
    """
    engine.num_free_hits = 0
    num_hits = 0
    if not limits.tracks_blocks:
        return num_hits
    most = (request.num_known - 1) // limits.block_size
    if request.num_preemptions == 0:
        most = min(most, request.num_shared_blocks)  # what nobody else has it never had itself
    found = table[len(table) - 1]
    num_found = 0
    path = request.first_path
    row = spans[paths[path].branch].branch_first
    while num_hits < most:
        while paths[path].until <= num_hits:
            path += 1
            row = spans[paths[path].branch].branch_first
        while row > 0 and spans[row].until <= num_hits:
            row = spans[row].next_alike
        if row == 0:
            break
        until = min(spans[row].until, paths[path].until, most)
        found[num_found] = row << 32 | until
        num_found += 1
        if spans[row].num_holders == 0:
            engine.num_free_hits += until - num_hits
        num_hits = until
    if limits.drops_last_hit and num_hits > 0:
        num_hits -= 1
        engine.num_free_hits -= spans[found[num_found - 1] >> 32].num_holders == 0
    return num_hits


@inlined
def hold_hits(request, engine, spans, table, num_hits):
    """Let a request hold the blocks of the last lookup; what it holds is cut off from what it does not."""
    at = first = 0
    while first < num_hits:
        row = table[len(table) - 1, at] >> 32
        until = min(table[len(table) - 1, at] & 0xFFFFFFFF, num_hits)
        if spans[row].first < first:
            row = cut(row, first, engine, spans)
        if spans[row].until > until:
            cut(row, until, engine, spans)
        if spans[row].num_holders == 0:
            take_out(row, spans)
        spans[row].num_holders += 1
        table[request.slot, at] = row << 32 | until
        at += 1
        first = until
    request.num_spans += at


@inlined
def branch_of(request, block, paths):
    """The branch that a request's block is on.

    Source: vLLM 0.32, v1/core/kv_cache_utils.py: a block's hash covers its tokens and the hash of the block before it.
    """
    path = request.first_path
    while paths[path].until <= block:
        path += 1
    return paths[path].branch


@compiled
def register(request, engine, spans, paths, table, limits, num_tokens):
    """Enter a request's full blocks within its first `num_tokens` tokens into the prefix cache."""
    if limits.tracks_blocks:
        num_full = num_tokens // limits.block_size
        if num_full > request.num_registered:
            list_blocks(request, min(num_full, request.num_shared_blocks), engine, spans, paths, table, limits)
            request.num_registered = num_full


@inlined
def list_blocks(request, until, engine, spans, paths, table, limits):
    """Let a request's leading blocks be found, each after those that are alike and were there before."""
    path = request.first_path
    while request.num_listed < until:
        while paths[path].until <= request.num_listed:
            path += 1
        end = min(until, paths[path].until)
        row = growing_span(request, paths[path].branch, spans, table)
        if row == 0:
            row = new_span(engine, spans)
            spans[row].branch = paths[path].branch
            spans[row].first = request.num_listed
            spans[row].num_holders = 1
            enter(row, spans[spans[row].branch].branch_last, spans)
            request.num_spans += 1
        spans[row].until = end
        table[request.slot, request.num_spans - 1] = row << 32 | end
        request.num_listed = end


@inlined
def growing_span(request, branch, spans, table):
    """The last span of a request if more blocks may join it: its own, the last one of the branch, so uncut; else 0."""
    if request.num_spans == 0:
        return 0
    row = table[request.slot, request.num_spans - 1] >> 32
    span = spans[row]
    return row if span.branch == branch and span.num_holders == 1 and span.next_alike == 0 else 0


@compiled
def release(request, engine, spans, table, limits):
    """Give all blocks back, the last one first.

    Those in the prefix cache go to the back of the free queue, the others to its front.
    """
    if limits.tracks_blocks:
        if request.num_blocks > request.num_registered:
            put_uncached(request.num_blocks - request.num_registered, 0, spans[0].next_free, engine, spans)
        if request.num_registered > request.num_listed:
            put_uncached(request.num_registered - request.num_listed, spans[0].last_free, 0, engine, spans)
        engine.num_free_blocks += request.num_blocks - request.num_listed
        for j in range(request.num_spans - 1, -1, -1):
            let_go(table[request.slot, j], engine, spans, table)
        if request.num_blocks > 0:
            table[request.slot, 0] = engine.free_slot
            engine.free_slot = request.slot
    else:
        engine.num_free_blocks += request.num_blocks
    request.num_blocks = 0
    request.num_registered = 0
    request.num_listed = 0
    request.num_spans = 0


@inlined
def let_go(held, engine, spans, table):
    """One holder less of a span, into how many it may have been cut since; `held` is from `table`."""
    row = held >> 32
    parts = table[len(table) - 1]
    num_parts = 0
    parts[num_parts] = row
    while spans[row].until < held & 0xFFFFFFFF:
        row = spans[row].rest
        num_parts += 1
        parts[num_parts] = row
    while num_parts >= 0:
        row = parts[num_parts]
        num_parts -= 1
        spans[row].num_holders -= 1
        if spans[row].num_holders == 0:
            engine.num_free_blocks += spans[row].until - spans[row].first
            after = spans[0].last_free
            if after > 0 and after == spans[row].next_alike and spans[after].first == spans[row].until:
                spans[row].until = spans[after].until  # as before it was cut
                take_out(after, spans)
                leave(after, engine, spans)
                after = spans[0].last_free
            put_in(row, after, 0, spans)


@compiled
def lay_out_blocks(engine, spans, table):
    """All blocks free, nothing cached, all rows of the table free; `spans` are zeros."""
    for slot in range(len(table)):
        table[slot, 0] = slot + 1
    engine.free_slot = 0
    engine.num_span_rows = 1
    put_uncached(engine.num_free_blocks, 0, 0, engine, spans)


@inlined
def take_slot(request, engine, table):
    """Give a request a row of the table; there are as many as seats."""
    request.slot = engine.free_slot
    engine.free_slot = table[request.slot, 0]


@inlined
def take_blocks(num, engine, spans):
    """So many blocks from the front of the free queue, for new content: only now do they leave the prefix cache.

    Of a span the last one goes first, as they were freed.
    """
    while num > 0:
        row = spans[0].next_free
        size = spans[row].until - spans[row].first
        if size > num:
            spans[row].until -= num
            return
        num -= size
        take_out(row, spans)
        leave(row, engine, spans)


@inlined
def put_uncached(num, after, before, engine, spans):
    """Put so many blocks that nobody can find into the free queue, next to these two neighbours."""
    neighbour = after + before  # one of them is the end of the queue
    if neighbour > 0 and spans[neighbour].branch < 0:
        spans[neighbour].until += num
        return
    row = new_span(engine, spans)
    spans[row].branch = -1
    spans[row].until = num
    put_in(row, after, before, spans)


@inlined
def put_in(row, after, before, spans):
    """Put a span into the free queue, between two others."""
    spans[row].last_free = after
    spans[row].next_free = before
    spans[after].next_free = row
    spans[before].last_free = row


@inlined
def take_out(row, spans):
    """Take a span out of the free queue."""
    spans[spans[row].last_free].next_free = spans[row].next_free
    spans[spans[row].next_free].last_free = spans[row].last_free


@inlined
def new_span(engine, spans):
    """A row that is not used: zeros, but for its branch's ends."""
    row = engine.unused_span
    if row > 0:
        engine.unused_span = spans[row].next_alike
    else:
        row = engine.num_span_rows
        engine.num_span_rows += 1
    span = spans[row]
    span.branch = span.first = span.until = span.num_holders = 0
    span.rest = span.next_alike = span.last_alike = span.next_free = span.last_free = 0
    return row


@inlined
def enter(row, after, spans):
    """Enter a span into the list of its branch, behind another one or, behind 0, first."""
    branch = spans[spans[row].branch]
    before = spans[after].next_alike if after > 0 else branch.branch_first
    spans[row].last_alike = after
    spans[row].next_alike = before
    if after > 0:
        spans[after].next_alike = row
    else:
        branch.branch_first = row
    if before > 0:
        spans[before].last_alike = row
    else:
        branch.branch_last = row


@inlined
def leave(row, engine, spans):
    """Nobody finds the blocks of a span any more: its row is not used."""
    span = spans[row]
    if span.branch >= 0:
        branch = spans[span.branch]
        if span.last_alike > 0:
            spans[span.last_alike].next_alike = span.next_alike
        else:
            branch.branch_first = span.next_alike
        if span.next_alike > 0:
            spans[span.next_alike].last_alike = span.last_alike
        else:
            branch.branch_last = span.last_alike
    span.next_alike = engine.unused_span
    engine.unused_span = row


@compiled
def cut(row, at, engine, spans):
    """Cut a span in two before a block; the row of the second part."""
    rest = new_span(engine, spans)
    span, other = spans[row], spans[rest]
    other.branch = span.branch
    other.first = at
    other.until = span.until
    other.num_holders = span.num_holders
    other.rest = span.rest
    span.until = at
    span.rest = rest
    enter(rest, row, spans)
    if span.num_holders == 0:
        put_in(rest, span.last_free, row, spans)
    return rest


@inlined
def record(flight, engine, events, step, kind, row, num_tokens):
    """Write an event of a step that is recorded."""
    if flight.is_recorded:
        event = events[engine.num_events]
        event.step = step
        event.kind = kind
        event.request = row
        event.tokens = num_tokens
        engine.num_events += 1
