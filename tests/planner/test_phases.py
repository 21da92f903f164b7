"""A request's life: phases without a gap between them, each with its reason."""

from dataclasses import replace
from itertools import pairwise
from unittest.mock import Mock, patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inside_runs import SYNC, TEN_MS_PLUS_ONE_PER_TOKEN, replays
from shared import shared_path
from traces_by_hand import trace_of

from planner.engine_config import EngineConfig
from planner.inside import phases
from planner.inside.phases import PhaseKind, life_of, life_pieces
from planner.inside.recording import HeldBy, Share
from planner.inside.words import life_sentence
from planner.replay import WHOLE_REPLAY, replay
from planner.step_time import StepTime
from traces.read import read_trace

ARRIVING, QUEUED, PREFILL, DECODE = PhaseKind.ARRIVING, PhaseKind.QUEUED, PhaseKind.PREFILL, PhaseKind.DECODE


def lives(config, *rows):
    trace = trace_of(*rows)
    run = replay(trace, config, TEN_MS_PLUS_ONE_PER_TOKEN)
    return trace, [life_of(trace, run, i) for i in range(len(rows))]


def outline(life):
    """(what, milliseconds, why, whether at the head) of each phase."""
    return [(phase.kind, round(phase.duration_s * 1e3), phase.held_by, phase.is_head) for phase in life.phases]


def test_arrives_in_a_step_then_runs():
    """a runs from 0 to 30 ms; b arrived at 5 ms and is prefilled beside a's decode."""
    trace, (a, b) = lives(SYNC, (0.0, 20, 3), (0.005, 30, 2))
    assert outline(a) == [(PREFILL, 30, None, False), (DECODE, 50, None, False)]
    assert a.phases[1].beside_ns == 30_000_000
    assert outline(b) == [(ARRIVING, 25, None, False), (PREFILL, 40, None, False), (DECODE, 10, None, False)]
    assert b.ttft_s == pytest.approx(0.065)
    assert life_sentence(trace, b) == (
        "request 2: 75 ms in all, first token after 65 ms: 40 ms prefill of 30 tokens in 1 step; "
        "25 ms until the step that ran at its arrival ended; 10 ms decode of 1 token in 1 step."
    )


def test_queued_because_all_seats_are_taken():
    trace, (_, b, c) = lives(replace(SYNC, max_num_seqs=1), (0.0, 10, 3), (0.0, 10, 1), (0.0, 10, 1))
    assert outline(b) == [(QUEUED, 40, HeldBy.SEAT, True), (PREFILL, 20, None, False)]
    assert outline(c)[:2] == [(QUEUED, 40, HeldBy.SEAT, False), (QUEUED, 20, HeldBy.SEAT, True)]
    assert "queued because all seats (max_num_seqs) were taken" in life_sentence(trace, b)
    assert "queued behind others while all seats" in life_sentence(trace, c)


def test_queued_because_blocks_are_short():
    trace, (_, b) = lives(replace(SYNC, num_gpu_blocks=4), (0.0, 32, 3), (0.0, 32, 1))
    assert outline(b) == [(QUEUED, 62, HeldBy.BLOCKS, True), (PREFILL, 42, None, False)]
    assert "queued because too few KV blocks were free" in life_sentence(trace, b)


def test_queued_because_the_budget_is_spent():
    trace, (_, b) = lives(SYNC, (0.0, 250, 1), (0.0, 10, 1))
    assert outline(b) == [(QUEUED, 220, HeldBy.BUDGET, True), (PREFILL, 70, None, False)]
    assert b.budget_spenders == (Share(0, 200),)
    assert b.phases[1].beside_ns == 50_000_000
    assert "220 ms queued because the token budget was spent by request 1" in life_sentence(trace, b)


def test_queued_because_the_prompt_is_not_chunked():
    config = replace(SYNC, enable_chunked_prefill=False)
    trace, (_, b) = lives(config, (0.0, 60, 1), (0.0, 60, 1))
    assert outline(b) == [(QUEUED, 70, HeldBy.WHOLE_PROMPT, True), (PREFILL, 70, None, False)]
    assert "its prompt did not fit the budget in one piece" in life_sentence(trace, b)


def test_preempted_and_recomputed():
    trace, (_, b) = lives(replace(SYNC, num_gpu_blocks=5), (0.0, 16, 30), (0.0, 16, 30))
    kinds = [phase.kind for phase in b.phases]
    assert kinds == [PREFILL, DECODE, PhaseKind.PREEMPTED, PhaseKind.PREEMPTED, PhaseKind.RECOMPUTE, DECODE]
    assert [phase.held_by for phase in b.phases[2:4]] == [HeldBy.PREEMPTION, HeldBy.BLOCKS]
    assert b.phases[4].num_tokens == 33
    assert "preempted 1 time" in life_sentence(trace, b)
    assert "recompute of 33 tokens in 1 step" in life_sentence(trace, b)


def test_hits_in_the_prefix_cache_are_told():
    """A preempted request finds its own blocks again where prefix caching is on."""
    trace, (_, b) = lives(replace(SYNC, num_gpu_blocks=5, enable_prefix_caching=True), (0.0, 16, 30), (0.0, 16, 30))
    recomputed = [phase.num_tokens for phase in b.phases if phase.kind is PhaseKind.RECOMPUTE]
    assert sum(recomputed) < 33


