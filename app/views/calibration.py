"""How long steps take: fit d and p to a step log, or give them by hand."""

import streamlit as st

from app import compute, frames, panels, state, widgets
from app.figures import calibration
from app.figures.labels import percent, term_value
from planner.errors import UnfitStepLog
from planner.step_time import StepTimeFit
from planner.verdict import seconds

LOG = "From a step log"
BY_HAND = "By hand"

session = state.session()
reading = session.steps

# Choose
st.subheader("How long do engine steps take on your GPU?")
source = widgets.ask_source((LOG, BY_HAND))
if source == BY_HAND:
    st.write(
        "Step time = base + per request × requests in the step + p × prefill tokens. No interval stands behind it."
    )
    by_hand = widgets.ask_by_hand()
    if session.by_hand == by_hand:
        st.success("Plans use these coefficients.", icon=":material/check:")
        panels.show_next("plan", "Next: plan")
    elif st.button("Use these coefficients", type="primary"):
        session.by_hand = by_hand
        st.rerun()
    st.stop()
if session.by_hand is not None:
    session.by_hand = None
    st.rerun()

# Needs
if reading.value is None and reading.fault is None:
    st.write(
        "Start the server with `--enable-logging-iteration-details`, let it serve some minutes of your traffic with "
        "long and short prompts, and upload its log. A table with one row per step works too."
    )
    panels.offer_example()
upload = widgets.ask_file(
    "Step log" if reading.value is None else "Another step log",
    "a vLLM server log, or Parquet, CSV or JSON lines, also as .gz or .zst",
    f"steps_{reading.num_uploads}",
)
if upload is not None:
    with st.spinner(f"Reading {upload.name} …"):
        session.upload_steps(upload.getvalue(), upload.name)
    st.rerun()
panels.show_reading(reading, compute.understand_steps, "steps")

log = reading.value
if log is None:
    st.stop()
with st.columns(2)[0]:
    num_kv_tokens = widgets.ask_num_kv_tokens(log.facts, f"kv_{log.digest[:8]}")
if num_kv_tokens != session.num_kv_tokens:
    session.num_kv_tokens = num_kv_tokens
    st.rerun()

# Compute
fit = session.fit

# Show
if isinstance(fit, UnfitStepLog):
    panels.show_problems(fit)
elif isinstance(fit, StepTimeFit):
    panels.show_notices(fit.notices)
    p = next(c for c in fit.coefficients if c.name == "per_prefill_token")
    numbers = (
        (f"d at {fit.typical_num_seqs} decoding", seconds(fit.typical_decode_s), "Time of a step without prefill."),
        ("p per prefill token", f"{term_value(p.name, p.value)} µs", "Added by each prompt token computed in a step."),
        ("Error on held-out steps", percent(fit.held_out_mape), "Mean, on steps that the fit did not see."),
        ("95 % of steps within", percent(fit.held_out_p95), "Of held-out steps, by absolute error."),
        ("Total time, predicted ÷ measured", f"{fit.total_time_ratio:.3g}", "1 means queues come out without bias."),
    )
    for column, (label, value, about) in zip(st.columns(len(numbers)), numbers, strict=True):
        column.metric(label, value, help=about)
    measured, prefill = st.columns(2, gap="large")
    measured.plotly_chart(calibration.predicted_against_measured(fit), key="predicted_against_measured")
    prefill.plotly_chart(calibration.step_time_by_prefill(log, fit), key="step_time_by_prefill")
    terms, range_ = st.columns(2, gap="large")
    terms.table(frames.coefficients(fit), border="horizontal")
    range_.table(frames.fit_basis(fit), border="horizontal", hide_header=True)
    panels.show_next("plan", "Next: plan")
if log.receipt is not None:
    with st.expander("How the log was read"):
        panels.show_notices(log.receipt.notices)
        st.table(frames.receipt_of_steps(log, log.receipt), border="horizontal", hide_header=True)
