"""Work beside the pages: it ends, it stops when it is told to, and equal work is done once."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from app import compute
from app.compute import PlanInputs, Setting
from app.jobs import (
    NUM_GAPS,
    NUM_STEPS,
    InsideJob,
    Job,
    Late,
    LoadJob,
    LoadQuestion,
    Look,
    Moment,
    Opened,
    PlanJob,
    Status,
    Window,
    window_width_s,
)
from app.kept import Kept
from planner.engine_config import EngineConfig, flags_from_facts
from planner.errors import Cancelled
from planner.inside.phases import life_of
from planner.inside.step_table import step_table
from planner.replay import Replay
from planner.routing import Routing
from planner.search import Objective
from planner.slo import Slo
from planner.step_time import StepTimeFit
from traces.requests import RequestTrace
from traces.steps import StepLog
from traces.workload import CHAT_WITH_LONG_PROMPTS, make_trace


def wait(until: Callable[[], bool], at_most_s: float = 120.0) -> float:
    """Seconds it took."""
    started = time.monotonic()
    while not until():
        assert time.monotonic() - started < at_most_s
        time.sleep(0.01)
    return time.monotonic() - started


def stopped(job: Job) -> bool:
    """Whether its thread ends within a second."""
    job._thread.join(1.0)
    return not job._thread.is_alive()


def inputs_of(trace: RequestTrace, fit: StepTimeFit, today: EngineConfig, itl_s: float = 0.08) -> PlanInputs:
    return PlanInputs(
        trace_digest=trace.digest,
        trace_name="trace.parquet",
        step_time=fit.step_time,
        model_source=fit.source,
        model_knows=compute.what_is_known(fit),
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


@pytest.mark.parametrize("kind", [PlanJob, LoadJob])
def test_cancel_stops_within_a_second(kind: type[Job], fit: StepTimeFit, today: EngineConfig) -> None:
    trace = make_trace(CHAT_WITH_LONG_PROMPTS)
    inputs = inputs_of(trace, fit, today, itl_s=0.0431)
    setting = Setting(trace.digest, today, fit.step_time)
    make: dict[type[Job], Callable[[], Job]] = {
        PlanJob: lambda: PlanJob(inputs, trace, fit),
        LoadJob: lambda: LoadJob(LoadQuestion(1.0, Routing.ROUND_ROBIN), setting, inputs.slo, trace),
    }
    job, same = make[kind](), make[kind]()
    wait(lambda: max(job.left_s or 0.0, same.left_s or 0.0) > 0.0)
    for one in (job, same):
        one.cancel()
    for one in (job, same):
        assert one.status is Status.CANCELLED
        assert stopped(one)
        assert one.status is Status.CANCELLED
        assert one.result is None


@pytest.fixture
def setting(trace: RequestTrace, fit: StepTimeFit, today: EngineConfig) -> Setting:
    return Setting(trace.digest, today, fit.step_time)


def done(question: Look, trace: RequestTrace) -> InsideJob:
    job = InsideJob(question, trace)
    wait(lambda: not job.is_going)
    assert job.status is Status.DONE
    return job


def test_a_replay_that_is_kept_cannot_be_changed_and_is_made_once(trace: RequestTrace, setting: Setting) -> None:
    run = done(Opened(setting), trace).result
    with pytest.raises(ValueError, match="read-only"):
        run.steps["start_ns"][0] = 1
    again = done(Opened(setting), trace)
    assert again.result is run
    assert again.num_done == 0


def test_looks_inside_are_those_of_the_replay(trace: RequestTrace, setting: Setting) -> None:
    run = done(Opened(setting), trace).result
    look = done(Window(setting, (0.0, run.end_s)), trace)
    view = look.result
    assert (look.num_done, look.num_planned) == (1, 1)
    assert len(view.gaps) == NUM_GAPS
    assert view.gaps[0].gap_s == pytest.approx(float(np.nanmax(run.worst_gap_s)))
    moment_s = view.moments_s[0]
    assert done(Moment(setting, moment_s), trace).result == view.steps[0] == step_table(trace, run, moment_s, NUM_STEPS)
    assert done(Late(setting, 3), trace).result == life_of(trace, run, 3)


def test_a_replay_that_was_forgotten_is_made_again(
    trace: RequestTrace, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = Kept[Replay]()
    monkeypatch.setattr(compute, "replays", lambda: nothing)
    look = done(Late(setting, 5), trace)
    assert (look.num_done, look.num_planned) == (2, 2)
    assert nothing.get(Opened(setting)) is not None


def test_a_look_inside_stops_within_a_second(fit: StepTimeFit) -> None:
    """A hundred thousand requests that wait for ever longer: the last one's life has most steps of the replay."""
    trace = make_trace(replace(CHAT_WITH_LONG_PROMPTS, rate_rps=1000.0, duration_s=100.0))
    setting = Setting(trace.digest, EngineConfig(), fit.step_time)
    for question in (Opened(setting), Late(setting, len(trace) - 1)):
        job = InsideJob(question, trace)
        wait(lambda job=job: job.part_done > 0.01)
        before = job.part_done
        wait(lambda job=job, before=before: before < job.part_done < 1.0)
        assert job.left_s > 0.0
        job.cancel()
        assert stopped(job)
        assert job.status is Status.CANCELLED
        assert job.result is None


def test_a_load_question_is_answered_once(trace: RequestTrace, fit: StepTimeFit, today: EngineConfig) -> None:
    asked = LoadQuestion(1.0, Routing.ROUND_ROBIN), Setting(trace.digest, today, fit.step_time), Slo(itl_s=0.2), trace
    jobs = [LoadJob(*asked) for _ in range(3)]
    wait(lambda: not any(job.is_going for job in jobs))
    assert sum(job.num_done > 0 for job in jobs) == 1
    assert jobs[0].result is not None
    assert all(job.result is jobs[0].result for job in jobs)


def test_who_waits_for_anothers_work_can_stop_and_takes_over_where_that_one_gave_up() -> None:
    kept, is_told = Kept[int](), threading.Event()

    def give_up() -> int:
        is_told.wait(10.0)
        raise Cancelled

    def stop() -> None:
        raise Cancelled

    def first() -> None:
        with pytest.raises(Cancelled):
            kept.made_once("key", give_up, stop)

    thread = threading.Thread(target=first)
    thread.start()
    wait(lambda: "key" in kept._being_made)
    with pytest.raises(Cancelled):
        kept.made_once("key", lambda: 1, stop)
    assert kept.made_once("key", lambda: 2, is_told.set) == 2
    thread.join()
    assert kept.made_once("key", give_up, stop) == 2


def test_flags_that_vllm_refuses_are_a_reason_not_a_crash(
    trace: RequestTrace, fit: StepTimeFit, today: EngineConfig
) -> None:
    refused = EngineConfig(max_num_batched_tokens=16, max_num_seqs=256)
    job = PlanJob(inputs_of(trace, fit, refused), trace, fit)
    wait(lambda: not job.is_going)
    assert job.status is Status.FAILED
    assert "max_num_batched_tokens (16) is smaller than max_num_seqs (256)" in job.fault


@pytest.mark.parametrize(("span_s", "width_s"), [(0.0, 1.0), (600.0, 60.0), (3600.0, 300.0), (86_400.0, 3600.0)])
def test_a_trace_is_judged_in_at_most_a_day_of_pieces(span_s: float, width_s: float) -> None:
    assert window_width_s(span_s) == width_s
