"""All commands of `planner`: arguments in, exit code out."""

import argparse
import sys

from planner import cli
from planner.cli import calibrate, capacity, compare, export, inspect, plan, replay, tables
from planner.cli.export import Report
from planner.cli.outputs import BAD_INPUT, say, say_remedies
from planner.errors import UnfitStepLog
from traces.errors import InputError


def main(argv: list[str] | None = None, html_report: Report | None = None) -> int:
    """Run one command and return its exit code.

    Parameters
    ----------
    argv : list of str, optional
        What follows `planner` on the command line; that of this process if not given.
    html_report : callable, optional
        Draws a plan as one HTML page; whoever has the figures brings it along.
    """
    arguments = _parser().parse_args(argv, argparse.Namespace(html_report=html_report))
    try:
        return int(arguments.run(arguments))
    except InputError as fault:
        say(str(fault))
        if isinstance(fault, UnfitStepLog):
            say_remedies(fault)
        return BAD_INPUT


def _parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    parser = argparse.ArgumentParser(prog="planner", description=str(cli.__doc__).split("\n")[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (tables, replay, inspect, calibrate, plan, compare, export, capacity):
        command.add_to(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
