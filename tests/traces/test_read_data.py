"""Public traces, step logs and files of other tools: read with the right totals, or refused in words."""

import gzip
import json
import re
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from recount import recount
from shared import files, shared_path

from traces.answers import ReadAnswers
from traces.errors import InputError
from traces.measured import read_measured
from traces.read import read_steps, read_trace
from traces.requests import RequestTrace
from traces.server_log import ITERATION_START

READERS = {".parquet": pd.read_parquet, ".csv": pd.read_csv, ".jsonl": lambda path: pd.read_json(path, lines=True)}

NO_TRACES = {
    "*iteration_log*": "give it as the step log",
    "*statlogger*": "not known",
    "*metrics_scrape*": "not known",
    "*completion_response*": "not known",
    "*request_log*": "neither prompt nor output tokens",
    "guidellm*.csv": "Give its JSON",
    "dynamo_replay_agentic-mooncake*": "no arrival of their own",
    "dynamo_replay_applied-compute*": "when no request arrives",
}
"""Files that cannot be request traces, and the reason that must be given. Everything else must be read."""


@pytest.mark.data
@pytest.mark.parametrize("path", [*files("data/traces/*"), *files("data/formats/*"), *files("data/e2e/*/requests*")])
def test_trace_has_the_totals_of_an_independent_count(path: Path) -> None:
    answers = ReadAnswers(arrival_unit="ms" if "mooncake" in path.name else None)
    reason = next((reason for pattern, reason in NO_TRACES.items() if fnmatch(path.name, pattern)), None)
    if reason is not None:
        with pytest.raises(InputError, match=reason):
            read_trace(path, path.name, answers)
        return
    trace = read_trace(path, path.name, answers)
    assert trace.receipt is not None
    assert_counted(trace, path.read_bytes())
    rows = rows_stated(path)
    assert rows is None or rows[0] <= trace.receipt.num_rows <= rows[1]


def assert_counted(trace: RequestTrace, data: bytes, benchmark: str | None = None) -> None:
    """Hold a trace to what the plainest Python counts in its file."""
    receipt = trace.receipt
    assert receipt is not None
    counted = recount(data, receipt.layout, dict(receipt.columns), receipt.time_unit, benchmark)
    assert len(trace) == receipt.num_kept == counted.num_requests
    assert trace.prompt_tokens.sum() == counted.prompt_tokens
    assert trace.output_tokens.sum() == counted.output_tokens
    assert trace.arrival_s.tolist() == [ns / 1e9 for ns in counted.arrivals_ns]
    assert receipt.num_rows == receipt.num_kept + sum(dropped.num_rows for dropped in receipt.dropped)


def rows_stated(path: Path) -> tuple[int, int] | None:
    """Fewest and most rows that SOURCES.md says a file has; None when it does not name it."""
    for line in shared_path("data", "SOURCES.md").read_text(encoding="utf-8").split("\n"):
        names, _, rows = line.strip("| ").partition(" | ")
        if any(fnmatch(path.name, name.strip()) for name in re.split("[,/]", names)):
            numbers = [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", rows.split(" | ")[0])]
            few = numbers[0] if re.search(r"\d-\d", rows.split(" | ")[0]) else numbers[-1]
            slack = 1 if "about" in rows.split(" | ")[0] else 0
            return few - slack, numbers[-1] + slack
    return None


@pytest.mark.data
@pytest.mark.parametrize("path", [*files("data/formats/*"), *files("data/e2e/**/*"), *files("data/*.md")])
def test_any_file_is_read_or_refused_in_words(path: Path) -> None:
    for read in (read_trace, read_steps, read_measured):
        message = outcome(read, path)
        assert message is None or (path.name in message and "Traceback" not in message)


def outcome(read: Callable[[Path, str], object], path: Path) -> str | None:
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
