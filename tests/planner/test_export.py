"""What leaves the product: a command line, a YAML file, a JSON document."""

import json
import shlex
from dataclasses import replace

import pytest
from traces_by_hand import chat_trace

from planner.engine_config import EngineConfig
from planner.export import config_yaml, flags, plan_json, serve_command
from planner.search import SearchSpace, recommend
from planner.slo import Slo
from planner.step_time import StepTime

TODAY = EngineConfig(max_num_batched_tokens=8192, max_num_seqs=64, num_gpu_blocks=4001)


def words_of(command: str) -> list[str]:
    """The words a shell sees; it joins continued lines."""
    return shlex.split(command.replace("\\\n", " "))


def test_command_has_only_what_changes():
    command = serve_command(replace(TODAY, max_num_batched_tokens=1024), TODAY, "meta-llama/Llama-3.1-8B")
    assert words_of(command) == ["vllm", "serve", "meta-llama/Llama-3.1-8B", "--max-num-batched-tokens", "1024"]


def test_command_without_a_change_states_the_searched_flags():
    words = words_of(serve_command(TODAY, TODAY))
    assert words[3:] == [
        "--max-num-batched-tokens", "8192", "--max-num-seqs", "64", "--long-prefill-token-threshold", "0",
    ]  # fmt: skip


def test_full_command_spells_switches_as_vllm_does():
    config = replace(TODAY, async_scheduling=False, scheduler_reserve_full_isl=False, max_model_len=16_384)
    words = words_of(serve_command(config))
    assert {"--no-async-scheduling", "--no-scheduler-reserve-full-isl"} <= set(words)
    assert words[words.index("--max-model-len") + 1] == "16384"


def test_what_is_vllms_own_business_is_not_exported():
    exported = serve_command(TODAY) + config_yaml(TODAY)
    assert "num-gpu-blocks" not in exported
    assert "acceptance" not in exported


def test_yaml_is_what_vllm_reads():
    config = replace(TODAY, async_scheduling=False, long_prefill_token_threshold=512)
    lines = config_yaml(config, "m").splitlines()
    assert lines[0] == "model: m"
    assert dict(line.split(": ") for line in lines[1:]) == {
        "max-num-batched-tokens": "8192",
        "max-num-seqs": "64",
        "long-prefill-token-threshold": "512",
        "async-scheduling": "false",
    }
    assert flags(config)["async_scheduling"] is False


@pytest.mark.parametrize("itl_ms", [80, 5])
def test_plan_document_stands_on_its_own(itl_ms):
    trace = chat_trace(120)
    plan = recommend(
        trace,
        StepTime(8_000_000, 60_000, 60_000),
        TODAY,
        Slo(itl_s=itl_ms / 1e3),
        default_flags=(8192, 1024),
        space=SearchSpace((512, 1024, 8192), (64,), (0,)),
    )
    document = json.loads(plan_json(plan))
    assert document["trace"]["digest"] == trace.digest
    assert document["simulated"]["vllm"] == "0.32"
    assert document["model"]["step_time"]["base_ns"] == 8_000_000
    assert document["slo"]["itl_s"] == itl_ms / 1e3
    assert (document["recommended"] is None) == (itl_ms == 5)
    assert (document["command"] is None) == (itl_ms == 5)
    assert {loser["reason"] for loser in document["losers"]} <= {"itl", "later_tokens", "unstable"}
    assert plan_json(plan) == plan_json(plan)
