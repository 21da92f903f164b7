import numpy as np
import pytest

from app.figures import inside
from planner.engine_config import EngineConfig
from planner.inside.phases import PhaseKind, life_of
from planner.inside.timeline import timeline
from planner.replay import Replay, replay
from planner.step_time import StepTime
from traces.requests import RequestTrace

SMALL = EngineConfig(max_num_batched_tokens=256, max_num_seqs=8, num_gpu_blocks=40)
"""Too few blocks for what runs: somebody is preempted."""


@pytest.fixture(scope="module")
def few() -> RequestTrace:
    num = 12
    return RequestTrace(np.arange(num) * 0.01, np.full(num, 100), np.full(num, 60), np.arange(num) + 5)


@pytest.fixture(scope="module")
def run(few: RequestTrace) -> Replay:
    return replay(few, SMALL, StepTime(10_000_000, 10_000, 20_000))


def test_every_panel_says_what_it_shows_in_which_unit(run: Replay) -> None:
    canvas = inside.over_time(timeline(run, 50), 0.5)
    assert canvas.layout.title.text == "What did the engine do over time?"
    assert "simulated; lowest to highest value in each of 50 slices" in canvas.layout.title.subtitle.text
    titles = [canvas.layout[f"yaxis{k}"].title.text for k in ("", "2", "3", "4")]
    assert titles == ["Running [requests]", "Waiting [requests]", "KV use [%]", "Preempted [times]"]
    assert canvas.layout.xaxis4.title.text == "Time since the first arrival [s]"
    assert {canvas.layout[f"xaxis{k}"].matches for k in ("", "2", "3")} == {"x4"}


def test_bands_are_the_timeline_and_hide_no_peak(run: Replay) -> None:
    view = timeline(run, 50)
    canvas = inside.over_time(view)
    by_name = {trace.name: trace for trace in canvas.data}
    assert list(by_name["Running, lowest"].y[:-1]) == view.running.low.tolist()
    assert list(by_name["Waiting, highest"].y[:-1]) == view.waiting.high.tolist()
    assert list(by_name["KV use, highest"].y[:-1]) == pytest.approx((100 * view.kv_usage.high).tolist())
    assert max(by_name["Running, highest"].y) == run.steps["num_running"].max()
    assert by_name["Running, lowest"].x[-1] == pytest.approx(run.end_s)
    assert sum(by_name["Preempted"].y) == run.num_preemptions.sum() > 0


def test_the_moment_is_marked_only_inside_the_window(run: Replay) -> None:
    assert [shape.x0 for shape in inside.over_time(timeline(run, 50), 0.5).layout.shapes] == [0.5]
    assert not inside.over_time(timeline(run, 50, 0.0, 0.4), 0.5).layout.shapes


def test_an_empty_window_says_so(run: Replay) -> None:
    canvas = inside.over_time(timeline(run, 50, 1.0, 1.0))
    assert len(canvas.data) == 0
    assert canvas.layout.annotations[0].text == "No step runs in this window."


def test_the_bars_of_a_life_sum_to_its_latency(few: RequestTrace, run: Replay) -> None:
    late = int(np.argmax(run.num_preemptions))
    life = life_of(few, run, late)
    canvas = inside.life(life)
    assert sum(sum(trace.x) for trace in canvas.data) == pytest.approx(run.last_token_s[late] - run.arrival_s[late])
    assert min(min(trace.base) for trace in canvas.data) == pytest.approx(run.arrival_s[late])
    assert {PhaseKind.PREEMPTED, PhaseKind.RECOMPUTE} <= {trace.name for trace in canvas.data}
    assert canvas.layout.xaxis.title.text == "Time since the first arrival [s]"


def test_a_request_that_never_runs_has_no_bars(few: RequestTrace) -> None:
    tiny = replay(few, EngineConfig(num_gpu_blocks=5), StepTime(1, 1, 1))
    canvas = inside.life(life_of(few, tiny, 0))
    assert len(canvas.data) == 0
    assert canvas.layout.annotations[0].text == "It never ran."
