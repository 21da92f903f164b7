"""How well the step-time equation fits the log."""

from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from app.figures import theme
from app.figures.labels import (
    BATCH,
    CONTEXT_READ,
    DECODE_TIME,
    LOGGED_AT,
    MEASURED_STEP,
    PREDICTED_STEP,
    PREFILL_TOKENS,
    RESIDUAL,
    STEP_NUMBER,
    STEP_TIME,
    Quantity,
)
from planner.calibrate import decode_only_s
from planner.step_time import StepTimeFit

NUM_BINS = 20
"""Of the line through the middle of the residuals."""
MIN_IN_BIN = 5
"""Fewer steps have no middle worth a line."""
CONTEXTS = (0.1, 0.5, 0.9)
"""Which contexts d is drawn for: quantiles of context per request among the decode-only steps."""
BEYOND = 1.5
"""How far beyond the largest logged batch d is drawn."""


class Against(StrEnum):
    """What residuals are laid out along."""

    PREFILL = "prefill tokens"
    BATCH = "requests in the step"
    CONTEXT = "context"
    TIME = "time"


def predicted_against_measured(fit: StepTimeFit) -> go.Figure:
    """Does the fit give the times that were measured? Every step, predicted against measured."""
    canvas = theme.figure("Does the fit give the times that were measured?", MEASURED_STEP.title, PREDICTED_STEP.title)
    positive = (fit.log.step_s > 0) & (fit.predicted_s > 0)
    for name, which, look in (
        ("steps used", fit.kept & positive, theme.PREDICTED),
        ("steps left out", ~fit.kept & positive, theme.LEFT_OUT),
    ):
        index = _thinned(which)
        canvas.add_scatter(
            x=MEASURED_STEP.shown(fit.log.step_s[index]),
            y=PREDICTED_STEP.shown(fit.predicted_s[index]),
            name=f"{name} ({which.sum():,})",
            mode="markers",
            marker={"color": look.colour, "symbol": look.symbol, "size": 5, "opacity": 0.4},
            visible=True if which.any() else "legendonly",
            showlegend=bool(which.any()),
        )
    ends_s = np.array([fit.log.step_s[positive].min(), fit.log.step_s[positive].max()])
    canvas.add_scatter(
        x=MEASURED_STEP.shown(ends_s),
        y=PREDICTED_STEP.shown(ends_s),
        name="predicted = measured",
        mode="lines",
        line={"color": theme.REFERENCE.colour, "width": 2},
    )
    theme.log_axes(canvas, x=True, y=True)
    return canvas


def step_time_by_prefill(fit: StepTimeFit) -> go.Figure:
    """What does prefill add to a step? Step time over prefill tokens, measured and predicted."""
    canvas = theme.figure("What does prefill add to a step?", PREFILL_TOKENS.title, STEP_TIME.title)
    index = _thinned(fit.kept)
    for name, times_s, look in (
        ("measured", fit.log.step_s, theme.MEASURED),
        ("predicted", fit.predicted_s, theme.PREDICTED),
    ):
        canvas.add_scatter(
            x=PREFILL_TOKENS.shown(fit.log.prefill_tokens[index]),
            y=STEP_TIME.shown(times_s[index]),
            name=f"{name} ({fit.kept.sum():,} steps)",
            mode="markers",
            marker={"color": look.colour, "symbol": look.symbol, "size": 5, "opacity": 0.7},
        )
    canvas.update_xaxes(rangemode="tozero")
    canvas.update_yaxes(rangemode="tozero")
    return canvas


def residuals(fit: StepTimeFit, against: Against) -> go.Figure:
    """Where is the fit off? Predicted against measured step by step, along one quantity, with the middle as a line."""
    axis, values = _laid_out(fit, against)
    if values is None:
        return theme.empty("Where is the fit off?", "This log does not tell the context of its requests.")
    canvas = theme.figure("Where is the fit off?", axis.title, RESIDUAL.title)
    off = np.divide(fit.predicted_s, fit.log.step_s, out=np.ones(len(fit.log)), where=fit.log.step_s > 0) - 1.0
    kinds = (
        ("without prefill", fit.log.prefill_tokens == 0, theme.RUNNING),
        ("with prefill", fit.log.prefill_tokens > 0, theme.PREDICTED),
    )
    for name, which, look in kinds:
        index = _thinned(fit.kept & which)
        canvas.add_scatter(
            x=axis.shown(values[index]),
            y=RESIDUAL.shown(off[index]),
            name=f"steps {name} ({int((fit.kept & which).sum()):,})",
            mode="markers",
            marker={"color": look.colour, "symbol": look.symbol, "size": 5, "opacity": 0.4},
        )
    middle = _middle(values[fit.kept], off[fit.kept])
    canvas.add_scatter(
        x=axis.shown(middle[0]),
        y=RESIDUAL.shown(middle[1]),
        name="middle of each twentieth",
        mode="lines+markers",
        line={"color": theme.TODAY.colour, "width": 2},
    )
    canvas.add_hline(y=0.0, line={"color": theme.REFERENCE.colour, "width": 1})
    return canvas


