"""All commands of `planner`: arguments in, exit code out."""

import argparse
import os
import sys
from typing import Never

from planner import cli
from planner.cli import calibrate, capacity, compare, export, inspect, plan, replay, tables
from planner.cli.export import Report
from planner.cli.outputs import BAD_INPUT, CLOSED_PIPE, INTERRUPTED, say, say_remedies
from planner.errors import UnfitStepLog
from planner.plan_file import product_version
from traces.errors import InputError


class Parser(argparse.ArgumentParser):
    """A parser that says what is wrong in a line, not under a page of options."""

    def error(self, message: str) -> Never:
        """End with what is wrong and where the options are listed."""
        self.exit(BAD_INPUT, f"{self.prog}: {message}. {self.prog} --help lists what there is.\n")


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
        code = int(arguments.run(arguments))
        sys.stdout.flush()
    except InputError as fault:
        say(str(fault))
        if isinstance(fault, UnfitStepLog):
            say_remedies(fault)
        return BAD_INPUT
    except BrokenPipeError:
        _close_output()
        return CLOSED_PIPE
    except OSError as fault:
        say(f"reading or writing failed: {fault}")
        _close_output()
        return BAD_INPUT
    except KeyboardInterrupt:
        say("\nInterrupted.")
        return INTERRUPTED
    return code


def _close_output() -> None:
    """Let what cannot be written any more go nowhere, or Python complains about it when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    parser = Parser(prog="planner", description=str(cli.__doc__).split("\n")[0])
    parser.add_argument("--version", action="version", version=f"planner {product_version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (tables, replay, inspect, calibrate, plan, compare, export, capacity):
        command.add_to(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
