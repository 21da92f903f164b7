"""The recorder that runs inside vLLM: what it writes, that it never harms the server, that a crash spoils no file."""

import ast
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from shared import shared_path
from vllm_step_recorder.join import main as join
from vllm_step_recorder.rows import REQUEST_SCHEMA, STEP_SCHEMA, Requests, Steps, Taken, server_facts
from vllm_step_recorder.writer import MAX_PENDING, Recorder, Settings, settings_from

from traces.errors import UnreadableFile
from traces.read import read_steps, read_trace
from traces.steps import ServerFacts

RECORDER = Path(__file__).resolve().parents[2] / "traces" / "recorder"
FACTS = {
    "vllm_version": "0.32.0",
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 64,
    "long_prefill_token_threshold": 0,
    "max_model_len": 8192,
    "block_size": 32,
    "num_gpu_blocks": 2048,
    "async_scheduling": True,
    "enable_prefix_caching": False,
}


def step(
    iteration: int,
    *,
    gaps_s: tuple[float, ...] = (),
    ttft_s: tuple[float, ...] = (),
    finished: tuple[Any, ...] = (),
    running: int = 1,
    waiting: int = 2,
    now_s: float = 1.7e9,
    **details: Any,
) -> tuple[SimpleNamespace, SimpleNamespace]:
    """One step as vLLM 0.32 hands it to a stat logger."""
    work = {
        "num_ctx_requests": 0,
        "num_ctx_tokens": 0,
        "num_generation_requests": len(gaps_s),
        "num_generation_tokens": len(gaps_s),
        "elapsed_ms": 5.0,
    }
    scheduler = SimpleNamespace(
        num_running_reqs=running,
        num_waiting_reqs=waiting,
        num_skipped_waiting_reqs=int(waiting > 0),
        kv_cache_usage=0.25,
        prefix_cache_stats=SimpleNamespace(queries=30, hits=20),
        iteration_details=SimpleNamespace(iteration_index=iteration, **(work | {"is_dummy": False} | details)),
    )
    iteration_stats = SimpleNamespace(
        iteration_timestamp=now_s,
        inter_token_latencies_iter=list(gaps_s),
        time_to_first_tokens_iter=list(ttft_s),
        num_preempted_reqs=0,
        finished_requests=list(finished),
    )
    return scheduler, iteration_stats


def finished(e2e_s: float, outputs: int = 11, reason: str = "length") -> SimpleNamespace:
    """One finished request as vLLM 0.32 reports it; its id may hold a client's text."""
    return SimpleNamespace(
        finish_reason=reason,
        request_id="cmpl-my-secret",
        e2e_latency=e2e_s,
        num_prompt_tokens=700,
        num_generation_tokens=outputs,
        num_preemptions=1,
        max_tokens_param=50,
        queued_time=0.125,
        decode_time=2.0,
        num_cached_tokens=64,
    )


def step_row(steps: Steps, mono_s: float, stats: tuple[Any, Any]) -> dict[str, Any] | None:
    row = steps.row(Taken(mono_s, 1.7e9, *stats))
    return None if row is None else dict(zip(STEP_SCHEMA.names, row, strict=True))


def period(steps: Steps, mono_s: float, stats: tuple[Any, Any]) -> tuple[float, str]:
    row = step_row(steps, mono_s, stats)
    assert row is not None
    return round(row["step_s"], 9), row["period_source"]


def test_a_step_says_what_it_computed() -> None:
    stats = step(7, gaps_s=(0.02, 0.01), num_ctx_requests=1, num_ctx_tokens=512, num_encoder_inputs=2)
    row = step_row(Steps(), 0.0, stats)
    assert row == {
        "wall_s": 1.7e9,
        "iteration": 7,
        "step_s": 0.01,
        "period_source": "token",
        "wait_s": 0.005,
        "num_prefill_reqs": 1,
        "prefill_tokens": 512,
        "num_decode_reqs": 2,
        "num_decode_tokens": 2,
        "num_encoder_inputs": 2,
        "kv_usage": 0.25,
        "num_running": 1,
        "num_waiting": 3,
        "num_preemptions": 0,
        "prefix_queries": 30,
        "prefix_hits": 20,
    }


