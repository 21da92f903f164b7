"""What arrived: upload a request trace and check how it was read."""

import streamlit as st

from app import compute, frames, panels, state
from app.figures import requests
from app.pages import PAGES
from app.shelf import shelf
from app.widgets.files import ask_shelf
from app.widgets.traffic import ask_part, ask_workload
from planner.step_time import step_time_of
from traces.selection import EmptySelection, busiest_s, select
from traces.workload import workload_faults

session = state.session()
reading = session.trace

# Needs
if reading.value is None:
    st.subheader("Which vLLM scheduler flags keep your streams smooth? Found on your own traffic, without a GPU.")
    st.write(
        "Replays a trace of your requests through vLLM's scheduler, with step times from your own server's log, under "
        "a few hundred settings. You get the command to paste, beside what today's flags give. Your files stay on this "
        "server."
    )
    panels.offer_example()

# Choose
if reading.value is None:
    traces, steps, plans = st.columns(3)
    with traces:
        panels.take_trace()
    with steps:
        panels.take_steps()
        if session.steps.value is not None:
            panels.show_next("calibration", f"{len(session.steps.value):,} steps read: see how well they fit")
        elif session.steps.fault is not None:
            st.error("This step log cannot be used as it is.", icon=":material/error:")
            panels.show_next("calibration", "See why")
    with plans:
        if panels.take_plan():
            st.switch_page(PAGES["export"])
else:
    panels.take_trace()
if (lying := shelf()) is not None:
    chosen = ask_shelf(lying.names(), f"shelf_{reading.num_uploads}")
    if chosen is not None:
        with st.spinner(f"Reading {chosen} …"):
            session.upload_trace(lying.open(chosen), chosen)
        st.rerun()
panels.show_reading(reading, compute.understand_trace, "trace")

with st.expander("No trace? Make up traffic"):
    workload = ask_workload()
    faults = workload_faults(workload)
    for fault in faults:
        st.error(f"{fault.capitalize()}.", icon=":material/error:")
    if st.button("Use this traffic", icon=":material/casino:", disabled=bool(faults)):
        made = compute.make_up(workload)
        if isinstance(made, str):
            st.error(f"{made.capitalize()}.", icon=":material/error:")
        else:
            session.make_up(made, f"made-up traffic, seed {workload.seed}")
            st.rerun()

trace = reading.value
if trace is None:
    st.stop()

# Show
st.subheader("What was understood")
if trace.receipt is not None:
    panels.show_notices(trace.receipt.notices)
facts, sums = st.columns([3, 2], gap="large")
if trace.receipt is not None:
    facts.table(frames.receipt_of_trace(trace, trace.receipt), border="horizontal", hide_header=True)
sums.table(compute.token_sums(trace.digest, _trace=trace), border="horizontal")

# Choose a part
st.subheader("Which part do you plan for?")
arrivals = requests.arrival_rate(trace, session.selection.window_s)
drawn = st.plotly_chart(arrivals, key=f"arrival_rate_{session.num_windows}", on_select="rerun", selection_mode="box")
panels.offer_values(arrivals, "arrival_rate")
if (window_s := requests.drawn_window_s(drawn["selection"]["box"], trace.span_s)) is not None:
    session.choose_window(window_s)
    st.rerun()
with st.container(horizontal=True):
    for label, length_s in (("Busiest hour", 3600.0), ("Busiest 10 minutes", 600.0)):
        if trace.span_s > length_s and st.button(label, icon=":material/trending_up:"):
            session.choose_window(busiest_s(trace.arrival_s, length_s))
            st.rerun()
    if session.selection.window_s is not None and st.button("All of it", icon=":material/close:"):
        session.choose_window(None)
        st.rerun()
selection = ask_part(session.selection, trace, compute.clock_step_s(trace.digest, _trace=trace), session.num_windows)
if selection != session.selection:
    try:
        select(trace, selection)
    except EmptySelection as fault:
        st.error(frames.literal(str(fault)), icon=":material/error:")
    else:
        session.selection = selection
        st.rerun()

# Show it
traffic = session.traffic
assert traffic is not None
numbers = frames.traffic_numbers(traffic, None if session.model is None else step_time_of(session.model), session.today)
for column, (label, value, about) in zip(st.columns(len(numbers)), numbers, strict=True):
    column.metric(label, value, help=about)
lengths, joint, bursts = st.columns(3, gap="large")
figures = compute.traffic_figures(traffic.digest, _trace=traffic)
for column, name, figure in zip((lengths, joint, bursts), ("lengths", "joint", "bursts"), figures, strict=True):
    with column:
        panels.show_figure(figure, name)
panels.offer_traffic(traffic)
panels.show_next("calibration", "Next: calibrate step times")
