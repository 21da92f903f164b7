"""Every request goes to one replica, by the rule of the routing."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from traces_by_hand import chat_trace, trace_of

from planner.engine_config import EngineConfig
from planner.routing import Routing, deal, ends_s, follow
from planner.step_time import StepTime
from traces.requests import PrefixHashes

STEP_TIME = StepTime(8_000_000, 60_000, 60_000)
CONFIG = EngineConfig(max_num_batched_tokens=1024, max_num_seqs=64, num_gpu_blocks=4001)


def dealt(trace, num_replicas, routing, config=CONFIG):
    with ThreadPoolExecutor(2) as executor:
        return deal(trace, num_replicas, routing, config, STEP_TIME, executor)


@pytest.mark.parametrize("routing", list(Routing))
def test_every_request_goes_to_one_replica(routing):
    trace = chat_trace(60)
    ids = np.repeat(np.arange(60) % 7, 2)
    trace = replace_hashes(trace, PrefixHashes(ids, np.arange(0, 121, 2), 16))
    found = dealt(trace, 4, routing)
    rows = np.concatenate([part.source_row for part in found.parts])
    assert sorted(rows.tolist()) == list(range(60))
    for replica, part in enumerate(found.parts):
        assert part.source_row.tolist() == np.flatnonzero(found.place == replica).tolist()
        assert part.prefix_hashes.ids.tolist() == np.repeat(part.source_row % 7, 2).tolist()
        if routing is Routing.PREFIX_AFFINITY:
            assert {row % 7 % 4 for row in part.source_row.tolist()} <= {part.source_row[0] % 7 % 4}


def replace_hashes(trace, hashes):
    fields = {name: getattr(trace, name) for name in ("arrival_s", "prompt_tokens", "output_tokens", "source_row")}
    return type(trace)(**fields, prefix_hashes=hashes)


def test_the_router_by_hand():
    """Requests come each second; the first stays for long, so the second replica takes the others while it can."""
    arrival_s, end_s = np.arange(5.0), np.array([9.0, 1.5, 4.5, 3.5, 9.0])
    place, excess = follow(arrival_s, end_s, 2)
    assert place.tolist() == [0, 1, 1, 0, 1]
    assert not excess.any()
    _, excess = follow(arrival_s, end_s, 2, np.array([0, 0, 0, 1, 0]))
    assert excess.tolist() == [0, 1, 1, 0, 2]


def test_of_equal_replicas_the_one_that_waited_longest_is_next():
    place, _ = follow(np.arange(6.0), np.arange(6.0) + 0.5, 3)
    assert place.tolist() == [0, 1, 2, 0, 1, 2]


def test_a_confirmed_deal_is_what_joint_replicas_do():
    """A plain joint run, request by request: each choice looks at replays of nothing but the requests before it."""
    trace = chat_trace(40, rate_rps=6.0)
    found = dealt(trace, 3, Routing.LEAST_LOADED)
    assert not found.excess.any()
    place = []
    for i in range(len(trace)):
        outstanding = []
        for replica in range(3):
            mine = [j for j, p in enumerate(place) if p == replica]
            rows = [(trace.arrival_s[j], trace.prompt_tokens[j], trace.output_tokens[j]) for j in mine]
            end_s = ends_s(trace_of(*rows), CONFIG, STEP_TIME) if rows else np.empty(0)
            outstanding.append(int((end_s > trace.arrival_s[i]).sum()))
        assert outstanding[found.place[i]] == min(outstanding), f"request {i}: {outstanding}"
        place.append(int(found.place[i]))


def test_requests_that_never_run_burden_nobody_and_those_that_stall_do_for_ever():
    never = ends_s(trace_of((0.0, 90_000, 5), (1.0, 10, 5)), CONFIG, STEP_TIME)
    assert never[0] == 0.0
    assert 1.0 < never[1] < 2.0
    whole = EngineConfig(max_num_batched_tokens=64, max_num_seqs=8, enable_chunked_prefill=False)
    assert ends_s(trace_of((0.0, 100, 5)), whole, STEP_TIME).tolist() == [np.inf]
