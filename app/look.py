"""What is inside one replay, drawn from the timeline down to the file for a trace viewer."""

from dataclasses import dataclass

import numpy as np
import streamlit as st

from app import compute, frames, panels
from app.compute import Setting
from app.figures import inside
from app.jobs import Late, Moment, Window
from app.widgets.inside import ask_gap, ask_moment, ask_request
from planner.inside.window import WindowView
from planner.inside.words import gap_sentence, life_sentence
from planner.metrics import ttft_s
from planner.replay import Replay
from planner.verdict import seconds
from traces.requests import RequestTrace

ENDED_EARLY = {
    "stalled": "The replay stalled: the requests that wait can never be admitted under these flags.",
    "livelock": "The replay goes round in circles: requests preempt each other, and none gets further.",
    "step_limit": "The replay was stopped at the most steps it may take.",
}
"""Outcomes of a replay in which requests were left."""


@dataclass(frozen=True, slots=True)
class Look:
    """What is looked at."""

    setting: Setting
    """Names the replay."""
    trace: RequestTrace
    """Its trace."""
    run: Replay
    """The replay, without events."""
    window_s: tuple[float, float]
    """From when until when, seconds."""


def show_inside(look: Look) -> None:
    """Everything, from the overview to the detail; what is not there yet says how far it is."""
    _show_outcome(look.run)
    view = panels.answer(Window(look.setting, look.window_s), look.trace)
    if view is None:
        return
    # Drawn last, as it marks the moment that is chosen below it.
    overview = st.container()
    st.subheader("Where did streams freeze longest, and why?")
    moment_s = _show_gaps(look, view)
    _show_steps(look, view, moment_s)
    with overview:
        panels.show_figure(inside.over_time(view.timeline, moment_s), "over_time")
    overview.caption("Drag across the figure to zoom all panels, double-click to zoom out.")
    _show_life(look)
    _show_file(look, moment_s)


def _show_outcome(run: Replay) -> None:
    """Say what the replay is, and what became of requests that did not end."""
    finished, whole = int(run.is_finished.sum()), len(run.is_finished)
    st.caption(
        f"Simulated: {finished:,} of {whole:,} requests finished in {run.totals.num_steps:,} engine steps and "
        f"{seconds(run.end_s)}, with {int(run.num_preemptions.sum()):,} preemptions."
    )
    num_never = int(run.never_runs.sum())
    if num_never:
        st.warning(f"{num_never:,} requests can never run under these flags; they were left out of the replay.")
    if run.outcome in ENDED_EARLY:
        st.warning(f"{ENDED_EARLY[run.outcome]} {whole - finished - num_never:,} requests did not finish.")


def _show_gaps(look: Look, view: WindowView) -> float:
    """List the worst gaps with their causes; the moment to look at, seconds."""
    gaps = view.gaps
    if not gaps:
        st.info("No gap between two tokens of one request ends in this window.")
        return _ask_moment(look, look.window_s[0], "")
    st.table(frames.worst_gaps(look.trace, gaps), border="horizontal", hide_index=True)
    st.caption(
        "One entry per pause, however many streams share it. Requests are data rows of the trace file, counted from 1; "
        "in brackets, the tokens each had in the pause."
    )
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    # The labels name the widget: other gaps are another question.
    labels = frames.gap_labels(look.trace, gaps)
    with left:
        chosen = ask_gap(labels, f"gap_{hash(labels)}")
    gap = gaps[chosen]
    with right:
        moment_s = _ask_moment(look, view.moments_s[chosen], str(gap.step))
    st.markdown(
        f"Request {frames.data_row(look.trace, gap.request)} had no token for **{seconds(gap.gap_s)}**: "
        f"{frames.literal(gap_sentence(look.trace, gap))}."
    )
    return moment_s


def _ask_moment(look: Look, moment_s: float, name: str) -> float:
    """Ask for the moment; where the setting or the gap changes, it is asked anew."""
    return ask_moment(moment_s, look.run.end_s, f"moment_{name}_{hash(look.setting)}")


def _show_steps(look: Look, view: WindowView, moment_s: float) -> None:
    """Show who ran in the steps around a moment."""
    st.markdown(
        f"**Who ran in the steps around {frames.moment(moment_s)}?** ▶ marks the step at that moment. Simulated."
    )
    known = dict(zip(view.moments_s, view.steps, strict=True))
    rows = known.get(moment_s) or panels.answer(Moment(look.setting, moment_s), look.trace)
    if rows is None:
        return
    table = frames.steps(look.trace, rows, moment_s)
    st.dataframe(table, hide_index=True, key="steps", height=35 * (len(table) + 1) + 3)
    st.caption(
        "Requests are data rows. In brackets: tokens in the step; tokens found in the prefix cache (hit); computed "
        "tokens lost when the KV blocks went to others (evicted). Running, waiting and KV use are those after the step "
        "was scheduled. A double click opens a cell."
    )


def _show_life(look: Look) -> None:
    """Say where one request's time went."""
    st.subheader("Why was this request late?")
    waits = ttft_s(look.run)
    latest = int(np.nanargmax(waits)) if np.isfinite(waits).any() else 0
    with st.columns(3)[0]:
        row = ask_request(frames.data_row(look.trace, latest), f"late_{look.setting.trace_digest[:8]}")
    found = np.flatnonzero(look.trace.source_row == row - 1)
    if not len(found):
        st.warning(f"Data row {row:,} is not in the trace: the file has no such row, or it was left out.")
        return
    life = panels.answer(Late(look.setting, int(found[0])), look.trace)
    if life is None:
        return
    sentence = life_sentence(look.trace, life)
    st.markdown(frames.literal(sentence[0].upper() + sentence[1:]))
    if not life.phases:
        return
    bars, sums = st.columns([3, 2], gap="large")
    with bars:
        panels.show_figure(inside.life(life), "life")
    sums.table(frames.life_sums(life), border="horizontal")
    with st.expander(f"All {len(life.phases):,} phases in order"):
        st.dataframe(frames.phases(life), hide_index=True, key="phases")


def _show_file(look: Look, moment_s: float) -> None:
    """Offer the window to a trace viewer."""
    st.subheader("Take it into a trace viewer")
    (from_s, until_s), num_left_out = compute.file_window(look.run, look.window_s, moment_s)
    if num_left_out:
        what = (
            f"The window has {num_left_out:,} steps more than one file holds: it gets the {compute.MAX_FILE_STEPS:,} "
            f"around the moment above, {frames.moment(from_s)} to {frames.moment(until_s)}."
        )
    else:
        what = f"The file holds the whole window, {frames.moment(from_s)} to {frames.moment(until_s)}."
    st.markdown(
        f"{what} Steps are slices on one track, every request has a track of its own; all simulated. Open it at "
        "ui.perfetto.dev, or in Chrome at chrome\\://tracing."
    )
    st.download_button(
        "Download the trace as JSON",
        lambda: compute.viewer_file(look.run, (from_s, until_s), look.trace),
        f"inspect_{from_s:.0f}s_to_{until_s:.0f}s.json",
        "application/json",
        icon=":material/download:",
        on_click="ignore",
    )
