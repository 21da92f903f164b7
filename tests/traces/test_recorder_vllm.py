"""The recorder inside a real vLLM server, held to the server's own log: `VLLM=/path/to/vllm pytest -m vllm`."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest
from shared import shared_path
from vllm_step_recorder.join import main as join

from planner.align import align
from planner.engine_config import flags_from_facts
from traces.read import read_steps, read_trace

pytestmark = pytest.mark.vllm

RECORDER = Path(__file__).resolve().parents[2] / "traces" / "recorder"
OPTIONS = (
    *("--load-format", "dummy", "--skip-tokenizer-init", "--enforce-eager", "--dtype", "bfloat16"),
    *("--max-model-len", "2048", "--block-size", "32", "--max-num-batched-tokens", "256", "--max-num-seqs", "8"),
    *("--enable-logging-iteration-details", "--served-model-name", "m", "--host", "127.0.0.1"),
)
REQUESTS = [(20 + 97 * number % 300, 5 + 7 * number % 30) for number in range(24)]
"""(prompt tokens, output tokens) of each request sent."""
START_UP_S = 600.0


class Served(NamedTuple):
    """A folder of the recorder and the log of the same server."""

    folder: Path
    log: Path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    vllm = os.environ.get("VLLM") or shutil.which("vllm")
    if vllm is None:
        pytest.skip("no vllm is installed; name its command with VLLM")
    folder = tmp_path_factory.mktemp("vllm")
    model, port = folder / "model", _free_port()
    model.mkdir()
    shutil.copy(shared_path("measured", "tiny-llama-config.json"), model / "config.json")
    _install(folder / "site")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join((str(folder / "site"), str(RECORDER))),
        "PATH": os.pathsep.join((str(Path(vllm).parent), os.environ["PATH"])),
        "STEP_RECORDER_DIR": str(folder / "recorded"),
        "STEP_RECORDER_FLUSH_SECONDS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    log = folder / "server.log"
    with log.open("wb") as output:
        command = [vllm, "serve", str(model), *OPTIONS, "--port", str(port)]
        server = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT, cwd=folder)
        try:
            _wait_for(server, log)
            with ThreadPoolExecutor(len(REQUESTS)) as clients:
                list(clients.map(lambda request: _ask(port, *request), REQUESTS))
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(120)
    return Served(folder / "recorded", log)


def _install(site: Path) -> None:
    """What an installation leaves for vLLM to find the plug-in by."""
    project = tomllib.loads((RECORDER / "pyproject.toml").read_text())["project"]
    metadata = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = [
        line
        for group, points in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()))
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(server: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + START_UP_S
    while "Application startup complete" not in log.read_text(errors="replace"):
        assert server.poll() is None, log.read_text(errors="replace")[-3_000:]
        assert time.monotonic() < deadline_s, "the server did not start in time"
        time.sleep(0.5)


def _ask(port: int, num_prompt: int, num_outputs: int) -> None:
    body = {
        "model": "m",
        "prompt": [10 + (7 * num_prompt + token) % 8_000 for token in range(num_prompt)],
        "max_tokens": num_outputs,
        "ignore_eos": True,
        "temperature": 0,
        "detokenize": False,
        "return_token_ids": True,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        answer.read()
    finally:
        connection.close()


def test_the_recorded_steps_are_those_of_the_log(served: Served) -> None:
    assert join([str(served.folder)]) == 0
    recorded = read_steps(served.folder / "steps.parquet", "steps.parquet")
    logged = read_steps(served.log, "server.log")
    for name in ("num_prefill_reqs", "prefill_tokens", "num_decode_reqs", "num_decode_tokens"):
        np.testing.assert_array_equal(getattr(recorded, name), getattr(logged, name), err_msg=name)
    assert recorded.kv_usage is not None
    assert logged.kv_usage is not None
    np.testing.assert_allclose(recorded.kv_usage, logged.kv_usage, atol=0.000_51)
    waits_s = pq.read_table(served.folder / "steps.parquet")["wait_s"].to_numpy()
    np.testing.assert_allclose(waits_s, logged.step_s, atol=0.000_006)
    assert recorded.step_s.sum() > waits_s.sum()
    facts = recorded.facts
    assert (facts.max_num_batched_tokens, facts.max_num_seqs, facts.max_model_len, facts.block_size) == (
        256,
        8,
        2048,
        32,
    )
    assert facts.num_gpu_blocks == logged.facts.num_gpu_blocks or logged.facts.num_gpu_blocks is None
    assert facts.vllm_version is not None


def test_the_recorded_requests_are_those_that_were_sent(served: Served) -> None:
    assert join([str(served.folder)]) == 0
    trace = read_trace(served.folder / "requests.parquet", "requests.parquet")
    assert sorted(zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True)) == sorted(REQUESTS)
    assert trace.max_tokens is not None
    table = pq.read_table(served.folder / "requests.parquet").to_pandas()
    assert table.ttft_s.notna().all()
    assert (table.queue_s <= table.ttft_s).all()
    assert (table.ttft_s <= table.e2e_s).all()


def test_the_two_files_alone_explain_every_step(served: Served) -> None:
    assert join([str(served.folder)]) == 0
    steps = read_steps(served.folder / "steps.parquet", "steps.parquet")
    trace = read_trace(served.folder / "requests.parquet", "requests.parquet")
    alignment = align(steps, trace, flags_from_facts(steps.facts))
    assert alignment.num_covered == alignment.num_explained == len(steps)
