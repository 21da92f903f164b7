"""A log made by the plain model of the scheduler is explained line by line; so are the logs of real servers."""

import json
from dataclasses import replace

import numpy as np
import pytest
from logged import FEATURES, Logged, served
from shared import measured_runs

from planner.align import Alignment, align, aligned_log, alignment_sentence
from planner.engine_config import EngineConfig, flags_from_facts
from planner.replay import replay
from planner.step_time import StepTime
from traces.read import read_steps, read_trace
from traces.requests import PrefixHashes, RequestTrace
from traces.steps import StepLog

COLUMNS = (
    "step_s",
    "num_prefill_reqs",
    "prefill_tokens",
    "num_decode_reqs",
    "num_decode_tokens",
    "kv_usage",
    "stamp_s",
)
STEP_TIME = StepTime(8_000_000, 60_000, 20_000)
PLAIN = EngineConfig(max_num_batched_tokens=512, max_num_seqs=16, enable_prefix_caching=False, async_scheduling=False)
TIGHT = replace(PLAIN, num_gpu_blocks=130, scheduler_reserve_full_isl=False)
CONFIGS = {
    "sync": PLAIN,
    "async": replace(PLAIN, async_scheduling=True),
    "threshold": replace(PLAIN, long_prefill_token_threshold=100),
    "seats": replace(PLAIN, max_num_seqs=3),
    "preemption": TIGHT,
    "preemption, async": replace(TIGHT, async_scheduling=True),
    "eviction": replace(TIGHT, enable_prefix_caching=True),
    "eviction, async": replace(TIGHT, enable_prefix_caching=True, async_scheduling=True),
}


def shared_prefixes(num_requests: int = 60, rate_rps: float = 6.0, seed: int = 0) -> RequestTrace:
    """Prompts that begin like one of six others; now and then nobody comes for two seconds."""
    rng = np.random.default_rng(seed)
    prompt = rng.integers(20, 900, num_requests)
    family = rng.integers(0, 6, num_requests)
    num_ids = prompt // 16
    ids = [
        1000 * family[i] + np.minimum(np.arange(num), 20) + (np.arange(num) > 20) * 10_000 * (i + 1)
        for i, num in enumerate(num_ids)
    ]
    gaps = rng.exponential(1 / rate_rps, num_requests) + 2.0 * (rng.random(num_requests) < 0.05)
    return RequestTrace(
        np.cumsum(gaps) - gaps[0],
        prompt,
        rng.integers(1, 80, num_requests),
        np.arange(num_requests),
        prefix_hashes=PrefixHashes(np.concatenate(ids), np.concatenate([[0], np.cumsum(num_ids)]), 16),
    )


def log_of(trace: RequestTrace, config: EngineConfig) -> StepLog:
    """What vLLM would log while it serves a trace, by the plain model."""
    assert trace.prefix_hashes is not None
    offsets = trace.prefix_hashes.offsets
    requests = [
        {
            "arrival_ns": int(trace.arrival_s[i] * 1e9),
            "prompt": int(trace.prompt_tokens[i]),
            "out": int(trace.output_tokens[i]),
            "ids": trace.prefix_hashes.ids[offsets[i] : offsets[i + 1]].tolist(),
        }
        for i in range(len(trace))
    ]
    names = {"num_blocks": config.num_gpu_blocks, "policy": "fcfs", "spec": None, "max_model_len": 10**6}
    flags = {name: getattr(config, name) for name in EngineConfig.__slots__} | names
    return served(requests, flags, lambda n, p, *_: 8_000_000 + 60_000 * n + 20_000 * p).log


def rows(log: StepLog, which: slice) -> StepLog:
    """Some steps of a log."""
    names = (*COLUMNS, "source_row")
    return replace(log, **{name: getattr(log, name)[which] for name in names})


def behind(first: StepLog, then: StepLog) -> StepLog:
    """One log after the other."""
    joined = {name: np.concatenate([getattr(first, name), getattr(then, name)]) for name in COLUMNS}
    return replace(then, **joined, source_row=np.arange(len(first) + len(then)))


def assert_all_explained(alignment: Alignment) -> None:
    assert alignment.differences == ()
    assert alignment.num_explained == alignment.num_covered > 0


