"""Inside one setting: what the engine did when, which gaps were worst, and whose fault they were."""

import streamlit as st

from app import frames, look, panels, scenarios, state
from app.compute import Setting
from app.figures.labels import answer_label
from app.jobs import Opened
from app.widgets.flags import ask_three_flags
from app.widgets.inside import ask_setting, ask_window
from app.widgets.targets import USUAL_SLO
from planner.engine_config import EngineConfig, flag_faults
from planner.step_time import step_time_of

BY_HAND = "By hand"

session = state.session()
trace, model = session.traffic, session.model

# Needs
if trace is None:
    panels.show_missing(
        "To look inside a replay needs a request trace: when requests arrived, and their tokens.",
        "trace",
        "Upload a trace",
    )
    st.stop()
if model is None:
    panels.show_missing(
        "To look inside a replay needs step times: a step log that fits, or d and p by hand.",
        "calibration",
        "Calibrate",
    )
    st.stop()
step_time = step_time_of(model)

# Choose
st.subheader("What happens inside, and why?")
job = session.finished
plan = None if job is None else job.result
settings: dict[str, EngineConfig] = {"Today": session.today}
if plan is not None:
    settings = {
        answer_label(plan): plan.closest.engine_config,
        "Today": plan.today.engine_config,
        "vLLM default": plan.vllm_default.engine_config,
    }
if session.picked is not None:
    settings[panels.PICKED] = session.picked
name = ask_setting((*settings, BY_HAND), session.look, f"setting_{session.num_looks}")
if name == BY_HAND:
    engine_config = ask_three_flags(session.today, session.flags_name)
    st.caption("KV cache and all other flags are today's, as on the Plan page.")
else:
    engine_config = settings[name]
    st.caption(frames.literal(frames.flags_in_full(engine_config)))
faults = flag_faults(engine_config)
for fault in faults:
    st.error(f"vLLM would not start: {fault}.", icon=":material/error:")
if faults:
    st.stop()
if name != BY_HAND and job is not None and (job.inputs.trace_digest, job.inputs.step_time) != (trace.digest, step_time):
    st.warning(
        "These flags come from a plan for another trace or other step times; they are replayed here with those above.",
        icon=":material/history:",
    )

slo = USUAL_SLO if session.inputs is None else session.inputs.slo
scenarios.show_scenarios(trace, step_time, slo, settings, (name, engine_config))

# Compute
setting = Setting(trace.digest, engine_config, step_time)
run = panels.answer(Opened(setting), trace)
if run is None:
    st.stop()
window_s = ask_window(run.end_s, trace.digest[:8])
if window_s[0] >= window_s[1]:
    st.error("The window is empty: it must begin before it ends, and before the replay ends.")
    st.stop()

# Show
look.show_inside(look.Look(setting, trace, run, window_s))
panels.show_next("export", "Next: export")
