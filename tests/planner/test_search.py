"""The search finds the best of its space, whoever runs the replays."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from traces_by_hand import chat_trace, trace_of

from planner.candidates import Reason, evaluate
from planner.engine_config import EngineConfig, changed_flags, flag_faults
from planner.errors import BadFlags, Cancelled
from planner.reasons import no_op_flags
from planner.replay import replay
from planner.search import (
    More,
    Objective,
    SearchSpace,
    closed_form_budget,
    default_space,
    extrapolated_share,
    offered_load,
    read_more,
    recommend,
)
from planner.slo import Slo
from planner.step_time import Covered, StepTime
from planner.verdict import kv_sentence, rejection_sentence, verdict

STEP_TIME = StepTime(8_000_000, 60_000, 60_000)
TODAY = EngineConfig(max_num_batched_tokens=8192, max_num_seqs=64, num_gpu_blocks=4001)
SPACE = SearchSpace((256, 512, 1024, 2048, 8192, 16_384), (8, 16, 64, 128), (0, 200, 600, 3000))
SLO = Slo(itl_s=0.08)


def plan(trace=None, slo=SLO, **options):
    options = {"space": SPACE, "default_flags": (8192, 1024)} | options
    return recommend(trace or chat_trace(), STEP_TIME, TODAY, slo, **options)


@pytest.mark.parametrize("objective", list(Objective))
def test_search_equals_exhaustive_search(objective):
    """Every combination replayed by itself gives the same numbers and the same choice."""
    trace = chat_trace()
    found = plan(trace, objective=objective)
    numbers = {c.engine_config: c.summary for c in found.candidates}
    stopped = {c.engine_config for c in found.candidates if not c.is_complete}
    fitting = []
    for budget, num_seqs, threshold in product(
        SPACE.max_num_batched_tokens, SPACE.max_num_seqs, SPACE.long_prefill_token_threshold
    ):
        config = replace(
            TODAY, max_num_batched_tokens=budget, max_num_seqs=num_seqs, long_prefill_token_threshold=threshold
        )
        alone = evaluate(trace, config, STEP_TIME, SLO)
        if config in stopped:
            assert not alone.meets
        elif config in numbers:
            assert repr(numbers[config]) == repr(alone.summary)
        else:
            assert threshold >= budget
        if alone.meets:
            fitting.append(alone.summary)
    if objective is Objective.PARETO:
        pairs = [(s.ttft_at_percentile_s, s.itl_at_percentile_s) for s in fitting]
        own = (found.best.summary.ttft_at_percentile_s, found.best.summary.itl_at_percentile_s)
        assert not any(t <= own[0] and g <= own[1] and (t, g) != own for t, g in pairs)
        return
    measure = {
        Objective.LOWEST_TTFT: lambda s: s.ttft_at_percentile_s,
        Objective.MOST_HEADROOM: lambda s: s.itl_at_percentile_s,
        Objective.HIGHEST_THROUGHPUT: lambda s: -s.output_tokens_per_s,
    }[objective]
    first = found.finalists[0].engine_config
    assert measure(numbers[first]) == min(measure(s) for s in fitting)
    assert found.num_replays < len(found.candidates), "flags that cannot act share a replay"


def test_without_an_objective_the_whole_front_is_named():
    """Every setting that meets the targets is on the front or beaten by one that is; the choice changes least."""
    found = plan(objective=Objective.PARETO)
    pairs = {c.engine_config: (c.summary.ttft_at_percentile_s, c.summary.itl_at_percentile_s) for c in found.candidates}
    fitting = [c for c in found.candidates if c.meets]
    reasons = {c.engine_config: rejection.reason for c, rejection in found.losers}
    for candidate in fitting:
        ttft, gap = pairs[candidate.engine_config]
        others = (pairs[c.engine_config] for c in fitting)
        is_beaten = any(t <= ttft and g <= gap and (t, g) != (ttft, gap) for t, g in others)
        if candidate is not found.best:
            assert reasons[candidate.engine_config] is (Reason.BEATEN if is_beaten else Reason.ON_FRONT)
        else:
            assert not is_beaten
    front = [c for c in fitting if reasons.get(c.engine_config, Reason.ON_FRONT) is Reason.ON_FRONT]
    changes = {c.engine_config: len(changed_flags(TODAY, c.engine_config)) for c in front}
    assert changes[found.best.engine_config] == min(changes.values())
    assert len(front) > 2


def test_result_does_not_depend_on_the_executor():
    trace = chat_trace(120)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(5) as five:
        first, second = plan(trace, executor=one), plan(trace, executor=five)
    assert repr(first.candidates) == repr(second.candidates)
    assert first.best == second.best


def test_todays_flags_miss_and_the_choice_meets():
    found = plan()
    assert [v.reason for v in found.today.violations] == [Reason.ITL]
    assert found.best.summary.itl_at_percentile_s <= 0.08 < found.today.summary.itl_at_percentile_s
    assert found.closed_form_budget == closed_form_budget(STEP_TIME, 0.08, found.typical_num_seqs, 0.0)
    assert len(found.losers) == len(found.candidates) - 1
    for candidate, rejection in found.losers:
        assert (rejection.reason in (Reason.LATER_TOKENS, Reason.NO_BETTER)) == candidate.meets
        if rejection.stop is None:
            assert (rejection.reason is Reason.NO_BETTER) == (rejection.measured == rejection.limit)
        assert rejection.measured >= rejection.limit


def test_closed_form_budget_fills_the_target_exactly():
    """(T − d)/p + decodes: the full step takes at most the target, one prefill token more takes longer."""
    budget = closed_form_budget(STEP_TIME, 0.08, 10, 0.0)
    full_step_s = (8_000_000 + 11 * 60_000 + (budget - 10) * 60_000) / 1e9
    assert full_step_s <= 0.08 < full_step_s + 60_000 / 1e9
    assert closed_form_budget(STEP_TIME, 0.0085, 10, 0.0) is None


def test_impossible_target_is_missed_by_every_setting():
    found = plan(slo=Slo(itl_s=0.005))
    assert found.best is None
    assert found.closed_form_budget is None
    assert all(c.violations for c in found.candidates)
    assert found.closest in found.candidates


def test_offered_load_is_a_lower_bound():
    """By hand: two requests over 1 s; 298 prompt tokens, 2 + 4 decodes, each of half its output plus its prompt."""
    trace = trace_of((0.0, 100, 3), (1.0, 200, 5))
    step_time = StepTime(1_000_000, 10_000, 100_000, 0.0, 10.0, 20.0)
    context = 2 * (100 + 1.5) + 4 * (200 + 2.5)
    least_ns = 1_000_000 * 306 / 1000 + 10_000 * 8 + 100_000 * 298 + 10.0 * context
    assert offered_load(trace, step_time, TODAY, 1000) == pytest.approx(least_ns / 1e9)
    heavy = chat_trace(400, rate_rps=60.0)
    run = evaluate(heavy, TODAY, STEP_TIME, SLO)
    assert 1 < offered_load(heavy, STEP_TIME, TODAY, 8192) <= run.summary.makespan_s / heavy.span_s


def test_offered_load_counts_only_what_is_computed():
    """A request that never runs and outputs beyond the context length cost nothing; drafts leave the cost open."""
    step_time = StepTime(0, 0, 0, 0.0, 0.0, 0.0)._replace(per_seq_ns=1_000_000)
    trace = trace_of((0.0, 100, 50), (0.5, 90, 50), (1.0, 10, 5))
    short = replace(TODAY, max_model_len=100)
    assert offered_load(trace, step_time, short, 1000) == pytest.approx((10 + 5) * 1e-3)
    drafts = replace(TODAY, speculative_method="eagle", num_speculative_tokens=2)
    assert np.isnan(offered_load(trace, step_time, drafts, 1000))
    assert np.isnan(offered_load(trace_of((0.0, 5, 5)), step_time, TODAY, 100))


def test_a_hopeless_load_is_not_searched_to_the_end():
    found = plan(chat_trace(400, rate_rps=60.0), space=None)
    assert found.best is None
    assert found.offered_load > 1.1
    assert found.num_replays <= 4
    assert all(c.summary.is_unstable for c in found.candidates)


def test_a_short_burst_is_searched_all_the_same():
    """Nine requests within 50 ms offer far more than capacity for a moment; a small budget still meets the target."""
    burst = trace_of(*[(i * 0.005, 500, 50) for i in range(8)], (0.05, 32_000, 20))
    found = plan(burst, slo=Slo(itl_s=0.08, worst_gap_s=0.08), space=None)
    assert found.offered_load > 1.1
    assert found.best is not None
    assert found.best.summary.itl.max_s <= 0.08


def test_worst_gap_and_ttft_targets_count():
    tight = plan(slo=Slo(itl_s=0.08, worst_gap_s=0.05))
    assert tight.best is None or tight.best.summary.itl.max_s <= 0.05
    strict = plan(slo=Slo(itl_s=0.08, ttft_s=1e-6))
    assert strict.best is None
    assert Reason.TTFT in {v.reason for v in strict.closest.violations}


def test_pooled_percentile_hides_what_the_worst_gap_shows():
    """One decoder beside one 64k prompt: p99 of the gaps is fine, the stream freezes for over a second."""
    trace = trace_of((0.0, 4094, 4000), (5.0, 65_535, 1))
    step_time = StepTime(3_668_380, 0, 142_674)
    config = EngineConfig(max_num_batched_tokens=8192, max_num_seqs=8, async_scheduling=False)
    by_percentile = evaluate(trace, config, step_time, Slo(itl_s=0.05))
    by_worst = evaluate(trace, config, step_time, Slo(itl_s=0.05, worst_gap_s=0.05))
    assert by_percentile.meets
    assert [v.reason for v in by_worst.violations] == [Reason.WORST_GAP]
    assert by_percentile.summary.itl.max_s > 1.0
    assert by_percentile.summary.stalled_s > 5.0


def test_cancel_raises():
    with pytest.raises(Cancelled):
        plan(cancel=np.ones(1, np.uint8))


def test_cancel_during_the_search_stops_it():
    cancel, seen = np.zeros(1, np.uint8), []

    def stop_after_three(num_done, num_planned, newest):
        seen.append((num_done, num_planned))
        if num_done == 3:
            cancel[0] = 1

    with pytest.raises(Cancelled):
        plan(cancel=cancel, on_progress=stop_after_three)
    assert len(seen) < 10


def test_flags_that_vllm_refuses_never_leave():
    found = plan(chat_trace(60), space=SearchSpace((16, 512), (8, 64), (0,)))
    assert all(c.engine_config.max_num_batched_tokens >= c.engine_config.max_num_seqs for c in found.candidates)
    with pytest.raises(BadFlags):
        recommend(chat_trace(5), STEP_TIME, replace(TODAY, max_num_seqs=9000), SLO, default_flags=(8192, 1024))


def test_share_of_steps_outside_the_calibrated_range():
    run = replay(trace_of((0.0, 1000, 10)), replace(TODAY, max_num_batched_tokens=1000), STEP_TIME)
    assert extrapolated_share(run, Covered(64, 1000, float("nan"))) == 0.0
    assert extrapolated_share(run, Covered(64, 999, float("nan"))) == pytest.approx(1 / len(run.steps))
    assert extrapolated_share(run, Covered(64, 1000, 5.0)) == pytest.approx(9 / len(run.steps))


MORE_VALUES = More(
    num_gpu_blocks=(900, 4001),
    max_num_active_seqs=(12, None),
    long_prefill_token_threshold_adaptive=(False, True),
    watermark=(0.0, 0.1),
    enable_chunked_prefill=(False, True),
    scheduling_policy=("fcfs", "priority"),
    async_scheduling=(False, True),
)


def test_search_over_further_flags_equals_exhaustive_search():
    """Every combination that vLLM accepts, replayed by itself, gives the same numbers and the same first choice."""
    today, trace = replace(TODAY, max_model_len=14_000), chat_trace(80)
    space = SearchSpace((512, 16_384), (16, 64), (0, 200), more=MORE_VALUES)
    found = recommend(trace, STEP_TIME, today, SLO, default_flags=(8192, 1024), space=space)
    numbers = {c.engine_config: c for c in found.candidates}
    tried = set()
    for values in product(*(space.values(name) for name in space.searched)):
        config = replace(today, **dict(zip(space.searched, values, strict=True)))
        if not flag_faults(config):
            tried.add(config)
            alone = evaluate(trace, config, STEP_TIME, SLO)
            if numbers[config].is_complete:
                assert repr(numbers[config].summary) == repr(alone.summary)
            else:
                assert not alone.meets
    assert numbers.keys() - tried <= {found.today.engine_config, found.vllm_default.engine_config}
    assert len(tried) > 400
    assert found.num_replays < len(tried)
    fitting = [c for c in numbers.values() if c.meets and c.summary.num_never_run == 0]
    least_s = min(c.summary.ttft_at_percentile_s for c in fitting)
    assert found.best.summary.ttft_at_percentile_s == least_s
    assert len(found.losers) == len(found.candidates) - 1


def test_turning_requests_away_wins_nothing():
    """Half the KV cache cannot hold the long prompts; without them the rest is faster, and that does not count."""
    space = SearchSpace((512, 1024), (64,), (0,), more=More(num_gpu_blocks=(600, 4001)))
    found = plan(chat_trace(80), space=space)
    reasons = {c.engine_config: rejection for c, rejection in found.losers}
    small = [c for c in found.candidates if c.engine_config.num_gpu_blocks == 600]
    assert any(c.meets for c in small)
    for candidate in small:
        if candidate.meets:
            assert reasons[candidate.engine_config].reason is Reason.TURNS_AWAY
            assert "never run" in rejection_sentence(reasons[candidate.engine_config])
    assert found.best.engine_config.num_gpu_blocks == 4001


def test_what_meets_the_targets_by_turning_requests_away_is_not_the_closest():
    """With the small KV cache all short prompts meet the target; with today's the long ones break it: missed."""
    space = SearchSpace((8192,), (64,), (0,), more=More(num_gpu_blocks=(600, 4001)))
    found = plan(chat_trace(80), slo=Slo(itl_s=0.08, worst_gap_s=0.1), space=space)
    assert found.best is None
    assert found.closest.violations
    assert Reason.TURNS_AWAY in {rejection.reason for _, rejection in found.losers}
    assert verdict(found).kind == "missed"


