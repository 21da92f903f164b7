"""One replay of a trace through the scheduler."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from planner import kernel
from planner.engine_config import EngineConfig, check_flags
from planner.errors import Cancelled
from planner.step_time import StepTime
from traces.requests import RequestTrace

MAX_STEPS = 10_000_000
"""A replay stops here; about 1 GB of step rows, far above any real trace that moves at all."""
NO_LIMIT = 1 << 40
"""Stands for a context length that is not bounded, tokens."""
OUTCOMES = {kernel.DONE: "done", kernel.STALLED: "stalled", kernel.STEP_LIMIT: "step_limit"}
"""How a replay can end, in words."""


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """What happened, per request of the trace (n) and per engine step (k). Times count from the trace's zero."""

    engine_config: EngineConfig
    """The settings replayed."""
    step_time: StepTime
    """The step-time model charged."""
    outcome: str
    """ "done"; "stalled" when waiting requests can never be admitted; "step_limit" after `MAX_STEPS`."""
    never_runs: npt.NDArray[np.bool_]
    """(n,) requests that cannot run under these settings at all; they were left out of the replay."""
    arrival_s: npt.NDArray[np.float64]
    """(n,) seconds."""
    first_scheduled_s: npt.NDArray[np.float64]
    """(n,) seconds; NaN when it never happened, like the next three."""
    first_token_s: npt.NDArray[np.float64]
    """(n,) seconds."""
    last_token_s: npt.NDArray[np.float64]
    """(n,) seconds; the last token that appeared."""
    worst_gap_s: npt.NDArray[np.float64]
    """(n,) seconds; NaN below two tokens."""
    num_outputs: npt.NDArray[np.int64]
    """(n,) tokens delivered."""
    is_finished: npt.NDArray[np.bool_]
    """(n,) whether all of it was delivered."""
    num_preemptions: npt.NDArray[np.int64]
    """(n,)"""
    num_recomputed: npt.NDArray[np.int64]
    """(n,) computed tokens lost to preemptions."""
    steps: npt.NDArray[Any]
    """(k,) `kernel.STEP`."""
    gaps: npt.NDArray[Any]
    """(g,) `kernel.GAP`: gaps not counted in `steps`, rows of `request` as in the trace."""
    events: npt.NDArray[Any]
    """(e,) `kernel.EVENT`, empty unless asked for; rows of `request` as in the trace."""
    end_s: float
    """The clock at the end."""
    kernel_seconds: float
    """Wall time of the compiled replay alone."""


def replay(
    trace: RequestTrace,
    engine_config: EngineConfig,
    step_time: StepTime,
    *,
    records_events: bool = False,
    cancel: npt.NDArray[np.uint8] | None = None,
) -> Replay:
    """Replay `trace` through vLLM's scheduler and return when each token appeared.

    Every request is taken to end on its length limit (`max_tokens` = its output tokens), which the
    scheduler foresees. A request that can never run is left out and marked, the rest is replayed.

    Parameters
    ----------
    trace : RequestTrace
        n requests, ordered by arrival.
    engine_config : EngineConfig
        Checked as vLLM checks it at start-up.
    step_time : StepTime
        Calibrated coefficients; outside `StepTimeFit.covered` this extrapolates.
    records_events : bool
        Whether to keep who ran in each step.
    cancel : (1,) uint8, optional
        The replay stops soon after another thread makes it non-zero.

    Raises
    ------
    BadFlags, NotSimulated
        From `check_flags`.
    Cancelled
        After `cancel`.

    Source
    ------
    vLLM 0.32, v1/core/sched/scheduler.py and v1/engine/core.py; see `planner.kernel`.
    """
    check_flags(engine_config)
    never_runs = requests_that_never_run(trace, engine_config)
    index = np.flatnonzero(~never_runs)
    rows = _request_rows(trace, index)
    state = np.zeros(1, kernel.ENGINE)
    started = time.perf_counter()
    outcome, steps, gaps, events = kernel.replay(
        rows,
        state,
        limits_of(engine_config),
        step_time,
        records_events,
        MAX_STEPS,
        np.zeros(1, np.uint8) if cancel is None else cancel,
    )
    kernel_seconds = time.perf_counter() - started
    if outcome == kernel.CANCELLED:
        raise Cancelled
    gaps["request"] = index[gaps["request"]]
    events["request"] = index[events["request"]]

    def spread(values: npt.NDArray[Any], missing: float) -> npt.NDArray[Any]:
        """Per-request values of the replayed requests at their place in the trace."""
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
        outcome=OUTCOMES[outcome],
        never_runs=never_runs,
        arrival_s=trace.arrival_s,
        first_scheduled_s=seconds["first_scheduled"],
        first_token_s=seconds["first_token"],
        last_token_s=seconds["last_token"],
        worst_gap_s=seconds["worst_gap"],
        num_outputs=spread(rows["num_outputs"], 0),
        is_finished=spread(rows["is_finished"], False),
        num_preemptions=spread(rows["num_preemptions"], 0),
        num_recomputed=spread(rows["num_recomputed"], 0),
        steps=steps,
        gaps=gaps,
        events=events,
        end_s=float(state["now_ns"][0]) / 1e9,
        kernel_seconds=kernel_seconds,
    )


def warm_up() -> None:
    """Compile the kernel, or load it from the cache, so that the next replay's time is its own."""
    one = np.ones(1, np.int64)
    trace = RequestTrace(np.zeros(1), one, one.copy(), np.zeros(1, np.int64))
    replay(trace, EngineConfig(), StepTime(1, 0, 0))


def requests_that_never_run(trace: RequestTrace, engine_config: EngineConfig) -> npt.NDArray[np.bool_]:
    """Mark the requests that vLLM would refuse, or that need more KV blocks than there are.

    Returns
    -------
    (n,) bool

    Source
    ------
    vLLM 0.32, InputProcessor._validate_prompt_len (a prompt of `max_model_len` tokens or more is refused).
    The KV of the last output token is never computed, so a request needs blocks for one token less.
    """
    longest = trace.prompt_tokens + trace.output_tokens - 1
    if engine_config.max_model_len is None:
        too_long = np.zeros(len(trace), np.bool_)
    else:
        too_long = trace.prompt_tokens >= engine_config.max_model_len
        longest = np.minimum(longest, engine_config.max_model_len)
    return too_long | (longest > engine_config.num_kv_tokens)


def table_width(longest_tokens: int, limits: kernel.Limits) -> int:
    """Most KV blocks one request ever holds: all its tokens, the tokens in flight, and a drafter's lookahead."""
    most = longest_tokens + 2 + 4 * limits.num_spec_tokens
    return min(most, limits.max_model_len) // limits.block_size + 2


def limits_of(engine_config: EngineConfig) -> kernel.Limits:
    """The settings as the kernel takes them."""
    config = engine_config
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
    )


def _request_rows(trace: RequestTrace, index: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
    """Fresh kernel rows for the requests at `index`."""
    rows = np.zeros(len(index), kernel.REQUEST)
    rows["arrival_ns"] = np.rint(trace.arrival_s[index] * 1e9)
    rows["prompt_tokens"] = rows["num_known"] = trace.prompt_tokens[index]
    rows["output_tokens"] = rows["max_tokens"] = trace.output_tokens[index]
    for name in ("first_scheduled_ns", "first_token_ns", "last_token_ns", "worst_gap_ns"):
        rows[name] = -1
    return rows
