"""vLLM's own log lines, as text and JSON, of old and new versions."""

import json

import numpy as np
import pytest

from traces.errors import UnreadableFile
from traces.read import read_steps
from traces.server_log import is_server_log, parse_server_log

PREFIX = "(APIServer pid=1) INFO 03-02 09:15:00 [loggers.py:199] Engine 000: "


def line(iteration: int, prefill: int = 0, decodes: int = 4, tokens: int | None = None, kv: str = "1.5") -> str:
    return (
        f"Iteration({iteration}): {int(prefill > 0)} context requests, {prefill} context tokens, "
        f"{decodes} generation requests, {decodes if tokens is None else tokens} generation tokens, "
        f"iteration elapsed time: 10.25 ms, GPU KV cache usage: {kv}%"
    )


def test_text_and_json_lines_say_the_same() -> None:
    text = "".join(f"{PREFIX}{line(step, step * 8)}\n" for step in range(5))
    as_json = "".join(
        json.dumps({"asctime": "2026-03-02 09:15:00,123", "message": f"Engine 000: {line(step, step * 8)}"}) + "\n"
        for step in range(5)
    )
    from_text, from_json = read_steps(text.encode(), "a"), read_steps(as_json.encode(), "b")
    np.testing.assert_array_equal(from_text.prefill_tokens, from_json.prefill_tokens)
    assert from_text.prefill_tokens.tolist() == [0, 8, 16, 24, 32]
    assert from_text.kv_usage is not None
    np.testing.assert_allclose(from_text.kv_usage, 0.015)
    np.testing.assert_allclose(from_text.step_s, 0.01025)


def test_lines_of_an_old_version_have_no_kv_usage() -> None:
    old = (
        "(EngineCore_DP0 pid=2) INFO 12-22 21:44:40 [core.py:349] Iteration(515): 0 context requests, "
        "0 context tokens, 20 generation requests, 20 generation tokens, iteration elapsed time: 10.99 ms\n"
    )
    steps = read_steps(old.encode(), "old.log")
    assert steps.kv_usage is None
    assert steps.num_decode_reqs.tolist() == [20]
    assert steps.facts.max_num_seqs is None


def test_facts() -> None:
    log = parse_server_log(
        "INFO [api_utils.py] version 0.32.0\n"
        "INFO [api_utils.py] non-default args: {'model': 'm', 'max_model_len': 8192, 'max_num_batched_tokens': 2048, "
        "'max_num_seqs': 64, 'async_scheduling': False, 'long_prefill_token_threshold': 256}\n"
        "INFO [kv_cache_utils.py] GPU KV cache size: 640,016 tokens, Maximum concurrency\n"
        f"{PREFIX}{line(0)}\n"
    )
    facts = log.facts
    assert facts.vllm_version == "0.32.0"
    assert (facts.max_num_batched_tokens, facts.max_num_seqs, facts.long_prefill_token_threshold) == (2048, 64, 256)
    assert facts.async_scheduling is False
    assert facts.enable_prefix_caching is None
    assert facts.block_size is None
    assert facts.num_gpu_blocks == 40_001
    assert any("default of 16" in notice for notice in log.notices)


def test_the_last_of_two_starts_counts() -> None:
    start = "INFO non-default args: {{'max_num_seqs': {}, 'block_size': 32, 'num_gpu_blocks_override': {}}}\n"
    text = start.format(8, 100) + f"{PREFIX}{line(0)}\n{PREFIX}{line(1)}\n" + start.format(16, 200) + PREFIX + line(0)
    log = parse_server_log(text)
    assert (log.facts.max_num_seqs, log.facts.num_gpu_blocks) == (16, 200)
    assert any("restarted" in notice for notice in log.notices)
    assert log.line.tolist() == [1, 2, 4]


def test_engines_are_pooled_and_said() -> None:
    text = f"Engine 000: {line(0)}\nEngine 001: {line(0)}\nEngine 000: {line(1)}\n"
    log = parse_server_log(text)
    assert len(log.line) == 3
    assert "engine 000: 2 steps, engine 001: 1 steps" in log.notices[0]


def test_what_is_left_out_is_said() -> None:
    lines = [line(0), line(1, decodes=0), line(2, decodes=3, tokens=400), line(3), line(4), line(5)[:40]]
    steps = read_steps("\n".join(PREFIX + one for one in lines).encode(), "server.log")
    assert steps.receipt is not None
    assert steps.source_row.tolist() == [0, 2, 3, 4]
    assert steps.recomputes.tolist() == [False, True, False, False]
    assert {dropped.rows for dropped in steps.receipt.dropped} == {(1,), (5,)}


def test_speculative_decoding_is_said() -> None:
    text = "\n".join(PREFIX + line(step, tokens=9) for step in range(4))
    steps = read_steps(text.encode(), "server.log")
    assert len(steps) == 4
    assert steps.receipt is not None
    assert "speculation" in steps.receipt.notices[0]


def test_a_log_without_iteration_lines_says_how_to_get_them() -> None:
    text = b"INFO non-default args: {'max_num_seqs': 4}\nINFO Avg prompt throughput: 410.1 tokens/s\n"
    assert is_server_log(text)
    with pytest.raises(UnreadableFile, match="--enable-logging-iteration-details"):
        read_steps(text, "server.log")
