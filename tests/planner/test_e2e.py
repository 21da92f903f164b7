"""Real runs of vLLM 0.19, replayed from kernel times that were measured apart from them."""

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from shared import files, shared_path

from planner.calibrate import fit_step_time
from planner.engine_config import EngineConfig
from planner.metrics import e2e_s, tpot_s, ttft_s
from planner.replay import Replay, replay
from planner.step_time import StepTime
from traces.read import read_steps
from traces.requests import RequestTrace
from traces.steps import StepLog

Floats = npt.NDArray[np.float64]
SHARES = (0.5, 0.9, 0.95, 0.99)
RAMP_S = 8.0
"""At first every step is full of prefill, and most bring a first token."""
MOST = 0.02
"""Relative error of a mean or percentile that counts as hit,"""
MOST_RANK = 0.02
"""or the share of requests by which a percentile lies elsewhere: of waits that come in waves, 14 s apart, a percentile
between two waves says nothing."""
MISSED_ALONE = {("tpot", "mean"): 0.026}
MISSED_ADJUSTED = {
    "RTX4090_Llama-3.1-8B": {("ttft", "mean"): 0.025, ("ttft", 0.95): 0.105, ("ttft", 0.99): 0.021,
                             ("e2e", 0.9): 0.021, ("e2e", 0.99): 0.024},
    "RTXPRO6000_Qwen3-32B": dict.fromkeys([(latency, share) for latency in ("ttft", "tpot", "e2e")
                                           for share in ("mean", *SHARES)], 0.042),
}  # fmt: skip
"""Where neither is so, and by how much.

RTX4090 from kernel times alone, by value in %, mean and p50, p90, p95, p99: TTFT -0.7, -2.2, -1.3, +6.5, -1.3; TPOT
-2.5, -1.8, +0.7, -7.1, -2.1; latency -1.2, +1.8, -1.1, -1.4, -1.2. Its prompts are turns of the same conversations, and
the run had prefix caching on; what they share is not in the file, so the replay finds nothing. Requests 47, 48 and 49
show it: they were scheduled in one step, and 47 and 48 had their first token from it, though their 2,106 prompt tokens
beside 30 decodes do not fit the budget of 2,048. Before that the replay is exact: requests 26 to 40 lose as many steps
to preemption as they really did, and the blocks in use are those counted second by second (2,579 of 2,587 seen, 2,580
expected). After it three requests of 300 wait for the next wave, and others are preempted in their stead. Sharing as
much as that one step needs brings TPOT p95 from -5 to -1 %.

RTXPRO6000: two GPUs, and the time in which they exchange results is not in the kernel times at all: 0.14 ms per request
of a decode-only step and 0.08 ms per prefill token, by the run's own clock. From kernel times alone all is 30 to 47 %
early.
"""


@dataclass(frozen=True)
class Run:
    """What a real server did."""

    trace: RequestTrace
    config: EngineConfig
    num_gpus: int
    scheduled_s: Floats
    first_s: Floats
    last_s: Floats
    tokens_per_s: Floats
    """(t,) decoded in each second of the run."""
    running: Floats
    """(t,) at its end."""
    kernels: StepLog
    """Sums of kernel times on that GPU, as far as the KV cache holds their contexts."""


@cache
def run_of(folder: Path) -> Run:
    """Read a folder; what its meta.json does not state is vLLM's default."""
    meta = json.loads((folder / "meta.json").read_text())
    rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    queued, scheduled, first, last = (
        np.array([row[f"{name}_ts"] for row in rows]) for name in ("queued", "scheduled", "first_token", "last_token")
    )
    inputs, outputs = (np.array([row[f"{name}_toks"] for row in rows]) for name in ("input", "output"))
    flags, cache_ = meta["engine_kwargs"], meta.get("kv_cache", {})
    scheduler = meta.get("resolved_config", {}).get("scheduler_config", {})
    stated = {
        name: cache_[name] for name in ("num_gpu_blocks", "block_size", "enable_prefix_caching") if name in cache_
    }
    stated |= {
        name: scheduler[name] for name in ("async_scheduling", "scheduler_reserve_full_isl") if name in scheduler
    }
    names = ("max_num_batched_tokens", "max_num_seqs", "max_model_len")
    config = EngineConfig(**stated, **{name: flags[name] for name in names})
    seconds = list(csv.DictReader((folder / "timeseries.csv").read_text().splitlines()))
    steps = f"opsum_llmservingsim_{folder.name}_tp{flags['tensor_parallel_size']}.parquet"
    return Run(
        trace=RequestTrace(queued - queued[0], inputs, outputs, np.arange(len(rows))),
        config=config,
        num_gpus=flags["tensor_parallel_size"],
        scheduled_s=scheduled - queued[0],
        first_s=first - queued[0],
        last_s=last - queued[0],
        tokens_per_s=np.array([float(row["gen_throughput"]) for row in seconds]),
        running=np.array([float(row["running"]) for row in seconds]),
        kernels=within(read_steps(shared_path("data", "step_logs", steps), steps), config.num_kv_tokens),
    )