def test_where_the_period_comes_from() -> None:
    steps = Steps()
    assert period(steps, 10.000, step(0, num_ctx_tokens=512)) == (0.005, "wait")  # the engine was idle
    assert period(steps, 10.030, step(1, ttft_s=(0.1,), num_ctx_tokens=100)) == (0.030, "receipt")
    assert period(steps, 10.041, step(2, gaps_s=(0.0105, 0.31))) == (0.0105, "token")
    # No token came in step 3, so the gap over it is that of two steps.
    assert period(steps, 10.050, step(3, num_ctx_tokens=512)) == (0.009, "receipt")
    assert period(steps, 10.060, step(4, gaps_s=(0.019,), running=0, waiting=0)) == (0.010, "receipt")
    assert period(steps, 99.000, step(5, num_ctx_tokens=64)) == (0.005, "wait")  # idle again
    assert period(steps, 99.100, step(9, gaps_s=(0.02,))) == (0.02, "token")  # steps of another front end between


def test_a_dummy_step_and_one_without_details_are_no_rows() -> None:
    steps = Steps()
    scheduler, iteration = step(0)
    scheduler.iteration_details = None
    assert step_row(steps, 0.0, (scheduler, iteration)) is None
    assert step_row(steps, 0.0, step(1, is_dummy=True)) is None
    assert period(steps, 0.25, step(2, gaps_s=(0.4,))) == (0.25, "receipt")


def test_an_older_vllm_lacks_some_numbers() -> None:
    scheduler, iteration = step(0, gaps_s=(0.01,))
    del scheduler.num_skipped_waiting_reqs, scheduler.prefix_cache_stats
    row = step_row(Steps(), 0.0, (scheduler, iteration))
    assert row is not None
    assert (row["num_waiting"], row["prefix_queries"]) == (2, None)


def test_a_request_gets_its_own_first_token_latency() -> None:
    requests = Requests()
    assert not requests.rows(step(0, now_s=1.7e9 + 1.0, ttft_s=(0.75, 0.5))[1])
    later = step(9, now_s=1.7e9 + 4.0, finished=(finished(3.5), finished(3.75), finished(9.0)))[1]
    rows = [dict(zip(REQUEST_SCHEMA.names, row, strict=True)) for row in requests.rows(later)]
    assert [row["ttft_s"] for row in rows] == [0.5, 0.75, None]
    assert rows[0] == {
        "arrival_s": 1.7e9 + 0.5,
        "prompt_tokens": 700,
        "output_tokens": 11,
        "max_tokens": 50,
        "ttft_s": 0.5,
        "e2e_s": 3.5,
        "tpot_s": 0.2,
        "queue_s": 0.125,
        "num_preemptions": 1,
        "num_cached_tokens": 64,
        "finish_reason": "length",
    }


def record(folder: Path, num_steps: int, **settings: Any) -> Recorder:
    """Record a server that decodes two requests, one of which finishes at every tenth step."""
    recorder = Recorder(Settings(folder, **settings))
    recorder.start(FACTS)
    for number in range(num_steps):
        ended = (finished(1.0 + number / 64),) if number % 10 == 9 else ()
        recorder.put(*step(number, gaps_s=(0.01 + number % 7 / 1e4,) * 2, finished=ended, now_s=1.7e9 + number / 100))
    recorder.close()
    return recorder


def files(folder: Path, kind: str) -> list[Path]:
    return sorted(folder.glob(f"{kind}-*.parquet"))


