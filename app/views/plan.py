"""The answer: which flags meet the target, at what cost, and why."""

import streamlit as st

from app import answer, compute, panels, state
from app.compute import PlanInputs
from app.jobs import Status
from app.widgets.flags import ask_default_flags, ask_more, ask_scheduler, ask_today
from app.widgets.targets import ask_objective, ask_slo
from planner.engine_config import flag_faults
from planner.search import NO_MORE
from planner.step_time import StepTime, step_time_of

session = state.session()
trace, model = session.traffic, session.model

# Needs
if trace is None:
    panels.show_missing(
        "A plan needs a request trace: when requests arrived, and their tokens.", "trace", "Upload a trace"
    )
    st.stop()
if model is None:
    panels.show_missing(
        "A plan needs step times: a step log that fits, or d and p by hand.", "calibration", "Calibrate"
    )
    st.stop()

is_going = session.job is not None and session.job.is_going
with st.container(key="progress"):
    if session.job is not None and is_going:
        panels.watch(session.job)
top = st.container()  # Filled last: whether an answer is up to date, the questions below it decide.

# Choose
logged = session.logged_config
name = session.flags_name
slo = ask_slo()
chosen, gpu = st.columns(2)
with chosen:
    objective = ask_objective()
with gpu:
    default_flags = ask_default_flags(logged, name)
with st.expander("Today's flags and what is fixed", expanded=session.job is None):
    today = ask_today(logged, trace.priority is not None, name)
    scheduler = ask_scheduler()
with st.expander("What to search"):
    more = ask_more(today)
faults = flag_faults(today)
for fault in faults:
    st.error(f"vLLM would not start: {fault}.", icon=":material/error:")
inputs = PlanInputs(
    trace_digest=trace.digest,
    trace_name=session.trace.file_name,
    step_time=step_time_of(model),
    model_source="by hand" if isinstance(model, StepTime) else model.source,
    model_knows=compute.what_is_known(model),
    slo=slo,
    objective=objective,
    today=today,
    default_flags=default_flags,
    more=more or NO_MORE,
)
if inputs != session.inputs:
    session.ask_for(inputs)
    st.rerun()

# Compute
is_possible = not faults and more is not None
wanted = st.button("Plan", type="primary", icon=":material/play_arrow:", disabled=not is_possible or is_going)
if (wanted or session.wants_plan) and is_possible and not is_going:
    session.start_plan(inputs, trace, model, scheduler)
    st.rerun()


# Show
finished = session.finished
with top:
    if session.job is not None and not is_going:
        panels.show_end(session.job)
        is_remote = session.job.status is Status.FAILED and session.job.scheduler != ""
        if is_remote and st.button("Plan on this machine instead", icon=":material/computer:"):
            session.start_plan(inputs, trace, model)
            st.rerun()
    if finished is not None:
        panels.show_stale(finished.inputs, inputs)
        answer.show_verdict(finished)
        st.subheader("Targets and flags")
if finished is not None:
    answer.show_evidence(finished)
