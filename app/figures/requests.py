"""What arrived: rate over time and lengths."""

from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from app.figures import theme
from app.figures.labels import (
    BIN_WIDTH,
    DISPERSION,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    REQUEST_RATE,
    SHARE_OF_REQUESTS,
    TOKENS,
    since_first_arrival,
    three_digits,
)
from traces.requests import RequestTrace
from traces.selection import dispersion

BIN_WIDTHS_S = (0.01, 0.1, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0)
"""Widths people count in."""
MAX_BINS = 240
BINS_PER_DOUBLING = 2
"""Of the length histograms."""
MIN_WIDTHS, MAX_WIDTHS = 10, 1_000_000
"""Widths that burstiness is counted over fit so often into the trace."""


def arrival_rate(trace: RequestTrace, window_s: tuple[float, float | None] | None = None) -> go.Figure:
    """When did requests arrive? Their rate over time, and the window that is planned for."""
    question = "When did requests arrive?"
    if trace.span_s == 0.0:
        return theme.empty(question, f"All {len(trace):,} requests arrive at once.")
    fitting = [width for width in BIN_WIDTHS_S if trace.span_s / width <= MAX_BINS]
    width_s = fitting[0] if fitting else trace.span_s / MAX_BINS
    edges_s = np.arange(0.0, trace.span_s + width_s, width_s)
    count = np.diff([*np.searchsorted(trace.arrival_s, edges_s[:-1]), len(trace)])
    time = since_first_arrival(trace.span_s)
    canvas = theme.figure(question, time.title, REQUEST_RATE.title)
    canvas.add_scatter(
        x=time.shown(edges_s),
        y=np.append(count, count[-1]) / width_s,
        name=f"{len(trace):,} requests, counted per {width_s:g} s",
        mode="lines",
        line={"color": theme.PROMPT.colour, "shape": "hv", "width": 1.5},
        fill="tozeroy",
        showlegend=True,
    )
    if window_s is not None:
        start, end = time.shown(np.array([window_s[0], trace.span_s if window_s[1] is None else window_s[1]]))
        canvas.add_vrect(x0=start, x1=end, fillcolor=theme.RECOMMENDED.colour, opacity=0.15, line_width=0)
    canvas.update_layout(dragmode="select", selectdirection="h")
    canvas.update_yaxes(rangemode="tozero")
    return canvas


def drawn_window_s(boxes: list[dict[str, Any]], span_s: float) -> tuple[float, float] | None:
    """The window that was drawn on the plot of `arrival_rate`, whole seconds of a trace that spans `span_s`."""
    if not boxes:
        return None
    per_second = since_first_arrival(span_s).per_inside
    start, end = sorted(float(edge) / per_second for edge in boxes[0]["x"][:2])
    start_s, end_s = max(0.0, float(np.floor(start))), float(np.ceil(end))
    return (start_s, end_s) if end_s > start_s else None


def token_lengths(trace: RequestTrace) -> go.Figure:
    """How long are prompts and outputs? Shares of requests by length."""
    canvas = theme.figure("How long are prompts and outputs?", TOKENS.title, SHARE_OF_REQUESTS.title)
    for name, tokens, look in (
        ("prompt", trace.prompt_tokens, theme.PROMPT),
        ("output", trace.output_tokens, theme.OUTPUT),
    ):
        edges = _doublings(tokens)
        count, _ = np.histogram(tokens, edges)
        middle = three_digits(float(np.quantile(tokens, 0.5, method="higher")))
        canvas.add_scatter(
            x=edges,
            y=SHARE_OF_REQUESTS.shown(np.append(count, count[-1]) / len(tokens)),
            name=f"{name} tokens, p50 {middle} ({len(tokens):,} requests)",
            mode="lines",
            line={"color": look.colour, "dash": look.dash, "shape": "hv", "width": 2},
        )
    theme.log_axes(canvas, x=True)
    canvas.update_yaxes(rangemode="tozero")
    return canvas


def joint_lengths(trace: RequestTrace) -> go.Figure:
    """Which prompts draw long outputs? Requests by both lengths."""
    canvas = theme.figure("Which prompts draw long outputs?", PROMPT_TOKENS.title, OUTPUT_TOKENS.title)
    edges = [_doublings(tokens) for tokens in (trace.prompt_tokens, trace.output_tokens)]
    count, _, _ = np.histogram2d(trace.prompt_tokens, trace.output_tokens, edges)
    middle = [np.sqrt(one[:-1] * one[1:]) for one in edges]
    shown = np.where(count > 0, np.log10(np.maximum(count, 1)), np.nan).T
    ticks = np.arange(0, np.floor(np.log10(count.max())) + 1)
    canvas.add_heatmap(
        x=middle[0],
        y=middle[1],
        z=shown,
        customdata=count.T,
        hovertemplate="%{customdata:,} requests around %{x:,.0f} prompt and %{y:,.0f} output tokens<extra></extra>",
        colorscale="Viridis",
        colorbar={"title": "requests", "tickvals": ticks, "ticktext": [f"{10**tick:,.0f}" for tick in ticks]},
    )
    theme.log_axes(canvas, x=True, y=True)
    return canvas


def burstiness(trace: RequestTrace) -> go.Figure:
    """How bursty are arrivals? Variance over mean of their counts, by the width counted over."""
    question = "How bursty are arrivals?"
    widths = [width for width in BIN_WIDTHS_S if MIN_WIDTHS <= trace.span_s / width <= MAX_WIDTHS]
    if not widths:
        return theme.empty(question, "Too few arrivals, or all at once.")
    canvas = theme.figure(question, BIN_WIDTH.title, DISPERSION.title, "Poisson arrivals are 1 at every width")
    canvas.add_scatter(
        x=widths,
        y=[dispersion(trace.arrival_s, width) for width in widths],
        name="index of dispersion: variance ÷ mean of the count",
        mode="lines+markers",
        line={"color": theme.PROMPT.colour, "width": 2},
        showlegend=True,
    )
    canvas.add_scatter(
        x=[widths[0], widths[-1]],
        y=[1.0, 1.0],
        name="Poisson",
        mode="lines",
        line={"color": theme.REFERENCE.colour, "dash": "dot", "width": 2},
    )
    theme.log_axes(canvas, x=True, y=True)
    return canvas


def _doublings(tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Bin edges around token counts."""
    low, high = int(tokens.min()), int(tokens.max())
    first, last = np.floor(np.log2(low)), np.ceil(np.log2(high) + 1e-9)
    edges: npt.NDArray[np.float64] = 2 ** np.arange(first, last + 1 / BINS_PER_DOUBLING, 1 / BINS_PER_DOUBLING)
    return edges