def test_files_rotate_and_together_hold_every_row(tmp_path: Path) -> None:
    record(tmp_path, 250, rotate_rows=100)
    assert [pq.read_metadata(path).num_rows for path in files(tmp_path, "steps")] == [100, 100, 50]
    assert [pq.read_metadata(path).num_rows for path in files(tmp_path, "requests")] == [25]
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".parquet"] == []
    iterations = np.concatenate([pq.read_table(path)["iteration"].to_numpy() for path in files(tmp_path, "steps")])
    np.testing.assert_array_equal(iterations, np.arange(250))


def test_our_readers_read_what_it_writes(tmp_path: Path) -> None:
    record(tmp_path, 250, rotate_rows=100)
    assert join([str(tmp_path)]) == 0
    steps = read_steps(tmp_path / "steps.parquet", "steps.parquet")
    assert len(steps) == 250
    assert steps.facts == ServerFacts(**FACTS)
    np.testing.assert_allclose(steps.step_s, 0.01 + np.arange(250) % 7 / 1e4)
    assert steps.num_decode_reqs.tolist() == [2] * 250
    assert steps.num_decode_tokens is not None
    assert steps.kv_usage is not None
    assert steps.receipt is not None
    assert not steps.receipt.notices
    assert not steps.receipt.dropped
    trace = read_trace(tmp_path / "requests.parquet", "requests.parquet")
    assert trace.output_tokens.tolist() == [11] * 25
    assert trace.max_tokens is not None
    expected = sorted((number / 100) - (1.0 + number / 64) for number in range(9, 250, 10))
    np.testing.assert_allclose(trace.arrival_s, np.array(expected) - expected[0], atol=1e-6)


def test_no_text_of_a_client_is_recorded(tmp_path: Path) -> None:
    record(tmp_path, 20)
    assert files(tmp_path, "requests")
    assert all(b"secret" not in path.read_bytes() for path in tmp_path.iterdir())
    assert not [name for name in STEP_SCHEMA.names + REQUEST_SCHEMA.names if "id" in name.split("_")]


def test_a_step_with_encoder_inputs_is_left_out_when_read(tmp_path: Path) -> None:
    recorder = Recorder(Settings(tmp_path))
    recorder.start(FACTS)
    for number in range(4):
        recorder.put(*step(number, gaps_s=(0.01,), num_encoder_inputs=int(number == 2)))
    recorder.close()
    (path,) = files(tmp_path, "steps")
    steps = read_steps(path, path.name)
    assert steps.source_row.tolist() == [0, 1, 3]
    assert steps.receipt is not None
    assert "encoder" in steps.receipt.dropped[0].reason


def test_broken_facts_are_refused(tmp_path: Path) -> None:
    record(tmp_path, 40)
    (path,) = files(tmp_path, "steps")
    table = pq.read_table(path)
    for broken in ("{", "[]", json.dumps({"block_size": "16"})):
        pq.write_table(table.replace_schema_metadata({"server_facts": broken}), path)
        with pytest.raises(UnreadableFile, match="server_facts"):
            read_steps(path, path.name)


def test_a_full_queue_loses_steps_and_counts_them(tmp_path: Path) -> None:
    recorder = Recorder(Settings(tmp_path))
    for number in range(MAX_PENDING + 30):  # nothing reads before the start
        recorder.put(*step(number))
    recorder.start(FACTS)
    recorder.close()
    assert recorder.num_lost == 30
    (path,) = files(tmp_path, "steps")
    table = pq.read_table(path)
    assert table.num_rows == MAX_PENDING
    assert table.schema.metadata[b"num_lost_steps"] == b"30"


def test_a_fault_ends_the_recording_and_not_the_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(Settings(tmp_path))
    recorder.start(FACTS)
    recorder.put(SimpleNamespace(iteration_details=SimpleNamespace()), None)  # a vLLM that renamed everything
    deadline_s = time.monotonic() + 20
    while "Step recorder stopped" not in caplog.text and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert "Step recorder stopped; the server goes on." in caplog.text
    recorder.put(*step(1))
    recorder.close()
    assert not list(tmp_path.iterdir())


