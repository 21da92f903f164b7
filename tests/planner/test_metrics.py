"""Definitions, worked by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces_by_hand import chat_trace, trace_of

from planner import metrics
from planner.engine_config import EngineConfig
from planner.kernel import TOKEN
from planner.replay import WHOLE_REPLAY, replay
from planner.step_time import StepTime
from traces.requests import RequestTrace

SYNC = EngineConfig(max_num_batched_tokens=100, max_num_seqs=8, async_scheduling=False)
TEN_MS_PLUS_ONE_PER_TOKEN = StepTime(10_000_000, 0, 1_000_000)


def test_three_requests_by_hand():
    """Step = 10 ms + 1 ms per prefill token.

    a (20 prompt, 3 out) at 0: first token at 30 ms. b (30, 2) arrived at 5 ms: runs beside a's decode in the step
    from 30 to 70 ms. c (10, 1) arrived at 40 ms: runs from 70 to 90 ms with the last decodes of a and b.
    """
    run = replay(trace_of((0.0, 20, 3), (0.005, 30, 2), (0.040, 10, 1)), SYNC, TEN_MS_PLUS_ONE_PER_TOKEN)

    assert run.steps["end_ns"].tolist() == [30_000_000, 70_000_000, 90_000_000]
    assert metrics.ttft_s(run) == pytest.approx([0.030, 0.065, 0.050])
    assert metrics.e2e_s(run) == pytest.approx([0.090, 0.085, 0.050])
    assert metrics.queue_s(run) == pytest.approx([0.0, 0.025, 0.030])
    assert metrics.tpot_s(run)[:2] == pytest.approx([0.030, 0.020])
    assert np.isnan(metrics.tpot_s(run)[2])
    gaps = metrics.itl(run)
    assert gaps.value_s.tolist() == [0.020, 0.040]
    assert gaps.count.tolist() == [2, 1]
    summary = metrics.summarise(run, itl_target_s=0.030)
    assert summary.stalled_s == pytest.approx(0.010)
    assert summary.itl_attainment == pytest.approx(2 / 3)
    assert summary.itl.max_s == pytest.approx(0.040)
    assert summary.itl.mean_s == pytest.approx(0.080 / 3)
    assert summary.makespan_s == pytest.approx(0.090)
    assert summary.output_tokens_per_s == pytest.approx(6 / 0.090)
    assert (summary.num_finished, summary.num_never_run, summary.peak_running) == (3, 0, 3)
    assert run.worst_gap_s[:2] == pytest.approx([0.040, 0.020])


def test_preempted_stream_has_its_gap_counted():
    """Two requests that cannot both hold their outputs: the second one is preempted and recomputed."""
    config = EngineConfig(
        max_num_batched_tokens=100, max_num_seqs=8, num_gpu_blocks=5, block_size=16, async_scheduling=False
    )
    run = replay(trace_of((0.0, 16, 30), (0.0, 16, 30)), config, TEN_MS_PLUS_ONE_PER_TOKEN)
    summary = metrics.summarise(run, itl_target_s=0.1)
    assert run.num_preemptions.tolist() == [0, 1]
    assert summary.num_gaps == 58
    assert metrics.distribution(run.worst_gap_s).value_s[-1] == summary.itl.max_s > 0.1
    assert summary.num_recomputed_tokens == run.num_recomputed[1] == 32


def test_a_request_larger_than_the_pool_is_named_and_the_rest_replayed():
    config = EngineConfig(max_num_batched_tokens=2048, max_num_seqs=16, num_gpu_blocks=501)
    run = replay(trace_of((0.0, 500, 40), (0.2, 9000, 40), (0.4, 600, 40)), config, TEN_MS_PLUS_ONE_PER_TOKEN)
    assert run.never_runs.tolist() == [False, True, False]
    assert run.is_finished.tolist() == [True, False, True]
    assert np.isnan(run.first_token_s[1])
    assert run.outcome == "done"


@pytest.mark.parametrize("is_async", [True, False])
def test_ten_thousand_arrivals_at_once(is_async):
    config = EngineConfig(max_num_batched_tokens=2048, num_gpu_blocks=4001, async_scheduling=is_async)
    run = replay(trace_of(*[(0.0, 50, 3)] * 10_000), config, TEN_MS_PLUS_ONE_PER_TOKEN)
    assert run.is_finished.all()
    assert (np.diff(run.first_scheduled_s) >= 0).all(), "first come first served"
    assert run.steps["prefill_tokens"].sum() + run.steps["num_decodes"].sum() == 10_000 * (50 + 2)


def test_an_empty_trace_and_a_single_request():
    nothing = RequestTrace(np.zeros(0), *(np.zeros(0, np.int64) for _ in range(3)))
    run = replay(nothing, SYNC, TEN_MS_PLUS_ONE_PER_TOKEN)
    assert (run.outcome, len(run.steps), run.end_s) == ("done", 0, 0.0)
    summary = metrics.summarise(run, 0.1)
    assert (summary.num_requests, summary.num_gaps, summary.is_unstable) == (0, 0, False)
    alone = replay(trace_of((5.0, 20, 1)), SYNC, TEN_MS_PLUS_ONE_PER_TOKEN)
    assert metrics.ttft_s(alone).tolist() == pytest.approx([0.030])


def gaps_by_token(run, is_member):
    """Every gap of some requests, from the tokens themselves; the run has all its events."""
    tokens = run.events[run.events["kind"] == TOKEN]
    tokens = tokens[is_member[tokens["request"]]]
    tokens = tokens[np.argsort(tokens["request"], kind="stable")]
    gap_ns = np.diff(run.steps["end_ns"][tokens["step"]])
    return metrics.distribution(gap_ns[np.diff(tokens["request"]) == 0] / 1e9)


CROWDED = EngineConfig(max_num_batched_tokens=512, max_num_seqs=16, num_gpu_blocks=801)


@pytest.mark.parametrize(
    "config",
    [
        CROWDED,
        replace(CROWDED, async_scheduling=False, num_gpu_blocks=400, enable_prefix_caching=False),
        replace(CROWDED, speculative_method="draft_model", num_speculative_tokens=2),
    ],
)
@pytest.mark.parametrize("base_ns", [8_000_000, 0])
def test_pooled_gaps_agree_with_the_tokens_themselves(config, base_ns):
    """Of all requests and of some; also where preemptions and drafts make gaps of their own, and steps take no time."""
    trace, step_time = chat_trace(120, rate_rps=20.0), StepTime(base_ns, 0, 20_000)
    listed = replay(trace, config, step_time, windows_ns=WHOLE_REPLAY)
    run = replay(trace, config, step_time, keeps_steps=False)
    assert len(run.gaps) > 0 or base_ns == 0
    every = np.ones(len(trace), bool)
    classes = (every, trace.prompt_tokens < 300, np.arange(len(trace)) == 7, run.num_preemptions > 0, ~every)
    for is_member in classes:
        counted, expected = metrics.itl_of_requests(run, is_member), gaps_by_token(listed, is_member)
        assert counted.value_s.tolist() == expected.value_s.tolist()
        assert counted.count.tolist() == expected.count.tolist()
    assert metrics.itl(run).count.tolist() == gaps_by_token(listed, every).count.tolist()


@given(st.lists(st.integers(0, 20), min_size=1, max_size=60), st.floats(0, 1))
def test_percentile_is_the_element_at_int_p_n(values, share):
    ordered = sorted(values)
    expected = ordered[min(int(share * len(values)), len(values) - 1)]
    assert metrics.distribution(np.array(values, float)).percentile(share) == expected


def test_empty_distribution_is_nan():
    empty = metrics.distribution(np.array([np.nan]))
    assert np.isnan(empty.percentile(0.5))
    assert np.isnan(empty.share_within(1.0))
    assert np.isnan(empty.excess_share(1.0))
    assert np.isnan(metrics.distribution(np.zeros(3)).excess_share(1.0))
    assert np.isnan(metrics.spread(empty).max_s)


def test_drafts_need_room_too():
    """Pool of 64 tokens: 40 + 20 outputs fit, but not with 4 drafts and their lookahead on top."""
    config = EngineConfig(
        max_num_batched_tokens=100,
        max_num_seqs=8,
        num_gpu_blocks=5,
        speculative_method="eagle",
        num_speculative_tokens=4,
    )
    assert replay(trace_of((0.0, 40, 20)), config, TEN_MS_PLUS_ONE_PER_TOKEN).never_runs.tolist() == [True]
    assert replay(trace_of((0.0, 40, 17)), config, TEN_MS_PLUS_ONE_PER_TOKEN).is_finished.tolist() == [True]


def test_a_stop_token_is_not_foreseen_and_wastes_a_place():
    """Asynchronously the step after a stop token still computes one useless token; a length limit is foreseen."""
    config = EngineConfig(max_num_batched_tokens=100, max_num_seqs=8)
    limited = trace_of((0.0, 20, 3))
    stopped = replace(limited, max_tokens=np.array([100]))
    assert len(replay(limited, config, TEN_MS_PLUS_ONE_PER_TOKEN).steps) == 3
    run = replay(stopped, config, TEN_MS_PLUS_ONE_PER_TOKEN)
    assert len(run.steps) == 4
    assert run.num_outputs.tolist() == [3]
    assert limited.digest != stopped.digest


def test_no_number_needs_the_rows_of_the_steps():
    config = EngineConfig(
        max_num_batched_tokens=512,
        max_num_seqs=16,
        num_gpu_blocks=400,
        speculative_method="draft_model",
        num_speculative_tokens=2,
    )
    step_time = StepTime(8_000_000, 60_000, 20_000, per_kv_token_ns=1.5)
    for settings in (config, replace(config, speculative_method=None, num_speculative_tokens=0)):
        trace = chat_trace(300, rate_rps=20.0)
        run = replay(trace, settings, step_time)
        without = replay(trace, settings, step_time, keeps_steps=False)
        assert len(without.steps) == 0
        assert metrics.summarise(run, 0.03) == metrics.summarise(without, 0.03)

        steps, totals = run.steps, run.totals
        inputs = steps["prefill_tokens"] + steps["num_decodes"] + steps["num_draft_tokens"]
        inputs += steps["num_scheduled"] * (settings is config)
        assert totals == (
            len(steps),
            (steps["num_decodes"] > 0).sum(),
            steps["num_decodes"].sum(),
            steps["kv_decode_tokens"].sum(),
            steps["num_running"].max(),
            steps["num_free_blocks"].min(),
            inputs.max(),
            steps["prefill_tokens"].max(),
        )
        assert run.num_preemptions.sum() > 0
        regular_ns = np.repeat(np.diff(steps["end_ns"], prepend=0), steps["num_gaps"]).tolist()
        shared_ns = np.repeat(run.shared_gaps["gap_ns"], run.shared_gaps["count"]).tolist()
        assert regular_ns == shared_ns, "the same gaps by step and by length"


def test_overload_is_called_unstable_and_a_light_load_is_not():
    step_time = StepTime(10_000_000, 0, 200_000)
    light = metrics.summarise(replay(chat_trace(400, rate_rps=1.0), SYNC, step_time), 0.1)
    heavy = metrics.summarise(replay(chat_trace(400, rate_rps=20.0), SYNC, step_time), 0.1)
    assert not light.is_unstable
    assert heavy.is_unstable


@pytest.mark.parametrize("longest_ns", [3, 1 << 40, 1 << 61])
def test_equal_gaps_are_counted_together_however_long(longest_ns):
    """Gap and count are sorted as one number while both fit; those that do not are sorted by an order. By hand."""
    run = replay(trace_of((0.0, 20, 3)), SYNC, TEN_MS_PLUS_ONE_PER_TOKEN)
    shared = np.array([(longest_ns, 5), (1, 300), (2, 4), (1, 1)], [("gap_ns", np.int64), ("count", np.int64)])
    listed = np.zeros(2, run.gaps.dtype)
    listed["gap_ns"] = 2, longest_ns
    gaps = metrics.itl(replace(run, shared_gaps=shared, gaps=listed))
    assert gaps.value_s.tolist() == [1e-9, 2e-9, longest_ns / 1e9]
    assert gaps.count.tolist() == [301, 5, 6]
