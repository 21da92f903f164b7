"""What leaves: the command, the files to start vLLM with, the whole plan."""

import streamlit as st

from app import frames, panels, state, widgets
from planner.export import config_yaml, serve_command
from planner.plan_file import save_plan, write_plan
from planner.step_time import StepTimeFit, write_model

session = state.session()
job = session.finished

# Needs
if job is None or job.result is None:
    panels.show_missing("Nothing to export yet: an export needs a plan.", "plan", "Plan")
    st.stop()
plan = job.result
panels.show_stale(job.inputs, session.inputs)

# Choose
st.subheader("Take it with you")
model_name = widgets.ask_model_name()
lines = frames.provenance(plan, job.inputs.trace_name)
st.caption("  \n".join(frames.literal(line) for line in lines))

# Show
head = "".join(f"# {line}\n" for line in lines)
if plan.best is None:
    st.error("No setting tried meets the targets, so there is no command to give; the plan says what came closest.")
else:
    st.markdown("**Command**: the full `vllm serve` line.")
    command = serve_command(plan.best.engine_config, model=model_name)
    panels.show_file(command, "bash", f"{head}{command}\n", "vllm_serve.sh")
    st.markdown("**YAML** for `vllm serve --config vllm_serve.yaml`.")
    config = config_yaml(plan.best.engine_config, model_name)
    panels.show_file(config, "yaml", head + config, "vllm_serve.yaml")
st.markdown("**Plan**: every number the answer stands on, as JSON.")
document = write_plan(save_plan(plan, job.trace, job.model, trace_name=job.inputs.trace_name))
panels.show_file(document, "json", document, "plan.json", height=240)
if isinstance(job.model, StepTimeFit):
    st.markdown(
        "**Step-time model**: coefficients, intervals and covered range, as JSON; `planner plan --model` takes it."
    )
    document = write_model(job.model)
    panels.show_file(document, "json", document, "model.json", height=240)