WRITES_FOR_EVER = """
import sys, time
from pathlib import Path
from test_recorder import FACTS, finished, step
from vllm_step_recorder.writer import Recorder, Settings

recorder = Recorder(Settings(Path(sys.argv[1]), flush_s=0.01, rotate_rows=700))
recorder.start(FACTS)
number = 0
while True:
    recorder.put(*step(number, gaps_s=(0.01,), finished=(finished(1.0),)))
    number += 1
    if number % 50 == 0:
        time.sleep(0.01)
"""


def test_a_killed_server_leaves_whole_files_only(tmp_path: Path) -> None:
    here = Path(__file__).resolve()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (here.parent, *here.parents[1:3], RECORDER)))}
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        server = subprocess.Popen([sys.executable, "-c", WRITES_FOR_EVER, str(folder)], env=environment)
        deadline_s = time.monotonic() + 60
        while len(files(folder, "requests")) < 3 + attempt and time.monotonic() < deadline_s:
            time.sleep(0.003 * (attempt + 1))
        server.send_signal(signal.SIGKILL)
        server.wait()
        for kind in ("steps", "requests"):
            tables = [pq.read_table(path) for path in files(folder, kind)]
            assert len(tables) >= 3
            assert {table.num_rows for table in tables[:-1]} == {700}
            assert 0 < tables[-1].num_rows <= 700
        iterations = np.concatenate([pq.read_table(path)["iteration"].to_numpy() for path in files(folder, "steps")])
        np.testing.assert_array_equal(iterations, np.arange(len(iterations)))


