"""What is recorded: one row per engine step, one per finished request. Numbers only, no text and no ids.

Source
------
vLLM 0.32, v1/metrics/stats.py: `SchedulerStats`, `SchedulerIterationDetails`, `IterationStats`,
`FinishedRequestStats`. They are no stable interface: what another version lacks becomes null.
"""

import time
from collections import OrderedDict
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import pyarrow as pa

STEP_SCHEMA = pa.schema(
    [
        ("wall_s", pa.float64()),  # when the result was received, seconds since 1970
        ("iteration", pa.int64()),  # vLLM's count of the engine's steps
        ("step_s", pa.float64()),  # from the result before to this one
        ("period_source", pa.string()),  # where step_s comes from, see `Steps`
        ("wait_s", pa.float64()),  # vLLM's "iteration elapsed time": the wait for the result alone
        ("num_prefill_reqs", pa.int64()),
        ("prefill_tokens", pa.int64()),
        ("num_decode_reqs", pa.int64()),
        ("num_decode_tokens", pa.int64()),
        ("num_encoder_inputs", pa.int64()),
        ("kv_usage", pa.float64()),  # share of KV blocks in use after the step
        ("num_running", pa.int64()),
        ("num_waiting", pa.int64()),
        ("num_preemptions", pa.int64()),
        ("prefix_queries", pa.int64()),  # prompt tokens looked up in the prefix cache
        ("prefix_hits", pa.int64()),  # and found
    ]
)
REQUEST_SCHEMA = pa.schema(
    [
        ("arrival_s", pa.float64()),  # seconds since 1970
        ("prompt_tokens", pa.int64()),
        ("output_tokens", pa.int64()),
        ("max_tokens", pa.int64()),
        ("ttft_s", pa.float64()),
        ("e2e_s", pa.float64()),
        ("tpot_s", pa.float64()),  # null below two tokens
        ("queue_s", pa.float64()),
        ("num_preemptions", pa.int64()),
        ("num_cached_tokens", pa.int64()),
        ("finish_reason", pa.string()),  # vLLM's own word: stop, length, …
    ]
)

MAX_FIRST_TOKENS = 65_536
"""Requests whose first token came and whose last did not; aborted ones never leave, so the oldest goes."""
ARRIVALS_PER_S = 100_000
"""Two computations of one arrival differ by less than a microsecond, two requests rarely by so little."""


class Taken(NamedTuple):
    """What `record` got, and when."""

    mono_s: float
    wall_s: float
    scheduler: Any
    iteration: Any


class Steps:
    """Makes rows of one engine's steps.

    `step_s` is the time between two results of the engine. A request that decodes in both has it exactly, on the
    engine's own clock, as its gap between two tokens ("token"). Where none does, but the engine was busy, it is the
    time between the two receipts: right on average, with the jitter of the way ("receipt"). After an idle engine
    nothing was in flight, and the wait for the result is the time ("wait").
    """

    def __init__(self) -> None:
        self._last_iteration: int | None = None
        self._last_mono_s = 0.0
        self._last_had_tokens = self._last_busy = False

    def row(self, taken: Taken) -> tuple[Any, ...] | None:
        """One row in the order of `STEP_SCHEMA`; None where the server does not describe its steps."""
        scheduler, iteration = taken.scheduler, taken.iteration
        details = getattr(scheduler, "iteration_details", None)
        if details is None:
            return None
        gaps_s = getattr(iteration, "inter_token_latencies_iter", ())
        step_s, source = self._period(taken, details, gaps_s)
        self._last_iteration, self._last_mono_s = details.iteration_index, taken.mono_s
        self._last_had_tokens = bool(gaps_s) or bool(getattr(iteration, "time_to_first_tokens_iter", ()))
        num_waiting = scheduler.num_waiting_reqs + getattr(scheduler, "num_skipped_waiting_reqs", 0)
        self._last_busy = scheduler.num_running_reqs + num_waiting > 0
        if getattr(details, "is_dummy", False):  # no work, only keeps up with other engines
            return None
        cache = getattr(scheduler, "prefix_cache_stats", None)
        return (
            taken.wall_s,
            details.iteration_index,
            step_s,
            source,
            details.elapsed_ms / 1e3,
            details.num_ctx_requests,
            details.num_ctx_tokens,
            details.num_generation_requests,
            details.num_generation_tokens,
            getattr(details, "num_encoder_inputs", 0),
            scheduler.kv_cache_usage,
            scheduler.num_running_reqs,
            num_waiting,
            getattr(iteration, "num_preempted_reqs", 0),
            getattr(cache, "queries", None),
            getattr(cache, "hits", None),
        )

    def _period(self, taken: Taken, details: Any, gaps_s: Any) -> tuple[float, str]:
        """Seconds since the engine's result before, and where they come from."""
        follows = details.iteration_index - 1 == self._last_iteration
        # A step without any token makes the gaps over it span two steps.
        if gaps_s and not (follows and not self._last_had_tokens):
            return min(gaps_s), "token"
        if follows and self._last_busy:
            return taken.mono_s - self._last_mono_s, "receipt"
        return details.elapsed_ms / 1e3, "wait"


