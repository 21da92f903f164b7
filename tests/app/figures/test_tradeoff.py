from dataclasses import replace

import pytest

from app.figures import tradeoff
from planner.search import Recommendation


def test_axes_name_definition_percentile_and_unit(plan: Recommendation) -> None:
    canvas = tradeoff.gap_against_ttft(plan)
    assert canvas.layout.xaxis.title.text == "TTFT, queueing included, p99 [ms]"
    assert canvas.layout.yaxis.title.text == "Token gap (ITL), pooled over requests, p99 [ms]"


def test_every_setting_is_counted_and_the_three_are_marked(plan: Recommendation) -> None:
    canvas = tradeoff.gap_against_ttft(plan)
    names = [trace.name for trace in canvas.data]
    meeting = sum(candidate.meets for candidate in plan.candidates)
    complete = sum(candidate.is_complete for candidate in plan.candidates)
    assert names[:2] == [
        f"misses a target ({complete - meeting} settings)",
        f"meets every target ({meeting} settings)",
    ]
    assert names[-3:] == ["vLLM default", "Today", "Recommended"]
    recommended = canvas.data[-1]
    assert recommended.x == pytest.approx([1e3 * plan.closest.summary.ttft_at_percentile_s])
    assert recommended.y == pytest.approx([1e3 * plan.closest.summary.itl_at_percentile_s])


def test_the_targets_are_drawn(plan: Recommendation) -> None:
    canvas = tradeoff.gap_against_ttft(plan)
    assert [a.text for a in canvas.layout.annotations] == ["gap target<br>80 ms", "TTFT target 4 s"]
    assert (canvas.layout.shapes[0].y0, canvas.layout.shapes[1].x0) == (80.0, 4000.0)


def test_no_point_beats_the_front(plan: Recommendation) -> None:
    canvas = tradeoff.gap_against_ttft(plan)
    front = next(trace for trace in canvas.data if trace.name.startswith("front"))
    points = [(x, y) for trace in canvas.data[:2] for x, y in zip(trace.x, trace.y, strict=True)]
    for x, y in points:
        assert any(fx <= x and fy <= y for fx, fy in zip(front.x, front.y, strict=True))
    assert list(front.x) == sorted(front.x)


def test_a_missed_target_marks_the_closest(missed_plan: Recommendation) -> None:
    canvas = tradeoff.gap_against_ttft(missed_plan)
    assert canvas.data[-1].name == "Closest (misses)"


def test_without_results_the_figure_says_so(plan: Recommendation) -> None:
    canvas = tradeoff.gap_against_ttft(replace(plan, candidates=()))
    assert len(canvas.data) == 0
    assert canvas.layout.annotations[0].text.startswith("No setting gave")


def test_every_point_leads_back_to_its_setting(plan: Recommendation) -> None:
    canvas = tradeoff.gap_against_ttft(plan)
    assert tradeoff.candidate_at(plan, canvas.data[-1].customdata[0]) == plan.closest
    for drawn in canvas.data[:2]:
        for point, itl_ms in zip(drawn.customdata, drawn.y, strict=True):
            candidate = tradeoff.candidate_at(plan, point)
            assert candidate is not None
            assert 1e3 * candidate.summary.itl_at_percentile_s == pytest.approx(itl_ms)
    assert tradeoff.candidate_at(plan, ["no such setting", 1, 2, 3]) is None
