"""`planner export`: a plan in a form that people deploy, verify or read."""

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from planner.cli.inputs import bad_usage
from planner.cli.outputs import NOT_MET, OK, check_output, print_or_write, say
from planner.command import MODEL, MODEL_NAME, serve_command
from planner.engine_config import EngineConfig
from planner.errors import BadPlan
from planner.export import bench_command, config_yaml, container_args, head, helm_values, timed_trace
from planner.plan_file import SavedPlan, open_plan
from traces.read import read_trace
from traces.requests import RequestTrace
from traces.selection import select

Report = Callable[[SavedPlan], str]
"""Draws a plan as one HTML page."""
FORMS: dict[str, Callable[[EngineConfig, str], str]] = {
    "config": config_yaml,
    "k8s": container_args,
    "helm": helm_values,
}
"""Forms of a recommended setting, by their names on the command line."""


def add_to(commands: Any) -> None:
    """The command and its options."""
    parser = commands.add_parser("export", help="a plan as a command, manifests, a benchmark or a report")
    parser.add_argument("plan", metavar="PLAN.json", help="written by planner plan -o, or on the Export page")
    parser.add_argument("--as", dest="form", choices=["command", *FORMS, "bench", "trace", "html"], default="command")
    parser.add_argument("--full", action="store_true", help="the whole command, not only the flags that change")
    parser.add_argument("--model-name", default=MODEL, help="as given to vllm serve")
    parser.add_argument("--timed-trace", metavar="T.jsonl", help="for --as bench: what --as trace wrote")
    parser.add_argument("--trace", help="for --as trace: the file that the plan was made for")
    parser.add_argument("-o", "--output", help="write it here")
    parser.set_defaults(run=run_export)


def run_export(arguments: argparse.Namespace) -> int:
    """Write a plan in a form that people deploy, verify or read."""
    check_output(arguments.output)
    if not re.fullmatch(MODEL_NAME, arguments.model_name):
        raise bad_usage("--model-name: allowed are letters, digits and . / : @ + -")
    saved = open_plan(arguments.plan)
    plan, form, model = saved.recommendation, arguments.form, arguments.model_name
    if form == "html":
        if arguments.html_report is None:
            raise bad_usage("--as html needs the command as installed, which brings the figures along")
        text = arguments.html_report(saved)
    elif form == "trace":
        text = timed_trace(_planned_trace(arguments, saved))
    elif form == "bench":
        text = head(saved) + bench_command(saved.trace, model, arguments.timed_trace) + "\n"
    elif plan.best is None:
        say(f"Nothing to deploy: {saved.words.sentence}")
        return NOT_MET
    elif form == "command":
        today = None if arguments.full else plan.today.engine_config
        text = head(saved) + serve_command(plan.best.engine_config, today, model) + "\n"
    else:
        text = head(saved) + FORMS[form](plan.best.engine_config, model)
    print_or_write(text, arguments.output)
    return OK


def _planned_trace(arguments: argparse.Namespace, saved: SavedPlan) -> RequestTrace:
    """The trace that a plan was made for, read as it was read then."""
    if not arguments.trace:
        raise bad_usage("--as trace needs --trace, the file that the plan was made for")
    whole = read_trace(Path(arguments.trace), Path(arguments.trace).name, saved.trace.answers)
    trace = select(whole, saved.trace.selection)
    if trace.digest != saved.trace.digest:
        raise BadPlan(
            arguments.trace,
            f"is not the trace of this plan: digest {trace.digest[:12]}, the plan was made for {saved.trace.name} "
            f"with {saved.trace.digest[:12]}",
        )
    return trace
