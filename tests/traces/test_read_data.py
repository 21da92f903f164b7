"""Public traces, step logs and files of other tools: read with the right totals, or refused in words."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from shared import files, shared_path

from traces.answers import ReadAnswers
from traces.errors import InputError
from traces.read import read_steps, read_trace
from traces.requests import RequestTrace
from traces.server_log import ITERATION_START
from traces.steps import StepLog

TOKEN_COLUMNS = {
    "azure": ("ContextTokens", "GeneratedTokens"),
    "mooncake": ("input_length", "output_length"),
    "vllm_bench": ("input_length", "output_length"),
    "servegen": ("input_tokens", "output_tokens"),
    "litellm": ("prompt_tokens", "completion_tokens"),
    "burstgpt": ("Request tokens", "Response tokens"),
    "vidur": ("num_prefill_tokens", "num_decode_tokens"),
    "llmservingsim": ("input_toks", "output_toks"),
    "requests": ("input_toks", "output_toks"),
}
READERS = {".parquet": pd.read_parquet, ".csv": pd.read_csv, ".jsonl": lambda path: pd.read_json(path, lines=True)}


def token_columns(path: Path) -> tuple[str, str] | None:
    name = path.name.replace("dynamo_replay_mooncake", "mooncake").replace("dynamo_mooncake", "mooncake")
    name = name.replace("aiperf_mooncake", "mooncake")
    return next((columns for start, columns in TOKEN_COLUMNS.items() if name.startswith(start)), None)


@pytest.mark.data
@pytest.mark.parametrize("path", [*files("data/traces/*"), *files("data/formats/*"), *files("data/e2e/*/requests*")])
def test_trace_has_the_totals_that_pandas_counts(path: Path) -> None:
    columns = token_columns(path)
    answers = ReadAnswers(arrival_unit="ms" if "mooncake" in path.name else None)
    if columns is None:
        with pytest.raises(InputError):
            read_trace(path, path.name, answers)
        return
    trace = read_trace(path, path.name, answers)
    frame = READERS[path.suffix](path)
    frame = frame[frame[columns[1]] > 0]
    assert len(trace) == len(frame)
    assert trace.prompt_tokens.sum() == frame[columns[0]].sum()
    assert trace.output_tokens.sum() == frame[columns[1]].sum()
    assert np.all(np.diff(trace.arrival_s) >= 0)


@pytest.mark.data
@pytest.mark.parametrize("path", [*files("data/formats/*"), *files("data/e2e/**/*"), *files("data/*.md")])
def test_any_file_is_read_or_refused_in_words(path: Path) -> None:
    for read in (read_trace, read_steps):
        message = outcome(read, path)
        assert message is None or (path.name in message and "Traceback" not in message)


def outcome(read: Callable[[Path, str], RequestTrace | StepLog], path: Path) -> str | None:
    try:
        read(path, path.name)
    except InputError as refusal:
        return str(refusal)
    return None


@pytest.mark.data
def test_azure_arrivals_are_exact() -> None:
    trace = read_trace(shared_path("data", "traces", "azure_llm_2023_conv.parquet"), "azure")
    frame = pd.read_parquet(shared_path("data", "traces", "azure_llm_2023_conv.parquet"))
    expected = (frame.TIMESTAMP - frame.TIMESTAMP.min()).dt.total_seconds().sort_values()
    np.testing.assert_allclose(trace.arrival_s, expected, rtol=0, atol=1e-9)
    excerpt = read_trace(shared_path("data", "formats", "azure_llm_2023_conv_excerpt.csv"), "azure")
    np.testing.assert_array_equal(excerpt.arrival_s, trace.arrival_s[: len(excerpt)])


NO_STEP_LOGS = ("vidur_mlp", "measured_splitwise", "measured_dynamo_H200_tp1_prefill")


@pytest.mark.data
@pytest.mark.parametrize("path", files("data/step_logs/*"))
def test_step_table_has_the_totals_that_pandas_counts(path: Path) -> None:
    if path.name.startswith(NO_STEP_LOGS):
        with pytest.raises(InputError):
            read_steps(path, path.name)
        return
    steps = read_steps(path, path.name)
    frame = READERS[path.suffix](path).rename(
        columns={"batch.prefill_tokens": "ctx_tokens", "batch.num_decode_reqs": "gen_reqs"}
    )
    time = "itl_ms" if "itl_ms" in frame else "step.duration_us" if "step.duration_us" in frame else "step_ms"
    frame = frame[frame[time].notna() & (frame.ctx_tokens + frame.gen_reqs > 0)]
    assert len(steps) == len(frame)
    assert steps.prefill_tokens.sum() == frame.ctx_tokens.sum()
    assert steps.num_decode_reqs.sum() == frame.gen_reqs.sum()
    per_s = 1e6 if time.endswith("_us") else 1e3
    np.testing.assert_allclose(steps.step_s, frame[time] / per_s, rtol=1e-12)
    if "prefill_attn_product" in frame:
        np.testing.assert_allclose(steps.prefill_attention, frame.prefill_attn_product)
    if "n_steps" in frame:
        np.testing.assert_allclose(steps.weight, frame.n_steps)


@pytest.mark.measured
@pytest.mark.parametrize("path", files("measured/*/server.log.gz"))
def test_server_log_says_the_flags_it_ran_with(path: Path) -> None:
    steps = read_steps(path, path.name)
    meta = json.loads((path.parent / "meta.json").read_text(encoding="utf-8"))
    facts = steps.facts
    assert facts.vllm_version == meta["vllm"]
    for flag in ("max_num_batched_tokens", "max_num_seqs", "block_size", "max_model_len", "enable_prefix_caching"):
        assert getattr(facts, flag) == meta[flag]
    assert (facts.long_prefill_token_threshold or 0) == meta["long_prefill_token_threshold"]
    # 2 GiB of this model's KV make 21,845 blocks where no override says otherwise.
    assert facts.num_gpu_blocks == (meta["num_gpu_blocks_override"] or 21_845)
    # Asynchronous scheduling is on unless the arguments say otherwise, and then the log does not mention it.
    assert facts.async_scheduling is (None if meta["async_scheduling"] else False)


@pytest.mark.measured
@pytest.mark.parametrize("path", files("measured/*/server.log.gz"))
def test_server_log_gives_every_step(path: Path) -> None:
    steps = read_steps(path, path.name)
    text = gzip.decompress(path.read_bytes()).decode()
    receipt = steps.receipt
    assert receipt is not None
    assert receipt.num_rows == len(ITERATION_START.findall(text))
    assert len(steps) == receipt.num_rows - sum(dropped.num_rows for dropped in receipt.dropped)
    assert steps.kv_usage is not None
    assert steps.kv_usage.max() <= 1
    lines = text.split("\n")
    assert all("Iteration(" in lines[row] for row in steps.source_row[:: len(steps) // 20])


@pytest.mark.measured
@pytest.mark.parametrize("path", files("measured/*/requests.parquet"))
def test_measured_requests_are_a_trace(path: Path) -> None:
    frame = pd.read_parquet(path)
    trace = read_trace(path, path.name)
    assert len(trace) == len(frame)
    assert trace.output_tokens.sum() == frame.output_tokens.sum()
    np.testing.assert_allclose(trace.arrival_s, np.sort(frame.arrival_s) - frame.arrival_s.min(), atol=1e-9)
