"""One replay of a trace through the scheduler."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_type_hints

import numpy as np
import numpy.typing as npt

from planner import kernel
from planner.engine_config import DRAFTERS, EngineConfig, check_flags
from planner.errors import Cancelled
from planner.step_time import StepTime
from planner.what_if import WhatIf, check_what_if
from traces.requests import PrefixHashes, RequestTrace

MAX_STEPS = 10_000_000
"""A replay stops here; about 1 GB of step rows, far above any real trace that moves at all."""
NO_LIMIT = 1 << 40
"""Stands for a context length that is not bounded, tokens."""
NO_CAPS = np.zeros(0, kernel.CAP)
"""The replay goes on to its end."""
NO_NOISE = np.ones((3, 0))
"""Every step takes exactly what the equation says."""
OUTCOMES = {
    kernel.DONE: "done",
    kernel.STALLED: "stalled",
    kernel.STEP_LIMIT: "step_limit",
    kernel.LIVELOCK: "livelock",
    kernel.MISSED: "stopped",
}
"""How a replay can end, in words."""
VLLM = WhatIf()
"""No departure from vLLM."""
WHOLE_REPLAY = ((0, 1 << 62),)
"""The window of events that takes in every step, nanoseconds."""


class Totals(NamedTuple):
    """What all steps of a replay come to."""

    num_steps: int
    """Engine steps."""
    num_decoding_steps: int
    """Steps with at least one decode."""
    num_decodes: int
    """Decodes, summed over the steps."""
    kv_decode_tokens: int
    """Context tokens that decodes read, summed over the steps."""
    peak_running: int
    """Most requests running at once."""
    least_free_blocks: int
    """Fewest free KV blocks after scheduling."""
    max_inputs: int
    """Most that one step took of the input budget: tokens, drafts, and a drafter's own inputs."""
    max_prefill_tokens: int
    """Most prefill tokens in one step."""


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """What happened, per request of the trace (n) and per engine step (k). Times count from the trace's zero."""

    engine_config: EngineConfig
    """The settings replayed."""
    step_time: StepTime
    """The step-time model charged."""
    what_if: WhatIf
    """Where it departs from vLLM; off unless asked for."""
    outcome: str
    """ "done"; "stalled" when waiting requests can never be admitted; "livelock" when preemptions bring nobody further;
    "step_limit" after `MAX_STEPS`; "stopped" when one of `caps` was missed for good: all numbers are those so far."""
    never_runs: npt.NDArray[np.bool_]
    """(n,) requests that cannot run under these settings at all; they were left out of the replay."""
    arrival_s: npt.NDArray[np.float64]
    """(n,) seconds."""
    prompt_tokens: npt.NDArray[np.int64]
    """(n,) as in the trace."""
    first_scheduled_s: npt.NDArray[np.float64]
    """(n,) seconds; NaN when it never happened, like the next three."""
    first_token_s: npt.NDArray[np.float64]
    """(n,) seconds."""
    last_token_s: npt.NDArray[np.float64]
    """(n,) seconds; the last token that appeared."""
    worst_gap_s: npt.NDArray[np.float64]
    """(n,) seconds; NaN below two tokens."""
    last_token_step: npt.NDArray[np.int64]
    """(n,) the step that brought the last token; 0 where none did."""
    num_outputs: npt.NDArray[np.int64]
    """(n,) tokens delivered."""
    is_finished: npt.NDArray[np.bool_]
    """(n,) whether all of it was delivered."""
    num_preemptions: npt.NDArray[np.int64]
    """(n,)"""
    num_recomputed: npt.NDArray[np.int64]
    """(n,) computed tokens lost to preemptions."""
    num_hit_tokens: npt.NDArray[np.int64]
    """(n,) prompt tokens found in the prefix cache at the first admission."""
    totals: Totals
    """Over all steps."""
    steps: npt.NDArray[Any]
    """(k,) `kernel.STEP`; no rows if it was told not to keep them."""
    shared_gaps: npt.NDArray[Any]
    """(s,) `kernel.SHARED_GAP`: gaps between tokens of neighbouring steps."""
    gaps: npt.NDArray[Any]
    """(g,) `kernel.GAP`: the other gaps, rows of `request` as in the trace."""
    events: npt.NDArray[Any]
    """(e,) `kernel.EVENT`, of the steps in `windows_ns`; rows of `request` as in the trace."""
    windows_ns: tuple[tuple[int, int], ...]
    """From when until when the steps scheduled then have their events, nanoseconds; in order and apart."""
    caps: npt.NDArray[Any]
    """(c,) `kernel.CAP`: what was counted against the caps given."""
    end_s: float
    """The clock at the end."""
    kernel_seconds: float
    """Wall time of the compiled replay alone."""


