"""What leaves the product: a command line, a YAML file."""

import shlex
from dataclasses import replace

from planner.engine_config import EngineConfig
from planner.export import config_yaml, flags, serve_command

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
