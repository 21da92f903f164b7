from dataclasses import replace

import numpy as np
import pytest

from app.figures import load
from planner.candidates import missed_latencies
from planner.capacity import Capacity, Curve, Window, find_capacity
from planner.engine_config import EngineConfig
from planner.slo import Slo
from planner.step_time import StepTimeFit
from traces.requests import RequestTrace

SLO = Slo(itl_s=0.5, ttft_s=2.0)


@pytest.fixture(scope="module")
def capacity(trace: RequestTrace, fit: StepTimeFit) -> Capacity:
    return find_capacity(trace, EngineConfig(), fit.step_time, SLO, loads=(0.5, 1.0, 30.0), width_s=20.0)


def test_the_curve_shows_gap_and_wait_by_load_and_marks_the_unstable(capacity: Capacity) -> None:
    canvas = load.latency_against_load(capacity.curve, capacity.headroom, SLO)
    gaps, waits = canvas.data
    assert list(gaps.x) == list(waits.x) == [0.5, 1.0, 30.0]
    summaries = [point.candidate.summary for point in capacity.curve.points]
    assert list(gaps.y) == pytest.approx([1e3 * s.itl_at_percentile_s for s in summaries])
    assert list(waits.y) == pytest.approx([1e3 * s.ttft_at_percentile_s for s in summaries])
    assert [symbol.endswith("-open") for symbol in waits.marker.symbol] == [s.is_unstable for s in summaries]
    assert canvas.layout.xaxis.title.text == "Load [times this trace's rate]"
    assert canvas.layout.yaxis.title.text == "Latency [ms]"
    lines = {shape.name for shape in canvas.layout.shapes}
    assert lines == {"gap target 500 ms", "TTFT target 2 s", "knee", "targets break"}


def test_the_windows_show_each_stretch_and_mark_those_that_miss(capacity: Capacity) -> None:
    tight = replace(SLO, ttft_s=0.05)
    windows = tuple(
        replace(
            w,
            violations=missed_latencies(w.itl_at_percentile_s, w.worst_gap_s, w.ttft_at_percentile_s, 0.0, 0.0, tight),
        )
        for w in capacity.windows
    )
    canvas = load.latency_by_window(windows, tight)
    gaps, waits = canvas.data
    assert list(waits.x)[:2] == [10.0, 30.0]
    assert list(waits.y) == pytest.approx([1e3 * window.ttft_at_percentile_s for window in windows])
    assert [symbol == "x-thin-open" for symbol in gaps.marker.symbol] == [bool(window.violations) for window in windows]
    assert "requests" in waits.customdata[0]


def test_nothing_to_draw_is_said(capacity: Capacity) -> None:
    empty = Window(0.0, 1.0, 0, 0, np.nan, np.nan, np.nan, 0, ())
    assert load.latency_by_window((empty,), SLO).layout.annotations[0].text == "The trace has no requests."
    nothing = load.latency_against_load(Curve((), None), capacity.headroom, SLO)
    assert nothing.layout.annotations[0].text == "The replays gave no first token to draw."