class Requests:
    """Makes rows of finished requests.

    vLLM reports a first token's latency when it comes and without saying whose it is. Time less latency is the
    request's arrival, as it is when the request finishes: by that the two are brought together.
    """

    def __init__(self) -> None:
        self._ttft_s: OrderedDict[int, float] = OrderedDict()

    def rows(self, iteration: Any) -> list[tuple[Any, ...]]:
        """Rows in the order of `REQUEST_SCHEMA`."""
        now_s = iteration.iteration_timestamp
        for ttft_s in iteration.time_to_first_tokens_iter:
            self._ttft_s[round((now_s - ttft_s) * ARRIVALS_PER_S)] = ttft_s
        while len(self._ttft_s) > MAX_FIRST_TOKENS:
            self._ttft_s.popitem(last=False)
        return [self._row(now_s, finished) for finished in iteration.finished_requests]

    def _row(self, now_s: float, finished: Any) -> tuple[Any, ...]:
        """One finished request."""
        arrival_s = now_s - finished.e2e_latency
        key = round(arrival_s * ARRIVALS_PER_S)
        ttft_s = next((self._ttft_s.pop(near) for near in (key, key - 1, key + 1) if near in self._ttft_s), None)
        num_outputs = finished.num_generation_tokens
        return (
            arrival_s,
            finished.num_prompt_tokens,
            num_outputs,
            getattr(finished, "max_tokens_param", None),
            ttft_s,
            finished.e2e_latency,
            finished.decode_time / (num_outputs - 1) if num_outputs > 1 else None,
            finished.queued_time,
            getattr(finished, "num_preemptions", None),
            getattr(finished, "num_cached_tokens", None),
            str(finished.finish_reason),
        )


def take(scheduler: Any, iteration: Any) -> Taken:
    """Stamp what `record` got; nothing is read out of it here, in the server's own loop."""
    return Taken(time.monotonic(), time.time(), scheduler, iteration)


def server_facts(config: Any) -> dict[str, Any]:
    """Today's flags and the size of the KV cache, by the names that the planner knows; null where vLLM has none.

    Source
    ------
    vLLM 0.32, v1/engine/core_client.py: `num_gpu_blocks` is the sum over the engines that this front end manages.
    """
    scheduler, cache, model = config.scheduler_config, config.cache_config, config.model_config
    num_gpu_blocks = getattr(cache, "num_gpu_blocks", None)
    return {
        "vllm_version": _version(),
        "max_num_batched_tokens": getattr(scheduler, "max_num_batched_tokens", None),
        "max_num_seqs": getattr(scheduler, "max_num_seqs", None),
        "long_prefill_token_threshold": getattr(scheduler, "long_prefill_token_threshold", None),
        "max_model_len": getattr(model, "max_model_len", None),
        "block_size": getattr(cache, "block_size", None),
        "num_gpu_blocks": num_gpu_blocks // _num_engines(config.parallel_config) if num_gpu_blocks else None,
        "async_scheduling": getattr(scheduler, "async_scheduling", None),
        "enable_prefix_caching": getattr(cache, "enable_prefix_caching", None),
    }


def _num_engines(parallel: Any) -> int:
    """Engines of data parallelism behind this front end."""
    own = getattr(parallel, "data_parallel_hybrid_lb", False) or getattr(parallel, "data_parallel_external_lb", False)
    return getattr(parallel, "data_parallel_size_local" if own else "data_parallel_size", 1) or 1


def _version() -> str | None:
    """The version of the vLLM that runs."""
    try:
        return version("vllm")
    except PackageNotFoundError:
        return None
