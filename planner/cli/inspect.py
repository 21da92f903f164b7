"""`planner inspect`: what is inside a replay."""

import argparse
from dataclasses import asdict
from typing import Any

import numpy as np

from planner.cli.inputs import asked_replay, bad_usage
from planner.cli.options import add_answers, add_flags, add_json, add_model, add_trace, count, number
from planner.cli.outputs import OK, check_output, print_json, write
from planner.inside.chrome_trace import chrome_trace
from planner.inside.report import inside_report, report_document, report_lines
from planner.replay import replay
from planner.step_time import step_time_of
from planner.verdict import rules_in_force
from traces.requests import RequestTrace


def add_to(commands: Any) -> None:
    """The command and its options."""
    parser = commands.add_parser("inspect", help="look inside a replay: worst gaps and why, one request's life")
    add_trace(parser)
    parser.add_argument("--request", type=count, metavar="ROW", help="why this one was late: data row, counted from 1")
    parser.add_argument("--window", type=number, nargs=2, metavar=("FROM", "TO"), help="seconds; the whole replay else")
    parser.add_argument("--at", type=number, metavar="S", help="list the steps around this second")
    parser.add_argument("--num-gaps", type=count, default=10, help="worst gaps to list")
    parser.add_argument("--perfetto", metavar="OUT.json", help="write the window for ui.perfetto.dev")
    add_model(parser)
    add_flags(parser)
    add_json(parser)
    add_answers(parser)
    parser.set_defaults(run=run_inspect)


def run_inspect(arguments: argparse.Namespace) -> int:
    """Replay one configuration and look inside."""
    check_output(arguments.perfetto)
    if arguments.num_gaps < 0:
        raise bad_usage(f"--num-gaps is {arguments.num_gaps}; it must not be negative")
    if arguments.window and not 0 <= arguments.window[0] < arguments.window[1]:
        raise bad_usage("--window needs two seconds, 0 or more, the first before the second")
    trace, model, config = asked_replay(arguments)
    request = _request(arguments, trace)
    run = replay(trace, config, step_time_of(model))
    window_s = tuple(arguments.window) if arguments.window else None
    if window_s is not None and window_s[0] >= run.end_s:
        raise bad_usage(f"--window begins at {window_s[0]:g} s; the replay ends at {run.end_s:.6g} s")
    report = inside_report(trace, run, window_s, arguments.num_gaps, arguments.at, request)
    if arguments.perfetto:
        from_s, until_s = window_s or (0.0, run.end_s)
        write(arguments.perfetto, chrome_trace(trace, run, from_s, until_s))
    if arguments.json:
        print_json(report_document(trace, report) | {"flags": asdict(config)})
    else:
        print(f"Simulated: {'; '.join(rules_in_force(config))}.")
        print("\n".join(report_lines(trace, report)))
    return OK


def _request(arguments: argparse.Namespace, trace: RequestTrace) -> int | None:
    """The row of the trace that `--request` names."""
    if arguments.request is None:
        return None
    found = np.flatnonzero(trace.source_row == arguments.request - 1)
    if len(found) == 0:
        raise bad_usage(f"--request {arguments.request}: the trace has no such data row in use")
    return int(found[0])