@pytest.mark.parametrize("name", CONFIGS)
def test_every_line_is_explained_with_its_hidden_features(name):
    trace = shared_prefixes(rate_rps=25.0 if "preemption" in name or "eviction" in name else 6.0)

    alignment = align(log_of(trace, CONFIGS[name]), trace, CONFIGS[name])

    assert_all_explained(alignment)
    assert alignment.is_covered.all()
    assert alignment.admitted.tolist() == list(range(len(trace)))
    run = replay(trace, CONFIGS[name], STEP_TIME)
    scheduled = run.steps[run.steps["num_scheduled"] > 0]
    for feature in ("num_scheduled", "num_decodes", "prefill_tokens", "kv_decode_tokens", "prefill_attention"):
        np.testing.assert_array_equal(alignment.steps[feature], scheduled[feature])
    if "preemption" in name:
        assert run.num_preemptions.sum() > 0


def test_an_idle_engine_does_not_follow():
    trace = shared_prefixes()
    run = replay(trace, PLAIN, STEP_TIME)

    alignment = align(log_of(trace, PLAIN), trace, PLAIN)

    idle = run.steps["start_ns"][1:] > run.steps["end_ns"][:-1]
    assert idle.any()
    assert not (alignment.follows[1:] & idle).any()
    # A request that came during the last step of all others looks like one that came later.
    assert (alignment.follows[1:] | idle).mean() > 0.995


def test_a_warm_up_before_the_trace_is_not_covered():
    trace, warm_up = shared_prefixes(), shared_prefixes(5, rate_rps=1.0, seed=9)
    first = log_of(warm_up, PLAIN)

    alignment = align(behind(first, log_of(trace, PLAIN)), trace, PLAIN)

    assert_all_explained(alignment)
    assert np.flatnonzero(alignment.is_covered)[0] == len(first)


def test_a_log_that_begins_later_than_the_trace():
    trace = shared_prefixes()
    log = log_of(trace, PLAIN)
    is_start = (log.num_decode_reqs == 0) & (np.arange(len(log)) > 300)
    cut = rows(log, slice(int(np.flatnonzero(is_start)[0]) - 7, None))

    alignment = align(cut, trace, PLAIN)

    assert_all_explained(alignment)
    assert np.flatnonzero(alignment.is_covered)[0] == 7


def test_requests_that_overtook_each_other_are_put_in_order():
    served = shared_prefixes(seed=4)
    sent = np.arange(len(served))
    sent[[10, 11]], sent[[40, 41, 42]] = [11, 10], [41, 42, 40]
    hashes = served.prefix_hashes
    assert hashes is not None
    parts = [hashes.ids[hashes.offsets[i] : hashes.offsets[i + 1]] for i in sent]
    trace = RequestTrace(
        served.arrival_s,
        served.prompt_tokens[sent],
        served.output_tokens[sent],
        np.arange(len(served)),
        prefix_hashes=PrefixHashes(np.concatenate(parts), np.cumsum([0, *map(len, parts)]), 16),
    )

    alignment = align(log_of(served, PLAIN), trace, PLAIN)

    assert_all_explained(alignment)
    np.testing.assert_array_equal(trace.prompt_tokens[alignment.admitted], served.prompt_tokens)


def test_a_request_that_vllm_refused_is_passed_over():
    served = shared_prefixes()
    assert served.prefix_hashes is not None
    trace = RequestTrace(
        np.insert(served.arrival_s, 20, served.arrival_s[20]),
        np.insert(served.prompt_tokens, 20, 5000),
        np.insert(served.output_tokens, 20, 5),
        np.arange(len(served) + 1),
    )

    alignment = align(log_of(served, PLAIN), trace, replace(PLAIN, max_model_len=4096))

    assert_all_explained(alignment)
    assert 20 not in alignment.admitted
    assert len(alignment.admitted) == len(served)


