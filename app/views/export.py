"""What leaves: command, manifests, benchmark, report, plan file; and plan files that come back."""

import streamlit as st

from app import frames, handout, panels, state
from app.widgets.plans import ask_model_name, ask_plan
from planner.export import provenance

HERE = "Made in this session"

session = state.session()
job = session.finished
made = {} if job is None or job.saved is None else {HERE: job.saved}
plans = made | session.opened

# Needs
if not plans:
    panels.show_missing("Nothing to export yet: an export needs a plan, or a plan file.", "plan", "Plan")
elif job is not None and made:
    panels.show_stale(job.inputs, session.inputs)

# Choose
with st.expander("Open plan files, and compare them", expanded=not made):
    if panels.take_plan():
        st.rerun()
    if session.refused is not None:
        st.error(frames.literal(str(session.refused)), icon=":material/error:")
    if session.opened and st.button("Close all plan files", icon=":material/close:"):
        session.close_plans()
        st.rerun()
if not plans:
    st.stop()
chosen = ask_plan(tuple(plans), "Plan", f"export_plan_{session.num_opened}")
saved = plans[chosen]
model_name = ask_model_name()
st.caption("  \n".join(frames.literal(line) for line in provenance(saved)))

# Show
if chosen != HERE:
    handout.show_opened(saved, chosen)
handout.show_handout(saved, model_name, job if chosen == HERE else None)
if len(plans) > 1:
    st.subheader("Side by side")
    others = tuple(name for name in plans if name != chosen)
    other = ask_plan(others, "Beside it", f"other_plan_{session.num_opened}_{chosen}")
    handout.show_comparison(plans, chosen, other)
