"""Sentences say what the numbers say."""

from dataclasses import replace

import pytest
from traces_by_hand import chat_trace, trace_of

from planner.candidates import Reason, Rejection
from planner.engine_config import EngineConfig
from planner.search import Objective, SearchSpace, recommend
from planner.slo import Slo
from planner.step_time import StepTime
from planner.verdict import (
    LOST_FOR,
    advice,
    effort,
    losers_sentence,
    rejection_sentence,
    seconds,
    slo_sentence,
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


def test_met_already_by_todays_flags():
    found = plan(itl_s=2.0, today=replace(TODAY, max_num_batched_tokens=1024))
    assert "today's flags meet it too" in verdict(found).sentence
    assert "The change gives TTFT p99" in verdict(found).sentence
    summary = replace(found.best.summary, ttft_at_percentile_s=1.01 * found.best.summary.ttft_at_percentile_s)
    nearly_best = replace(found, today=replace(found.today, summary=summary))
    assert "No need to change: at best TTFT p99" in verdict(nearly_best).sentence
    assert advice(found) == "Change these flags:"
    assert advice(nearly_best) == "Today's flags can stay. For the small gain, change these:"
    same = plan(itl_s=2.0, space=SearchSpace((8192,), (64,), (0,)))
    assert verdict(same).sentence.endswith(
        "with today's flags; nothing that was tried and meets the targets has a lower TTFT."
    )
    assert advice(same) == "Keep today's flags:"


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


def test_what_the_search_went_through_adds_up():
    found = plan()
    assert effort(found).startswith(f"{len(found.candidates)} settings tried in {found.num_replays} replays (settings ")
    counts = [int(part.split()[0]) for part in losers_sentence(found).removeprefix("Not chosen: ").split(", ")]
    assert sum(counts) == len(found.losers)
    assert losers_sentence(found).endswith(" token gap above its target, 1 higher TTFT.")


def test_every_reason_has_words():
    assert set(LOST_FOR) == set(Reason)


def test_two_rates_that_look_alike_are_told_apart():
    rejection = Rejection(Reason.LESS_THROUGHPUT, 478.4601, 478.4749, "tokens/s")
    assert rejection_sentence(rejection) == "meets the targets, but 0.015 tokens/s less than 478 tokens/s"


def test_without_gaps_the_sentence_judges_none():
    trace = trace_of(*((0.1 * i, 100 * (i + 1), 1) for i in range(30)))
    same = plan(trace=trace, space=SearchSpace((8192,), (64,), (0,)))
    assert verdict(same).sentence == (
        "Met: every request has one output token, so there are no token gaps to judge; today's flags can stay; nothing "
        "that was tried and meets the targets has a lower TTFT."
    )


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
