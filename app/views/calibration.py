"""How long steps take: fit d and p to a step log, load a model, or give it by hand."""

import streamlit as st

from app import compute, frames, panels, state
from app.figures import calibration
from app.widgets.step_times import ask_against, ask_by_hand, ask_is_behind_log, ask_num_kv_tokens, ask_source
from planner.acting import flags_sentence
from planner.align import Alignment, alignment_sentence
from planner.errors import UnfitStepLog
from planner.step_time import StepTimeFit
from traces.errors import InputError

LOG = "From a step log"
FILE = "From a model file"
BY_HAND = "By hand"

session = state.session()
reading = session.steps

# Choose
st.subheader("How long do engine steps take on your GPU?")
source = ask_source((LOG, FILE, BY_HAND))
if source == BY_HAND:
    st.write(
        "Step time = base + per request × requests in the step + p × prefill tokens, and further terms if you know "
        "them. No interval stands behind it, and pages call it set by hand."
    )
    by_hand = ask_by_hand(session.hand_start)
    if session.given == by_hand:
        st.success("Plans use these coefficients.", icon=":material/check:")
        panels.show_measured()
        panels.show_next("plan", "Next: plan")
    elif st.button("Use these coefficients", type="primary"):
        session.given = by_hand
        st.rerun()
    st.stop()
if source == FILE:
    st.write("A model that was downloaded from this page or written by `planner calibrate -o`.")
    if panels.take("Model file", "JSON", f"model_{session.saved.num_uploads}", session.upload_model):
        st.rerun()
    panels.show_reading(session.saved, compute.understand_model, "model")
    saved = session.saved.value
    if saved is not None:
        if session.given is not saved:
            session.given = saved
            st.rerun()
        st.success("Plans use this model.", icon=":material/check:")
        panels.show_model(saved)
        panels.show_measured()
        panels.show_next("plan", "Next: plan")
    st.stop()
if session.given is not None and reading.value is not None:
    session.given = None
    st.rerun()

# Needs
if reading.value is None and reading.fault is None:
    st.write(
        "Start the server with `--enable-logging-iteration-details`, let it serve some minutes of your traffic with "
        "long and short prompts, and upload its log. A table with one row per step works too."
    )
    panels.offer_example()
panels.take_steps()
panels.show_reading(reading, compute.understand_steps, "steps")

log = reading.value
if log is None:
    st.stop()
left, right = st.columns(2, vertical_alignment="bottom")
with left:
    num_kv_tokens = ask_num_kv_tokens(log.facts, f"kv_{log.digest[:8]}")
behind_log = None
if session.trace.value is not None and log.num_decode_tokens is not None:
    pair = log.digest, session.trace.value.digest
    with right:
        if ask_is_behind_log(f"behind_{pair[0][:8]}_{pair[1][:8]}"):
            behind_log = pair
if (num_kv_tokens, behind_log) != (session.num_kv_tokens, session.behind_log):
    session.num_kv_tokens, session.behind_log = num_kv_tokens, behind_log
    st.rerun()

# Compute
alignment, fit = session.alignment, session.fit

# Show
if isinstance(alignment, InputError):
    st.error(f"{frames.literal(str(alignment))}\n\nThe fit below does without it.", icon=":material/error:")
elif isinstance(alignment, Alignment):
    st.success(alignment_sentence(alignment, len(log)), icon=":material/join_inner:")
    st.caption(flags_sentence(alignment.flag_uses))
    if alignment.differences:
        with st.expander("The first lines that are not explained"):
            st.table(frames.differences(alignment.differences), hide_index=True)
if isinstance(fit, UnfitStepLog):
    panels.show_problems(fit)
    panels.show_remedies(fit)
elif isinstance(fit, StepTimeFit):
    panels.show_notices(fit.notices)
    for column, (label, value, about) in zip(st.columns(5), frames.fit_numbers(fit), strict=True):
        column.metric(label, value, help=about)
    measured, prefill = st.columns(2, gap="large")
    with measured:
        panels.show_figure(calibration.predicted_against_measured(fit), "predicted_against_measured")
    with prefill:
        panels.show_figure(calibration.step_time_by_prefill(fit), "step_time_by_prefill")
    decode, off = st.columns(2, gap="large")
    with decode:
        panels.show_figure(calibration.decode_curve(fit), "decode_curve")
    chart = off.container()
    with off:
        against = ask_against()
    with chart:
        panels.show_figure(calibration.residuals(fit, against), "residuals")
    panels.show_model(fit)
    panels.show_remedies(fit)
    panels.offer_model(fit)
    panels.show_measured()
    panels.show_next("plan", "Next: plan")
if log.receipt is not None:
    with st.expander("How the log was read"):
        panels.show_notices(log.receipt.notices)
        st.table(frames.receipt_of_steps(log, log.receipt), border="horizontal", hide_header=True)
