"""What a replay costs, as a ratio against the naive model in the same run: `make bench`.

Prints one JSON object. Ratios carry over between machines; absolute figures belong to the machine named in it.
"""

import json
import os
import platform
import sys
import time
from pathlib import Path

import numpy as np

from planner.engine_config import EngineConfig
from planner.replay import NO_LIMIT, replay, warm_up
from planner.step_time import StepTime
from traces.requests import RequestTrace

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "planner"))
from naive import Engine  # noqa: E402  (the judge lives with the tests)

STEP_TIME = StepTime(base_ns=8_000_000, per_seq_ns=60_000, per_prefill_token_ns=20_000)
WORKLOADS = {
    # name: (requests per second, KV blocks)
    "light": (2.0, 40_001),
    "reference": (10.0, 40_001),
    "twice the reference": (20.0, 40_001),
    "saturated with preemption": (20.0, 4_001),
}
NUM_REQUESTS, NUM_NAIVE_REQUESTS = 20_000, 300


def workload(num_requests: int, rate_rps: float, seed: int = 7) -> RequestTrace:
    """Prompts N(1000, 300), outputs N(200, 60), Poisson arrivals: the load peers quote their speed at."""
    rng = np.random.default_rng(seed)
    return RequestTrace(
        np.cumsum(rng.exponential(1 / rate_rps, num_requests)),
        rng.normal(1000, 300, num_requests).clip(1).astype(np.int64),
        rng.normal(200, 60, num_requests).clip(1).astype(np.int64),
        np.arange(num_requests),
    )


def kernel_rate(trace: RequestTrace, config: EngineConfig) -> dict[str, float]:
    """The median of three replays."""
    runs = [replay(trace, config, STEP_TIME) for _ in range(3)]
    seconds = sorted(run.kernel_seconds for run in runs)[1]
    return {
        "requests_per_s": len(trace) / seconds,
        "output_tokens_per_s": float(trace.output_tokens.sum()) / seconds,
        "steps_per_s": len(runs[0].steps) / seconds,
        "preemptions": int(runs[0].num_preemptions.sum()),
    }


def naive_requests_per_s(trace: RequestTrace, config: EngineConfig) -> float:
    """One run of the plain Python model."""
    requests = [
        {"arrival_ns": round(arrival_s * 1e9), "prompt": int(prompt), "out": int(out)}
        for arrival_s, prompt, out in zip(trace.arrival_s, trace.prompt_tokens, trace.output_tokens, strict=True)
    ]
    scheduler = {
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_num_scheduled_tokens": None,
        "max_num_seqs": config.max_num_seqs,
        "max_num_active_seqs": None,
        "long_prefill_token_threshold": 0,
        "long_prefill_token_threshold_adaptive": False,
        "enable_chunked_prefill": True,
        "scheduler_reserve_full_isl": True,
        "watermark": 0.0,
        "async_scheduling": True,
        "max_model_len": NO_LIMIT,
        "block_size": config.block_size,
        "num_blocks": config.num_gpu_blocks,
        "enable_prefix_caching": False,
        "policy": "fcfs",
        "spec": None,
    }
    started = time.perf_counter()
    Engine(
        requests,
        scheduler,
        lambda num_seqs, prefill, *_: STEP_TIME.base_ns + STEP_TIME.per_seq_ns * num_seqs + 20_000 * prefill,
        max_steps=10**9,
    ).run()
    return len(requests) / (time.perf_counter() - started)


def main() -> None:
    """Measure every workload and print the figures."""
    warm_up()
    results = {}
    for name, (rate_rps, num_gpu_blocks) in WORKLOADS.items():
        config = EngineConfig(max_num_batched_tokens=8192, max_num_seqs=256, num_gpu_blocks=num_gpu_blocks)
        fast = kernel_rate(workload(NUM_REQUESTS, rate_rps), config)
        slow = naive_requests_per_s(workload(NUM_NAIVE_REQUESTS, rate_rps), config)
        results[name] = fast | {"naive_requests_per_s": slow, "ratio": fast["requests_per_s"] / slow}
    machine = {"cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    print(json.dumps({"machine": machine, "workloads": results}, indent=2))


if __name__ == "__main__":
    main()
