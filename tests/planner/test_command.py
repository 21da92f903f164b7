"""The `vllm serve` line: what changes, in full, and as vLLM's own parser takes it."""

import shlex
from dataclasses import asdict, fields, replace

from hypothesis import given
from hypothesis import strategies as st
from vllm_parser import serve_parser

from planner.command import NOT_EXPORTED, flags, serve_command
from planner.engine_config import EngineConfig

TODAY = EngineConfig(max_num_batched_tokens=8192, max_num_seqs=64, num_gpu_blocks=4001)
CONFIGS = st.builds(
    EngineConfig,
    max_num_batched_tokens=st.integers(1, 10**6),
    max_num_seqs=st.integers(1, 5000),
    long_prefill_token_threshold=st.integers(0, 10**5),
    block_size=st.sampled_from([16, 32, 64]),
    max_model_len=st.none() | st.integers(1, 10**6),
    async_scheduling=st.booleans(),
    enable_prefix_caching=st.booleans(),
    scheduler_reserve_full_isl=st.booleans(),
    watermark=st.floats(0, 0.99),
    enable_chunked_prefill=st.booleans(),
    long_prefill_token_threshold_adaptive=st.booleans(),
    scheduling_policy=st.sampled_from(["fcfs", "priority"]),
    max_num_scheduled_tokens=st.none() | st.integers(1, 10**6),
    max_num_active_seqs=st.none() | st.integers(1, 5000),
)


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
    assert flags(config)["async_scheduling"] is False


def test_what_is_vllms_own_business_is_not_exported():
    config = replace(TODAY, speculative_method="eagle", num_speculative_tokens=3, draft_acceptance_rate=0.5)
    assert words_of(serve_command(config)) == words_of(serve_command(TODAY))


def config_of(words: list[str]) -> EngineConfig:
    """The settings a server has that is started with these words."""
    given = {name: value for name, value in vars(serve_parser().parse_args(words)).items() if value is not None}
    assert given.pop("model_tag") == "MODEL"
    return EngineConfig(**given)


def exported(config: EngineConfig) -> EngineConfig:
    """Settings as far as they are exported."""
    kept = {name: value for name, value in asdict(config).items() if name not in NOT_EXPORTED}
    return EngineConfig(**kept)


@given(CONFIGS)
def test_vllms_parser_makes_the_same_settings_of_the_full_command(config):
    assert config_of(words_of(serve_command(config))[2:]) == exported(config)


@given(CONFIGS, CONFIGS)
def test_todays_flags_with_the_changes_are_the_new_settings(today, config):
    changes = vars(serve_parser().parse_args(words_of(serve_command(config, today))[2:]))
    changes = {name: value for name, value in changes.items() if value is not None and name != "model_tag"}
    # An optional limit that goes away has no word to say so; the full command leaves it out.
    gone = {f.name: None for f in fields(config) if getattr(config, f.name) is None and f.name not in NOT_EXPORTED}
    assert replace(exported(today), **changes, **gone) == exported(config)
