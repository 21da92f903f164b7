"""Which flags had a say in a logged step: with those that never had, a log is explained whatever their values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from planner import kernel
from planner.engine_config import EngineConfig
from planner.stepper import Engine

FLAGS = (
    "max_num_batched_tokens",
    "max_num_scheduled_tokens",
    "max_num_seqs",
    "max_num_active_seqs",
    "long_prefill_token_threshold",
    "num_gpu_blocks",
    "scheduler_reserve_full_isl",
    "watermark",
    "enable_prefix_caching",
)
"""What is looked at, in this order."""


@dataclass(frozen=True, slots=True)
class FlagUse:
    """How often a flag acted in a log."""

    name: str
    """The setting under vLLM's name."""
    value: int | float | bool
    """What it was set to."""
    num_steps: int
    """Explained steps that would have been others without it; 0 = the log says nothing of it."""
    most: int | None
    """The most that any step asked of it; None where that is no number."""


def flags_acting(engine: Engine, now_s: float) -> npt.NDArray[np.bool_]:
    """Which of `FLAGS` had a say in the step that an engine just scheduled.

    Parameters
    ----------
    engine : Engine
    now_s : float
        When it was scheduled, on the trace's clock: who had been sent by then and was not admitted was held.

    Returns
    -------
    (len(FLAGS),) bool
    """
    state, limits = engine.state[0], engine.limits
    entries = engine.last_entries
    is_cut = engine.requests["is_chunk"][entries["request"]]
    is_at_threshold = is_cut & (entries["tokens"] == state["threshold"])
    has_no_tokens = state["token_budget"] <= 0
    has_no_budget = has_no_tokens or state["input_budget"] <= limits.num_extra_inputs
    num_before = state["num_running"] - entries["is_admission"].sum()
    is_short = bool((is_cut & ~is_at_threshold).any()) or (has_no_budget and state["index"] < num_before)
    has_no_seat, has_no_blocks = False, state["num_preempted"] > 0
    is_reserved = is_kept_free = False
    row = _head(engine, now_s)
    if row is not None and not has_no_blocks:
        has_no_seat = state["num_running"] >= limits.max_num_seqs
        if not has_no_seat and has_no_budget:
            is_short = True
        elif not has_no_seat:
            num_tokens, num_hits = _wanted(engine, row)
            most = min(state["token_budget"], state["input_budget"] - limits.num_extra_inputs)
            if num_tokens > most and not limits.is_prefill_chunked:
                is_short = True
            else:
                request, num_tokens = engine.requests[row], min(num_tokens, most)
                freer = limits._replace(watermark_blocks=0), limits._replace(reserves_full_isl=False)
                may, without_watermark, without_reservation = (
                    kernel.may_admit(request, state, one, num_tokens, num_hits) for one in (limits, *freer)
                )
                has_no_blocks = not may
                is_kept_free, is_reserved = not may and without_watermark, not may and without_reservation
    scheduled_apart = limits.max_num_scheduled_tokens < limits.max_num_batched_tokens
    has_hits = entries["is_admission"] & (engine.requests["num_computed"][entries["request"]] > entries["tokens"])
    return np.array(
        [
            is_short and not (scheduled_apart and has_no_tokens),
            is_short and scheduled_apart and has_no_tokens,
            has_no_seat,
            has_no_seat,
            is_at_threshold.any() and state["threshold"] > 0,
            has_no_blocks or _misses_what_was_evicted(engine),
            is_reserved,
            is_kept_free,
            has_hits.any(),
        ],
        np.bool_,
    )


def _misses_what_was_evicted(engine: Engine) -> bool:
    """Whether somebody just admitted would have found more in the prefix cache, had nothing been evicted."""
    limits, entries = engine.limits, engine.last_entries
    if not limits.tracks_blocks:
        return False
    is_missed = False
    for entry in entries[entries["is_admission"]]:
        request = engine.requests[entry["request"]]
        missed = int(request["num_computed"] - entry["tokens"]) // limits.block_size + limits.drops_last_hit
        if missed < min((request["num_known"] - 1) // limits.block_size, request["num_shared_blocks"]):
            is_missed |= engine.was_cached.get(int(kernel.branch_of(request, missed, engine.paths)), 0) > missed
    for request in engine.requests[entries["request"][entries["tokens"] > 1]]:
        held = engine.table[request["slot"], : request["num_spans"]]
        for branch, until in zip(
            engine.spans["branch"][held >> 32].tolist(), (held & 0xFFFFFFFF).tolist(), strict=True
        ):
            engine.was_cached[branch] = max(until, engine.was_cached.get(branch, 0))
    return is_missed


def _head(engine: Engine, now_s: float) -> int | None:
    """Who waits first: in the queue, or who was sent by now."""
    state = engine.state[0]
    if kernel.num_waiting(state) > 0:
        return int(kernel.queue_head(state, engine.queue, engine.limits))
    row = engine.num_let_in
    return row if row < len(engine.order) and engine.arrival_s[engine.order[row]] <= now_s else None


def _wanted(engine: Engine, row: int) -> tuple[int, int]:
    """Tokens that a waiting request would be given if the budget allows, and blocks it finds in the prefix cache."""
    limits, state, request = engine.limits, engine.state[0], engine.requests[row]
    num_hits = kernel.look_up(request, state, engine.spans, engine.paths, engine.table, limits)
    num_tokens = int(request["num_known"] - request["num_computed"]) - num_hits * limits.block_size
    return (min(num_tokens, int(state["threshold"])) if state["threshold"] > 0 else num_tokens), num_hits


def flag_uses(
    engine_config: EngineConfig, acting: npt.NDArray[np.bool_], steps: npt.NDArray[Any]
) -> tuple[FlagUse, ...]:
    """How often each flag that is set acted.

    Parameters
    ----------
    engine_config : EngineConfig
    acting : (k, len(FLAGS)) bool
        From `flags_acting`, for explained steps.
    steps : (k,) kernel.STEP
    """
    tokens = steps["prefill_tokens"] + steps["num_decodes"] + steps["num_draft_tokens"]
    most = {
        "max_num_batched_tokens": tokens,
        "max_num_scheduled_tokens": tokens,
        "max_num_seqs": steps["num_running"],
        "max_num_active_seqs": steps["num_running"],
        "num_gpu_blocks": engine_config.num_gpu_blocks - steps["num_free_blocks"],
    }
    uses = []
    for name, num_steps in zip(FLAGS, acting.sum(axis=0).tolist(), strict=True):
        value = getattr(engine_config, name)
        if name == "max_num_seqs" and engine_config.max_num_active_seqs is not None:
            num_steps = 0  # the cap below it acts
        if value:
            uses.append(FlagUse(name, value, num_steps, int(most[name].max(initial=0)) if name in most else None))
    return tuple(uses)


def flags_sentence(uses: Sequence[FlagUse]) -> str:
    """What a log says of each flag, and of which it says nothing."""
    acted = [
        f"{use.name} in {use.num_steps:,} {'step' if use.num_steps == 1 else 'steps'}" for use in uses if use.num_steps
    ]
    never = [
        use.name
        + ("" if isinstance(use.value, bool) else f" {use.value:,}")
        + ("" if use.most is None else f" (at most {use.most:,} needed)")
        for use in uses
        if use.num_steps == 0
    ]
    said = [f"Flags that acted: {', '.join(acted)}."] if acted else []
    if never:
        said.append(f"Never acted, so this log does not test them: {', '.join(never)}.")
    return " ".join(said)
