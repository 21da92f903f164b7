"""What to look at inside a replay, of a trace or of the toy that teaches the scheduler."""

import streamlit as st

from app.glossary import GLOSSARY
from app.widgets.fields import MOST_TOKENS, number, segments, span
from planner.engine_config import EngineConfig
from planner.inside.lesson import toy_config


def ask_setting(names: tuple[str, ...], default: str, name: str) -> str:
    """Ask which setting to look into."""
    about = "Flags whose replay is opened below. A click in the trade-off on the Plan page brings another one here."
    start = default if default in names else names[0]
    return segments("Setting to look into", name, names, start, help=about)


def ask_window(end_s: float, name: str) -> tuple[float, float]:
    """Ask for a stretch of the replay; all of it unless told.

    Parameters
    ----------
    end_s : float
        When the replay ends, seconds.
    name : str
        Names the widgets.
    """
    left, right, _ = st.columns([1, 1, 2], vertical_alignment="bottom")
    from_s, until_s = span((left, right), name, end_s, 1.0)
    return from_s, end_s if until_s is None else min(until_s, end_s)


def ask_gap(labels: tuple[str, ...], name: str) -> int:
    """Ask which of the worst gaps to look at; its position."""
    return st.selectbox("Gap to look at", range(len(labels)), format_func=labels.__getitem__, key=name)


def ask_moment(moment_s: float, end_s: float, name: str) -> float:
    """Ask for a moment of the replay, seconds; the step of a gap is filled in."""
    return st.number_input(
        "Moment, s",
        0.0,
        max(end_s, moment_s),
        moment_s,
        0.1,
        "%.4f",
        key=name,
        help="The step that runs then stands in the middle of the table. Filled in: the step that ends the gap.",
    )


def ask_request(row: int, name: str) -> int:
    """Ask for a request by its data row in the file, counted from 1."""
    about = "Filled in: the request with the longest TTFT under the setting that was opened first."
    return number("Request: data row, counted from 1", name, row, 1, MOST_TOKENS, help=about)


def ask_toy() -> EngineConfig:
    """Ask for the flags of the toy replay."""
    budget, threshold, kv = st.columns(3, vertical_alignment="bottom")
    with budget:
        budget_asked = st.select_slider(
            "Budget, tokens", (8, 16, 24, 32), 16, key="toy_budget", help=GLOSSARY["budget"]
        )
    with threshold:
        threshold_asked = st.select_slider(
            "Threshold, tokens (0: off)", (0, 4, 8), 0, key="toy_threshold", help=GLOSSARY["threshold"]
        )
    with kv:
        kv_asked = st.select_slider(
            "KV cache, tokens", (72, 96, 128), 128, key="toy_kv", help="With 72, requests are preempted."
        )
    return toy_config(budget_asked, threshold_asked, kv_asked)


def ask_toy_step(num_steps: int, name: str) -> int:
    """Ask for a step of the toy replay, counted from 1."""
    return st.slider(
        "Step", 1, num_steps, min(5, num_steps), key=name, help="Drag, or use the arrow keys, to go step by step."
    )
