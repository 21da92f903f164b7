"""Whole distributions of gaps and TTFT, as the share that is longer: the tail is where streams stall."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from app.figures import theme
from app.figures.labels import ITL, SHARE_LONGER, TTFT, Quantity, percentile
from planner.measured import Comparison
from planner.metrics import Distribution
from planner.slo import Slo
from planner.verdict import seconds

SIMULATED = "simulated; the lower the line, the better"


@dataclass(frozen=True, slots=True, eq=False)
class Latencies:
    """What one setting gave."""

    name: str
    """As in the legend."""
    look: theme.Look
    """How it is drawn."""
    itl: Distribution
    """Token gaps, pooled over requests."""
    ttft: Distribution
    """Time to first token per request."""


def gap_tail(settings: tuple[Latencies, ...], slo: Slo) -> go.Figure:
    """How long are token gaps? The share that is longer than each value, one falling line per setting."""
    canvas = _tails(
        "How long are token gaps?",
        ITL,
        [(one.name, one.look, one.itl, "gaps") for one in settings],
        SIMULATED,
    )
    _add_target(canvas, ITL, slo.itl_s, slo.itl_percentile)
    theme.log_axes(canvas, x=True, y=True)
    return canvas


def ttft_tail(settings: tuple[Latencies, ...], slo: Slo) -> go.Figure:
    """How long is the wait for the first token? The share of requests that waits longer, one line per setting."""
    canvas = _tails(
        "How long is the wait for the first token?",
        TTFT,
        [(one.name, one.look, one.ttft, "requests") for one in settings],
        SIMULATED,
    )
    if slo.ttft_s is not None:
        _add_target(canvas, TTFT, slo.ttft_s, slo.ttft_percentile)
    theme.log_axes(canvas, x=True, y=True)
    return canvas


def predicted_and_measured(compared: Comparison) -> go.Figure:
    """Does a replay give what was measured? The tails of one latency, simulated and measured."""
    question, quantity, noun = {
        "itl": ("Does a replay give the gaps that were measured?", ITL, "gaps"),
        "ttft": ("Does a replay give the waits that were measured?", TTFT, "requests"),
    }[compared.name]
    lines = [
        ("simulated", theme.PREDICTED, compared.predicted_values, noun),
        ("measured", theme.OBSERVED, compared.measured_values, noun),
    ]
    canvas = _tails(question, quantity, lines, "the closer the lines, the better")
    theme.log_axes(canvas, x=True, y=True)
    return canvas


def _tails(
    question: str, quantity: Quantity, lines: list[tuple[str, theme.Look, Distribution, str]], about: str
) -> go.Figure:
    """One falling line per setting, both axes logarithmic."""
    if not any(values.num for _, _, values, _ in lines):
        return theme.empty(question, "The replay gave no value to draw.")
    canvas = theme.figure(question, quantity.title, SHARE_LONGER.title, about)
    for name, look, values, noun in lines:
        value_s, share = share_longer(values)
        canvas.add_scatter(
            x=quantity.shown(value_s),
            y=SHARE_LONGER.shown(share),
            name=f"{name} ({values.num:,} {noun})",
            mode="lines",
            line={"color": look.colour, "dash": look.dash, "width": 2, "shape": "hv"},
            hovertemplate="%{y:.3g} % are longer than %{x:.3g} ms",
        )
    return canvas


def share_longer(values: Distribution) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Where to draw the line of a distribution: values, and the share of all that is longer than each.

    The longest value has no share above it and no place on a logarithmic axis; it is drawn at the share it
    has itself, so that the worst of all is on the figure.
    """
    if not values.num:
        return np.array([]), np.array([])
    longer = (values.num - np.cumsum(values.count)) / values.num
    longer[-1] = values.count[-1] / values.num
    position = np.searchsorted(-longer, -np.geomspace(1.0, longer[-1], theme.MAX_POINTS // 3))
    last = len(longer) - 1
    index = np.unique(np.concatenate([theme.thin(len(longer))[::2], position.clip(max=last), [last]]))
    return values.value_s[index], longer[index]


def _add_target(canvas: go.Figure, quantity: Quantity, target_s: float, share: float) -> None:
    """The target as a line down and a line across: a setting must pass below and left of where they meet."""
    theme.add_limit(canvas, "x", target_s * quantity.per_inside, f"target {seconds(target_s)}")
    theme.add_limit(canvas, "y", SHARE_LONGER.per_inside * (1.0 - share), percentile(share))
