"""Every cause of a gap, on a scenario made for it and on the workloads of public reports."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inside_runs import SYNC, TEN_MS_PLUS_ONE_PER_TOKEN, replays
from shared import shared_path
from traces_by_hand import trace_of

from planner.engine_config import EngineConfig
from planner.inside.recording import HeldBy, Share
from planner.inside.words import gap_sentence
from planner.inside.worst_gaps import Cause, longest_pauses, worst_gaps
from planner.replay import WHOLE_REPLAY, replay
from planner.step_time import StepTime
from traces.read import read_trace
from traces.requests import RequestTrace


def test_prefill_beside():
    trace = trace_of((0.0, 10, 5), (0.005, 60, 1))
    run = replay(trace, SYNC, TEN_MS_PLUS_ONE_PER_TOKEN)
    worst = worst_gaps(trace, run)[0]
    assert (worst.cause, worst.request, worst.num_requests, worst.step) == (Cause.PREFILL, 0, 1, 1)
    assert worst.parts == ((Cause.PREFILL, 0.060), (Cause.DECODE, 0.010))
    assert worst.culprits == (Share(1, 60),)
    assert gap_sentence(trace, worst) == "step of 60 prefill tokens of request 2 ran beside it (60 ms of 70 ms)"


def test_streams_that_wait_for_the_same_step_are_one_entry():
    trace = trace_of((0.0, 10, 5), (0.0, 10, 5), (0.0, 10, 5), (0.005, 30, 1), (0.006, 20, 1))
    run = replay(trace, SYNC, TEN_MS_PLUS_ONE_PER_TOKEN)
    worst, second = worst_gaps(trace, run)[:2]
    assert (worst.num_requests, worst.gap_s) == (3, pytest.approx(0.060))
    assert second.gap_s == pytest.approx(0.010)
    assert "50 prefill tokens of requests 4 (30) and 5 (20)" in gap_sentence(trace, worst)


def test_preempted():
    """Two requests that cannot both hold their outputs: the second one is preempted and recomputed."""
    config = replace(SYNC, num_gpu_blocks=5)
    trace = trace_of((0.0, 16, 30), (0.0, 16, 30))
    run = replay(trace, config, TEN_MS_PLUS_ONE_PER_TOKEN)
    worst = worst_gaps(trace, run)[0]
    assert (worst.cause, worst.request, worst.num_preemptions) == (Cause.PREEMPTED, 1, 1)
    assert worst.num_recomputed == run.num_recomputed[1] + 1 == 33, "the token that was not computed yet comes with it"
    assert worst.held_by is HeldBy.BLOCKS
    sentence = gap_sentence(trace, worst)
    assert sentence == "preempted for 130 ms because too few KV blocks were free, recomputed 33 tokens"


def test_budget_spent_by_others():
    """Both start with two tokens; then the first one's drafts fill the whole budget of four until it ends."""
    config = replace(
        SYNC, max_num_batched_tokens=4, max_num_seqs=2, speculative_method="ngram", num_speculative_tokens=3,
        draft_acceptance_rate=0.0,
    )  # fmt: skip
    trace = trace_of((0.0, 2, 4), (0.0, 2, 3))
    run = replay(trace, config, TEN_MS_PLUS_ONE_PER_TOKEN)
    worst = worst_gaps(trace, run)[0]
    assert (worst.cause, worst.request, worst.num_steps) == (Cause.BUDGET, 1, 4)
    assert worst.culprits == (Share(0, 12),)
    assert gap_sentence(trace, worst) == "waited for a budget spent by request 1 (30 ms of 40 ms)"


