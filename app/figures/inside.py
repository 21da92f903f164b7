"""The inside of one replay: the engine over time, and one request's life."""

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.figures import theme
from app.figures.labels import KV_USE, MOMENT, PREEMPTIONS, RUNNING, WAITING, Quantity, three_digits
from planner.inside.phases import Life, PhaseKind
from planner.inside.timeline import Band, Timeline
from planner.inside.words import WAITS
from planner.verdict import seconds

PHASE_LOOKS = {
    PhaseKind.PREFILL: theme.PROMPT,
    PhaseKind.DECODE: theme.OUTPUT,
    PhaseKind.RECOMPUTE: theme.MEASURED,
    **dict.fromkeys(WAITS, theme.WAITING),
}
"""Waiting in one colour, work in others; the name stands beside every bar."""


def over_time(view: Timeline, moment_s: float | None = None) -> go.Figure:
    """What did the engine do over time? Lowest and highest value of every bucket, on one time axis.

    Parameters
    ----------
    view : Timeline
    moment_s : float, optional
        Marked with a line, seconds.
    """
    question = "What did the engine do over time?"
    if not len(view.start_s):
        return theme.empty(question, "No step runs in this window.")
    num, width_s = len(view.start_s), float(view.end_s[0] - view.start_s[0])
    about = f"simulated; lowest to highest value in each of {num:,} slices of {seconds(width_s)}"
    is_marked = moment_s is not None and view.start_s[0] <= moment_s <= view.end_s[-1]
    canvas = theme.figure(question, "", "", f"{about}; dashed: the moment chosen below" if is_marked else about)
    panels = (RUNNING, WAITING, KV_USE, PREEMPTIONS)
    make_subplots(rows=len(panels), shared_xaxes=True, vertical_spacing=0.04, figure=canvas)
    _add_band(canvas, 1, RUNNING, view, view.running, theme.RUNNING)
    _add_band(canvas, 2, WAITING, view, view.waiting, theme.WAITING)
    _add_band(canvas, 3, KV_USE, view, view.kv_usage, theme.KV_USE)
    canvas.add_bar(
        x=MOMENT.shown(view.start_s),
        y=view.num_preemptions,
        width=width_s,
        offset=0,
        name=PREEMPTIONS.name,
        # Without an outline a slice narrower than a pixel would not be drawn at all.
        marker={"color": theme.PREEMPTED.colour, "line": {"color": theme.PREEMPTED.colour, "width": 1}},
        customdata=[f"{count:,} preemptions<br>{when}" for count, when in _counts(view)],
        hovertemplate="%{customdata}<extra></extra>",
        row=4,
        col=1,
    )
    for row, quantity in enumerate(panels, start=1):
        canvas.update_yaxes(title_text=quantity.title, title_font_size=12, rangemode="tozero", nticks=4, row=row)
    # Preemptions are whole: without any, the axis would have a label at one half.
    most = max(1, int(view.num_preemptions.max()))
    canvas.update_yaxes(range=[0, 1.05 * most], dtick=-(-most // 3), row=len(panels))
    canvas.update_xaxes(range=[float(view.start_s[0]), float(view.end_s[-1])])
    canvas.update_xaxes(title_text=MOMENT.title, row=len(panels))
    canvas.update_yaxes(fixedrange=True)
    if moment_s is not None and is_marked:
        _mark(canvas, moment_s)
    # The zoom stays when only the marked moment changes.
    window = f"{view.start_s[0]} {view.end_s[-1]}"
    canvas.update_layout(height=600, showlegend=False, uirevision=window, dragmode="zoom")
    return canvas


def _counts(view: Timeline) -> list[tuple[int, str]]:
    """Preemptions of every slice, and when it is."""
    return list(zip(view.num_preemptions.tolist(), _slices(view), strict=True))


def _slices(view: Timeline) -> list[str]:
    """Begin and end of every slice in words."""
    return [f"{a:,.2f} to {b:,.2f} s" for a, b in zip(view.start_s.tolist(), view.end_s.tolist(), strict=True)]


def _add_band(canvas: go.Figure, row: int, quantity: Quantity, view: Timeline, band: Band, look: theme.Look) -> None:
    """Draw the area between the lowest and the highest value, as steps."""
    edges = MOMENT.shown(np.append(view.start_s, view.end_s[-1]))
    low, high = quantity.shown(band.low), quantity.shown(band.high)
    hover = [
        f"{quantity.name} {three_digits(a)} to {three_digits(b)} {quantity.unit}<br>{when}"
        for a, b, when in zip(low.tolist(), high.tolist(), _slices(view), strict=True)
    ]
    line = {"color": look.colour, "shape": "hv", "width": 1}
    for name, values, fill in (("lowest", low, None), ("highest", high, "tonexty")):
        canvas.add_scatter(
            x=edges,
            y=np.append(values, values[-1]),
            name=f"{quantity.name}, {name}",
            mode="lines",
            line=line,
            fill=fill,
            customdata=[*hover, hover[-1]],
            hovertemplate="%{customdata}<extra></extra>",
            row=row,
            col=1,
        )


def _mark(canvas: go.Figure, moment_s: float) -> None:
    """Draw a line through all panels where the step table looks."""
    line = {"color": theme.TARGET.colour, "dash": theme.TARGET.dash, "width": 1.5}
    canvas.add_shape(
        type="line", x0=moment_s, x1=moment_s, y0=0, y1=1, xref="x", yref="paper", line=line, name="moment"
    )


def life(life: Life) -> go.Figure:
    """Where did this request's time go? Its phases, one after the other."""
    question = "Where did this request's time go?"
    if not life.phases:
        return theme.empty(question, "It never ran.")
    about = f"simulated; the bars follow each other and sum to {seconds(life.e2e_s)}"
    longest = set(sorted(life.phases, key=lambda phase: -phase.duration_s)[: theme.MAX_POINTS])
    if len(longest) < len(life.phases):
        about += f"; the {len(longest):,} longest of {len(life.phases):,} are drawn"
    canvas = theme.figure(question, MOMENT.title, "Phase", about)
    kinds = [kind for kind in PhaseKind if life.of_kind(kind)]
    for kind in kinds:
        phases = [phase for phase in life.of_kind(kind) if phase in longest]
        look = PHASE_LOOKS.get(kind, theme.REFERENCE)
        canvas.add_bar(
            base=MOMENT.shown(np.array([phase.start_ns / 1e9 for phase in phases])),
            x=MOMENT.shown(np.array([phase.duration_s for phase in phases])),
            y=[str(kind)] * len(phases),
            name=str(kind),
            orientation="h",
            marker={"color": look.colour, "line": {"color": look.colour, "width": 1}},
            customdata=[f"{kind}, {seconds(phase.duration_s)}" for phase in phases],
            hovertemplate="%{customdata}<extra></extra>",
        )
    canvas.update_yaxes(autorange="reversed", categoryorder="array", categoryarray=[str(kind) for kind in kinds])
    canvas.update_layout(height=160 + 34 * len(kinds), showlegend=False, barmode="overlay")
    return canvas