def _laid_out(fit: StepTimeFit, against: Against) -> tuple[Quantity, npt.NDArray[Any] | None]:
    """The axis and the values (k,) of one quantity; None where the log does not say."""
    log = fit.log
    match against:
        case Against.PREFILL:
            return PREFILL_TOKENS, log.prefill_tokens
        case Against.BATCH:
            return BATCH, log.num_prefill_reqs + log.num_decode_reqs
        case Against.CONTEXT:
            return CONTEXT_READ, log.kv_decode_tokens
        case Against.TIME if log.stamp_s is not None:
            return LOGGED_AT, log.stamp_s - log.stamp_s[0]
        case Against.TIME:
            return STEP_NUMBER, np.arange(1, len(log) + 1)


def _middle(
    values: npt.NDArray[Any], off: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Median place and median error of bins with about equally many steps; equal values share one."""
    edges = np.unique(np.quantile(values, np.linspace(0.0, 1.0, NUM_BINS + 1)[1:-1]))
    bin_ = np.searchsorted(edges, values)
    bins = [part for k in range(len(edges) + 1) if (part := bin_ == k).sum() >= MIN_IN_BIN]
    return np.array([np.median(values[part]) for part in bins]), np.array([np.median(off[part]) for part in bins])


def decode_curve(fit: StepTimeFit) -> go.Figure:
    """What does a larger batch cost every stream? d over batch size at short, typical and long contexts."""
    canvas = theme.figure(
        "What does a larger batch cost every stream?",
        BATCH.title,
        DECODE_TIME.title,
        "Time of a step without prefill; dashed beyond the largest logged batch",
    )
    log = fit.log
    decodes = fit.kept & (log.prefill_tokens == 0) & (log.num_decode_reqs > 0)
    sizes, nums = np.unique(log.num_decode_reqs[decodes], return_counts=True)
    sizes = sizes[nums >= MIN_IN_BIN]
    medians = np.array([np.median(log.step_s[decodes & (log.num_decode_reqs == size)]) for size in sizes])
    canvas.add_scatter(
        x=BATCH.shown(sizes),
        y=DECODE_TIME.shown(medians),
        name=f"measured, median of each batch ({int(decodes.sum()):,} steps)",
        mode="markers",
        marker={"color": theme.MEASURED.colour, "symbol": theme.MEASURED.symbol, "size": 7},
    )
    largest = fit.covered.max_num_seqs
    num_seqs = np.unique(np.linspace(1, BEYOND * largest, 200).astype(np.int64))
    for context, words, dash in _contexts(fit, decodes):
        for which, is_inside in ((num_seqs <= largest, True), (num_seqs >= largest, False)):
            canvas.add_scatter(
                x=BATCH.shown(num_seqs[which]),
                y=DECODE_TIME.shown(decode_only_s(fit.step_time, num_seqs[which], context)),
                name=words,
                legendgroup=words,
                showlegend=is_inside,
                mode="lines",
                line={"color": theme.PREDICTED.colour, "width": 2, "dash": dash if is_inside else "dash"},
                opacity=1.0 if is_inside else 0.5,
            )
    canvas.update_yaxes(rangemode="tozero")
    return canvas


def _contexts(fit: StepTimeFit, decodes: npt.NDArray[np.bool_]) -> list[tuple[float, str, str]]:
    """(context per request, name of the line, its dash); one line where context costs nothing or is not known."""
    kv = fit.log.kv_decode_tokens
    if fit.step_time.per_kv_token_ns == 0.0 or kv is None:
        return [(0.0, "d, fitted", "solid")]
    contexts = np.quantile(kv[decodes] / fit.log.num_decode_reqs[decodes], CONTEXTS)
    dashes = ("dot", "solid", "dashdot")
    return [
        (float(context), f"d at {context:,.0f} tokens of context each", dash)
        for context, dash in zip(contexts, dashes, strict=True)
    ]


def _thinned(which: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
    """Positions that are true, thinned for drawing."""
    index = np.flatnonzero(which)
    return index[theme.thin(len(index))] if len(index) else index
