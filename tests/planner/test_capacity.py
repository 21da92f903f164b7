"""Loads and replicas are found by replay."""

from dataclasses import replace

import numpy as np
import pytest
from traces_by_hand import chat_trace

from planner.capacity import RELATIVE_WIDTH, Routing, find_headroom, find_replicas, scale_load, split
from planner.engine_config import EngineConfig
from planner.slo import Slo
from planner.step_time import StepTime
from traces.requests import PrefixHashes

STEP_TIME = StepTime(8_000_000, 60_000, 60_000)
CONFIG = EngineConfig(max_num_batched_tokens=1024, max_num_seqs=64, num_gpu_blocks=4001)
SLO = Slo(itl_s=0.1, ttft_s=3.0)


def test_headroom_is_a_replayed_bracket():
    found = find_headroom(chat_trace(400, rate_rps=4.0), CONFIG, STEP_TIME, SLO)
    assert found.met.candidate.meets
    assert found.missed.candidate.violations
    assert found.met.load < found.missed.load <= (1 + RELATIVE_WIDTH) * found.met.load
    assert found.met.requests_per_s == pytest.approx(found.met.load * 399 / chat_trace(400, 4.0).span_s)
    assert [p.load for p in found.points] == sorted(p.load for p in found.points)


def test_without_a_breaking_point():
    lone = chat_trace(2)
    assert find_headroom(lone, CONFIG, STEP_TIME, Slo(itl_s=9.0)).missed is None
    assert find_headroom(lone, CONFIG, STEP_TIME, Slo(itl_s=1e-4)).met is None


def test_scaling_keeps_the_requests():
    trace = chat_trace(50)
    fast = scale_load(trace, 4.0)
    assert fast.span_s == pytest.approx(trace.span_s / 4)
    assert fast.prompt_tokens.tolist() == trace.prompt_tokens.tolist()
    assert fast.digest != trace.digest


def test_replicas_are_the_fewest():
    trace = chat_trace(400, rate_rps=12.0)
    found = find_replicas(trace, CONFIG, STEP_TIME, SLO)
    tried = dict(found.by_count)
    assert found.num_replicas > 1
    assert all(c.meets for c in tried[found.num_replicas])
    assert not all(c.meets for c in tried[found.num_replicas - 1])
    assert sum(c.summary.num_requests for c in tried[found.num_replicas]) == 400
    assert find_replicas(trace, CONFIG, STEP_TIME, SLO, growth=3.0).num_replicas > found.num_replicas


def test_no_number_of_replicas_helps_a_target_below_a_decode_step():
    assert find_replicas(chat_trace(20), CONFIG, STEP_TIME, Slo(itl_s=0.001)).num_replicas is None


def test_every_request_goes_to_one_replica():
    trace = chat_trace(60)
    ids = np.repeat(np.arange(60) % 7, 2)
    trace = replace_hashes(trace, PrefixHashes(ids, np.arange(0, 121, 2), 16))
    for routing in Routing:
        parts = split(trace, 4, routing)
        rows = np.concatenate([part.source_row for part in parts])
        assert sorted(rows.tolist()) == list(range(60))
        for part in parts:
            hashes = part.prefix_hashes
            assert hashes.ids.tolist() == np.repeat(part.source_row % 7, 2).tolist()
    for part in split(trace, 4, Routing.PREFIX_AFFINITY):
        assert {row % 7 % 4 for row in part.source_row.tolist()} <= {part.source_row[0] % 7 % 4}


def replace_hashes(trace, hashes):
    fields = {name: getattr(trace, name) for name in ("arrival_s", "prompt_tokens", "output_tokens", "source_row")}
    return type(trace)(**fields, prefix_hashes=hashes)


def test_seats_are_a_limit_as_well():
    trace = chat_trace(300, rate_rps=6.0)
    few = find_headroom(trace, replace(CONFIG, max_num_seqs=2), STEP_TIME, SLO)
    many = find_headroom(trace, CONFIG, STEP_TIME, SLO)
    assert (few.met.load if few.met else 0) < many.met.load
