"""How much load a plan's setting carries: headroom, replicas, the curve, the trace piece by piece."""

import streamlit as st

from app import frames, panels, state
from app.compute import Setting
from app.figures import load
from app.jobs import LoadJob, LoadQuestion, PlanJob
from app.widgets.loads import ask_growth, ask_routing
from planner.capacity import Capacity
from planner.verdict import capacity_sentence, curve_sentence, windows_sentence


def show_load(job: PlanJob) -> None:
    """Ask what is wanted to know about load, and answer it once it is asked for: that takes some thirty replays."""
    session, plan = state.session(), job.result
    assert plan is not None
    st.subheader("How much load does it carry, and how many replicas are needed?")
    growth, routing, button = st.columns([1, 2, 1], vertical_alignment="bottom")
    with growth:
        growth_asked = ask_growth()
    with routing:
        routing_asked = ask_routing()
    asked = LoadQuestion(growth_asked, routing_asked)
    finding = session.load_job
    is_going = finding is not None and finding.is_going
    if button.button("Find out", icon=":material/speed:", disabled=is_going):
        session.load_job = LoadJob(
            asked,
            Setting(plan.trace_digest, plan.closest.engine_config, plan.step_time),
            plan.slo,
            job.trace,
            job.scheduler,
        )
        st.rerun()
    if finding is not None and is_going:
        panels.watch(finding)
    elif finding is None or finding.question != asked:
        st.caption(
            "Replays the answer's flags under more and less load, and on several replicas where one is not enough; "
            "about thirty replays."
        )
    elif finding.result is None:
        panels.show_end(finding)
    else:
        _show_capacity(finding.result, job, asked)


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
