"""What leaves: the forms of a plan, drawn one a tab, whether it was made here or read from a file."""

from collections.abc import Callable

import streamlit as st

from app import answer, frames, panels
from app.figures import tradeoff
from app.jobs import PlanJob
from app.report import plan_report
from planner.command import serve_command
from planner.engine_config import EngineConfig
from planner.export import bench_command, config_yaml, container_args, head, helm_values, timed_trace
from planner.plan_comparison import compare_plans, inputs_sentence
from planner.plan_file import SavedPlan, write_plan
from planner.step_time import StepTimeFit, write_model

TRACE_FILE = "timed_trace.jsonl"
"""The traffic as vLLM's benchmark reads it."""


def show_opened(saved: SavedPlan, name: str) -> None:
    """Show the answer of a plan that was read from a file."""
    st.info(
        f"Read from the file {frames.literal(name)}, which planner {frames.literal(saved.product_version)} wrote for "
        f"vLLM {frames.literal(saved.vllm_version)}. Nothing of it was computed now.",
        icon=":material/folder_open:",
    )
    answer.show_sentence(saved.words)
    with st.expander("Its answer"):
        st.table(frames.comparison(saved.recommendation), border="horizontal")
        panels.show_figure(tradeoff.gap_against_ttft(saved.recommendation), "opened_tradeoff")


def show_handout(saved: SavedPlan, model_name: str, job: PlanJob | None) -> None:
    """Draw every form of a plan, each in a tab.

    Parameters
    ----------
    saved : SavedPlan
    model_name : str
        Written into commands and manifests.
    job : PlanJob, optional
        What made the plan, where that was in this session: it has the trace and the fit, which a plan file has not.
    """
    best = saved.recommendation.best
    forms: dict[str, Callable[[], None]] = {}
    if best is None:
        st.error("No setting tried meets the targets, so there is no command to give; the plan says what came closest.")
    else:
        config = best.engine_config
        forms = {
            "Command": lambda: _show_command(saved, config, model_name),
            "Config file": lambda: _show_manifest(
                saved, "For `vllm serve --config vllm_serve.yaml`.", config_yaml(config, model_name), "vllm_serve.yaml"
            ),
            "Kubernetes": lambda: _show_manifest(
                saved,
                "`args` of a container whose entrypoint is `vllm serve`, as the vllm/vllm-openai image has it.",
                container_args(config, model_name),
                "container_args.yaml",
            ),
            "Helm": lambda: _show_manifest(
                saved,
                "Values for the chart of vLLM's production stack. The chart turns prefix caching off where it is not "
                "named, so it is named here.",
                helm_values(config, model_name),
                "values.yaml",
            ),
        }
    forms |= {
        "Verify": lambda: _show_bench(saved, model_name, job),
        "Report": lambda: _show_report(saved, job),
        "Plan file": lambda: _show_plan_file(saved),
    }
    if job is not None and isinstance(job.model, StepTimeFit):
        fit = job.model
        forms["Step times"] = lambda: _show_model(fit)
    for tab, show in zip(st.tabs(list(forms)), forms.values(), strict=True):
        with tab:
            show()


def _show_command(saved: SavedPlan, config: EngineConfig, model_name: str) -> None:
    """Give the flags that change, and the whole line."""
    today = saved.recommendation.today.engine_config
    if config != today:
        st.markdown("Only the flags that change:")
        st.code(serve_command(config, today, model_name), language="bash")
        st.markdown("In full:")
    command = serve_command(config, model=model_name)
    panels.show_file(command, "bash", f"{head(saved)}{command}\n", "vllm_serve.sh")


def _show_manifest(saved: SavedPlan, about: str, text: str, file_name: str) -> None:
    """Give a file to start vLLM with."""
    st.markdown(about)
    panels.show_file(text, "yaml", head(saved) + text, file_name)


def _show_bench(saved: SavedPlan, model_name: str, job: PlanJob | None) -> None:
    """Give the command that offers this traffic to a running server."""
    st.markdown(
        "Run this against a server with the new flags, then hold what it measured against the plan: "
        "`planner replay TRACE --measured measured.json`."
    )
    if job is None:
        st.markdown("At the mean rate and the mean lengths, which is gentler than real traffic:")
        command = bench_command(saved.trace, model_name)
    else:
        st.markdown(f"Every request at its own time, with its own lengths, from {TRACE_FILE}:")
        command = bench_command(saved.trace, model_name, TRACE_FILE)
        trace = job.trace
        st.download_button(
            f"Download {TRACE_FILE}",
            lambda: timed_trace(trace),
            TRACE_FILE,
            "application/jsonl",
            icon=":material/download:",
            on_click="ignore",
        )
    panels.show_file(command, "bash", f"{head(saved)}{command}\n", "vllm_bench.sh")


def _show_report(saved: SavedPlan, job: PlanJob | None) -> None:
    """Offer the report; only made when somebody asks for it."""
    st.markdown(
        "Verdict, plots, tables and everything the answer stands on, as one HTML page (5 MB) that asks nobody for "
        "anything."
    )
    st.download_button(
        "Download report.html",
        lambda: plan_report(saved, () if job is None else answer.tails(job)),
        "report.html",
        "text/html",
        icon=":material/download:",
        on_click="ignore",
    )


def _show_plan_file(saved: SavedPlan) -> None:
    """Offer the plan itself."""
    st.markdown(
        "Every number the answer stands on, as JSON. It opens again on this page and with `planner compare` and "
        "`planner export`."
    )
    st.download_button(
        "Download plan.json",
        write_plan(saved),
        "plan.json",
        "application/json",
        icon=":material/download:",
        on_click="ignore",
    )


def _show_model(fit: StepTimeFit) -> None:
    """Offer the step times."""
    st.markdown("Coefficients, intervals and covered range, as JSON; `planner plan --model` takes it.")
    document = write_model(fit)
    panels.show_file(document, "json", document, "model.json", height=240)


def show_comparison(plans: dict[str, SavedPlan], first: str, second: str) -> None:
    """Put two plans side by side."""
    compared = compare_plans(plans[first], plans[second])
    st.markdown(frames.literal(inputs_sentence(compared)))
    st.table(frames.two_plans(compared, (frames.literal(first), frames.literal(second))), border="horizontal")
