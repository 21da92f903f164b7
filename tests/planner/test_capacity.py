"""Loads and replicas are found by replay."""

from dataclasses import replace

import numpy as np
import pytest
from traces_by_hand import chat_trace, trace_of

from planner.candidates import Reason, evaluate
from planner.capacity import RELATIVE_WIDTH, by_window, find_headroom, find_replicas, latency_curve, scale_load
from planner.engine_config import EngineConfig
from planner.metrics import summarise
from planner.replay import replay
from planner.routing import Routing
from planner.slo import ClassTarget, Slo
from planner.step_time import StepTime
from planner.verdict import curve_sentence

STEP_TIME = StepTime(8_000_000, 60_000, 60_000)
CONFIG = EngineConfig(max_num_batched_tokens=1024, max_num_seqs=64, num_gpu_blocks=4001)
SLO = Slo(itl_s=0.1, ttft_s=3.0)


def test_headroom_is_a_replayed_bracket():
    found = find_headroom(chat_trace(400, rate_rps=4.0), CONFIG, STEP_TIME, SLO)
    assert found.met.candidate.meets
    assert found.missed.candidate.violations
    assert found.met.load < found.missed.load <= (1 + RELATIVE_WIDTH) * found.met.load
    assert found.met.requests_per_s == pytest.approx(found.met.load * 399 / chat_trace(400, 4.0).span_s)
    assert [p.load for p in found.points] == sorted(p.load for p in found.points)


def test_without_a_breaking_point():
    lone = chat_trace(2)
    assert find_headroom(lone, CONFIG, STEP_TIME, Slo(itl_s=9.0)).missed is None
    assert find_headroom(lone, CONFIG, STEP_TIME, Slo(itl_s=1e-4)).met is None


def test_scaling_keeps_the_requests():
    trace = chat_trace(50)
    fast = scale_load(trace, 4.0)
    assert fast.span_s == pytest.approx(trace.span_s / 4)
    assert fast.prompt_tokens.tolist() == trace.prompt_tokens.tolist()
    assert fast.digest != trace.digest


def test_replicas_are_the_fewest():
    trace = chat_trace(400, rate_rps=12.0)
    found = find_replicas(trace, CONFIG, STEP_TIME, SLO)
    tried = dict(found.by_count)
    assert found.num_replicas > 1
    assert all(c.meets for c in tried[found.num_replicas])
    assert not all(c.meets for c in tried[found.num_replicas - 1])
    assert sum(c.summary.num_requests for c in tried[found.num_replicas]) == 400
    assert find_replicas(trace, CONFIG, STEP_TIME, SLO, growth=3.0).num_replicas > found.num_replicas


def test_no_number_of_replicas_helps_a_target_below_a_decode_step():
    assert find_replicas(chat_trace(20), CONFIG, STEP_TIME, Slo(itl_s=0.001)).num_replicas is None


def test_seats_are_a_limit_as_well():
    trace = chat_trace(300, rate_rps=6.0)
    few = find_headroom(trace, replace(CONFIG, max_num_seqs=2), STEP_TIME, SLO)
    many = find_headroom(trace, CONFIG, STEP_TIME, SLO)
    assert (few.met.load if few.met else 0) < many.met.load


def test_least_loaded_replicas_need_no_more_than_round_robin():
    """A long prompt now and then holds one replica up; who goes by load does not queue behind it."""
    trace = chat_trace(400, rate_rps=12.0)
    by_turn = find_replicas(trace, CONFIG, STEP_TIME, SLO)
    by_load = find_replicas(trace, CONFIG, STEP_TIME, SLO, routing=Routing.LEAST_LOADED)
    assert (by_turn.share_confirmed, by_turn.mean_excess) == (1.0, 0.0)
    assert by_load.share_confirmed > 0.7
    assert by_load.mean_excess < 1.0
    assert 1 < by_load.num_replicas <= by_turn.num_replicas