def test_a_request_that_never_runs_has_no_phases():
    trace, (_, b) = lives(replace(SYNC, num_gpu_blocks=4), (0.0, 32, 3), (0.0, 99, 1))
    assert b.phases == ()
    assert np.isnan(b.e2e_s)
    assert life_sentence(trace, b) == "request 2 can never run under these flags."


def test_a_request_that_is_stuck_waits_until_the_end():
    """A prompt above the budget that may not be chunked; the engine sleeps until the next arrival."""
    config = replace(SYNC, enable_chunked_prefill=False)
    trace, (_, stuck, _) = lives(config, (0.0, 10, 1), (0.0, 150, 1), (1.0, 10, 1))
    assert outline(stuck) == [(QUEUED, 20, HeldBy.WHOLE_PROMPT, True), (PhaseKind.IDLE, 980, None, False)]
    assert not stuck.is_finished
    assert "no token, not finished" in life_sentence(trace, stuck)


@settings(max_examples=150)
@given(replays())
def test_phases_follow_each_other_and_sum_to_e2e_exactly(trace_and_run):
    trace, run = trace_and_run
    whole = replay(trace, run.engine_config, run.step_time, windows_ns=WHOLE_REPLAY)
    for request in range(len(trace)):
        life = life_of(trace, run, request)
        assert life.phases == life_of(trace, whole, request).phases
        if run.never_runs[request]:
            assert life.phases == ()
            continue
        end_s = run.last_token_s[request] if run.is_finished[request] else run.end_s
        e2e_ns = round(end_s * 1e9) - round(run.arrival_s[request] * 1e9)
        assert sum(phase.end_ns - phase.start_ns for phase in life.phases) == e2e_ns
        assert all(before.end_ns == after.start_ns for before, after in pairwise(life.phases))
        check_reasons(life)
        working = [phase for phase in life.phases if phase.kind in (PREFILL, DECODE, PhaseKind.RECOMPUTE)]
        if run.is_finished[request]:
            assert working[0].start_ns == round(run.first_scheduled_s[request] * 1e9)
            assert life.of_kind(PREFILL)[-1].end_ns == round(run.first_token_s[request] * 1e9) or (
                life.of_kind(PhaseKind.RECOMPUTE)
            )
        assert life_sentence(trace, life)


def check_reasons(life):
    for phase in life.phases:
        assert 0 <= phase.beside_ns <= phase.end_ns - phase.start_ns
        waits = phase.kind in (QUEUED, PhaseKind.PREEMPTED, PhaseKind.PASSED_OVER)
        assert (phase.held_by is not None) == waits, "whoever waits is told why"


@pytest.mark.cases
def test_c12_seats_make_the_urgent_requests_wait():
    path = shared_path("cases", "C12_priority_column.parquet")
    trace = read_trace(path, path.name)
    config = EngineConfig(max_num_batched_tokens=4096, max_num_seqs=16, async_scheduling=False)
    urgent = np.flatnonzero(trace.priority == trace.priority.min())
    assert len(urgent) == 2
    lives = {}
    for policy in ("fcfs", "priority"):
        run = replay(trace, replace(config, scheduling_policy=policy), StepTime(25_000_000, 0, 100_000))
        lives[policy] = [life_of(trace, run, request) for request in urgent.tolist()]
        waits = [phase for life in lives[policy] for phase in life.of_kind(QUEUED)]
        assert {phase.held_by for phase in waits} == {HeldBy.SEAT}
    assert [life.ttft_s for life in lives["fcfs"]] == pytest.approx([7.25, 14.67], abs=0.05)
    assert max(life.ttft_s for life in lives["priority"]) < 7.0
    first, second = (life.of_kind(QUEUED) for life in lives["priority"])
    assert [phase.is_head for phase in first] == [True], "the most urgent waits for a seat all the same"
    assert [phase.is_head for phase in second] == [False, True], "only the other urgent one is before it"


@pytest.mark.cases
def test_c09_blocks_keep_the_fifth_request_waiting_under_the_current_rule():
    path = shared_path("cases", "C09_fifth_100k_request_thrash.parquet")
    trace = read_trace(path, path.name)
    config = EngineConfig(
        max_num_batched_tokens=8192, max_num_seqs=64, num_gpu_blocks=28_126, async_scheduling=False,
        enable_prefix_caching=False,
    )  # fmt: skip
    run = replay(trace, config, StepTime(30_000_000, 0, 41_667))
    life = life_of(trace, run, 4)
    assert [phase.held_by for phase in life.of_kind(QUEUED)] == [HeldBy.BLOCKS]
    assert life.seconds_of(QUEUED) == pytest.approx(87.0, abs=0.1)
    old = replay(trace, replace(config, scheduler_reserve_full_isl=False), StepTime(30_000_000, 0, 41_667))
    life = life_of(trace, old, 4)
    assert life.num_preemptions == old.num_preemptions[4] > 100
    assert life.seconds_of(PhaseKind.RECOMPUTE) > 800


@settings(max_examples=100)
@given(replays(), st.integers(1, 5))
def test_a_long_life_is_the_same_in_pieces(trace_and_run, most_steps):
    trace, run = trace_and_run
    for request in range(len(trace)):
        whole, on_piece = life_of(trace, run, request), Mock()
        with patch.object(phases, "MOST_STEPS", most_steps):
            pieces = life_of(trace, run, request, on_piece=on_piece)
            assert on_piece.call_count == len(life_pieces(run, request))
        assert (pieces.phases, pieces.budget_spenders) == (whole.phases, whole.budget_spenders)