@pytest.fixture
def step_recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The class that vLLM loads, without vLLM."""
    loggers = ModuleType("vllm.v1.metrics.loggers")
    loggers.StatLoggerBase = object  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.v1", "vllm.v1.metrics"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, loggers.__name__, loggers)
    monkeypatch.setattr("atexit.register", lambda function: None)
    yield importlib.import_module("vllm_step_recorder.plugin").StepRecorder
    del sys.modules["vllm_step_recorder.plugin"]


def vllm_config(details: bool = True) -> SimpleNamespace:
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_seqs=64),
        cache_config=SimpleNamespace(num_gpu_blocks=1000, block_size=16),
        model_config=SimpleNamespace(max_model_len=4096),
        parallel_config=SimpleNamespace(data_parallel_size=1),
        observability_config=SimpleNamespace(enable_logging_iteration_details=details),
    )


def test_the_plug_in_records_where_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step_recorder: Any
) -> None:
    monkeypatch.setenv("STEP_RECORDER_DIR", str(tmp_path / "made" / "here"))
    plugin = step_recorder(vllm_config(details=False), 1)
    assert "--enable-logging-iteration-details" in caplog.text
    plugin.log_engine_initialized()
    plugin.record(*step(0, gaps_s=(0.01,)), mm_cache_stats=None, engine_idx=1)
    plugin.record(None, None)
    plugin._recorder.close()
    (path,) = files(tmp_path / "made" / "here", "steps")
    assert path.name.endswith("-engine001-00001.parquet")
    assert read_steps(path, path.name).facts == ServerFacts(
        max_num_seqs=64, max_model_len=4096, block_size=16, num_gpu_blocks=1000
    )


@pytest.mark.parametrize("folder", [None, "", "/dev/null/not-a-folder"])
def test_a_plug_in_that_cannot_record_leaves_the_server_alone(
    folder: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step_recorder: Any
) -> None:
    monkeypatch.delenv("STEP_RECORDER_DIR", raising=False)
    if folder is not None:
        monkeypatch.setenv("STEP_RECORDER_DIR", folder)
    plugin = step_recorder(vllm_config())
    plugin.log_engine_initialized()
    plugin.record(*step(0))
    assert "records nothing" in caplog.text


def test_settings_are_checked() -> None:
    folder = {"STEP_RECORDER_DIR": "/recordings"}
    assert settings_from(folder) == Settings(Path("/recordings"), 10.0, 100_000)
    assert settings_from(
        folder | {"STEP_RECORDER_FLUSH_SECONDS": "2.5", "STEP_RECORDER_ROTATE_ROWS": "500"}
    ) == Settings(Path("/recordings"), 2.5, 500)
    for bad in ("soon", "0", "-1", "inf"):
        with pytest.raises(ValueError, match="STEP_RECORDER_FLUSH_SECONDS is"):
            settings_from(folder | {"STEP_RECORDER_FLUSH_SECONDS": bad})


@pytest.mark.parametrize(("external", "blocks"), [(False, 500), (True, 1000)])
def test_the_kv_cache_is_that_of_one_engine(external: bool, blocks: int) -> None:
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_batched_tokens=2048, max_num_seqs=64, async_scheduling=True),
        cache_config=SimpleNamespace(num_gpu_blocks=1000, block_size=16, enable_prefix_caching=True),
        model_config=SimpleNamespace(max_model_len=4096),
        parallel_config=SimpleNamespace(
            data_parallel_size=2, data_parallel_size_local=1, data_parallel_external_lb=external
        ),
    )
    facts = server_facts(config)
    assert facts["num_gpu_blocks"] == blocks
    assert set(facts) == set(ServerFacts.__dataclass_fields__)


def test_starts_with_other_flags_are_not_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path, 10)
    recorder = Recorder(Settings(tmp_path))
    recorder.start(FACTS | {"max_num_seqs": 8})
    recorder.put(*step(0, gaps_s=(0.01,)))
    recorder.close()
    assert join([str(tmp_path)]) == 2
    assert "different flags" in capsys.readouterr().err
    assert not (tmp_path / "steps.parquet").exists()


@pytest.mark.data
def test_recorded_statistics_give_the_steps_that_were_recorded(tmp_path: Path) -> None:
    path = shared_path("data", "formats", "vllm_0.32_statlogger_plugin_async_excerpt.jsonl")
    logged = [json.loads(row) for row in path.read_text().splitlines()]
    steps = Steps()
    rows = []
    for row in logged:
        scheduler, iteration = step(
            row["it"],
            gaps_s=tuple(row.get("itl", ())),
            ttft_s=tuple(row.get("ttft", ())),
            running=row["running"],
            waiting=row["waiting"],
            num_ctx_requests=row["ctx_reqs"],
            num_ctx_tokens=row["ctx_tokens"],
            num_generation_requests=row["gen_reqs"],
            num_generation_tokens=row["gen_tokens"],
            elapsed_ms=row["elapsed_ms"],
        )
        scheduler.kv_cache_usage = row["kv_usage"]
        rows.append(step_row(steps, row["mono"], (scheduler, iteration if "wall" in row else None)))
    assert all(rows)
    for name, theirs in (("iteration", "it"), ("prefill_tokens", "ctx_tokens"), ("num_decode_reqs", "gen_reqs")):
        assert [row[name] for row in rows if row] == [row[theirs] for row in logged]
    sources = [row["period_source"] for row in rows if row]
    assert sources[:3] == ["wait", "receipt", "token"]
    assert set(sources[2:]) == {"token"}
    periods = np.array([row["step_s"] for row in rows if row])[1:]
    gaps = np.diff([row["mono"] for row in logged])
    # The engine's own clock and the receipts tell the same time, but for the jitter of the way.
    assert abs(periods.sum() - gaps.sum()) < 0.02 * gaps.sum()


def test_it_imports_nothing_but_pyarrow_and_vllm() -> None:
    for path in (RECORDER / "vllm_step_recorder").glob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
        foreign = {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names)
        assert foreign <= {"pyarrow"} | ({"vllm"} if path.name == "plugin.py" else set()), path
