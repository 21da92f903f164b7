"""What a figure draws, as a table."""

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go


def drawn_values(canvas: go.Figure) -> pd.DataFrame:
    """Every value drawn, one row each: series, the quantities of its axes, and what the pointer shows."""
    parts = [_of_trace(canvas, trace) for trace in canvas.data]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame({"series": []})


def _of_trace(canvas: go.Figure, trace: Any) -> pd.DataFrame:
    """Values of one line, cloud, set of bars or heat map."""
    x_title, y_title = _axis_title(canvas, trace, "x"), _axis_title(canvas, trace, "y")
    if trace.type == "heatmap":
        x, y = np.meshgrid(np.asarray(trace.x), np.asarray(trace.y))
        # Colours follow the logarithm; the values themselves stand in the hover, with words about them or without.
        about = np.asarray(trace.customdata)
        drawn = {x_title: x.ravel(), y_title: y.ravel()}
        if about.ndim == 2:
            return pd.DataFrame(drawn | {trace.colorbar.title.text: about.ravel()})
        words = [_words(one) for one in about[..., 1].ravel()]
        return pd.DataFrame(drawn | {trace.colorbar.title.text: about[..., 0].ravel(), "about": words})
    values = {"series": trace.name or "", x_title: np.asarray(trace.x), y_title: np.asarray(trace.y)}
    if trace.type == "bar" and trace.base is not None:
        values["begins at"] = np.asarray(trace.base)
    if trace.customdata is not None:
        values["about"] = [_words(about) for about in trace.customdata]
    return pd.DataFrame(values)


def _axis_title(canvas: go.Figure, trace: Any, axis: str) -> str:
    """Title of a trace's axis; panels above each other write a shared one once."""
    own = canvas.layout[f"{axis}axis{(trace[f'{axis}axis'] or axis)[1:]}"].title.text
    shared = canvas.select_xaxes() if axis == "x" else canvas.select_yaxes()
    return own or next((one.title.text for one in shared if one.title.text), axis)


def _words(about: Any) -> str:
    """What the pointer shows, on one line."""
    return str(about if isinstance(about, str) else about[0]).replace("<br>", ", ")
