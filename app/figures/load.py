"""What more load does to latencies, and which stretch of a trace is the worst."""

import numpy as np
import plotly.graph_objects as go

from app.figures import theme
from app.figures.labels import LATENCY, LOAD, percentile, since_first_arrival
from planner.capacity import Curve, Headroom, Window
from planner.slo import Slo
from planner.verdict import seconds


def latency_against_load(curve: Curve, headroom: Headroom, slo: Slo) -> go.Figure:
    """What does more load do to latencies? Gap and TTFT at the targets' percentiles; hollow where unstable."""
    question = "What does more load do to latencies?"
    loads = np.array([point.load for point in curve.points])
    summaries = [point.candidate.summary for point in curve.points]
    if not any(s.ttft_at_percentile_s > 0 for s in summaries):
        return theme.empty(question, "The replays gave no first token to draw.")
    about = "simulated; hollow: unstable, the value depends on the length of the trace"
    canvas = theme.figure(question, LOAD.title, LATENCY.title, about)
    unstable = np.array([s.is_unstable for s in summaries])
    for name, look, values in (
        (f"{percentile(slo.itl_percentile)} token gap, pooled", theme.GAP, [s.itl_at_percentile_s for s in summaries]),
        (f"{percentile(slo.ttft_percentile)} TTFT", theme.WAIT, [s.ttft_at_percentile_s for s in summaries]),
    ):
        canvas.add_scatter(
            x=loads,
            y=LATENCY.shown(np.array(values)),
            name=name,
            mode="lines+markers",
            line={"color": look.colour, "dash": look.dash, "width": 2},
            marker={"symbol": np.where(unstable, f"{look.symbol}-open", look.symbol), "size": 9},
            hovertemplate="%{x:.3g} times the load: %{y:.4g} ms",
        )
    _add_targets(canvas, slo)
    theme.log_axes(canvas, x=True, y=True)
    if curve.knee is not None:
        theme.add_limit(canvas, "x", curve.knee.load, "knee")
        canvas.layout.annotations[-1].update(y=0.0, xanchor="left")  # the other line's word stands at the top
    if headroom.met is not None and headroom.missed is not None:
        theme.add_limit(canvas, "x", headroom.missed.load, "targets break")
    return canvas


def latency_by_window(windows: tuple[Window, ...], slo: Slo) -> go.Figure:
    """Which stretch of the trace is the worst? Gap and TTFT of each, within one replay of all of it."""
    question = "Which stretch of the trace is the worst?"
    drawn = [window for window in windows if window.num_requests or window.num_gaps]
    if not drawn:
        return theme.empty(question, "The trace has no requests.")
    time = since_first_arrival(windows[-1].until_s)
    canvas = theme.figure(question, time.title, LATENCY.title, "simulated, one replay of the whole trace")
    middles = time.shown(np.array([(window.from_s + window.until_s) / 2 for window in drawn]))
    missed = np.array([bool(window.violations) for window in drawn])
    about = [
        f"{seconds(w.from_s)} to {seconds(w.until_s)}: {w.num_requests:,} requests, {w.num_unfinished:,} left behind"
        for w in drawn
    ]
    for name, look, values in (
        (f"{percentile(slo.itl_percentile)} token gap, pooled", theme.GAP, [w.itl_at_percentile_s for w in drawn]),
        (f"{percentile(slo.ttft_percentile)} TTFT", theme.WAIT, [w.ttft_at_percentile_s for w in drawn]),
    ):
        canvas.add_scatter(
            x=middles,
            y=LATENCY.shown(np.array(values)),
            name=name,
            mode="lines+markers",
            line={"color": look.colour, "dash": look.dash, "width": 2, "shape": "hvh"},
            marker={"symbol": np.where(missed, "x-thin-open", look.symbol), "size": 9},
            customdata=about,
            hovertemplate="%{customdata}<br>%{y:.4g} ms",
        )
    _add_targets(canvas, slo)
    theme.log_axes(canvas, y=True)
    return canvas


def _add_targets(canvas: go.Figure, slo: Slo) -> None:
    """Lines that latencies must stay below."""
    theme.add_limit(canvas, "y", slo.itl_s * LATENCY.per_inside, f"gap target<br>{seconds(slo.itl_s)}")
    if slo.ttft_s is not None:
        theme.add_limit(canvas, "y", slo.ttft_s * LATENCY.per_inside, f"TTFT target<br>{seconds(slo.ttft_s)}")
