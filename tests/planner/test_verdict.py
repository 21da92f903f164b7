"""Sentences say what the numbers say."""

from dataclasses import replace

import pytest
from traces_by_hand import chat_trace

from planner.candidates import Reason, Rejection
from planner.engine_config import EngineConfig
from planner.search import Objective, SearchSpace, recommend
from planner.slo import Slo
from planner.step_time import StepTime
from planner.verdict import (
    binding_constraint,
    flags_in_words,
    no_op_flags,
    rejection_sentence,
    seconds,
    slo_sentence,
    tokens_per_s,
    verdict,
)

TODAY = EngineConfig(max_num_batched_tokens=8192, max_num_seqs=64, num_gpu_blocks=4001)
STEP_TIME = StepTime(8_000_000, 60_000, 60_000)
SPACE = SearchSpace((512, 1024, 2048, 8192), (64,), (0,))


def plan(itl_s=0.08, today=TODAY, trace=None, space=SPACE, objective=Objective.LOWEST_TTFT):
    return recommend(
        trace or chat_trace(),
        STEP_TIME,
        today,
        Slo(itl_s=itl_s),
        default_flags=(8192, 1024),
        space=space,
        objective=objective,
    )


def test_met_where_today_misses():
    found = plan()
    said = verdict(found)
    assert said.kind == "met"
    assert said.sentence.startswith(
        f"Met: p99 token gap {seconds(found.best.summary.itl_at_percentile_s)} against 80 ms"
    )
    assert f"today's flags miss it (p99 token gap {seconds(found.today.summary.itl.p99_s)}" in said.sentence
    assert binding_constraint(found).startswith(
        "The target binds: budget 2,048, seats 64, threshold off would give TTFT"
    )
    assert any("max_num_seqs 64 is never reached" in text for text in no_op_flags(found))


def test_met_already_by_todays_flags():
    found = plan(itl_s=2.0, today=replace(TODAY, max_num_batched_tokens=1024))
    assert "today's flags meet it too" in verdict(found).sentence
    assert "The change gives TTFT p99" in verdict(found).sentence
    summary = replace(found.best.summary, ttft_at_percentile_s=1.01 * found.best.summary.ttft_at_percentile_s)
    nearly_best = replace(found, today=replace(found.today, summary=summary))
    assert "No need to change: at best TTFT p99" in verdict(nearly_best).sentence
    same = plan(itl_s=2.0, space=SearchSpace((8192,), (64,), (0,)))
    assert verdict(same).sentence.endswith(
        "with today's flags; nothing that was tried and meets the targets has a lower TTFT."
    )


def test_missed_because_decoding_alone_is_too_slow():
    said = verdict(plan(itl_s=0.005))
    assert said.kind == "missed"
    assert "target (d = " in said.sentence


def test_missed_by_a_little_names_the_closest():
    said = verdict(plan(itl_s=0.02, space=SearchSpace((2048, 8192), (64,), (0,))))
    assert said.kind == "missed"
    assert "The closest is budget 2,048" in said.sentence


def test_overload_is_unstable_and_no_latency_is_promised():
    said = verdict(plan(trace=chat_trace(400, rate_rps=60.0)))
    assert said.kind == "unstable"
    assert "no precise latency" in said.sentence


def test_a_growing_worst_gap_is_said():
    found = plan()
    worse = replace(found.today.summary, itl=replace(found.today.summary.itl, max_s=0.001))
    sentence = verdict(replace(found, today=replace(found.today, summary=worse))).sentence
    assert f"the worst gap grows from 1 ms to {seconds(found.best.summary.itl.max_s)}" in sentence


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        (Objective.MOST_HEADROOM, "a p99 token gap of"),
        (Objective.HIGHEST_THROUGHPUT, "tokens/s instead of"),
        (Objective.PARETO, "a p99 token gap of"),
    ],
)
def test_the_gain_is_the_objectives(objective, words):
    found = plan(itl_s=0.3, objective=objective)
    assert words in verdict(found).sentence
    assert "TTFT p99" in verdict(found).sentence


def binding(objective, slo, trace=None, space=SPACE, today=TODAY, step_time=STEP_TIME):
    found = recommend(
        trace or chat_trace(), step_time, today, slo, default_flags=(8192, 64), space=space, objective=objective
    )
    return found, binding_constraint(found)