def test_skipped_when_a_preemption_ends_the_first_pass():
    """The second request needs a block, is itself the least urgent, and takes the third one's turn with it."""
    config = replace(SYNC, num_gpu_blocks=6, scheduling_policy="priority")
    rows = trace_of((0.0, 16, 40), (0.0, 31, 40), (0.001, 5, 20))
    trace = RequestTrace(
        rows.arrival_s, rows.prompt_tokens, rows.output_tokens, rows.source_row, priority=np.array([0, 2, 1])
    )
    run = replay(trace, config, TEN_MS_PLUS_ONE_PER_TOKEN)
    gaps = [gap for gap in worst_gaps(trace, run, 1000) if dict(gap.parts).get(Cause.SKIPPED)]
    assert [(gap.request, gap.num_steps) for gap in gaps] == [(2, 2)]
    assert gaps[0].cause is Cause.SKIPPED
    assert "ended early on a preemption" in gap_sentence(trace, gaps[0])


def test_idle_engine():
    """Preempted, and too long for one piece: the threshold that chunks it acts only once somebody else arrives."""
    config = replace(
        SYNC, max_num_batched_tokens=6, max_num_seqs=2, long_prefill_token_threshold=3, num_gpu_blocks=29,
        block_size=4, enable_chunked_prefill=False, scheduler_reserve_full_isl=False,
    )  # fmt: skip
    trace = trace_of((0.0, 84, 2), (0.0, 50, 4), (10.0, 1, 1))
    run = replay(trace, config, TEN_MS_PLUS_ONE_PER_TOKEN)
    worst = worst_gaps(trace, run)[0]
    assert (worst.cause, worst.request) == (Cause.IDLE, 1)
    assert dict(worst.parts).keys() == {Cause.IDLE, Cause.PREEMPTED}
    assert gap_sentence(trace, worst).startswith("engine idle: no step ran (9.")


def test_plain_decode():
    trace = trace_of((0.0, 10, 5))
    run = replay(trace, SYNC, TEN_MS_PLUS_ONE_PER_TOKEN)
    gaps = worst_gaps(trace, run)
    assert [gap.cause for gap in gaps] == [Cause.DECODE] * 4
    assert gap_sentence(trace, gaps[0]) == "step that decodes 1 request; no prefill beside it"


def test_little_prefill_beside_a_decode_is_told():
    trace = trace_of((0.0, 10, 5), (0.005, 4, 1))
    run = replay(trace, SYNC, TEN_MS_PLUS_ONE_PER_TOKEN)
    sentence = gap_sentence(trace, worst_gaps(trace, run)[0])
    assert sentence == "step that decodes 1 request; of it, 4 prefill tokens of request 2 took 4 ms"


def test_a_window_and_a_number_bound_the_list():
    trace = trace_of((0.0, 10, 50), (0.2, 60, 1))
    run = replay(trace, SYNC, TEN_MS_PLUS_ONE_PER_TOKEN)
    assert len(worst_gaps(trace, run, num_gaps=7)) == 7
    assert worst_gaps(trace, run, num_gaps=0) == ()
    assert all(gap.gap_s == pytest.approx(0.010) for gap in worst_gaps(trace, run, until_s=0.2))
    assert all(0.1 <= gap.end_s <= 0.15 for gap in worst_gaps(trace, run, from_s=0.1, until_s=0.15))


@settings(max_examples=150)
@given(replays())
def test_laws(trace_and_run):
    trace, run = trace_and_run
    gaps = worst_gaps(trace, run, 10_000)
    whole = replay(trace, run.engine_config, run.step_time, windows_ns=WHOLE_REPLAY)
    assert gaps == worst_gaps(trace, whole, 10_000), "it does not matter how the events were recorded"
    longest = np.nanmax(run.worst_gap_s, initial=0.0)
    assert (gaps[0].gap_s if gaps else 0.0) == pytest.approx(longest)
    num_gaps = (run.num_outputs - 1).clip(0).sum() - (run.gaps["gap_ns"] == 0).sum()
    assert sum(gap.num_requests for gap in gaps) == num_gaps
    for gap in gaps:
        assert sum(seconds for _, seconds in gap.parts) == pytest.approx(gap.gap_s)
        if run.engine_config.enable_chunked_prefill:
            assert Cause.IDLE not in dict(gap.parts), "a stream never waits for an idle engine"
        assert gap_sentence(trace, gap)


