"""The samples are what the generators make, and what they say they are."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from traces.read import read_steps, read_trace
from traces.synthetic import (
    LOG_SAMPLE,
    TRACE_SAMPLE,
    TRUTH,
    chat_with_long_prompts,
    server_log,
    write_samples,
)


def test_shipped_samples_are_what_the_generators_make(tmp_path: Path) -> None:
    write_samples(tmp_path)
    assert pq.read_table(tmp_path / TRACE_SAMPLE.name).equals(pq.read_table(TRACE_SAMPLE))
    assert (tmp_path / LOG_SAMPLE.name).read_text() == LOG_SAMPLE.read_text()
    assert TRACE_SAMPLE.stat().st_size < 400_000
    assert LOG_SAMPLE.stat().st_size < 400_000


def test_shipped_trace_reads_without_a_question_or_a_notice() -> None:
    trace = read_trace(TRACE_SAMPLE, TRACE_SAMPLE.name)
    assert trace.digest == chat_with_long_prompts().digest
    assert trace.receipt is not None
    assert trace.receipt.notices == ()


def test_trace_is_a_chat_with_long_prompts_well_below_capacity() -> None:
    trace = chat_with_long_prompts()
    assert 600 <= len(trace) <= 2_000
    assert 0.04 < (trace.prompt_tokens >= 4_000).mean() < 0.12
    assert trace.prompt_tokens.max() + trace.output_tokens.max() < TRUTH.max_model_len
    assert trace.prompt_tokens.sum() / trace.span_s * TRUTH.per_prefill_token_s < 0.4


def test_another_seed_is_another_trace() -> None:
    assert chat_with_long_prompts(seed=1).digest != chat_with_long_prompts(seed=2).digest
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
