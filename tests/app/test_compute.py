import json
import time

import pytest

from app import compute
from planner.engine_config import EngineConfig, flags_from_facts
from planner.replay import replay
from planner.step_time import StepTimeFit
from traces.requests import RequestTrace
from traces.steps import StepLog


@pytest.fixture
def today(log: StepLog) -> EngineConfig:
    return flags_from_facts(log.facts)


def test_cancel_stops_the_wait_for_the_compiler() -> None:
    compiler = compute.Compiler()
    started = time.monotonic()
    compiler.wait(lambda: True)
    assert time.monotonic() - started < 1.0
    compiler.join()


def test_latencies_are_those_of_the_replay(trace: RequestTrace, fit: StepTimeFit, today: EngineConfig) -> None:
    gaps, waits = compute.latencies(trace.digest, today, fit.step_time, _trace=trace)
    assert gaps.num == (trace.output_tokens - 1).sum()
    assert waits.num == len(trace)


def test_a_file_holds_the_steps_around_the_moment(
    trace: RequestTrace, fit: StepTimeFit, today: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute, "MAX_FILE_STEPS", 50)
    run = replay(trace, today, fit.step_time)
    whole = (0.0, run.end_s)
    for moment_s in (0.0, 20.0, run.end_s):
        window_s, num_left_out = compute.file_window(run, whole, moment_s)
        assert num_left_out == len(run.steps) - 50
        assert whole[0] <= window_s[0] < window_s[1] <= whole[1]
        document = json.loads(compute.viewer_file(run, window_s, trace))
        steps = [event for event in document["traceEvents"] if event["ph"] == "X" and event["pid"] == 1]
        assert len(steps) == 50
        assert not document["otherData"]["window_was_cut"]
    assert window_s[1] == pytest.approx(run.end_s)
    assert compute.file_window(run, (20.0, 20.1), 0.0) == ((20.0, 20.1), 0)
