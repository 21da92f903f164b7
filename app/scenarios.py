"""Settings side by side under another load, another memory or other prompts."""

import streamlit as st

from app import compute, frames, panels, state
from app.jobs import WhatIf
from app.state import MOST_PINNED
from app.widgets.loads import ask_scenario, ask_whether_what_if
from planner.engine_config import EngineConfig
from planner.slo import Slo
from planner.step_time import StepTime
from traces.requests import RequestTrace


@st.fragment
def show_scenarios(
    trace: RequestTrace, step_time: StepTime, slo: Slo, known: dict[str, EngineConfig], opened: tuple[str, EngineConfig]
) -> None:
    """Show what pinned settings give, with sliders; only this part of the page runs when one is moved.

    Parameters
    ----------
    trace : RequestTrace
    step_time : StepTime
    slo : Slo
    known : dict of str to EngineConfig
        The settings that are compared until the user pins or unpins one.
    opened : (str, EngineConfig)
        The setting that is looked into: it can be pinned.
    """
    if not ask_whether_what_if():
        return
    session = state.session()
    pinned = tuple(known.items())[:MOST_PINNED] if session.pinned is None else session.pinned
    with st.container(horizontal=True, vertical_alignment="center"):
        is_known = opened[1] in [config for _, config in pinned]
        can_pin = not is_known and len(pinned) < MOST_PINNED
        st.button(
            f"Pin: {opened[0]}",
            icon=":material/keep:",
            disabled=not can_pin,
            help="Four at most.",
            on_click=session.pin,
            args=((*pinned, opened),),
        )
        for k, (name, _) in enumerate(pinned):
            st.button(
                f"Unpin {k + 1}: {name}",
                icon=":material/close:",
                key=f"unpin_{k}",
                type="tertiary",
                on_click=session.pin,
                args=(pinned[:k] + pinned[k + 1 :],),
            )
    scenario = ask_scenario(compute.seen_share(trace.digest, _trace=trace))
    if not pinned:
        st.info("Nothing is pinned: pin the setting above.", icon=":material/keep:")
        return
    configs = tuple(config for _, config in pinned)
    result = panels.answer(WhatIf(trace.digest, configs, step_time, slo, scenario), trace)
    if result is None:
        return
    without = [name for name, config in pinned if not config.enable_prefix_caching]
    if scenario.seen_share is not None and without:
        st.info(
            f"Prefix caching is off in {frames.literal(', '.join(without))}: every prompt is computed in full there. "
            "enable_prefix_caching stands among today's flags on the Plan page.",
            icon=":material/info:",
        )
    names = tuple(f"{k}: {name}" for k, (name, _) in enumerate(pinned, start=1))
    st.table(frames.side_by_side(names, result, slo), border="horizontal")
    st.caption(
        "Simulated: your requests under the changes above, with the same step times. Better and worse are against the "
        "first. Step times beyond the range that the log covers are extrapolated."
    )