def replay(
    trace: RequestTrace,
    engine_config: EngineConfig,
    step_time: StepTime,
    *,
    windows_ns: Sequence[tuple[int, int]] = (),
    noise: npt.NDArray[np.float64] = NO_NOISE,
    what_if: WhatIf = VLLM,
    caps: npt.NDArray[Any] = NO_CAPS,
    classes: npt.NDArray[np.int64] | None = None,
    keeps_steps: bool = True,
    cancel: npt.NDArray[np.uint8] | None = None,
    engine: npt.NDArray[Any] | None = None,
) -> Replay:
    """Replay `trace` through vLLM's scheduler and return when each token appeared.

    A request whose output reaches its `max_tokens` ends on a length limit, which the scheduler foresees; one that ends
    before, on a stop token, which it does not. Without `max_tokens` every request ends on its limit. A request that
    can never run is left out and marked, the rest is replayed.

    Parameters
    ----------
    trace : RequestTrace
        n requests, ordered by arrival.
    engine_config : EngineConfig
        Checked as vLLM checks it at start-up.
    step_time : StepTime
        Calibrated coefficients; outside `StepTimeFit.covered` this extrapolates.
    windows_ns : sequence of (int, int)
        From when until when to keep who ran in each step, nanoseconds, in order and apart; `WHOLE_REPLAY` keeps all,
        at 32 bytes and more per token.
    noise : (3, m) float64
        Factors on step times, from `StepNoise.draw` or `Pace.draw`; without, every step takes what the equation says.
    what_if : WhatIf
        Policies that vLLM does not have; off by default.
    caps : (c,) kernel.CAP
        From `early.caps`: the replay stops as soon as one of them is missed for good.
    classes : (n,) int64, optional
        From there as well: a bit for each class of `caps` that a request belongs to; without, the first one.
    keeps_steps : bool
        Whether `Replay.steps` is filled, at about 100 bytes a step; `summarise` does not need it.
    cancel : (1,) uint8, optional
        The replay stops soon after another thread makes it non-zero.
    engine : (1,) kernel.ENGINE, optional
        The engine's state, for another thread that wants to know how far the replay is (`num_seated` of n requests).

    Raises
    ------
    BadFlags
        From `check_flags` and `check_what_if`.
    ValueError
        `noise` of another shape.
    Cancelled
        After `cancel`.

    Source
    ------
    vLLM 0.32, v1/core/sched/scheduler.py and v1/engine/core.py; see `planner.kernel`.
    """
    check_flags(engine_config)
    check_what_if(what_if, engine_config)
    if noise.shape[:1] != (3,):
        raise ValueError(f"noise: found shape {noise.shape}; allowed: (3, m)")
    never_runs = requests_that_never_run(trace, engine_config)
    index = np.flatnonzero(~never_runs)
    cancel = np.zeros(1, np.uint8) if cancel is None else cancel
    state = np.zeros(1, kernel.ENGINE) if engine is None else engine
    started = time.perf_counter()
    # Without shared prefixes a block's identity cannot matter until somebody is preempted and finds its own again.
    tracks_blocks = engine_config.enable_prefix_caching and trace.prefix_hashes is not None
    limits = limits_of(trace, engine_config, tracks_blocks, what_if)
    accept = acceptance_pattern(engine_config)
    classes = np.ones(len(trace), np.int64) if classes is None else classes
    ran = _run(trace, index, state, classes, limits, accept, step_time, windows_ns, caps, keeps_steps, cancel, noise)
    if ran.outcome == kernel.NEEDS_BLOCKS:
        limits = limits._replace(tracks_blocks=True)
        ran = _run(
            trace, index, state, classes, limits, accept, step_time, windows_ns, caps, keeps_steps, cancel, noise
        )
    kernel_seconds = time.perf_counter() - started
    if ran.outcome == kernel.CANCELLED:
        raise Cancelled
    rows, gaps, events = ran.requests, ran.gaps, ran.events
    gaps["request"] = index[gaps["request"]]
    events["request"] = index[events["request"]]

    def spread(values: npt.NDArray[Any], missing: float) -> npt.NDArray[Any]:
        """Per-request values of the replayed requests at their place in the trace."""
        if len(index) == len(trace):
            return np.ascontiguousarray(values)
        whole = np.full(len(trace), missing, values.dtype)
        whole[index] = values
        return whole

    seconds = {
        name: spread(np.where(rows[f"{name}_ns"] < 0, np.nan, rows[f"{name}_ns"] / 1e9), np.nan)
        for name in ("first_scheduled", "first_token", "last_token", "worst_gap")
    }
    return Replay(
        engine_config=engine_config,
        step_time=step_time,
        what_if=what_if,
        outcome=OUTCOMES[ran.outcome],
        never_runs=never_runs,
        arrival_s=trace.arrival_s,
        prompt_tokens=trace.prompt_tokens,
        first_scheduled_s=seconds["first_scheduled"],
        first_token_s=seconds["first_token"],
        last_token_s=seconds["last_token"],
        worst_gap_s=seconds["worst_gap"],
        last_token_step=spread(rows["last_token_step"], 0),
        num_outputs=spread(rows["num_outputs"], 0),
        is_finished=spread(rows["is_finished"], False),
        num_preemptions=spread(rows["num_preemptions"], 0),
        num_recomputed=spread(rows["num_recomputed"], 0),
        num_hit_tokens=spread(rows["num_hit_tokens"], 0),
        totals=Totals(*(int(ran.state[name]) for name in Totals._fields)),
        steps=ran.steps,
        shared_gaps=ran.shared,
        gaps=gaps,
        events=events,
        windows_ns=tuple(windows_ns),
        caps=ran.caps,
        end_s=int(ran.state["now_ns"]) / 1e9,
        kernel_seconds=kernel_seconds,
    )


