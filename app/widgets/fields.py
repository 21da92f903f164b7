"""The fields that questions are made of; an answer is kept when its page is left, and when the tab is loaded anew."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import streamlit as st

from app import state

T = TypeVar("T")

MOST_TOKENS = 1 << 40
"""Upper end of token counts; far above any cache."""


def number(
    label: str,
    key: str,
    value: float | None,
    least: float,
    most: float | None = None,
    step: float | None = None,
    **look: Any,
) -> Any:
    """Ask for a number, whole where `least` is; None only where `value` is."""
    form = None if isinstance(least, int) else "%g"
    return _kept(st.number_input, label, key, least, most, value, step, form, **look)


def span(
    where: tuple[Any, Any],
    name: str,
    end_s: float,
    step_s: float,
    value: tuple[float, float | None] = (0.0, None),
    about: str = "",
) -> tuple[float, float | None]:
    """Ask for a stretch of time, seconds since the first arrival; an end of None is the end.

    Parameters
    ----------
    where : (container, container)
        One for each end.
    name : str
        Names the widgets.
    end_s : float
        What the end is.
    step_s : float
        Of the buttons.
    value : (float, float or None)
        Filled in.
    about : str
        More on the begin.
    """
    begin = f"Seconds since the first arrival.{about}"
    words = f"the end, {end_s:,.1f}".removesuffix(".0")
    with where[0]:
        from_s = number("From, s", f"from_{name}", value[0], 0.0, step=step_s, help=begin)
    with where[1]:
        until_s = number(
            "Until, s", f"until_{name}", value[1], 0.0, step=step_s, placeholder=words, help="Empty = to the end."
        )
    return from_s, until_s


def choice(label: str, key: str, options: Sequence[T], value: T, words: Callable[[T], Any] = str, **look: Any) -> T:
    """Ask for one of many."""
    return _kept(st.selectbox, label, key, options, options.index(value), words, **look)


def segments(label: str, key: str, options: Sequence[T], value: T, **look: Any) -> T:
    """Ask for one of few."""
    return _kept(st.segmented_control, label, key, options, default=value, required=True, **look)


def slide(label: str, key: str, options: Sequence[T], value: T, words: Callable[[T], Any] = str, **look: Any) -> T:
    """Ask for one of a few that have an order."""
    return _kept(st.select_slider, label, key, options, value, words, **look)


def several(label: str, key: str, options: Sequence[str], **look: Any) -> list[str]:
    """Ask for any of a few."""
    return _kept(st.multiselect, label, key, options, **look)


def switch(label: str, key: str, value: bool = False, **look: Any) -> bool:
    """Ask for yes or no."""
    return _kept(st.toggle, label, key, value, **look)


def text(label: str, key: str, value: str = "", widget: Callable[..., Any] = st.text_input, **look: Any) -> str:
    """Ask for words."""
    return _kept(widget, label, key, value, **look)


def _kept(widget: Callable[..., Any], label: str, key: str, *about: Any, **look: Any) -> Any:
    """Ask, and keep the answer: Streamlit for the pages of a session, `state` for the session after a reload."""
    answer = widget(label, *about, key=key, persist_state="session", **look)
    state.session().answers[key] = answer
    return answer
