"""What arrived: rate over time and lengths."""

import numpy as np
import plotly.graph_objects as go

from app.figures import theme
from app.figures.labels import REQUEST_RATE, SHARE_OF_REQUESTS, TOKENS, since_first_arrival, three_digits
from traces.requests import RequestTrace

BIN_WIDTHS_S = (0.01, 0.1, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0)
"""Widths people count in."""
MAX_BINS = 240
BINS_PER_DOUBLING = 2
"""Of the length histogram."""


def arrival_rate(trace: RequestTrace) -> go.Figure:
    """When did requests arrive? Their rate over time."""
    question = "When did requests arrive?"
    if trace.span_s == 0.0:
        return theme.empty(question, f"All {len(trace):,} requests arrive at once.")
    fitting = [width for width in BIN_WIDTHS_S if trace.span_s / width <= MAX_BINS]
    width_s = fitting[0] if fitting else trace.span_s / MAX_BINS
    edges_s = np.arange(0.0, trace.span_s + width_s, width_s)
    count, _ = np.histogram(trace.arrival_s, edges_s)
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
    canvas.update_yaxes(rangemode="tozero")
    return canvas


def token_lengths(trace: RequestTrace) -> go.Figure:
    """How long are prompts and outputs? Shares of requests by length."""
    canvas = theme.figure("How long are prompts and outputs?", TOKENS.title, SHARE_OF_REQUESTS.title)
    for name, tokens, look in (
        ("prompt", trace.prompt_tokens, theme.PROMPT),
        ("output", trace.output_tokens, theme.OUTPUT),
    ):
        doublings = np.log2(tokens)
        first, last = np.floor(doublings.min()), np.ceil(doublings.max() + 1e-9)
        edges = 2 ** np.arange(first, last + 1 / BINS_PER_DOUBLING, 1 / BINS_PER_DOUBLING)
        count, _ = np.histogram(tokens, edges)
        median = three_digits(float(np.median(tokens)))
        canvas.add_scatter(
            x=edges,
            y=SHARE_OF_REQUESTS.shown(np.append(count, count[-1]) / len(tokens)),
            name=f"{name} tokens, median {median} ({len(tokens):,} requests)",
            mode="lines",
            line={"color": look.colour, "dash": look.dash, "shape": "hv", "width": 2},
        )
    theme.log_axes(canvas, x=True)
    canvas.update_yaxes(rangemode="tozero")
    return canvas
