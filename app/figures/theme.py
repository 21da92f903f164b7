"""Colours by meaning, and the look that all figures share.

Every colour keeps a contrast of 3 : 1 on the light and on the dark page. No colour is the only sign: dash and symbol
differ too. The hues are those of Okabe and Ito's palette, which colour-blind people tell apart.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

MAX_POINTS = 2000
"""Most points of one line or cloud: more is invisible, and costs the browser."""

TICK_DIGITS = (
    (1.0,),
    (1.0, 2.0, 5.0),
    (1.0, 1.5, 2.0, 3.0, 4.0, 6.0),
    (1.0, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2.0, 2.2, 2.5, 2.8, 3.2, 3.6, 4.0, 4.5, 5.0, 5.6, 6.3, 7.0, 8.0, 9.0),
)
"""First digits that a logarithmic axis is labelled at, from few to many."""
LEAST_TICKS = 3
"""Fewer labels among the values do not say how an axis runs."""


@dataclass(frozen=True, slots=True)
class Look:
    """How one meaning is drawn."""

    colour: str
    """Hexadecimal."""
    symbol: str = "circle"
    """Plotly marker."""
    dash: str = "solid"
    """Plotly line."""


TODAY = Look("#D55E00", "square", "dash")
RECOMMENDED = Look("#1F88C9", "star", "solid")
VLLM_DEFAULT = Look("#808080", "diamond-open", "dot")
MEETS = Look("#0E9F80", "circle")
MISSES = Look("#808080", "x-thin-open")
TARGET = Look("#B0699A", dash="dash")
GAP = Look("#1F88C9", "circle")
WORST_GAP = Look("#7A6CC4", "diamond", "dot")
WAIT = Look("#D55E00", "square", "dash")
PROMPT = Look("#7A6CC4")
OUTPUT = Look("#A87800", dash="dash")
MEASURED = Look("#808080", "circle-open")
PREDICTED = Look("#7A6CC4", "circle")
OBSERVED = Look("#D55E00", "circle-open", "dash")
LEFT_OUT = Look("#D55E00", "x-thin-open")
REFERENCE = Look("#808080")
RUNNING = Look("#1F88C9")
WAITING = Look("#D55E00")
KV_USE = Look("#7A6CC4")
PREEMPTED = Look("#D55E00")


def figure(question: str, x_title: str, y_title: str, about: str = "") -> go.Figure:
    """An empty canvas whose title is the question it answers, with a line about what is drawn."""
    canvas = go.Figure()
    canvas.update_layout(
        title={
            "text": question,
            "subtitle": {"text": about, "font": {"size": 12}},
            "x": 0.0,
            "xanchor": "left",
            "font": {"size": 16},
        },
        height=396,
        margin={"l": 8, "r": 8, "t": 88, "b": 8},
        # By the picture's lower edge: hung below the axis, a legend of two rows ran into its title.
        legend={"orientation": "h", "yref": "container", "y": 0.0, "yanchor": "bottom", "x": 0.0, "xanchor": "left"},
        hovermode="closest",
    )
    canvas.update_xaxes(title_text=x_title, automargin=True, separatethousands=True)
    canvas.update_yaxes(title_text=y_title, automargin=True, separatethousands=True)
    return canvas


def empty(question: str, sentence: str) -> go.Figure:
    """A figure without data: the question, and why there is no answer."""
    canvas = figure(question, "", "")
    canvas.update_xaxes(visible=False)
    canvas.update_yaxes(visible=False)
    canvas.add_annotation(text=sentence, showarrow=False, x=0.5, y=0.5, xref="paper", yref="paper")
    return canvas


def log_axes(canvas: go.Figure, *, x: bool = False, y: bool = False) -> None:
    """Make axes logarithmic, labelled at round numbers, the more of them the less the axis spans."""
    for axis, is_log in (("x", x), ("y", y)):
        if is_log:
            drawn = [np.asarray(trace[axis], np.float64) for trace in canvas.data]
            values = np.concatenate([*drawn, _limits(canvas, axis)])
            ticks = _ticks(values[values > 0])
            canvas.update_layout(
                {f"{axis}axis": {"type": "log", "tickvals": ticks, "ticktext": [f"{t:,.10g}" for t in ticks]}}
            )


def add_limit(canvas: go.Figure, axis: str, value: float, text: str) -> None:
    """Draw a line that results are held against, on an axis that `log_axes` makes logarithmic.

    Parameters
    ----------
    canvas : go.Figure
    axis : str
        "x" for a line down, "y" for a line across.
    value : float
        In the unit shown.
    text : str
        Beyond the end of the line; across it, in short rows.
    """
    across = "y" if axis == "x" else "x"
    line = {"color": TARGET.colour, "dash": TARGET.dash, "width": 1.5}
    ends = {f"{axis}0": value, f"{axis}1": value, f"{across}0": 0, f"{across}1": 1, f"{across}ref": f"{across} domain"}
    canvas.add_shape(type="line", line=line, name=text.replace("<br>", " "), **ends)
    # Plotly takes a shape's place in data units, but an annotation's as the logarithm.
    place = {axis: np.log10(value), across: 1.0, f"{across}ref": f"{across} domain"}
    # Outside of the axes, where no curve runs through it.
    anchor = (
        {"xanchor": "center", "yanchor": "bottom"}
        if axis == "x"
        else {"xanchor": "left", "yanchor": "middle", "xshift": 4}
    )
    canvas.add_annotation(text=text, showarrow=False, font={"color": TARGET.colour}, align="left", **place, **anchor)
    if axis == "y":
        canvas.update_layout(margin_r=80)


def _limits(canvas: go.Figure, axis: str) -> npt.NDArray[np.float64]:
    """Where the lines of `add_limit` stand on an axis."""
    shapes = [shape for shape in canvas.layout.shapes if shape[f"{axis}0"] == shape[f"{axis}1"]]
    return np.array([shape[f"{axis}0"] for shape in shapes], np.float64)


def _ticks(values: npt.NDArray[np.float64]) -> list[float]:
    """Round numbers around the values."""
    if not len(values):
        return []
    least, most = float(values.min()), float(values.max())
    decades = range(int(np.floor(np.log10(least))), int(np.ceil(np.log10(most))) + 1)
    for digits in TICK_DIGITS:
        ticks = [float(f"{digit}e{decade}") for decade in decades for digit in digits]
        if sum(least <= tick <= most for tick in ticks) >= LEAST_TICKS:
            return ticks
    # So narrow that no round numbers lie in it.
    return sorted({float(f"{value:.3g}") for value in np.linspace(least, most, LEAST_TICKS)})


def thin(num: int) -> npt.NDArray[np.int64]:
    """Evenly spread positions in 0…num−1, at most `MAX_POINTS`, the first and the last among them."""
    return np.unique(np.linspace(0, num - 1, min(num, MAX_POINTS)).astype(np.int64))
