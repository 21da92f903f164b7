"""What is blamed is what binds."""

from dataclasses import replace

from test_verdict import SPACE, STEP_TIME, TODAY
from traces_by_hand import chat_trace

from planner.candidates import Reason
from planner.confidence import Confidence
from planner.reasons import binding_constraint, freeze_bound, never_tried, no_op_flags, notches, why
from planner.search import More, Objective, SearchSpace, recommend
from planner.slo import Slo
from planner.verdict import flags_in_words, rejection_sentence, seconds, tokens_per_s


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
    assert said == "No target binds: nothing one notch away that misses one would have smaller gaps."
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
    assert said.startswith("Seats may bind: all 2 are taken at times, and no setting that was tried has more")


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


def test_the_example_in_full():
    found, said = binding(Objective.LOWEST_TTFT, Slo(itl_s=0.08))
    assert said.startswith("The target binds: budget 2,048, seats 64, threshold off would give TTFT")
    assert any("max_num_seqs 64 is never reached" in text for text in no_op_flags(found))
    assert [(notch.flag, notch.value) for notch in notches(found)] == [
        ("max_num_batched_tokens", 512),
        ("max_num_batched_tokens", 2048),
    ]
    assert notches(found)[1].said(found) == "max_num_batched_tokens 1,024 → 2,048"
    worst_s, longer_s = (c.summary.itl.max_s for c in (found.best, notches(found)[1].candidate))
    assert why(found) == (
        "max_num_batched_tokens bounds the longest token gap: with 2,048 instead of 1,024 it is "
        f"{seconds(longer_s)} instead of {seconds(worst_s)}.",
        said,
        *no_op_flags(found),
    )


def test_where_no_notch_lengthens_the_longest_gap_no_flag_is_named():
    found, _ = binding(Objective.LOWEST_TTFT, Slo(itl_s=9.0), space=SearchSpace((8192,), (64, 65), (0,)))
    worst_s = found.best.summary.itl.max_s
    assert freeze_bound(found) == (
        f"No flag acts on the longest token gap: one notch on any leaves it at {seconds(worst_s)}.",
    )
    found, _ = binding(Objective.LOWEST_TTFT, Slo(itl_s=9.0), space=SearchSpace((8192,), (64,), (0,)))
    assert freeze_bound(found) == ()


def test_a_flag_on_its_largest_value_is_named_by_what_a_smaller_one_gives():
    """The budget makes the gap: that no larger one was tried does not mean that none acts."""
    found, _ = binding(Objective.LOWEST_TTFT, Slo(itl_s=9.0), space=SearchSpace((512, 8192), (64,), (0,)))
    assert found.best.engine_config.max_num_batched_tokens == 8192
    worst_s, shorter_s = (c.summary.itl.max_s for c in (found.best, notches(found)[0].candidate))
    assert shorter_s < worst_s
    assert freeze_bound(found) == (
        f"Nothing one notch away lengthens the longest token gap of {seconds(worst_s)}; with max_num_batched_tokens "
        f"512 instead of 8,192 it is {seconds(shorter_s)}.",
    )


def test_todays_value_is_a_notch_though_others_were_asked_for():
    """The longest gap is bounded by the budget that today's flags exceed, not by nothing."""
    found, _ = binding(Objective.LOWEST_TTFT, Slo(itl_s=0.08), space=SearchSpace((512, 1024), (64,), (0,)))
    assert found.best.engine_config == replace(TODAY, max_num_batched_tokens=1024)
    assert [(notch.flag, notch.value) for notch in notches(found)] == [
        ("max_num_batched_tokens", 512),
        ("max_num_batched_tokens", 8192),
    ]
    assert freeze_bound(found)[0].startswith(
        "max_num_batched_tokens bounds the longest token gap: with 8,192 instead of 1,024 it is "
    )


def test_values_that_vllm_refuses_beside_all_others_are_said():
    more = More(enable_chunked_prefill=(False, True))
    today = replace(TODAY, max_model_len=40_000)
    found, _ = binding(Objective.LOWEST_TTFT, Slo(itl_s=9.0), space=replace(SPACE, more=more), today=today)
    said = (
        f"enable_chunked_prefill off was not tried: max_num_batched_tokens ({today.max_num_batched_tokens}) is smaller "
        "than max_model_len (40000) while chunked prefill is off."
    )
    assert never_tried(found) == (said,)
    assert why(found)[-1] == said
    assert never_tried(replace(found, space=SPACE)) == ()


def test_a_gain_that_no_digit_shows_is_no_temptation():
    found, said = binding(Objective.HIGHEST_THROUGHPUT, Slo(itl_s=0.08))
    assert said.startswith("The target binds: ")
    rate = found.best.summary.output_tokens_per_s
    candidates = tuple(
        replace(c, summary=replace(c.summary, output_tokens_per_s=rate * 1.000001)) if c.violations else c
        for c in found.candidates
    )
    assert "The target binds" not in binding_constraint(replace(found, candidates=candidates))


def test_what_is_preferred_but_less_sure_is_said_with_how_sure():
    found, _ = binding(Objective.LOWEST_TTFT, Slo(itl_s=0.08))
    other = next(c for c in found.candidates if c.engine_config != found.best.engine_config)
    sure = [
        Confidence(config, together, ())
        for config, together in ((other.engine_config, 0.55), (found.best.engine_config, 0.95))
    ]
    assert binding_constraint(replace(found, finalists=tuple(sure))) == (
        f"Certainty decides: {flags_in_words(other)} would give TTFT p99 "
        f"{seconds(other.summary.ttft_at_percentile_s)}, but meets the targets in 55 % of draws instead of 95 %."
    )
