"""Small replays that hypothesis thinks of, as the product makes them."""

from unittest.mock import patch

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from planner.engine_config import EngineConfig
from planner.replay import Replay, replay
from planner.step_time import StepTime
from traces.requests import RequestTrace

SYNC = EngineConfig(max_num_batched_tokens=100, max_num_seqs=8, async_scheduling=False, enable_prefix_caching=False)
TEN_MS_PLUS_ONE_PER_TOKEN = StepTime(10_000_000, 0, 1_000_000)


@st.composite
def replays(draw) -> tuple[RequestTrace, Replay]:
    """Tight pools and budgets, so that everybody waits for everything."""
    num_blocks = draw(st.integers(8, 30))
    request = st.tuples(st.integers(0, 40), st.integers(1, 4 * num_blocks), st.integers(1, 12), st.integers(0, 2))
    rows = np.array(sorted(draw(st.lists(request, min_size=1, max_size=8))))
    num_seqs = draw(st.integers(1, 6))
    method = draw(st.sampled_from([None, None, None, "ngram", "eagle", "draft_model"]))
    if method is not None:
        # With drafts a request that only just fits preempts itself for ever: they want blocks beyond its last token.
        rows[:, 1] = np.minimum(rows[:, 1], max(1, 4 * num_blocks - 40))
    trace = RequestTrace(rows[:, 0] * 0.003, rows[:, 1], rows[:, 2], np.arange(len(rows)), priority=rows[:, 3].copy())
    config = EngineConfig(
        max_num_batched_tokens=num_seqs + draw(st.integers(1, 40)),
        max_num_seqs=num_seqs,
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 3, 10])),
        num_gpu_blocks=num_blocks,
        block_size=4,
        async_scheduling=draw(st.booleans()) and method != "ngram",
        enable_prefix_caching=draw(st.booleans()),
        scheduler_reserve_full_isl=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.2])),
        enable_chunked_prefill=draw(st.sampled_from([True, True, False])),
        scheduling_policy=draw(st.sampled_from(["fcfs", "priority"])),
        speculative_method=method,
        num_speculative_tokens=0 if method is None else draw(st.integers(1, 3)),
    )
    step_time = draw(st.sampled_from([TEN_MS_PLUS_ONE_PER_TOKEN, StepTime(1_000_000, 7, 300, 11.5, 0.25, 0.5, 0.125)]))
    # Three requests on too small a pool may preempt each other for ever; such a replay has no end to look at.
    with patch("planner.replay.MAX_STEPS", 5000):
        run = replay(trace, config, step_time)
    assume(run.outcome != "step_limit")
    return trace, run