def test_a_faulty_line_is_shown_and_the_rest_explained():
    trace = shared_prefixes()
    log = log_of(trace, PLAIN)
    tokens = log.prefill_tokens.copy()
    at = int(np.flatnonzero(tokens)[12])
    tokens[at] += 1

    alignment = align(replace(log, prefill_tokens=tokens), trace, PLAIN)

    (difference,) = alignment.differences
    assert difference.source_row == at
    assert difference.logged.prefill_tokens == difference.simulated.prefill_tokens + 1
    assert alignment.num_explained == len(log) - 1


def test_walks_on_where_the_engine_was_idle():
    trace = shared_prefixes()
    log = log_of(trace, PLAIN)
    torn = rows(log, np.r_[0:150, 200 : len(log)])

    alignment = align(torn, trace, PLAIN)

    assert len(alignment.differences) > 0
    assert alignment.share_explained > 0.7
    assert alignment.is_explained[-100:].all()


def test_the_wrong_flags_explain_less():
    trace = shared_prefixes()
    alignment = align(log_of(trace, PLAIN), trace, replace(PLAIN, max_num_batched_tokens=256))
    assert alignment.share_explained < 0.9


def test_a_trace_of_another_server_explains_nothing():
    alignment = align(log_of(shared_prefixes(), PLAIN), shared_prefixes(seed=5), PLAIN)
    assert alignment.num_covered == 0
    assert alignment.share_explained == 0.0


def test_the_aligned_log_has_what_the_lines_do_not_tell():
    trace = shared_prefixes()
    log = log_of(trace, PLAIN)

    aligned = aligned_log(log, align(log, trace, PLAIN))

    assert aligned.kv_decode_tokens is not None
    assert aligned.prefill_attention is not None
    np.testing.assert_array_equal(aligned.step_s, log.step_s)
    np.testing.assert_array_equal(aligned.prefill_tokens > 0, aligned.prefill_attention > 0)
    np.testing.assert_array_equal(aligned.num_decode_reqs > 0, aligned.kv_decode_tokens > 0)


def test_two_schedules_with_the_same_lines_are_within_the_stated_bounds():
    """A request of four tokens, one draft a step: it is accepted in the first of two steps, or in the second."""
    trace = RequestTrace(np.zeros(1), np.array([40]), np.array([4]), np.arange(1))
    config = replace(PLAIN, speculative_method="ngram", num_speculative_tokens=1)
    early, late = (drafted([{"arrival_ns": 0, "prompt": 40, "out": 4}], accept) for accept in ([0, 1, 0], [0, 0, 1]))
    for name in ("num_prefill_reqs", "prefill_tokens", "num_decode_reqs", "num_decode_tokens"):
        np.testing.assert_array_equal(getattr(early.log, name), getattr(late.log, name))

    alignment = align(early.log, trace, config)

    assert_all_explained(alignment)
    read = FEATURES.index("kv_decode_tokens")
    assert alignment.num_unsure_tokens.tolist() == [0, 0, 1]
    for truth in (early, late):
        off = np.abs(alignment.steps["kv_decode_tokens"] - truth.features[:, read])
        assert (off <= alignment.num_unsure_tokens).all()
    assert "which drafts were accepted" in alignment_sentence(alignment, 3)


def drafted(requests: list[dict], accept: list[int]) -> Logged:
    flags = {name: getattr(PLAIN, name) for name in EngineConfig.__slots__}
    names = {"num_blocks": 100, "policy": "fcfs", "max_model_len": 10**6}
    spec = {"method": "ngram", "k": 1, "accept": accept}
    return served(requests, flags | names | {"spec": spec}, lambda *_: 10_000_000)


@pytest.mark.measured
@pytest.mark.parametrize("folder", measured_runs())
def test_a_real_server_is_explained(folder):
    meta = json.loads((folder / "meta.json").read_text())
    log = read_steps(folder / "server.log.gz", "server.log.gz")
    trace = read_trace(folder / "requests.parquet", "requests.parquet")

    alignment = align(log, trace, flags_from_facts(log.facts))

    assert np.flatnonzero(alignment.is_covered)[0] == meta["warmup_iterations"]
    assert alignment.num_covered == len(log) - meta["warmup_iterations"]
    assert sorted(alignment.admitted) == list(range(len(trace)))
    assert alignment.share_explained >= (0.999 if meta["async_scheduling"] else 1.0)
