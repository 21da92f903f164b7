"""Recordings of the real scheduler as the logs and traces that a user would have of them."""

import numpy as np
import pytest
from goldens import golden_paths, read_golden, requests_of, step_time_of
from logged import Logged, served

from planner import kernel
from planner.engine_config import EngineConfig
from traces.requests import PrefixHashes, RequestTrace


def recordings(has_drafts: bool, where_waiting_matters: bool = False) -> list:
    """Recordings of servers that would start and had something to do, with or without speculative decoding."""
    return [
        pytest.param(path, id=path.name.removesuffix(".json.gz"))
        for path in golden_paths()
        if (read_golden(path)["scenario"]["config"]["spec"] is not None) == has_drafts
        and read_golden(path)["result"]["startup_check"] == "ok"
        and (not where_waiting_matters or minds_waiting(read_golden(path)["scenario"]["config"]))
    ]


def minds_waiting(flags: dict) -> bool:
    """Whether a step depends on who waits without being admitted."""
    return flags["policy"] == "priority" or flags["long_prefill_token_threshold"] > 0


def logged(golden: dict) -> Logged:
    scenario, step_time = golden["scenario"], step_time_of(golden["scenario"])

    def step_ns(num_seqs, prefill_tokens, kv, attention, num_drafts, kv_prefill) -> int:
        return int(kernel.step_ns.py_func(step_time, num_seqs, prefill_tokens, kv, attention, num_drafts, kv_prefill))

    return served(requests_of(golden), scenario["config"], step_ns, scenario["max_steps"], scenario["id_block_tokens"])


def order_of(golden: dict) -> list[int]:
    requests = requests_of(golden)
    return sorted(range(len(requests)), key=lambda i: (requests[i]["arrival_ns"], i))


def trace_of(golden: dict) -> RequestTrace:
    """The requests as their trace would have them: in order of arrival, with the ids of their prompts' content."""
    requests = [requests_of(golden)[i] for i in order_of(golden)]
    columns = {
        name: np.array([request[name] for request in requests], np.int64)
        for name in ("arrival_ns", "prompt", "out", "max_tokens", "priority")
    }
    ids = [request["ids"] or [] for request in requests]
    hashes = None
    if any(ids):
        flat = np.array([one for row in ids for one in row], np.int64)
        hashes = PrefixHashes(flat, np.cumsum([0, *map(len, ids)]), golden["scenario"]["id_block_tokens"])
    return RequestTrace(
        columns["arrival_ns"] / 1e9,
        columns["prompt"],
        columns["out"],
        np.arange(len(requests)),
        priority=columns["priority"],
        max_tokens=columns["max_tokens"],
        prefix_hashes=hashes,
    )


def config_of(golden: dict) -> EngineConfig:
    flags = golden["scenario"]["config"]
    same = {name: flags[name] for name in EngineConfig.__slots__ if name in flags}
    spec = flags["spec"] or {"method": None, "k": 0}
    return EngineConfig(
        **same,
        num_gpu_blocks=flags["num_blocks"],
        scheduling_policy=flags["policy"],
        speculative_method=spec["method"],
        num_speculative_tokens=spec["k"],
    )
