"""Options that several commands have alike."""

import argparse
import math
import os
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from planner.engine_config import GPU_TIERS, EngineConfig
from planner.executors import ADDRESS_VARIABLE
from planner.search import Objective
from planner.slo import LIMITS
from traces.answers import ReadAnswers

MOST_COUNT = 1 << 31
"""Larger counts are no flags of a real server."""
BY_HAND_MS = {
    "base": (8.0, "of every step"),
    "per_seq": (0.06, "per request in the step"),
    "per_prefill_token": (0.02, "per prefill token"),
}
"""Coefficients without a model, milliseconds: those of the reference experiments."""


def number(text: str) -> float:
    """A finite number; anything else is bad usage."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError
    return value


def count(text: str) -> int:
    """A whole number that the kernel can hold."""
    value = int(text)
    if abs(value) > MOST_COUNT:
        raise ValueError
    return value


FLAG_TYPES: dict[str, Callable[[str], Any]] = {
    "watermark": number,
    "draft_acceptance_rate": number,
    "scheduling_policy": str,
    "speculative_method": str,
}
"""Flags that do not take a whole number or a switch."""


def add_trace(parser: argparse.ArgumentParser) -> None:
    """The requests, and which part of them is used, changed how."""
    parser.add_argument("trace", help="request trace: Parquet, CSV or JSONL")
    group = parser.add_argument_group("part of the trace")
    group.add_argument("--from-s", type=number, default=0.0, help="seconds since the first arrival")
    group.add_argument("--until-s", type=number, help="likewise; not given = to the last arrival")
    group.add_argument("--only", action="append", default=[], metavar="COLUMN=WORD", help="repeat it for more")
    group.add_argument("--sample", type=number, default=100.0, help="percent of the requests, drawn at random")
    group.add_argument("--sample-seed", type=count, default=0)
    group.add_argument("--rate", type=number, default=1.0, help="times: 2 = the same requests in half the time")
    group.add_argument("--spread-seed", type=count, help="spread arrivals that share a stamp of a slow clock")


def add_model(parser: argparse.ArgumentParser) -> None:
    """Where the step-time model comes from."""
    parser.add_argument("--model", metavar="M.json", help="model written by planner calibrate")
    for name, (value, what) in BY_HAND_MS.items():
        option = f"--{name.replace('_', '-')}-ms"
        parser.add_argument(option, type=number, help=f"time {what}, without a model (default {value:g})")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """VLLM's flags; what is not given comes from the step log, or is vLLM's default."""
    group = parser.add_argument_group("vLLM's flags")
    for field in fields(EngineConfig):
        option = "--" + field.name.replace("_", "-")
        if isinstance(field.default, bool):
            group.add_argument(option, action=argparse.BooleanOptionalAction, default=None)
        else:
            group.add_argument(option, type=FLAG_TYPES.get(field.name, count), default=None)


def add_judged(parser: argparse.ArgumentParser) -> None:
    """What a search of settings or loads needs: model, targets, what decides, and where replays run."""
    parser.add_argument("--steps", metavar="STEPLOG", help="server log or table of steps to calibrate from")
    parser.add_argument(
        "--align", action="store_true", help="the step log was written while this very trace was served"
    )
    add_model(parser)
    group = parser.add_argument_group("targets")
    group.add_argument("--itl-ms", type=number, required=True, help="target inter-token latency")
    group.add_argument("--itl-percentile", type=number, default=99.0, help="of all gaps, pooled over requests")
    group.add_argument("--worst-gap-ms", type=number, help="cap on the longest gap of any request")
    group.add_argument("--ttft-ms", type=number, help="target time to first token")
    group.add_argument("--ttft-percentile", type=number, default=99.0)
    group.add_argument("--e2e-ms", type=number, help="target time from arrival to last token")
    group.add_argument("--e2e-percentile", type=number, default=99.0)
    group.add_argument("--stalled-percent", type=number, help="most time beyond the gap target, of all streaming time")
    group.add_argument(
        "--class-target",
        action="append",
        default=[],
        metavar=",".join(["prompt=MIN-MAX", "priority=N", "column=NAME=WORD", *(f"{name}=…" for name in LIMITS)]),
        help="targets of some requests only; may be given more than once",
    )
    group.add_argument("--objective", choices=[o.value for o in Objective], default=Objective.LOWEST_TTFT.value)
    group.add_argument(
        "--gpu-memory-gib",
        type=number,
        default=80.0,
        help=f"device memory, decides vLLM's default flags ({'; '.join(tier.label for tier in GPU_TIERS)})",
    )
    parser.add_argument(
        "--dask-scheduler",
        metavar="tcp://HOST:8786",
        default=os.environ.get(ADDRESS_VARIABLE, ""),
        help=f"replay on this Dask cluster (default: what {ADDRESS_VARIABLE} says; without one, on this machine)",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """The same result for programs."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_answers(parser: argparse.ArgumentParser) -> None:
    """What the user can say about a file that the file itself does not say."""
    group = parser.add_argument_group("about the files")
    for field in fields(ReadAnswers):
        option = "--" + field.name.replace("_", "-")
        if isinstance(field.default, bool):
            group.add_argument(option, action="store_true")
        else:
            group.add_argument(option)