def warm_up() -> None:
    """Compile the kernel, or load it from the cache, so that the next replay's time is its own."""
    one = np.ones(1, np.int64)
    hashes = PrefixHashes(one.copy(), np.arange(2), block_tokens=1)
    trace = RequestTrace(np.zeros(1), one, one.copy(), np.zeros(1, np.int64), prefix_hashes=hashes)
    replay(trace, EngineConfig(), StepTime(1, 0, 0))


def requests_that_never_run(trace: RequestTrace, engine_config: EngineConfig) -> npt.NDArray[np.bool_]:
    """Mark the requests that vLLM would refuse, or that need more KV blocks than there are.

    Returns
    -------
    (n,) bool

    Source
    ------
    vLLM 0.32, InputProcessor._validate_prompt_len (a prompt of `max_model_len` tokens or more is refused).
    The KV of the last output token is never computed, so a request needs blocks for one token less; drafts and a
    drafter's lookahead need room as well.
    """
    drafts = engine_config.num_speculative_tokens if engine_config.speculative_method is not None else 0
    ahead = drafts + (drafts if DRAFTERS[engine_config.speculative_method].owns_kv else 0)
    longest = trace.prompt_tokens + trace.output_tokens - 1 + ahead
    if engine_config.max_model_len is None:
        too_long = np.zeros(len(trace), np.bool_)
    else:
        too_long = trace.prompt_tokens >= engine_config.max_model_len
        longest = np.minimum(longest, engine_config.max_model_len)
    return too_long | (longest > engine_config.num_kv_tokens)


