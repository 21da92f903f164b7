"""`planner calibrate`: d and p from a step log."""

import argparse
import json
from dataclasses import asdict
from typing import Any

from planner.align import Alignment
from planner.cli.inputs import aligned, asked_steps, asked_trace, fitted
from planner.cli.options import add_answers, add_flags, add_json
from planner.cli.outputs import OK, check_output, print_json, say_remedies, write
from planner.step_time import StepTimeFit, write_model
from planner.verdict import seconds


def add_to(commands: Any) -> None:
    """The command and its options."""
    parser = commands.add_parser("calibrate", help="fit d and p to a step log")
    parser.add_argument("steplog", help="server log or table of steps")
    parser.add_argument(
        "--trace", help="the requests behind this log: explain its steps by them, and fit on what they computed"
    )
    add_flags(parser)
    parser.add_argument("-o", "--output", help="write the model here, for --model")
    add_json(parser)
    add_answers(parser)
    parser.set_defaults(run=run_calibrate)


def run_calibrate(arguments: argparse.Namespace) -> int:
    """Fit d and p to a step log."""
    check_output(arguments.output)
    log = asked_steps(arguments, arguments.steplog)
    alignment = aligned(log, arguments, asked_trace(arguments)) if arguments.trace else None
    fit = fitted(log, arguments, alignment)
    if arguments.output:
        write(arguments.output, write_model(fit))
    if arguments.json:
        print_json(json.loads(write_model(fit)) | ({"alignment": _alignment_document(alignment)} if alignment else {}))
    else:
        _print_fit(fit)
    return OK


def _alignment_document(alignment: Alignment) -> dict[str, Any]:
    """The alignment in the JSON of `planner calibrate`."""
    return {
        "explained": alignment.num_explained,
        "covered": alignment.num_covered,
        "flags": [asdict(use) for use in alignment.flag_uses],
        "differences": [
            {"line": one.source_row + 1, "logged": one.logged._asdict(), "simulated": one.simulated._asdict()}
            for one in alignment.differences
        ],
    }


def _print_fit(fit: StepTimeFit) -> None:
    """The fit, for people."""
    print(f"{fit.source}: {int(fit.kept.sum()):,} of {len(fit.log):,} steps used")
    for reason, num in fit.left_out:
        print(f"  left out: {num:,} {reason}")
    print(f"d = {seconds(fit.typical_decode_s)} for a decode-only step of {fit.typical_num_seqs} requests")
    for coefficient in fit.coefficients:
        print(
            f"  {coefficient.name:24} {seconds(coefficient.value):>9}  "
            f"(95 %: {seconds(coefficient.low)} to {seconds(coefficient.high)})"
        )
    print(
        f"error on held-out steps: median {100 * fit.held_out_median:.1f} %, mean {100 * fit.held_out_mape:.1f} %, "
        f"p95 {100 * fit.held_out_p95:.1f} %; "
        f"predicted total time {100 * fit.total_time_ratio:.1f} % of measured"
    )
    say_remedies(fit)