def test_further_flags_are_read_from_words():
    assert read_more((), TODAY) == More()
    more = read_more(("watermark=0.05,0", "async-scheduling", "max_num_active_seqs=none,400", "num_gpu_blocks"), TODAY)
    assert more == More(
        watermark=(0.0, 0.05),
        async_scheduling=(False, True),
        max_num_active_seqs=(400, None),
        num_gpu_blocks=(3201, 3601, 4001, 4401),
    )
    instead = read_more(("max_num_seqs=32,16", "max-num-batched-tokens=16"), TODAY)
    assert instead == More(max_num_seqs=(16, 32), max_num_batched_tokens=(16,))
    space = default_space(TODAY, 900, (8192, 1024), 10_000, instead)
    assert (space.max_num_seqs, space.max_num_batched_tokens, space.more) == ((16, 32), (16,), More())
    assert (
        space.long_prefill_token_threshold
        == default_space(TODAY, 900, (8192, 1024), 10_000).long_prefill_token_threshold
    )
    for text, said in (
        ("seats", "known are"),
        ("max_num_seqs", "searched anyway"),
        ("max_num_seqs=0", "vLLM allows"),
        ("watermark=much", "write values"),
        ("async_scheduling=perhaps", "write values"),
        ("watermark=2", "vLLM allows"),
    ):
        with pytest.raises(ValueError, match=said):
            read_more((text,), TODAY)


def test_a_flag_that_changes_nothing_is_named_and_the_kv_cache_that_is_needed_is_said():
    space = SearchSpace((512, 8192), (64,), (0,), more=More(scheduling_policy=("fcfs", "priority")))
    said = no_op_flags(plan(chat_trace(80), space=space))
    assert "scheduling_policy never acts: every value that was tried gives the same numbers." in said
    idle = plan(trace_of((0.0, 300, 20), (5.0, 150, 20)), space=SearchSpace((8192,), (64,), (512,)))
    assert "long_prefill_token_threshold 512 never acts: no step carries more than 300 prefill tokens." in no_op_flags(
        replace(idle, best=next(c for c in idle.candidates if c.engine_config.long_prefill_token_threshold))
    )
    assert kv_sentence(plan(chat_trace(80))) is None
    larger = plan(chat_trace(80), space=SearchSpace((512,), (64,), (0,), more=More(num_gpu_blocks=(8001,))))
    assert "128,000 tokens instead of 64,000" in kv_sentence(larger)