def limits_of(trace: RequestTrace, config: EngineConfig, tracks_blocks: bool, what_if: WhatIf = VLLM) -> kernel.Limits:
    """The settings as the kernel takes them."""
    drafter = DRAFTERS[config.speculative_method]
    num_drafts = config.num_speculative_tokens if config.speculative_method else 0
    return kernel.Limits(
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_scheduled_tokens=config.max_num_scheduled_tokens or config.max_num_batched_tokens,
        max_num_seqs=config.max_num_active_seqs or config.max_num_seqs,
        long_prefill_token_threshold=config.long_prefill_token_threshold,
        is_threshold_adaptive=config.long_prefill_token_threshold_adaptive,
        is_prefill_chunked=config.enable_chunked_prefill,
        max_model_len=config.max_model_len or NO_LIMIT,
        block_size=config.block_size,
        num_gpu_blocks=config.num_gpu_blocks,
        watermark_blocks=int(config.watermark * config.num_gpu_blocks),
        reserves_full_isl=config.scheduler_reserve_full_isl,
        is_async=config.async_scheduling,
        by_priority=config.scheduling_policy == "priority",
        caches_prefixes=config.enable_prefix_caching,
        tracks_blocks=tracks_blocks,
        num_spec_tokens=num_drafts,
        num_lookahead_tokens=num_drafts if drafter.owns_kv else 0,
        num_extra_inputs=drafter.num_extra_inputs,
        drops_last_hit=drafter.drops_last_hit,
        evicts_fewest_computed=what_if.evicts_fewest_computed,
        swaps=what_if.swap_ns_per_token is not None,
        swap_ns_per_token=what_if.swap_ns_per_token or 0,
    )


class _Ran(NamedTuple):
    """What one call of the kernel left behind."""

    outcome: int
    state: Any
    requests: npt.NDArray[Any]
    steps: npt.NDArray[Any]
    shared: npt.NDArray[Any]
    gaps: npt.NDArray[Any]
    events: npt.NDArray[Any]
    caps: npt.NDArray[Any]


def _run(
    trace: RequestTrace,
    index: npt.NDArray[np.intp],
    state: npt.NDArray[Any],
    classes: npt.NDArray[np.int64],
    limits: kernel.Limits,
    accept: npt.NDArray[np.int64],
    step_time: StepTime,
    windows_ns: Sequence[tuple[int, int]],
    caps: npt.NDArray[Any],
    keeps_steps: bool,
    cancel: npt.NDArray[np.uint8],
    noise: npt.NDArray[np.float64],
) -> _Ran:
    """Lay out the kernel's arrays for the requests at `index`, and run it."""
    rows, counted = request_rows(trace, index), caps.copy()
    rows["classes"] = classes[index]
    spans, paths, table = kernel_blocks(rows, beginnings_of(trace, index), limits)
    state[:] = 0
    outcome, steps, shared, gaps, events = kernel.replay(
        rows,
        state,
        spans,
        paths,
        table,
        accept,
        limits,
        typed(step_time),
        np.ascontiguousarray(noise),
        np.array(windows_ns, np.int64).reshape(-1, 2),
        counted,
        keeps_steps,
        MAX_STEPS,
        cancel,
    )
    return _Ran(outcome, state[0], rows, steps, shared, gaps, events, counted)


def typed(step_time: StepTime) -> StepTime:
    """The same coefficients in the declared types: numba would compile everything anew for a 0 that is no 0.0."""
    types = get_type_hints(StepTime)
    return StepTime(**{name: types[name](value) for name, value in step_time._asdict().items()})


class Beginnings(NamedTuple):
    """What n requests have in common, as `SharedPrefixes` has it."""

    branch: npt.NDArray[np.int64]
    """(s,) as there."""
    until_tokens: npt.NDArray[np.int64]
    """(s,) with how many of its tokens a request leaves the branch."""
    num_branches: npt.NDArray[np.int64]
    """(n,) how many of them are each request's."""
    num_tokens: npt.NDArray[np.int64]
    """(n,) how many leading tokens of each prompt another request has as well."""