def test_what_binds_is_what_keeps_the_objective_from_better():
    """Whoever is named as better is, and misses what is said; where nobody is, no target is blamed."""
    slo = Slo(itl_s=0.08)
    for objective, gives in (
        (Objective.LOWEST_TTFT, lambda s: f"TTFT p99 {seconds(s.ttft_at_percentile_s)}"),
        (Objective.HIGHEST_THROUGHPUT, lambda s: tokens_per_s(s.output_tokens_per_s)),
    ):
        found, said = binding(objective, slo)
        named = next(c for c in found.candidates if said.startswith(f"The target binds: {flags_in_words(c)} would"))
        missed = named.violations[0]
        assert f"would give {gives(named.summary)}, but {rejection_sentence(missed)}." in said
        room = found.closed_form_budget - round(found.typical_num_seqs)
        assert said.endswith(f"a step of more than {room:,} prefill tokens takes longer than 80 ms.")

    found, said = binding(Objective.MOST_HEADROOM, slo)
    assert said == "No target binds: nothing that misses one would have smaller gaps."
    smallest_s, wait_s = found.best.summary.itl_at_percentile_s, found.best.summary.ttft_at_percentile_s
    _, said = binding(Objective.MOST_HEADROOM, Slo(itl_s=0.2, ttft_s=0.9 * wait_s))
    assert said == (
        f"The target binds: {flags_in_words(found.best)} would give p99 token gap {seconds(smallest_s)}, but p99 TTFT "
        f"{seconds(wait_s)} against {seconds(0.9 * wait_s)}."
    )
    found, said = binding(Objective.PARETO, Slo(itl_s=0.3))
    num_front = 1 + sum(rejection.reason is Reason.ON_FRONT for _, rejection in found.losers)
    assert num_front > 1
    assert said.startswith(f"People choose, out of {num_front} on the front: none beats another in both gap and TTFT. ")


def test_seats_bind_where_all_are_taken_and_none_tried_has_more():
    today = replace(TODAY, max_num_seqs=2)
    _, said = binding(
        Objective.LOWEST_TTFT, Slo(itl_s=9.0), chat_trace(90, 0.5), SearchSpace((8192,), (2,), (0,)), today
    )
    assert said == "Seats bind: all 2 are taken at times, and no setting that was tried has more."


def test_what_every_setting_misses_is_told_apart():
    """One target that nothing reaches, targets that pull apart, and a load that nothing carries."""
    _, said = binding(Objective.LOWEST_TTFT, Slo(itl_s=0.3, e2e_s=0.01))
    assert said == "The targets bind: nothing that was tried meets the target of p99 E2E."
    found, said = binding(Objective.LOWEST_TTFT, Slo(itl_s=0.04, ttft_s=2.0))
    kept = next(c for c in found.candidates if f"{flags_in_words(c)} meets the target of p99 " in said)
    assert "; ".join(rejection_sentence(v) for v in kept.violations) in said
    found, said = binding(Objective.LOWEST_TTFT, Slo(itl_s=0.08), chat_trace(400, rate_rps=60.0))
    assert said.startswith(f"Load binds: at least {found.offered_load:.2f} × capacity is offered")


def test_a_limit_of_nothing_stalled_can_be_missed():
    _, said = binding(Objective.LOWEST_TTFT, Slo(itl_s=0.08, stalled_share=0.0))
    assert said


def test_targets_in_a_sentence():
    found = plan()
    assert slo_sentence(replace(found.slo, worst_gap_s=1.5, ttft_s=2.0), found.objective) == (
        "p99 of all token gaps, pooled over requests, at most 80 ms, no gap above 1.5 s, p99 of TTFT at most 2 s; "
        "among the settings that meet this, the lowest p99 TTFT."
    )


@pytest.mark.parametrize(
    ("value_s", "text"),
    [(0.0000123, "12.3 µs"), (0.0123456, "12.3 ms"), (0.9996, "1 s"), (1.2345, "1.23 s"), (45.678, "45.7 s"),
     (1234.5, "1,230 s"), (float("nan"), "–"), (0.0, "0 s")],
)  # fmt: skip
def test_durations_have_three_digits_at_most(value_s, text):
    assert seconds(value_s) == text


def test_a_value_just_above_its_limit_is_not_rounded_onto_it():
    rejection = Rejection(Reason.ITL, 0.0800421, 0.08, "s", 0.99)
    assert rejection_sentence(rejection) == "p99 token gap 80.0421 ms against 80 ms"
