"""How much load a plan's setting carries: headroom, replicas, the curve, the trace piece by piece."""

import streamlit as st

from app import compute, frames, panels, state
from app.compute import PlanJob, Setting
from app.figures import load
from app.state import LoadQuestion
from app.widgets.loads import ask_growth, ask_routing
from planner.capacity import Capacity
from planner.verdict import capacity_sentence, curve_sentence, windows_sentence
from traces.errors import InputError


def show_load(job: PlanJob) -> None:
    """Ask what is wanted to know about load, and answer it once it is asked for: that takes some thirty replays."""
    session, plan = state.session(), job.result
    assert plan is not None
    st.subheader("How much load does it carry?")
    growth, routing, button = st.columns([1, 2, 1], vertical_alignment="bottom")
    with growth:
        growth_asked = ask_growth()
    with routing:
        routing_asked = ask_routing()
    asked = LoadQuestion(growth_asked, routing_asked)
    if button.button("Find out", icon=":material/speed:"):
        session.load_question = asked
    if session.load_question != asked:
        st.caption("Replays the answer's flags under more and less load; about thirty replays.")
        return
    setting = Setting(plan.trace_digest, plan.closest.engine_config, plan.step_time)
    found = compute.capacity(setting, plan.slo, asked.growth, asked.routing, _trace=job.trace, _scheduler=job.scheduler)
    if isinstance(found, InputError):
        st.error(frames.literal(str(found)), icon=":material/error:")
    else:
        _show_capacity(found, job, asked)


def _show_capacity(found: Capacity, job: PlanJob, asked: LoadQuestion) -> None:
    """Show what came of it."""
    slo = job.inputs.slo
    st.markdown(
        "\n".join(
            f"- {frames.literal(said)}"
            for said in (
                capacity_sentence(found.headroom, found.replicas, asked.growth),
                curve_sentence(found.curve),
                windows_sentence(found.windows),
            )
        )
    )
    curve, pieces = st.columns(2, gap="large")
    with curve:
        panels.show_figure(load.latency_against_load(found.curve, found.headroom, slo), "load_curve")
    with pieces:
        panels.show_figure(load.latency_by_window(found.windows, slo), "load_windows")
