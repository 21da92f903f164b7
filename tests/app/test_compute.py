import json
import time
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from app import compute
from app.compute import PlanInputs, PlanJob, Setting, Status
from planner.engine_config import EngineConfig, flags_from_facts
from planner.replay import replay
from planner.search import Objective
from planner.slo import Slo
from planner.step_time import StepTimeFit
from traces.requests import RequestTrace
from traces.steps import StepLog


def wait(until: Callable[[], bool], at_most_s: float = 120.0) -> float:
    """Seconds it took."""
    started = time.monotonic()
    while not until():
        assert time.monotonic() - started < at_most_s
        time.sleep(0.01)
    return time.monotonic() - started


def inputs_of(trace: RequestTrace, fit: StepTimeFit, today: EngineConfig, itl_s: float = 0.08) -> PlanInputs:
    return PlanInputs(
        trace_digest=trace.digest,
        trace_name="trace.parquet",
        step_time=fit.step_time,
        model_source=fit.source,
        slo=Slo(itl_s=itl_s),
        objective=Objective.LOWEST_TTFT,
        today=today,
        default_flags=(8192, 1024),
    )


@pytest.fixture
def today(log: StepLog) -> EngineConfig:
    return flags_from_facts(log.facts)


def test_a_job_comes_to_a_result_and_the_same_inputs_give_it_again(
    trace: RequestTrace, fit: StepTimeFit, today: EngineConfig
) -> None:
    inputs = inputs_of(trace, fit, today)
    job = PlanJob(inputs, trace, fit)
    wait(lambda: not job.is_going)
    assert job.status is Status.DONE
    assert job.result is not None
    assert 0 < job.num_done <= job.num_planned
    again = PlanJob(inputs, trace, fit)
    assert wait(lambda: not again.is_going) < 1.0
    assert again.result is job.result


def test_cancel_stops_within_a_second(fit: StepTimeFit, today: EngineConfig) -> None:
    trace, _ = compute.example()
    job = PlanJob(inputs_of(trace, fit, today, itl_s=0.0431), trace, fit)
    wait(lambda: job.num_done > 0)
    job.cancel()
    assert wait(lambda: not job.is_going) < 1.0
    assert job.status is Status.CANCELLED
    assert job.result is None


def test_cancel_stops_the_wait_for_the_compiler() -> None:
    compiler = compute.Compiler()
    started = time.monotonic()
    compiler.wait(lambda: True)
    assert time.monotonic() - started < 1.0
    compiler.join()


def test_flags_that_vllm_refuses_are_a_reason_not_a_crash(
    trace: RequestTrace, fit: StepTimeFit, today: EngineConfig
) -> None:
    refused = EngineConfig(max_num_batched_tokens=16, max_num_seqs=256)
    job = PlanJob(inputs_of(trace, fit, refused), trace, fit)
    wait(lambda: not job.is_going)
    assert job.status is Status.FAILED
    assert "max_num_batched_tokens (16) is smaller than max_num_seqs (256)" in job.fault


def test_latencies_are_those_of_the_replay(trace: RequestTrace, fit: StepTimeFit, today: EngineConfig) -> None:
    gaps, waits = compute.latencies(trace.digest, today, fit.step_time, _trace=trace)
    assert gaps.num == (trace.output_tokens - 1).sum()
    assert waits.num == len(trace)


def test_a_replay_that_is_kept_cannot_be_changed(
    trace: RequestTrace, fit: StepTimeFit, today: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Setting(trace.digest, today, fit.step_time)
    # It is kept per browser session, and there is none here.
    monkeypatch.setattr(compute, "replayed", cache(compute.replayed.__wrapped__))
    run = compute.replayed(setting, _trace=trace)
    with pytest.raises(ValueError, match="read-only"):
        run.steps["start_ns"][0] = 1
    gaps = compute.longest_gaps(setting, (0.0, run.end_s), _trace=trace)
    assert gaps is compute.longest_gaps(setting, (0.0, run.end_s), _trace=trace)
    assert gaps[0].gap_s == max(gap.gap_s for gap in gaps)
    assert gaps[0].gap_s == pytest.approx(float(np.nanmax(run.worst_gap_s)))


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


@pytest.mark.parametrize(("span_s", "width_s"), [(0.0, 1.0), (600.0, 60.0), (3600.0, 300.0), (86_400.0, 3600.0)])
def test_a_trace_is_judged_in_at_most_a_day_of_pieces(span_s: float, width_s: float) -> None:
    assert compute.window_width_s(span_s) == width_s
