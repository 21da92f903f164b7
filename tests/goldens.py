"""Recordings of the real vLLM scheduler: where they are, and what is in them in the tests' own form."""

import gzip
import json
from functools import cache
from pathlib import Path

from shared import SHARED_DIR

from planner.step_time import StepTime

SHIPPED = Path(__file__).parent / "goldens_shipped"


def golden_paths() -> list[Path]:
    """Every recording at hand: all of the shared material where it is there, else the handful shipped here."""
    folder = SHARED_DIR / "oracle" / "goldens"
    return sorted((folder if folder.is_dir() else SHIPPED).glob("*.json.gz"))


@cache
def read_golden(path: Path) -> dict:
    with gzip.open(path, "rt") as stream:
        return json.load(stream)


def accepted_requests(golden: dict) -> list[int]:
    """Indices of the requests that vLLM let through to the scheduler."""
    rejected = {index for index, _ in golden["result"]["rejected"]}
    return [i for i in range(len(golden["scenario"]["requests"])) if i not in rejected]


def requests_of(golden: dict) -> list[dict]:
    """The accepted requests, arrivals in whole nanoseconds."""
    rows = [golden["scenario"]["requests"][i] for i in accepted_requests(golden)]
    return [
        {
            "arrival_ns": round(row["arrival_ms"] * 1e6),
            "prompt": row["prompt"],
            "out": row["out"],
            "max_tokens": row.get("max_tokens") or row["out"],
            "priority": row.get("priority", 0),
            "ids": row.get("ids"),
        }
        for row in rows
    ]


def step_time_of(scenario: dict) -> StepTime:
    """The recording's step-time model in whole nanoseconds, rounded as its README says."""
    milliseconds = scenario["step_time"]
    names = ("base", "per_seq", "per_prefill_token", "per_draft_token")
    return StepTime(**{f"{name}_ns": round(milliseconds[f"{name}_ms"] * 1e6) for name in names})
