"""Recordings of the real vLLM scheduler: where they are, and which of them lie within what is simulated."""

import gzip
import json
from functools import cache
from pathlib import Path

from shared import SHARED_DIR

SHIPPED = Path(__file__).parent / "goldens_shipped"


def golden_paths() -> list[Path]:
    """Every recording at hand: all of the shared material where it is there, else the handful shipped here."""
    folder = SHARED_DIR / "oracle" / "goldens"
    return sorted((folder if folder.is_dir() else SHIPPED).glob("*.json.gz"))


def features_not_simulated(scenario: dict) -> list[str]:
    config = scenario["config"]
    return [
        name
        for name, is_used in (
            ("speculative decoding", bool(config["spec"])),
            ("prefix caching", config["enable_prefix_caching"]),
            ("priority policy", config["policy"] != "fcfs"),
        )
        if is_used
    ]


@cache
def read_golden(path: Path) -> dict:
    with gzip.open(path, "rt") as stream:
        return json.load(stream)


def accepted_requests(golden: dict) -> list[int]:
    """Indices of the requests that vLLM let through to the scheduler."""
    rejected = {index for index, _ in golden["result"]["rejected"]}
    return [i for i in range(len(golden["scenario"]["requests"])) if i not in rejected]


def arrival_ns(request: dict) -> int:
    return round(request["arrival_ms"] * 1e6)


def step_time_ns(scenario: dict) -> tuple[int, int, int]:
    names = ("base_ms", "per_seq_ms", "per_prefill_token_ms")
    return tuple(round(scenario["step_time"][name] * 1e6) for name in names)