def within(log: StepLog, num_kv_tokens: int) -> StepLog:
    """The steps whose context the KV cache of a server holds."""
    assert log.kv_decode_tokens is not None
    assert log.kv_prefill_tokens is not None
    which = log.kv_decode_tokens + log.kv_prefill_tokens <= num_kv_tokens
    arrays = {field.name: getattr(log, field.name) for field in fields(StepLog) if field.init}
    return replace(log, **{name: one[which] for name, one in arrays.items() if isinstance(one, np.ndarray)})


def without_prefill(scheduled_s: Floats, first_s: Floats, num_seconds: int) -> npt.NDArray[np.bool_]:
    """Which seconds of a run no new prompt touched, (t,)."""
    is_free = np.ones(num_seconds, np.bool_)
    for start, end in zip(scheduled_s.astype(int), first_s.astype(int), strict=True):
        is_free[start : end + 2] = False
    return is_free


def adjusted(step_time: StepTime, run: Run) -> StepTime:
    """What the kernel times leave out, measured on the run: once per decode-only step, once per prefill token.

    Host and launch time, and between several GPUs the exchange of results, which grows with the tokens.
    """
    seconds = without_prefill(run.scheduled_s, run.first_s, len(run.running)) & (run.tokens_per_s > 0)
    mean_running = (run.running + np.roll(run.running, 1)) / 2
    decode_s = mean_running[seconds].sum() / run.tokens_per_s[seconds].sum()
    early = run.trace.arrival_s < RAMP_S
    full_s = np.median(np.diff(np.unique(run.first_s[early])))
    for _ in range(2):
        guess = replay(run.trace, run.config, step_time)
        second = (guess.steps["end_ns"] / 1e9).astype(int)
        tokens = np.bincount(second, guess.steps["num_decodes"])
        running = np.bincount(second, guess.steps["num_running"]) / np.maximum(np.bincount(second), 1)
        seconds = without_prefill(guess.first_scheduled_s, guess.first_token_s, len(tokens)) & (tokens > 0)
        missing_s = decode_s - running[seconds].sum() / tokens[seconds].sum()
        late_s = full_s - np.median(np.diff(np.unique(guess.first_token_s[early])))
        if run.num_gpus == 1:
            step_time = step_time._replace(base_ns=step_time.base_ns + round(1e9 * missing_s))
            late_s -= missing_s
        else:
            batch = np.average(running[seconds], weights=running[seconds])
            step_time = step_time._replace(per_seq_ns=step_time.per_seq_ns + round(1e9 * missing_s / batch))
        per_token_ns = round(1e9 * late_s / run.config.max_num_batched_tokens)
        step_time = step_time._replace(per_prefill_token_ns=max(0, step_time.per_prefill_token_ns + per_token_ns))
    return step_time


def assert_hit(run: Run, ours: Replay, missed: Mapping[tuple[str, str | float], float]) -> None:
    """Mean and percentiles are hit by value or by rank; those known to be missed, by no more than is known."""
    arrival_s, gaps = run.trace.arrival_s, run.trace.output_tokens - 1
    pairs = {
        "ttft": (ttft_s(ours), run.first_s - arrival_s),
        "tpot": (tpot_s(ours), (run.last_s - run.first_s) / gaps),
        "e2e": (e2e_s(ours), run.last_s - arrival_s),
    }
    for latency, (predicted, measured) in pairs.items():
        error = predicted.mean() / measured.mean() - 1
        assert abs(error) <= missed.get((latency, "mean"), MOST), (latency, "mean", error)
        for share in SHARES:
            value = np.quantile(measured, share)
            error = np.quantile(predicted, share) / value - 1
            is_hit_by_rank = abs(np.mean(predicted <= value) - share) <= MOST_RANK
            assert is_hit_by_rank or abs(error) <= missed.get((latency, share), MOST), (latency, share, error)


@pytest.mark.data
@pytest.mark.parametrize("meta", files("data/e2e/RTX4090_Llama-3.1-8B/meta.json"))
def test_one_gpu_is_predicted_from_its_kernel_times_alone(meta):
    run = run_of(meta.parent)

    ours = replay(run.trace, run.config, fit_step_time(run.kernels).step_time)

    assert_hit(run, ours, MISSED_ALONE)
    assert ours.num_preemptions.sum() > 150
    assert ours.last_token_s.max() == pytest.approx(run.last_s.max(), rel=0.02)


@pytest.mark.data
@pytest.mark.parametrize("meta", files("data/e2e/*/meta.json"))
def test_a_run_is_predicted_from_kernel_times_and_two_times_of_its_own(meta):
    run = run_of(meta.parent)

    ours = replay(run.trace, run.config, adjusted(fit_step_time(run.kernels).step_time, run))

    assert_hit(run, ours, MISSED_ADJUSTED.get(meta.parent.name, {}))
    assert ours.last_token_s.max() == pytest.approx(run.last_s.max(), rel=0.02)