def test_the_curve_rises_to_the_unstable_and_has_its_knee_before():
    trace = chat_trace(400, rate_rps=4.0)
    curve = latency_curve(trace, CONFIG, STEP_TIME, SLO, loads=(8.0, 0.5, 1.0, 1.5, 2.0))
    assert [point.load for point in curve.points] == [0.5, 1.0, 1.5, 2.0, 8.0]
    waits_s = [point.candidate.summary.ttft_at_percentile_s for point in curve.points]
    assert waits_s == sorted(waits_s)
    assert curve.points[-1].candidate.summary.is_unstable
    stable = [point for point in curve.points if not point.candidate.summary.is_unstable]
    power = {point.load: point.load / point.candidate.summary.ttft_at_percentile_s for point in stable}
    assert curve.knee.load == max(power, key=power.get)


def test_an_overloaded_trace_has_no_knee():
    curve = latency_curve(chat_trace(400, rate_rps=60.0), CONFIG, STEP_TIME, SLO, loads=(1.0, 2.0))
    assert curve.knee is None
    assert curve_sentence(curve) == (
        "The queue grows for ever from 1 times this load on, the least that is drawn: unstable."
    )


def test_no_knee_is_claimed_that_no_larger_load_shows():
    idle = latency_curve(chat_trace(40, rate_rps=0.1), CONFIG, STEP_TIME, SLO, loads=(0.5, 1.0))
    assert idle.knee is None
    assert curve_sentence(idle) == "No knee up to 1 times this load, the most that is drawn."
    burst = latency_curve(trace_of((0.0, 9, 5), (0.0, 9, 5)), CONFIG, STEP_TIME, SLO)
    assert curve_sentence(burst) == "All requests arrive at one instant: another load changes nothing."


def test_windows_say_which_stretch_breaks_and_sum_to_the_whole():
    """Quiet, then a burst of long prompts in the second window, then quiet again."""
    quiet = [(float(second), 100, 20) for second in range(300)]
    burst = [(120.0 + 0.1 * k, 12_000, 20) for k in range(20)]
    trace = trace_of(*sorted(quiet + burst))
    windows = by_window(trace, CONFIG, STEP_TIME, SLO, width_s=100.0)
    assert [(window.from_s, window.num_requests) for window in windows] == [(0.0, 100), (100.0, 120), (200.0, 100)]
    assert [bool(window.violations) for window in windows] == [False, True, False]
    assert windows[1].violations[-1].reason is Reason.TTFT
    assert windows[-1].num_unfinished == 0
    whole = summarise(replay(trace, CONFIG, STEP_TIME), SLO.itl_s)
    assert sum(window.num_gaps for window in windows) == whole.num_gaps
    assert max(window.worst_gap_s for window in windows) == whole.itl.max_s


def test_one_window_over_everything_misses_what_the_trace_misses():
    """Every kind of target, of all requests and of a class; that the queue grows is no matter of one window."""
    trace = chat_trace(200, rate_rps=6.0)
    short = ClassTarget(
        max_prompt_tokens=500, itl_s=1e-3, worst_gap_s=1e-3, ttft_s=1e-3, e2e_s=1e-3, stalled_share=1e-3
    )
    tight = Slo(itl_s=1e-3, worst_gap_s=1e-3, ttft_s=1e-3, e2e_s=1e-3, stalled_share=1e-3, classes=(short,))
    (window,) = by_window(trace, CONFIG, STEP_TIME, tight, width_s=1e6)
    missed = evaluate(trace, CONFIG, STEP_TIME, tight).violations
    assert len(window.violations) == 10
    assert window.violations == tuple(v for v in missed if v.reason is not Reason.UNSTABLE)


def test_a_window_says_what_it_leaves_behind():
    trace = trace_of((0.0, 100, 5), (9.9, 50_000, 5), (25.0, 100, 5))
    first, second, third = by_window(trace, CONFIG, STEP_TIME, SLO, width_s=10.0)
    assert (first.num_unfinished, second.num_unfinished, third.num_unfinished) == (1, 0, 0)
    assert second.num_requests == 0
    assert np.isnan(second.ttft_at_percentile_s)
    assert second.violations == ()
