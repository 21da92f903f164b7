"""The file for trace viewers: valid, bounded, and true."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from inside_runs import SYNC, TEN_MS_PLUS_ONE_PER_TOKEN, replays
from traces_by_hand import chat_trace, trace_of

from planner.engine_config import EngineConfig
from planner.inside.chrome_trace import chrome_trace
from planner.replay import replay
from planner.step_time import StepTime


def slices(document, pid):
    return [event for event in document["traceEvents"] if event["ph"] == "X" and event["pid"] == pid]


def test_two_requests_by_hand():
    trace = trace_of((0.0, 20, 3), (0.005, 30, 2))
    run = replay(trace, SYNC, TEN_MS_PLUS_ONE_PER_TOKEN)
    document = json.loads(chrome_trace(trace, run, 0.0, 1.0))
    assert [(event["name"], event["ts"], event["dur"]) for event in slices(document, 1)] == [
        ("0 decodes + 20 prefill", 0.0, 30_000.0),
        ("1 decodes + 30 prefill", 30_000.0, 40_000.0),
        ("2 decodes", 70_000.0, 10_000.0),
    ]
    tracks = [(event["tid"], event["name"], event["ts"], event["dur"]) for event in slices(document, 2)]
    assert tracks == [
        (1, "prefill", 0.0, 30_000.0),
        (1, "decode", 30_000.0, 50_000.0),
        (2, "arriving", 5_000.0, 25_000.0),
        (2, "prefill", 30_000.0, 40_000.0),
        (2, "decode", 70_000.0, 10_000.0),
    ]
    running = [event for event in document["traceEvents"] if event["ph"] == "C" and event["name"] == "running"]
    assert [event["args"]["value"] for event in running] == [1, 2, 2]
    names = {event["args"]["name"] for event in document["traceEvents"] if event["ph"] == "M"}
    assert names == {"engine", "steps", "requests", "request 1", "request 2"}


def test_a_window_cuts_slices_at_its_ends():
    trace = trace_of((0.0, 20, 30))
    run = replay(trace, SYNC, TEN_MS_PLUS_ONE_PER_TOKEN)
    document = json.loads(chrome_trace(trace, run, 0.055, 0.125))
    assert [(event["ts"], event["dur"]) for event in slices(document, 2)] == [(55_000.0, 70_000.0)]
    nothing = json.loads(chrome_trace(trace, run, 50.0, 60.0))
    assert slices(nothing, 1) == slices(nothing, 2) == []


def test_the_size_is_bounded_and_the_file_says_so():
    trace = chat_trace(400, rate_rps=40.0)
    run = replay(trace, EngineConfig(), StepTime(8_000_000, 60_000, 20_000))
    text = chrome_trace(trace, run, 0.0, 1e6, max_steps=300, max_requests=20)
    document = json.loads(text)
    assert document["otherData"]["window_was_cut"]
    assert document["otherData"]["requests_left_out"] > 0
    assert len(slices(document, 1)) == 300
    assert len({event["tid"] for event in slices(document, 2)}) <= 20
    assert len(text) < 1_000_000


@settings(max_examples=100)
@given(replays())
def test_slices_of_a_track_do_not_overlap(trace_and_run):
    trace, run = trace_and_run
    document = json.loads(chrome_trace(trace, run, 0.02, 0.2))
    tracks = {}
    for event in slices(document, 1) + slices(document, 2):
        tracks.setdefault((event["pid"], event["tid"]), []).append(event)
    for events in tracks.values():
        for before, after in pairwise(events):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-6
    for event in slices(document, 2):
        assert 20_000 <= event["ts"] <= event["ts"] + event["dur"] <= 200_000 + 1e-6
    assert document["otherData"]["from_s"] == pytest.approx(0.02)
