"""No figure is larger than a browser likes, however large what it draws is: a million requests, a million steps."""

from dataclasses import fields, replace
from inspect import getmembers, isfunction, signature
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from app.figures import budget, calibration, distributions, grid, inside, lesson, load, requests, theme, tradeoff
from app.figures.calibration import Against
from app.figures.distributions import Latencies
from planner.capacity import Headroom, by_window, latency_curve
from planner.engine_config import EngineConfig
from planner.inside.lesson import lesson as lesson_of
from planner.inside.lesson import toy_config
from planner.inside.phases import Life, Phase, PhaseKind
from planner.inside.timeline import timeline
from planner.measured import Comparison
from planner.metrics import distribution, itl, ttft_s
from planner.replay import replay
from planner.search import Recommendation
from planner.slo import Slo
from planner.step_time import StepTime, StepTimeFit
from traces.requests import RequestTrace
from traces.steps import StepLog

MOST_BYTES = 2 << 20
MILLION = 1_000_000
SLO = Slo(itl_s=0.08)
ROOMS = (budget, calibration, distributions, grid, inside, lesson, load, requests, tradeoff)


def repeated(fit: StepTimeFit) -> StepTimeFit:
    """A fit to the same steps over and over."""
    num = len(fit.log)

    def tiled(values: Any) -> Any:
        is_per_step = isinstance(values, np.ndarray) and len(values) == num
        return np.resize(values, MILLION) if is_per_step else values

    log = StepLog(**{one.name: tiled(getattr(fit.log, one.name)) for one in fields(StepLog) if one.init})
    return replace(fit, log=log, kept=tiled(fit.kept), predicted_s=tiled(fit.predicted_s))


@pytest.fixture(scope="module")
def drawn(plan: Recommendation, fit: StepTimeFit, trace: RequestTrace) -> dict[str, go.Figure]:
    """Every figure, by the name of its function."""
    random = np.random.default_rng(5)
    large = RequestTrace(
        np.cumsum(random.exponential(0.002, MILLION)),
        random.integers(1, 20_000, MILLION),
        random.integers(1, 4, MILLION),
        np.arange(MILLION),
    )
    run = replay(large, EngineConfig(max_num_batched_tokens=8192), StepTime(1_000_000, 1_000, 10))
    assert len(run.steps) > 500_000
    gaps, waits = itl(run), distribution(ttft_s(run))
    settings = (Latencies("Today", theme.TODAY, gaps, waits),) * 3
    phases = tuple(
        Phase(kind, 10 * k, 10 * k + 10, 1, 1, 0, None, False) for k, kind in enumerate([*PhaseKind] * 10_000)
    )
    asked = trace, EngineConfig(), fit.step_time, SLO
    many = repeated(fit)
    return {
        "arrival_rate": requests.arrival_rate(large, (10.0, 500.0)),
        "token_lengths": requests.token_lengths(large),
        "joint_lengths": requests.joint_lengths(large),
        "burstiness": requests.burstiness(large),
        "over_time": inside.over_time(timeline(run, 600, 0.0, run.end_s), 100.0),
        "life": inside.life(Life(0, phases, True, 1.0, 0, 0, ())),
        "gap_tail": distributions.gap_tail(settings, SLO),
        "ttft_tail": distributions.ttft_tail(settings, SLO),
        "predicted_and_measured": distributions.predicted_and_measured(Comparison("ttft", waits, waits)),
        "predicted_against_measured": calibration.predicted_against_measured(many),
        "step_time_by_prefill": calibration.step_time_by_prefill(many),
        "residuals": calibration.residuals(many, Against.PREFILL),
        "decode_curve": calibration.decode_curve(many),
        "latency_by_budget": budget.latency_by_budget(plan),
        "gap_against_ttft": tradeoff.gap_against_ttft(plan),
        "gap_by_budget_and_seats": grid.gap_by_budget_and_seats(plan, 0),
        "latency_against_load": load.latency_against_load(
            latency_curve(*asked, loads=(0.5,)), Headroom(None, None, ()), SLO
        ),
        "latency_by_window": load.latency_by_window(by_window(*asked, width_s=0.5), SLO),
        "who_got_tokens": lesson.who_got_tokens(lesson_of(toy_config(16, 0, 128)), 16, 3),
    }


def test_no_figure_is_large(drawn: dict[str, go.Figure]) -> None:
    sizes = {name: len(figure.to_json()) for name, figure in drawn.items()}
    assert max(sizes.values()) < MOST_BYTES, sizes


def test_every_figure_is_drawn_here(drawn: dict[str, go.Figure]) -> None:
    public = {
        name
        for room in ROOMS
        for name, function in getmembers(room, isfunction)
        if not name.startswith("_")
        and function.__module__ == room.__name__
        and signature(function).return_annotation is go.Figure
    }
    assert set(drawn) == public
