"""What a replay costs, beside the naive model in the same run: `make bench`.

Prints one JSON object. Ratios carry over between machines; absolute figures belong to the machine named in it. Time is
processor time of one thread, the best of several runs, because other work on the machine can only add to it; two
threads against one are wall time, which means something on an idle machine only.
"""

import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from planner.candidates import evaluate
from planner.engine_config import EngineConfig
from planner.replay import NO_LIMIT, replay, warm_up
from planner.slo import Slo
from planner.step_time import StepTime
from traces.requests import PrefixHashes, RequestTrace

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "planner"))
from naive import Engine  # noqa: E402  (the judge lives with the tests)

STEP_TIME = StepTime(base_ns=8_000_000, per_seq_ns=60_000, per_prefill_token_ns=20_000)
CONFIG = EngineConfig(max_num_batched_tokens=8192, max_num_seqs=256, num_gpu_blocks=40_001)
WORKLOADS = {
    # name: (requests per second, KV blocks, whether prompts share prefixes)
    "light": (2.0, 40_001, False),
    "reference": (10.0, 40_001, False),
    "twice the reference": (20.0, 40_001, False),
    "saturated with preemption": (20.0, 4_001, False),
    "shared prefixes": (10.0, 40_001, True),
}
NUM_REQUESTS, NUM_NAIVE_REQUESTS, NUM_RUNS = 20_000, 300, 5
ID_TOKENS, NUM_HEADS, HEAD_IDS = 16, 200, 48
"""Shared prefixes: 200 beginnings of 768 tokens, 16 tokens an id."""


def workload(num_requests: int, rate_rps: float, shares_prefixes: bool = False, seed: int = 7) -> RequestTrace:
    """Prompts N(1000, 300), outputs N(200, 60), Poisson arrivals: the load peers quote their speed at."""
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(1 / rate_rps, num_requests))
    prompt_tokens = rng.normal(1000, 300, num_requests).clip(1).astype(np.int64)
    output_tokens = rng.normal(200, 60, num_requests).clip(1).astype(np.int64)
    hashes = shared_prefixes(prompt_tokens, rng.integers(0, NUM_HEADS, num_requests)) if shares_prefixes else None
    return RequestTrace(arrival_s, prompt_tokens, output_tokens, np.arange(num_requests), prefix_hashes=hashes)


def shared_prefixes(prompt_tokens: np.ndarray, head: np.ndarray) -> PrefixHashes:
    """Every prompt begins as one of the heads does, and goes on in its own words."""
    num_ids = prompt_tokens // ID_TOKENS
    offsets = np.concatenate([[0], np.cumsum(num_ids)])
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], num_ids)
    own = NUM_HEADS * HEAD_IDS + np.arange(offsets[-1])
    return PrefixHashes(
        np.where(place < HEAD_IDS, np.repeat(head, num_ids) * HEAD_IDS + place, own), offsets, ID_TOKENS
    )


def best(work: Callable[[], Any], clock: Callable[[], float] = time.thread_time, num_runs: int = NUM_RUNS) -> float:
    """Shortest time of some runs, seconds."""
    seconds = []
    for _ in range(num_runs):
        started = clock()
        work()
        seconds.append(clock() - started)
    return min(seconds)


def rates(num_requests: int, num_tokens: int, num_steps: int, seconds: float) -> dict[str, float]:
    """Work per second."""
    return {
        "requests_per_s": num_requests / seconds,
        "output_tokens_per_s": num_tokens / seconds,
        "steps_per_s": num_steps / seconds,
    }


def kernel_rates(trace: RequestTrace, config: EngineConfig) -> dict[str, float]:
    """The best of some replays, from the trace to the times of every request."""
    run = replay(trace, config, STEP_TIME, keeps_steps=False)
    seconds = best(lambda: replay(trace, config, STEP_TIME, keeps_steps=False))
    found = rates(len(trace), int(run.num_outputs.sum()), run.totals.num_steps, seconds)
    decodes_per_step = run.totals.num_decodes / run.totals.num_decoding_steps
    return found | {"mean_decodes": decodes_per_step, "preemptions": int(run.num_preemptions.sum())}


