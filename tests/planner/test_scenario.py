"""The same requests under another load, another memory, other prompts."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from planner.candidates import evaluate
from planner.engine_config import EngineConfig
from planner.scenario import Scenario, changed_config, changed_trace, evaluate_scenario
from planner.slo import Slo
from planner.step_time import StepTime
from traces.requests import PrefixHashes, RequestTrace

STEP_TIME = StepTime(8_000_000, 60_000, 20_000)
SLO = Slo(itl_s=0.08)


def some_trace(hashes: PrefixHashes | None = None) -> RequestTrace:
    return RequestTrace(
        np.array([0.0, 1.0, 4.0]), np.array([1000, 3, 1]), np.array([10, 20, 30]), np.arange(3), prefix_hashes=hashes
    )


def test_nothing_changed_is_the_trace_itself() -> None:
    trace, config = some_trace(), EngineConfig()
    assert changed_trace(trace, Scenario()) is trace
    assert changed_config(config, Scenario()) == config


def test_load_memory_and_prompts_change_what_they_name() -> None:
    trace, config = some_trace(), EngineConfig(num_gpu_blocks=101)
    scenario = Scenario(load=2.0, kv_memory=0.5, prompt_length=0.25)
    changed = changed_trace(trace, scenario)
    assert changed.arrival_s.tolist() == [0.0, 0.5, 2.0]
    assert changed.prompt_tokens.tolist() == [250, 1, 1]
    assert changed.output_tokens.tolist() == trace.output_tokens.tolist()
    assert changed_config(config, scenario).num_gpu_blocks == 51
    assert changed_config(config, Scenario(kv_memory=1e-9)).num_gpu_blocks == 2


def test_prompts_with_known_prefixes_are_not_stretched() -> None:
    trace = some_trace(PrefixHashes(np.array([1, 2, 3]), np.array([0, 1, 2, 3]), 512))
    assert changed_trace(trace, Scenario(load=2.0)).prefix_hashes is trace.prefix_hashes
    with pytest.raises(ValueError, match="prefix hashes"):
        changed_trace(trace, Scenario(prompt_length=2.0))


def test_settings_come_back_in_order_and_as_if_replayed_alone() -> None:
    trace, scenario = some_trace(), Scenario(load=3.0, prompt_length=4.0)
    configs = (EngineConfig(), EngineConfig(max_num_batched_tokens=512))
    with ThreadPoolExecutor(2) as threads:
        found = evaluate_scenario(trace, configs, STEP_TIME, SLO, scenario, threads)
    assert found == tuple(evaluate(changed_trace(trace, scenario), config, STEP_TIME, SLO) for config in configs)


def test_hits_are_made_up_where_the_trace_says_nothing_and_fewer_where_it_does() -> None:
    trace = RequestTrace(np.arange(20.0), np.full(20, 6400), np.full(20, 5), np.arange(20))
    half = changed_trace(trace, Scenario(seen_share=0.5, prompt_length=0.5))
    found = evaluate(half, EngineConfig(), STEP_TIME, SLO).summary
    assert found.hit_share == pytest.approx(19 / 20 * 0.5, abs=0.01)
    fewer = changed_trace(half, Scenario(seen_share=0.2))
    assert evaluate(fewer, EngineConfig(), STEP_TIME, SLO).summary.hit_share == pytest.approx(0.2, abs=0.02)
    assert changed_trace(half, Scenario(seen_share=0.9)).digest == half.digest