def case_run(name, budget, seqs, threshold, kv_tokens, d_ms, p_ms, reserves=True):
    path = shared_path("cases", name)
    trace = read_trace(path, path.name)
    config = EngineConfig(
        max_num_batched_tokens=budget, max_num_seqs=seqs, long_prefill_token_threshold=threshold,
        num_gpu_blocks=kv_tokens // 16 + 1, async_scheduling=False, enable_prefix_caching=False,
        scheduler_reserve_full_isl=reserves,
    )  # fmt: skip
    return trace, replay(trace, config, StepTime(round(d_ms * 1e6), 0, round(p_ms * 1e6)))


@pytest.mark.cases
def test_c01_cold_prompts_freeze_the_chat():
    trace, run = case_run("C01_two_cold_72k_prompts.parquet", 8192, 8, 0, 10**7, 35.7, 0.416667)
    gaps = worst_gaps(trace, run, 18)
    assert {gap.cause for gap in gaps} == {Cause.PREFILL}
    assert {gap.request for gap in gaps} == {0}
    assert gap_sentence(trace, gaps[0]) == (
        "step of 8,191 prefill tokens of request 2 ran beside it (3.41 s of 3.45 s)"
    )


@pytest.mark.cases
def test_c02_the_freeze_that_p99_hides():
    trace, run = case_run("C02_decode_vs_64k_prefill.parquet", 8192, 8, 0, 10**7, 3.66838, 0.142674)
    gaps = worst_gaps(trace, run, 8)
    assert all(gap.cause is Cause.PREFILL and gap.culprits[0].request == 1 for gap in gaps)
    assert gaps[0].culprits == (Share(1, 8191),)
    assert gaps[0].gap_s == pytest.approx(1.172, abs=0.001)


@pytest.mark.cases
def test_c09_the_fifth_request_is_recomputed_beside_the_others():
    trace, run = case_run("C09_fifth_100k_request_thrash.parquet", 8192, 64, 0, 450_000, 30.0, 0.041667, False)
    gaps = worst_gaps(trace, run, 200, from_s=30.0)
    assert all(gap.cause is Cause.PREFILL for gap in gaps)
    assert all([culprit.request for culprit in gap.culprits] == [4] for gap in gaps)


@pytest.mark.cases
def test_c10_preemption_is_what_makes_the_worst_gaps():
    trace, run = case_run("C10_max_num_seqs_above_kv.parquet", 8192, 256, 0, 77_088, 40.0, 0.25)
    gaps = worst_gaps(trace, run, 5)
    assert {gap.cause for gap in gaps} == {Cause.PREEMPTED}
    assert all(gap.held_by is HeldBy.BLOCKS and gap.num_recomputed > 800 for gap in gaps)
    trace, run = case_run("C10_max_num_seqs_above_kv.parquet", 8192, 64, 0, 77_088, 40.0, 0.25)
    assert Cause.PREEMPTED not in {gap.cause for gap in worst_gaps(trace, run, 100)}


@settings(max_examples=150)
@given(replays(), st.integers(1, 8), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_the_longest_are_found_among_all(trace_and_run, num_gaps, begin, end):
    """Against a list of all gaps, sorted."""
    _, run = trace_and_run
    from_s, until_s = begin * run.end_s, end * run.end_s
    ends = run.steps["end_ns"].tolist()
    gaps = [(ends[k] - ends[k - 1], k, -1) for k in np.flatnonzero(run.steps["num_gaps"]).tolist()]
    gaps += [(gap_ns, step, request) for gap_ns, request, _, step in run.gaps.tolist()]
    inside = [gap for gap in gaps if gap[0] > 0 and from_s * 1e9 <= ends[gap[1]] <= until_s * 1e9 + 0.5]
    wanted = sorted(inside, key=lambda gap: (-gap[0], gap[1]))[:num_gaps]
    found = longest_pauses(run, num_gaps, from_s, until_s)
    assert [(pause.end_ns - pause.start_ns, pause.steps[-1], pause.request) for pause in found] == wanted