def naive_rates(trace: RequestTrace, config: EngineConfig, caches: bool) -> dict[str, float]:
    """One run of the plain Python model."""
    hashes = trace.prefix_hashes
    rows = zip(trace.arrival_s.tolist(), trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True)
    requests = [
        {
            "arrival_ns": round(arrival_s * 1e9),
            "prompt": prompt,
            "out": out,
            "ids": hashes.ids[hashes.offsets[i] : hashes.offsets[i + 1]].tolist() if hashes else None,
        }
        for i, (arrival_s, prompt, out) in enumerate(rows)
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
        "enable_prefix_caching": caches,
        "policy": "fcfs",
        "spec": None,
    }

    def step_ns(num_seqs: int, prefill_tokens: int, *_: float) -> int:
        return STEP_TIME.base_ns + STEP_TIME.per_seq_ns * num_seqs + STEP_TIME.per_prefill_token_ns * prefill_tokens

    started = time.thread_time()
    result = Engine(requests, scheduler, step_ns, max_steps=10**9, id_block_tokens=ID_TOKENS).run()
    seconds = time.thread_time() - started
    num_tokens = sum(len(steps) for steps in result["token_step"])
    return rates(len(requests), num_tokens, len(result["steps"]), seconds)


def beside_the_naive_model() -> dict[str, Any]:
    """Every workload; the naive model keeps block identities only where they can matter, which is in its favour."""
    results = {}
    for name, (rate_rps, num_gpu_blocks, shares_prefixes) in WORKLOADS.items():
        config = replace(CONFIG, num_gpu_blocks=num_gpu_blocks)
        fast = kernel_rates(workload(NUM_REQUESTS, rate_rps, shares_prefixes), config)
        caches = shares_prefixes or fast["preemptions"] > 0
        slow = naive_rates(workload(NUM_NAIVE_REQUESTS, rate_rps, shares_prefixes), config, caches)
        ratio = fast["requests_per_s"] / slow["requests_per_s"]
        results[name] = {"kernel": fast, "naive": slow, "ratio": ratio}
    return results


def of_size(num_requests: int) -> dict[str, float]:
    """Processor time of the reference workload at some length, and the peak memory of this process."""
    warm_up()
    trace = workload(num_requests, WORKLOADS["reference"][0])
    seconds = best(lambda: replay(trace, CONFIG, STEP_TIME, keeps_steps=False), num_runs=3)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"cpu_seconds": seconds, "requests_per_s": num_requests / seconds, "peak_memory_mb": peak_mb}


def growth_with_length() -> dict[str, Any]:
    """Each length in a process of its own, so that the memory is its own, too."""
    command = [sys.executable, "-m", "benchmarks.run"]
    sizes = {}
    for num_requests in (10_000, 100_000, 1_000_000):
        answer = subprocess.run([*command, str(num_requests)], capture_output=True, text=True, check=True)
        sizes[f"{num_requests}"] = json.loads(answer.stdout)
    sizes["1000000 over 100000"] = sizes["1000000"]["cpu_seconds"] / sizes["100000"]["cpu_seconds"]
    return sizes


def growth_with_batch() -> list[dict[str, float]]:
    """The reference workload at rates at which more and more requests run at once."""
    config = replace(CONFIG, max_num_seqs=1024, num_gpu_blocks=160_001)
    return [
        {"requests_per_s_offered": rate_rps, **kernel_rates(workload(NUM_REQUESTS, rate_rps), config)}
        for rate_rps in (2.0, 5.0, 10.0, 20.0, 25.0)
    ]


def thread_scaling(num_candidates: int = 16) -> dict[str, float]:
    """The replays of a search, numbers included, on one thread and on two."""
    trace = workload(100_000, WORKLOADS["reference"][0])
    configs = [replace(CONFIG, max_num_batched_tokens=2048 + 64 * i) for i in range(num_candidates)]

    def search(num_threads: int) -> None:
        with ThreadPoolExecutor(num_threads) as threads:
            list(threads.map(lambda config: evaluate(trace, config, STEP_TIME, Slo(itl_s=0.05)), configs))

    one, two = best(lambda: search(1), time.perf_counter, 3), best(lambda: search(2), time.perf_counter, 3)
    return {"one_thread_s": one, "two_threads_s": two, "speed_up": one / two}


def main() -> None:
    """Measure everything and print the figures."""
    if len(sys.argv) > 1:
        print(json.dumps(of_size(int(sys.argv[1]))))
        return
    warm_up()
    machine = {
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
    }
    results = {
        "machine": machine,
        "workloads": beside_the_naive_model(),
        "growth_with_length": growth_with_length(),
        "growth_with_batch": growth_with_batch(),
        "threads": thread_scaling(),
    }
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
