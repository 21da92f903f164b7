"""How well the step-time equation fits the log."""

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from app.figures import theme
from app.figures.labels import MEASURED_STEP, PREDICTED_STEP, PREFILL_TOKENS, STEP_TIME
from planner.step_time import StepTimeFit
from traces.steps import StepLog


def predicted_against_measured(fit: StepTimeFit) -> go.Figure:
    """Does the fit give the times that were measured? Every step, predicted against measured."""
    canvas = theme.figure("Does the fit give the times that were measured?", MEASURED_STEP.title, PREDICTED_STEP.title)
    positive = (fit.measured_s > 0) & (fit.predicted_s > 0)
    for name, which, look in (
        ("steps used", fit.kept & positive, theme.PREDICTED),
        ("steps left out", ~fit.kept & positive, theme.LEFT_OUT),
    ):
        index = _thinned(which)
        canvas.add_scatter(
            x=MEASURED_STEP.shown(fit.measured_s[index]),
            y=PREDICTED_STEP.shown(fit.predicted_s[index]),
            name=f"{name} ({which.sum():,})",
            mode="markers",
            marker={"color": look.colour, "symbol": look.symbol, "size": 5, "opacity": 0.4},
            visible=True if which.any() else "legendonly",
            showlegend=bool(which.any()),
        )
    ends_s = np.array([fit.measured_s[positive].min(), fit.measured_s[positive].max()])
    canvas.add_scatter(
        x=MEASURED_STEP.shown(ends_s),
        y=PREDICTED_STEP.shown(ends_s),
        name="predicted = measured",
        mode="lines",
        line={"color": theme.REFERENCE.colour, "width": 2},
    )
    theme.log_axes(canvas, x=True, y=True)
    return canvas


def step_time_by_prefill(log: StepLog, fit: StepTimeFit) -> go.Figure:
    """What does prefill add to a step? Step time over prefill tokens, measured and predicted."""
    canvas = theme.figure("What does prefill add to a step?", PREFILL_TOKENS.title, STEP_TIME.title)
    index = _thinned(fit.kept)
    for name, times_s, look in (
        ("measured", fit.measured_s, theme.MEASURED),
        ("predicted", fit.predicted_s, theme.PREDICTED),
    ):
        canvas.add_scatter(
            x=PREFILL_TOKENS.shown(log.prefill_tokens[index]),
            y=STEP_TIME.shown(times_s[index]),
            name=f"{name} ({fit.kept.sum():,} steps)",
            mode="markers",
            marker={"color": look.colour, "symbol": look.symbol, "size": 5, "opacity": 0.7},
        )
    canvas.update_xaxes(rangemode="tozero")
    canvas.update_yaxes(rangemode="tozero")
    return canvas


def _thinned(which: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
    """Positions that are true, thinned for drawing."""
    index = np.flatnonzero(which)
    return index[theme.thin(len(index))] if len(index) else index
