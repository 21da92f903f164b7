"""What leaves a command: results on standard output or in a file, progress and messages on standard error."""

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from planner.errors import BadPlan, UnfitStepLog
from planner.json_values import to_json
from planner.metrics import Spread
from planner.remedies import what_to_record
from planner.step_time import StepTimeFit

OK, BAD_INPUT, NOT_MET = 0, 2, 3
"""Exit codes: done; bad input or usage; no candidate meets the targets."""
INTERRUPTED, CLOSED_PIPE = 130, 141
"""Exit codes as shells give them: 128 and the number of SIGINT, of SIGPIPE."""

PROGRESS_S = 10.0
"""Where lines cannot be written over, progress is said so often, seconds."""


def say(message: str) -> None:
    """A line on standard error."""
    print(message, file=sys.stderr)


class Progress:
    """How far a command is, on standard error: a line written over on a terminal, elsewhere one now and then."""

    def __init__(self) -> None:
        self._due_s = time.monotonic() + PROGRESS_S

    def show(self, text: str) -> None:
        """Say it, in place of what was said before."""
        if sys.stderr.isatty():
            print(f"\r{text:70}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() >= self._due_s:
            say(text)
            self._due_s = time.monotonic() + PROGRESS_S

    def end(self) -> None:
        """Leave the line."""
        if sys.stderr.isatty():
            say("")


def print_json(document: dict[str, Any]) -> None:
    """One JSON object, NaN as null."""
    print(json.dumps(to_json(document), indent=2, sort_keys=True))


def print_or_write(text: str, path: str | None) -> None:
    """A result whose only form is a file's text."""
    if path:
        write(path, text)
    else:
        print(text, end="")


def write(path: str, text: str) -> None:
    """Write a result."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as fault:
        raise BadPlan(path, f"cannot be written: {fault}") from fault


def check_output(path: str | None) -> None:
    """Refuse an output that cannot be written before any work is done for it."""
    if path is not None and not Path(path).absolute().parent.is_dir():
        raise BadPlan(path, "cannot be written: its folder does not exist")
    if path is not None and Path(path).is_dir():
        raise BadPlan(path, "cannot be written: it is a folder")


def milliseconds(spread: Spread) -> dict[str, float]:
    """A latency spread in vLLM's own unit."""
    return {name.removesuffix("_s"): 1e3 * value for name, value in asdict(spread).items()}


def say_remedies(calibration: StepTimeFit | UnfitStepLog) -> None:
    """What to record next, with the lines to paste."""
    for remedy in what_to_record(calibration):
        say(f"To record next: {remedy.sentence}")
        for line in (remedy.serve, remedy.bench):
            if line:
                say(f"    {line}")
