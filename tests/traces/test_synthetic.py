"""The samples are what the generators make, and what they say they are."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from traces.read import read_steps, read_trace
from traces.synthetic import (
    LOG_SAMPLE,
    TRACE_SAMPLE,
    TRUTH,
    server_log,
    write_samples,
)
from traces.workload import CHAT_WITH_LONG_PROMPTS, make_trace


def test_shipped_samples_are_what_the_generators_make(tmp_path: Path) -> None:
    write_samples(tmp_path)
    assert pq.read_table(tmp_path / TRACE_SAMPLE.name).equals(pq.read_table(TRACE_SAMPLE))
    assert (tmp_path / LOG_SAMPLE.name).read_text() == LOG_SAMPLE.read_text()
    assert TRACE_SAMPLE.stat().st_size < 400_000
    assert LOG_SAMPLE.stat().st_size < 400_000


def test_shipped_trace_reads_without_a_question_or_a_notice() -> None:
    trace = read_trace(TRACE_SAMPLE, TRACE_SAMPLE.name)
    assert trace.digest == make_trace(CHAT_WITH_LONG_PROMPTS).digest
    assert trace.receipt is not None
    assert trace.receipt.notices == ()


def test_another_seed_is_another_log() -> None:
    assert server_log(seed=1, num_steps=9) != server_log(seed=2, num_steps=9)


def test_log_says_its_flags_and_its_truth() -> None:
    steps = read_steps(LOG_SAMPLE, LOG_SAMPLE.name)
    facts = steps.facts
    assert facts.vllm_version == "0.32.0"
    assert (facts.max_num_batched_tokens, facts.max_num_seqs, facts.long_prefill_token_threshold) == (8192, 256, 0)
    assert (facts.num_gpu_blocks, facts.block_size) == (TRUTH.num_gpu_blocks, TRUTH.block_size)
    assert facts.async_scheduling is False
    assert steps.kv_usage is not None
    # The blocks that decodes hold, from the printed usage; what prefills hold is known.
    usable_tokens = (TRUTH.num_gpu_blocks - 1) * TRUTH.block_size
    context = steps.kv_usage * usable_tokens - steps.prefill_tokens - 8 * steps.num_decode_reqs
    expected_s = (
        TRUTH.base_s
        + TRUTH.per_seq_s * (steps.num_decode_reqs + steps.num_prefill_reqs)
        + TRUTH.per_prefill_token_s * steps.prefill_tokens
        + TRUTH.per_kv_token_s * context
    )
    assert np.quantile(np.abs(steps.step_s / expected_s - 1), 0.95) < 2.5 * TRUTH.noise
    assert abs(np.mean(steps.step_s / expected_s) - 1) < 0.005
    assert steps.num_decode_reqs.min() >= 1
    assert steps.num_decode_reqs.max() == 64
    assert steps.prefill_tokens[steps.prefill_tokens > 0].min() >= 16
    assert 1_500 < steps.prefill_tokens.max() <= 2_048
