"""A replay that is stopped early could only have missed what it was stopped for."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kernel_runs import run_kernel
from test_kernel import ID_BLOCK_TOKENS, STEP_TIMES, same_bytes, scenarios
from traces_by_hand import chat_trace, trace_of

from planner.candidates import Reason, evaluate
from planner.early import caps
from planner.engine_config import EngineConfig, flag_faults
from planner.plan_file import read_plan, save_plan, write_plan
from planner.reasons import binding_constraint
from planner.search import Objective, SearchSpace, one_notch, recommend
from planner.slo import ClassTarget, Slo
from planner.step_time import StepTime
from planner.verdict import effort, rejection_sentence, verdict
from traces.requests import RequestTrace

STEP_TIME = StepTime(8_000_000, 60_000, 60_000)
TODAY = EngineConfig(max_num_batched_tokens=8192, max_num_seqs=64, num_gpu_blocks=4001)
SPACE = SearchSpace((256, 512, 1024, 2048, 8192, 16_384), (8, 16, 64, 128), (0, 200, 600, 3000))
LIMITS_S = st.none() | st.sampled_from([1e-6, 1e-4, 3e-3, 0.02, 0.1, 0.5, 3.0])
SHARES = st.sampled_from([0.0, 0.3, 0.5, 0.9, 0.99, 1.0])
CLASSES = st.builds(
    ClassTarget,
    min_prompt_tokens=st.integers(1, 60),
    max_prompt_tokens=st.none() | st.integers(40, 200),
    priority=st.none() | st.integers(0, 2),
    ttft_s=LIMITS_S,
    e2e_s=LIMITS_S,
    worst_gap_s=LIMITS_S,
)
SLOS = st.builds(
    Slo,
    itl_s=st.sampled_from([1e-6, 2e-4, 3e-3, 0.011, 0.1]),
    itl_percentile=SHARES,
    worst_gap_s=LIMITS_S,
    ttft_s=LIMITS_S,
    ttft_percentile=SHARES,
    stalled_share=st.none() | st.sampled_from([0.0, 0.01, 0.2, 0.9]),
    e2e_s=LIMITS_S,
    e2e_percentile=SHARES,
    classes=st.lists(CLASSES, max_size=2).map(tuple),
)


@st.composite
def settings_and_traffic(draw):
    """Small traffic under small settings, with drafts, preemptions, and requests that never run."""
    rows = st.tuples(st.integers(0, 400), st.integers(1, 150), st.integers(1, 30), st.integers(0, 2))
    drawn = sorted(draw(st.lists(rows, min_size=1, max_size=25)))
    arrival_ms, prompt, output, priority = (np.array(column) for column in zip(*drawn, strict=True))
    trace = RequestTrace(arrival_ms / 997, prompt, output, np.arange(len(drawn)), priority=priority)
    drafts = draw(st.booleans())
    config = EngineConfig(
        max_num_batched_tokens=draw(st.sampled_from([16, 40, 200])),
        max_num_seqs=draw(st.integers(1, 9)),
        num_gpu_blocks=draw(st.integers(6, 60)),
        max_model_len=draw(st.sampled_from([None, 120])),
        async_scheduling=draw(st.booleans()),
        scheduling_policy=draw(st.sampled_from(["fcfs", "priority"])),
        scheduler_reserve_full_isl=draw(st.booleans()),
        speculative_method="eagle" if drafts else None,
        num_speculative_tokens=2 if drafts else 0,
    )
    assume(not flag_faults(config))
    base_ns, per_prefill_token_ns = draw(st.sampled_from([50_000, 9_000_000])), draw(st.sampled_from([0, 90_000]))
    return trace, config, StepTime(base_ns, 60_000, per_prefill_token_ns)


@settings(max_examples=600, deadline=None)
@given(settings_and_traffic(), SLOS)
def test_what_is_stopped_misses_the_same_targets_in_the_end(given_, slo):
    trace, config, step_time = given_
    whole = evaluate(trace, config, step_time, slo)
    early = evaluate(trace, config, step_time, slo, stops_early=True)
    if early.is_complete:
        assert repr(early) == repr(whole)
        return
    assert early.violations
    missed = {(v.reason, v.target): v for v in whole.violations}
    for lower in early.violations:
        final = missed[lower.reason, lower.target]
        assert lower.stop.at_s <= whole.summary.makespan_s + trace.arrival_s[0] + 1e-9
        assert (lower.limit, lower.percentile, lower.unit) == (final.limit, final.percentile, final.unit)
        assert lower.limit <= lower.measured <= final.measured * (1 + 1e-12) or np.isnan(final.measured)
        assert "stopped" in rejection_sentence(lower)


@settings(max_examples=300, deadline=None)
@given(scenarios(), STEP_TIMES, SLOS, st.integers(1, 20))
def test_sleep_stops_where_step_by_step_stops(scenario, step_time, slo, longer):
    requests, config = scenario
    requests = [r | {"out": r["out"] * longer} for r in requests if r["prompt"] < config["max_model_len"]]
    requests = [r | {"max_tokens": r["out"]} for r in requests]
    if not requests:
        return
    scaled = replace(slo, itl_s=slo.itl_s / 1e4, worst_gap_s=None, stalled_share=slo.stalled_share, classes=())
    trace = trace_of(*((r["arrival_ns"] / 1e9, r["prompt"], r["out"]) for r in requests))
    rows, _ = caps(trace, np.ones(len(trace), np.bool_), scaled)
    one_by_one = run_kernel(requests, config, step_time, 2000, ID_BLOCK_TOKENS, caps=rows)
    same_bytes(one_by_one, run_kernel(requests, config, step_time, 2000, ID_BLOCK_TOKENS, windows=(), caps=rows))


def plans(**options):
    options = {"space": SPACE, "default_flags": (8192, 1024), "slo": Slo(itl_s=0.08)} | options
    trace, slo = options.pop("trace", chat_trace()), options.pop("slo")
    return [recommend(trace, STEP_TIME, TODAY, slo, stops_early=early, **options) for early in (True, False)]


@pytest.mark.parametrize(
    "slo",
    [
        Slo(itl_s=0.08),
        Slo(itl_s=0.05, worst_gap_s=0.3),
        Slo(itl_s=0.08, ttft_s=4.0, ttft_percentile=0.9),
        Slo(itl_s=0.08, itl_percentile=0.95, e2e_s=8.0, stalled_share=0.01),
        Slo(itl_s=0.08, classes=(ClassTarget(max_prompt_tokens=1000, ttft_s=2.0, worst_gap_s=0.4),)),
    ],
)
@pytest.mark.parametrize("objective", [Objective.LOWEST_TTFT, Objective.MOST_HEADROOM])
def test_stopping_early_changes_no_answer(slo, objective):
    """Same choice, same sentences, same comparison; each setting that was stopped missed what it was stopped for."""
    early, whole = plans(slo=slo, objective=objective)
    for name in ("best", "today", "vllm_default", "closest", "finalists", "closed_form_budget", "offered_load"):
        assert repr(getattr(early, name)) == repr(getattr(whole, name)), name
    assert verdict(early) == verdict(whole)
    assert binding_constraint(early) == binding_constraint(whole)
    complete = {c.engine_config: c for c in whole.candidates}
    assert complete.keys() == {c.engine_config for c in early.candidates}
    assert whole.num_stopped == 0
    assert all(c.is_complete for c in whole.candidates)
    beside = [early.today.engine_config, early.vllm_default.engine_config]
    beside += [config for _, config in one_notch(early.space, early.closest.engine_config)]
    for candidate in early.candidates:
        final = complete[candidate.engine_config]
        if candidate.is_complete:
            assert repr(candidate) == repr(final)
        else:
            assert candidate.engine_config not in beside
            assert {(v.reason, v.target) for v in candidate.violations} <= {
                (v.reason, v.target) for v in final.violations
            }
    if early.best is not None:
        assert early.num_stopped > 0
        assert f"{early.num_stopped} of these" in effort(early)


def test_where_nothing_meets_the_targets_or_people_choose_everything_is_complete():
    missed, _ = plans(slo=Slo(itl_s=0.005))
    assert missed.best is None
    assert missed.num_stopped > 0
    assert all(c.is_complete for c in missed.candidates)
    front, _ = plans(objective=Objective.PARETO)
    assert front.num_stopped == 0
    assert all(c.is_complete for c in front.candidates)


def test_a_plan_with_stopped_replays_is_saved_and_opened():
    early, _ = plans()
    written = write_plan(save_plan(early, chat_trace(), STEP_TIME))
    opened = read_plan(written)
    assert write_plan(opened) == written
    assert opened.recommendation.num_stopped == early.num_stopped > 0
    stops = [rejection.stop for _, rejection in opened.recommendation.losers if rejection.stop is not None]
    assert stops
    assert all(stop.num_above > stop.num_allowed for stop in stops)


def test_the_sentence_says_when_it_was_certain():
    """By hand: 100 gaps, at most one above; the first two gaps of 10 ms already are."""
    trace = trace_of((0.0, 100, 101))
    found = evaluate(trace, TODAY, StepTime(10_000_000, 0, 0), Slo(itl_s=0.008), stops_early=True)
    assert [(v.reason, v.measured, v.stop.num_above, v.stop.num_allowed) for v in found.violations] == [
        (Reason.ITL, 0.008, 2, 1)
    ]
    assert found.violations[0].stop.at_s == pytest.approx(0.03)
    assert rejection_sentence(found.violations[0]) == (
        "p99 token gap above 8 ms: certain at 30 ms, where its replay was stopped; 2 were above it by then, "
        "and 1 may be in the end"
    )
