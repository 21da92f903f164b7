"""Every value that is drawn can be taken along."""

import numpy as np

from app.figures import inside, requests, tradeoff
from app.figures.data import drawn_values
from planner.inside.timeline import timeline
from planner.replay import replay
from planner.search import Recommendation
from planner.step_time import StepTimeFit
from traces.requests import RequestTrace


def test_points_come_with_their_settings(plan: Recommendation) -> None:
    figure = tradeoff.gap_against_ttft(plan)
    table = drawn_values(figure)
    assert len(table) == sum(len(trace.x) for trace in figure.data)
    row = table[table["series"] == "Today"].iloc[0]
    assert row["TTFT, queueing included, p99 [ms]"] == plan.today.summary.ttft_at_percentile_s * 1e3
    assert row["about"].startswith("Today: budget 8,192")


def test_a_heat_map_gives_counts_not_their_logarithms(trace: RequestTrace) -> None:
    table = drawn_values(requests.joint_lengths(trace))
    assert table.columns.tolist() == ["Prompt [tokens]", "Output [tokens]", "requests"]
    assert table["requests"].sum() == len(trace)


def test_panels_share_the_time_axis(trace: RequestTrace, plan: Recommendation, fit: StepTimeFit) -> None:
    run = replay(trace, plan.today.engine_config, fit.step_time)
    table = drawn_values(inside.over_time(timeline(run, 60, 0.0, run.end_s)))
    assert "Time since the first arrival [s]" in table.columns
    assert {"Running [requests]", "Waiting [requests]", "KV use [%]", "Preempted [times]"} <= set(table.columns)
    assert np.isfinite(table["Time since the first arrival [s]"]).all()


def test_an_empty_figure_has_no_values() -> None:
    one = RequestTrace(np.zeros(1), np.ones(1, np.int64), np.ones(1, np.int64), np.arange(1))
    assert drawn_values(requests.burstiness(one)).empty
