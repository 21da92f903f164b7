"""vLLM's defaults and what it refuses."""

import pytest

from planner.engine_config import (
    EngineConfig,
    changed_flags,
    check_flags,
    default_flags,
    flag_faults,
    flags_from_facts,
)
from planner.errors import BadFlags
from traces.steps import ServerFacts


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"max_num_batched_tokens": 128, "max_num_seqs": 256}, "smaller than max_num_seqs"),
        ({"max_num_active_seqs": 300}, "above max_num_seqs"),
        ({"max_num_active_seqs": 0}, "max_num_active_seqs is 0"),
        ({"long_prefill_token_threshold": -1}, "0 turns it off"),
        ({"long_prefill_token_threshold": 5000, "max_model_len": 4096}, "above max_model_len"),
        ({"watermark": 1.0}, "watermark is 1.0"),
        ({"max_num_batched_tokens": 0, "max_num_seqs": 0}, "max_num_batched_tokens is 0"),
        ({"max_num_scheduled_tokens": 0}, "max_num_scheduled_tokens is 0"),
        ({"enable_chunked_prefill": False, "max_model_len": 4096}, "chunked prefill is off"),
        ({"max_model_len": 10_000, "num_gpu_blocks": 100}, "does not fit the KV cache of 1584 tokens"),
        ({"num_gpu_blocks": 1}, "null block"),
        ({"scheduling_policy": "sjf"}, "vLLM knows fcfs and priority"),
        ({"speculative_method": "ngram", "num_speculative_tokens": 3}, "asynchronous scheduling is not supported"),
        ({"speculative_method": "medusa"}, "simulated: ngram"),
        ({"speculative_method": "eagle"}, "num_speculative_tokens is 0"),
        ({"draft_acceptance_rate": 1.5}, "draft_acceptance_rate is 1.5"),
        (
            {
                "speculative_method": "draft_model",
                "num_speculative_tokens": 2,
                "max_num_batched_tokens": 1,
                "max_num_seqs": 1,
            },
            "leaves no room",
        ),
    ],
)
def test_vllm_refuses(settings, word):
    with pytest.raises(BadFlags, match=word):
        check_flags(EngineConfig(**settings))


def test_all_faults_are_told_at_once():
    faults = flag_faults(EngineConfig(max_num_batched_tokens=8, watermark=-1.0, long_prefill_token_threshold=-3))
    assert len(faults) == 3


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_scheduled_tokens": 10_000},
        {"max_num_scheduled_tokens": 10},
        {"long_prefill_token_threshold_adaptive": True},
        {"long_prefill_token_threshold": 4096},
        {"max_model_len": 640_000},
        {"scheduling_policy": "priority"},
        {"speculative_method": "ngram", "num_speculative_tokens": 3, "async_scheduling": False},
    ],
)
def test_vllm_accepts(settings):
    check_flags(EngineConfig(**settings))


@pytest.mark.parametrize(
    ("memory_gib", "flags"), [(192, (16_384, 1024)), (160, (16_384, 1024)), (80, (8192, 1024)), (48, (2048, 256))]
)
def test_defaults_by_device_memory(memory_gib, flags):
    assert default_flags(memory_gib) == flags


def test_todays_flags_come_from_the_log():
    facts = ServerFacts(max_num_batched_tokens=4096, num_gpu_blocks=300, block_size=32, enable_prefix_caching=False)
    config = flags_from_facts(facts)
    assert (config.max_num_batched_tokens, config.max_num_seqs) == (4096, 256)
    assert config.num_kv_tokens == 299 * 32
    assert changed_flags(EngineConfig(), config) == (
        "max_num_batched_tokens",
        "num_gpu_blocks",
        "block_size",
        "enable_prefix_caching",
    )


def test_what_the_log_does_not_state_is_vllms_default_on_this_gpu():
    """Defaulted seats are lowered to the budget, as vLLM does."""
    config = flags_from_facts(ServerFacts(max_num_batched_tokens=512), (8192, 1024))
    assert (config.max_num_batched_tokens, config.max_num_seqs) == (512, 512)
    config = flags_from_facts(ServerFacts(), (8192, 1024))
    assert (config.max_num_batched_tokens, config.max_num_seqs) == (8192, 1024)
