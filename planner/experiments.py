"""The two reference experiments that the project started from, as configurations of the same kernel.

A: 48 chats of 1,000 + 250 tokens at 0 s; at 3 s a prompt of 32,000 tokens with 20 outputs; at 3.001 s six of 600 + 20.
B: 32 requests of 400 + 600 tokens at once on 1,200 usable KV blocks.

Both: 8 ms + 0.06 ms per sequence + 20 ms per 1,000 prefill tokens; synchronous scheduling, no prefix cache, no
reservation at admission.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from planner.engine_config import EngineConfig
from planner.metrics import distribution, itl_of_requests, summarise, ttft_s
from planner.replay import VLLM, replay
from planner.step_time import StepTime
from planner.what_if import WhatIf
from traces.requests import RequestTrace

STEP_TIME = StepTime(base_ns=8_000_000, per_seq_ns=60_000, per_prefill_token_ns=20_000)
"""The step-time model of both experiments."""
SETTINGS_A = ((2048, 0), (8192, 0), (32_768, 0), (8192, 2048))
"""(max_num_batched_tokens, long_prefill_token_threshold) of the published rows of A."""
SETTINGS_B = (32, 24, 16)
"""max_num_seqs of the published rows of B."""
NUM_CHATS = 48
"""Chats of A; the ITL columns are theirs."""
NUM_SHORT = 6
"""Short prompts of A; they arrive last."""
ORCA_BUDGET = 65_536
"""Above all prompts of A together, so that none is ever cut."""
SARATHI_BUDGET = 512
"""Tokens a step under a strict latency target. Source: Agrawal et al. 2024, Sarathi-Serve, section 5."""
SWAP_NS_PER_TOKEN = 5243
"""128 KiB of KV per token (32 layers, 8 KV heads of 128, 16 bit) over 25 GB/s of PCIe 4.0 x16."""


@dataclass(frozen=True, slots=True)
class RowA:
    """One row of experiment A."""

    max_num_batched_tokens: int
    """Budget, tokens."""
    long_prefill_token_threshold: int
    """Threshold, tokens."""
    long_ttft_s: float
    """TTFT of the long prompt."""
    short_ttft_s: float
    """Mean TTFT of the six short prompts."""
    itl_p50_s: float
    """Gaps of the 48 chats, pooled, like the next two."""
    itl_p99_s: float
    """99th percentile."""
    itl_max_s: float
    """Worst gap."""


@dataclass(frozen=True, slots=True)
class RowB:
    """One row of experiment B."""

    max_num_seqs: int
    """Seats."""
    num_preemptions: int
    """Over all requests."""
    num_recomputed_tokens: int
    """Computed tokens lost to preemptions."""
    worst_gap_s: float
    """Longest gap of any request."""
    makespan_s: float
    """First arrival to last token."""


def run_experiment_a(max_num_batched_tokens: int, long_prefill_token_threshold: int) -> RowA:
    """Replay experiment A with one budget and threshold."""
    return _row_a(_config(max_num_batched_tokens, long_prefill_token_threshold=long_prefill_token_threshold))


def run_experiment_b(max_num_seqs: int) -> RowB:
    """Replay experiment B with one number of seats."""
    return _row_b(max_num_seqs, VLLM)


def what_if_rows_a() -> tuple[tuple[str, RowA], ...]:
    """Experiment A under other policies, each with its name.

    Source
    ------
    Orca (Yu et al. 2022): batches change at every iteration, prompts are computed whole. Sarathi-Serve (Agrawal et
    al. 2024): decodes first, prompts in chunks of what the budget leaves. Differs: both are presets of vLLM's
    switches, memory is paged as in vLLM.
    """
    is_short = np.arange(NUM_CHATS + 1 + NUM_SHORT) > NUM_CHATS
    by_priority = replace(_config(8192), scheduling_policy="priority")
    return (
        ("short prompts at priority 0, the rest at 1", _row_a(by_priority, np.where(is_short, 0, 1))),
        ("Orca: no chunked prefill", _row_a(replace(_config(ORCA_BUDGET), enable_chunked_prefill=False))),
        (f"Sarathi-Serve: decodes first, {SARATHI_BUDGET} tokens a step", _row_a(_config(SARATHI_BUDGET))),
    )


def what_if_rows_b() -> tuple[tuple[str, RowB], ...]:
    """Experiment B under other ways to make room, each with its name."""
    fewest = WhatIf(evicts_fewest_computed=True)
    swap = WhatIf(swap_ns_per_token=SWAP_NS_PER_TOKEN)
    crowded = SETTINGS_B[:2]
    return (
        *(("victim: fewest computed tokens", _row_b(seats, fewest)) for seats in crowded),
        *((f"swap to CPU memory, {SWAP_NS_PER_TOKEN / 1e3:.1f} µs a token", _row_b(seats, swap)) for seats in crowded),
    )


def _row_a(config: EngineConfig, priority: npt.NDArray[np.int64] | None = None) -> RowA:
    """Replay experiment A."""
    trace = _trace([(0.0, 1000, 250)] * NUM_CHATS + [(3.0, 32_000, 20)] + [(3.001, 600, 20)] * NUM_SHORT, priority)
    run = replay(trace, config, STEP_TIME, keeps_steps=False)
    gaps = itl_of_requests(run, np.arange(len(trace)) < NUM_CHATS)
    return RowA(
        config.max_num_batched_tokens,
        config.long_prefill_token_threshold,
        long_ttft_s=float(ttft_s(run)[NUM_CHATS]),
        short_ttft_s=float(ttft_s(run)[NUM_CHATS + 1 :].mean()),
        itl_p50_s=gaps.percentile(0.5),
        itl_p99_s=gaps.percentile(0.99),
        itl_max_s=float(gaps.value_s[-1]),
    )


def _row_b(max_num_seqs: int, what_if: WhatIf) -> RowB:
    """Replay experiment B."""
    trace = _trace([(0.0, 400, 600)] * 32)
    config = _config(max_num_batched_tokens=8192, max_num_seqs=max_num_seqs, num_gpu_blocks=1201)
    run = replay(trace, config, STEP_TIME, what_if=what_if)
    summary = summarise(run, itl_target_s=1.0)
    return RowB(
        max_num_seqs,
        summary.num_preemptions,
        summary.num_recomputed_tokens,
        float(distribution(run.worst_gap_s).value_s[-1]),
        summary.makespan_s,
    )


def _config(
    max_num_batched_tokens: int,
    max_num_seqs: int = 256,
    long_prefill_token_threshold: int = 0,
    num_gpu_blocks: int = 40_001,
) -> EngineConfig:
    """The teaching model's scheduler: everything newer switched off."""
    return EngineConfig(
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        long_prefill_token_threshold=long_prefill_token_threshold,
        num_gpu_blocks=num_gpu_blocks,
        async_scheduling=False,
        enable_prefix_caching=False,
        scheduler_reserve_full_isl=False,
    )


def _trace(rows: list[tuple[float, int, int]], priority: npt.NDArray[np.int64] | None = None) -> RequestTrace:
    """A trace from (arrival in seconds, prompt tokens, output tokens)."""
    table = np.array(rows)
    return RequestTrace(
        arrival_s=table[:, 0],
        prompt_tokens=table[:, 1].astype(np.int64),
        output_tokens=table[:, 2].astype(np.int64),
        source_row=np.arange(len(rows)),
        priority=priority,
    )