def kernel_blocks(
    rows: npt.NDArray[Any], beginnings: Beginnings, limits: kernel.Limits
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.int64]]:
    """The kernel's `spans`, `paths` and `table`; without rows where blocks are a count only.

    Parameters
    ----------
    rows : (n,) kernel.REQUEST
        Get their places in `paths`.
    beginnings : Beginnings
        Of the same requests.
    limits : kernel.Limits
    """
    if not limits.tracks_blocks:
        return np.zeros(0, kernel.SPAN), np.zeros(0, kernel.PATH), np.zeros((0, 0), np.int64)
    rows["num_shared_blocks"] = beginnings.num_tokens // limits.block_size
    first_own = int(beginnings.branch.max(initial=-1)) + 1
    # A block is on the branch on which it ends; a branch that is shorter than a block may have none.
    request = np.repeat(np.arange(len(rows)), beginnings.num_branches)
    until = np.minimum(beginnings.until_tokens // limits.block_size, rows["num_shared_blocks"][request])
    is_first = np.diff(request, prepend=-1) > 0
    has_blocks = until > np.where(is_first, 0, np.roll(until, 1))
    num_paths = np.bincount(request[has_blocks], minlength=len(rows)) + 1
    last = np.cumsum(num_paths) - 1
    is_own = np.zeros(int(num_paths.sum()), np.bool_)
    is_own[last] = True
    paths = np.zeros(len(is_own), kernel.PATH)
    paths["branch"][~is_own], paths["until"][~is_own] = beginnings.branch[has_blocks], until[has_blocks]
    paths["branch"][is_own], paths["until"][is_own] = first_own + rows["identity"], kernel.NEVER
    rows["first_path"] = last - num_paths + 1
    # All its tokens, those in flight, and a drafter's lookahead.
    num_tokens = rows["prompt_tokens"] + rows["output_tokens"]
    most = int(num_tokens.max(initial=0)) + 2 + 4 * limits.num_spec_tokens
    width = min(most, limits.max_model_len) // limits.block_size + 2
    table = np.zeros((min(limits.max_num_seqs, len(rows)) + 1, width), np.int64)
    num_spans = max(limits.num_gpu_blocks, first_own + int(rows["identity"].max(initial=0)) + 1)
    return np.zeros(num_spans, kernel.SPAN), paths, table


def beginnings_of(trace: RequestTrace, index: npt.NDArray[np.intp]) -> Beginnings:
    """What the trace says of shared prefixes, for the requests at `index`."""
    hashes = trace.prefix_hashes
    if hashes is None:
        nothing = np.zeros(len(index), np.int64)
        return Beginnings(nothing[:0], nothing[:0], nothing, nothing)
    shared = hashes.shared.at(index)
    num_tokens = np.minimum(shared.num_ids * hashes.block_tokens, trace.prompt_tokens[index])
    return Beginnings(shared.branch, shared.until * hashes.block_tokens, np.diff(shared.offsets), num_tokens)


def acceptance_pattern(config: EngineConfig) -> npt.NDArray[np.int64]:
    """How many drafts are accepted, turn by turn: each with the stated rate until the first that is not.

    A seeded pattern of prime length, so that requests do not fall into step with each other.
    """
    if config.num_speculative_tokens == 0:
        return np.zeros(1, np.int64)
    draws = np.random.default_rng(0).random((997, config.num_speculative_tokens))
    return np.asarray(np.cumprod(draws < config.draft_acceptance_rate, axis=1).sum(axis=1), np.int64)


def request_rows(trace: RequestTrace, index: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
    """Fresh kernel rows for the requests at `index`."""
    rows = np.zeros(len(index), kernel.REQUEST)
    rows["arrival_ns"] = np.rint(trace.arrival_s[index] * 1e9)
    rows["prompt_tokens"] = rows["num_known"] = trace.prompt_tokens[index]
    rows["output_tokens"] = rows["max_tokens"] = trace.output_tokens[index]
    rows["identity"] = index
    if trace.max_tokens is not None:
        rows["max_tokens"] = trace.max_tokens[index]
    if trace.priority is not None:
        rows["priority"] = trace.priority[index]
    for name in ("first_scheduled_ns", "first_token_ns", "last_token_ns", "worst_gap_ns"):
        rows[name] = -1
    return rows
