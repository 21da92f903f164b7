"""What arrived: upload a request trace and check how it was read."""

import streamlit as st

from app import compute, frames, panels, state, widgets
from app.figures import requests
from app.figures.labels import compact, three_digits
from planner.verdict import seconds

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
upload = widgets.ask_file(
    "Request trace" if reading.value is None else "Another request trace",
    "Parquet, CSV or JSON lines, also as .gz or .zst",
    f"trace_{reading.num_uploads}",
)
if upload is not None:
    with st.spinner(f"Reading {upload.name} …"):
        session.upload_trace(upload.getvalue(), upload.name)
    st.rerun()
panels.show_reading(reading, compute.understand_trace, "trace")

trace = reading.value
if trace is None:
    st.stop()

# Show
st.subheader("What was understood")
if trace.receipt is not None:
    panels.show_notices(trace.receipt.notices)
figures = (
    ("Requests", compact(len(trace))),
    ("Span", seconds(trace.span_s)),
    ("Arrivals per second", three_digits(len(trace) / trace.span_s) if trace.span_s else "all at once"),
    ("Prompt tokens", compact(trace.prompt_tokens.sum())),
    ("Output tokens", compact(trace.output_tokens.sum())),
)
for column, (label, value) in zip(st.columns(len(figures)), figures, strict=True):
    column.metric(label, value)
rate, lengths = st.columns(2, gap="large")
rate.plotly_chart(requests.arrival_rate(trace), key="arrival_rate")
lengths.plotly_chart(requests.token_lengths(trace), key="token_lengths")
facts, sums = st.columns([3, 2], gap="large")
if trace.receipt is not None:
    facts.table(frames.receipt_of_trace(trace, trace.receipt), border="horizontal", hide_header=True)
sums.table(frames.token_sums(trace), border="horizontal")
panels.show_next("calibration", "Next: calibrate step times")
