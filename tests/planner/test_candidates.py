"""Every target is judged by its own definition, for all requests or for a class of them."""

from dataclasses import replace

import numpy as np
import pytest
from traces_by_hand import chat_trace, trace_of

from planner.candidates import Reason, evaluate
from planner.capacity import scale_load
from planner.confidence import resampled
from planner.engine_config import EngineConfig
from planner.errors import BadPlan
from planner.metrics import distribution, e2e_s, itl, itl_of_requests, ttft_s
from planner.replay import replay
from planner.search import Objective, SearchSpace, recommend
from planner.slo import ClassTarget, Slo
from planner.step_time import StepTime
from planner.verdict import class_in_words, rejection_sentence, slo_sentence
from traces.requests import Labels

STEP_TIME = StepTime(8_000_000, 60_000, 60_000)
CONFIG = EngineConfig(max_num_batched_tokens=2048, max_num_seqs=64, num_gpu_blocks=4001)
TRACE = chat_trace(120)
RUN = replay(TRACE, CONFIG, STEP_TIME)
LOOSE = Slo(itl_s=10.0)


def missed(slo, trace=TRACE):
    return evaluate(trace, CONFIG, STEP_TIME, slo).violations


def test_e2e_is_judged_at_its_percentile():
    at_p90 = distribution(e2e_s(RUN)).percentile(0.9)
    assert missed(replace(LOOSE, e2e_s=at_p90, e2e_percentile=0.9)) == ()
    (violation,) = missed(replace(LOOSE, e2e_s=0.99 * at_p90, e2e_percentile=0.9))
    assert (violation.reason, violation.measured, violation.percentile) == (Reason.E2E, at_p90, 0.9)
    assert rejection_sentence(violation).startswith("p90 E2E ")


def test_stalled_share_is_time_beyond_the_target_of_all_streaming_time():
    gaps = itl(RUN)
    beyond = (np.maximum(gaps.value_s - 0.05, 0) * gaps.count).sum() / (gaps.value_s * gaps.count).sum()
    found = evaluate(TRACE, CONFIG, STEP_TIME, Slo(itl_s=0.05))
    assert 0 < found.summary.stalled_share == pytest.approx(beyond)
    exactly = found.summary.stalled_share
    assert Reason.STALLED_SHARE not in {v.reason for v in missed(Slo(itl_s=0.05, stalled_share=exactly))}
    violation = missed(Slo(itl_s=0.05, stalled_share=exactly / 2))[-1]
    assert (violation.reason, violation.measured) == (Reason.STALLED_SHARE, exactly)
    assert "% of the streaming time against" in rejection_sentence(violation)


def test_a_trace_without_gaps_stalls_nobody():
    assert missed(Slo(itl_s=0.05, stalled_share=0.0), trace_of((0.0, 100, 1))) == ()


SHORT = ClassTarget(max_prompt_tokens=1000)


@pytest.mark.parametrize(
    ("target", "is_member"),
    [
        (SHORT, TRACE.prompt_tokens <= 1000),
        (ClassTarget(min_prompt_tokens=1001), TRACE.prompt_tokens > 1000),
        (
            ClassTarget(min_prompt_tokens=300, max_prompt_tokens=500),
            (TRACE.prompt_tokens >= 300) & (TRACE.prompt_tokens <= 500),
        ),
    ],
)
def test_a_class_is_judged_by_its_own_requests(target, is_member):
    wait_s = distribution(ttft_s(RUN)[is_member]).percentile(0.99)
    worst_s = float(np.nanmax(RUN.worst_gap_s[is_member]))
    gaps = itl_of_requests(RUN, is_member)
    gap_s = gaps.percentile(0.99)
    met = replace(target, itl_s=gap_s, ttft_s=wait_s, worst_gap_s=worst_s, stalled_share=gaps.excess_share(gap_s))
    assert missed(replace(LOOSE, classes=(met,))) == ()
    tight = replace(target, itl_s=0.9 * gap_s, ttft_s=0.9 * wait_s, worst_gap_s=0.9 * worst_s)
    stalled = missed(replace(LOOSE, itl_s=0.03, classes=(replace(target, stalled_share=1e-6),)))[-1]
    beyond_s = (np.maximum(gaps.value_s - 0.03, 0) * gaps.count).sum()
    assert stalled.measured == pytest.approx(beyond_s / (gaps.value_s * gaps.count).sum())
    assert rejection_sentence(stalled).startswith(f"{class_in_words(target)}: stalled ")
    gap, worst, wait = missed(replace(LOOSE, classes=(tight,)))
    assert (gap.reason, gap.measured, gap.percentile, gap.target) == (Reason.ITL, gap_s, 0.99, tight)
    assert (worst.reason, worst.measured, worst.percentile) == (Reason.WORST_GAP, worst_s, None)
    assert (wait.reason, wait.measured, wait.target) == (Reason.TTFT, wait_s, tight)


def test_a_class_by_priority_needs_a_trace_that_has_priorities():
    urgent = ClassTarget(priority=0, ttft_s=1e-6)
    assert missed(replace(LOOSE, classes=(urgent,))) == ()
    ranked = type(TRACE)(
        *(getattr(TRACE, name) for name in ("arrival_s", "prompt_tokens", "output_tokens", "source_row")),
        priority=np.arange(120) % 2,
    )
    (violation,) = missed(replace(LOOSE, classes=(urgent,)), ranked)
    assert violation.measured == distribution(ttft_s(RUN)[::2]).percentile(0.99)
    assert rejection_sentence(violation).startswith("requests of priority 0: p99 TTFT ")


def test_a_class_by_a_column_of_the_trace():
    models = Labels("model", ("small", "large"), (np.arange(120) % 2).astype(np.int32))
    named = replace(TRACE, labels=(models,))
    assert named.digest != TRACE.digest, "what was judged by the words of another file is another answer"
    same = replace(models, words=("large", "small"), codes=1 - models.codes)
    assert replace(TRACE, labels=(same,)).digest == named.digest
    large = ClassTarget(label=("model", "large"), itl_s=1e-6, ttft_s=1e-6)
    gap, wait = missed(replace(LOOSE, classes=(large,)), named)
    assert gap.measured == itl_of_requests(RUN, np.arange(120) % 2 == 1).percentile(0.99)
    assert wait.measured == distribution(ttft_s(RUN)[1::2]).percentile(0.99)
    assert rejection_sentence(gap).startswith("requests with model large: p99 token gap ")
    for part in (named.at(np.arange(10)), resampled(named, 0), scale_load(named, 2.0)):
        assert part.labels[0].words == models.words
        assert (part.labels[0].codes == part.source_row % 2).all()


@pytest.mark.parametrize("label", [("tenant", "a"), ("model", "huge")])
def test_a_class_by_words_that_are_not_there_is_refused(label):
    named = replace(TRACE, labels=(Labels("model", ("small",), np.zeros(120, np.int32)),))
    with pytest.raises(BadPlan, match=f"no request has {label[0]} '{label[1]}'; .* model with small"):
        missed(replace(LOOSE, classes=(ClassTarget(label=label, ttft_s=1.0),)), named)


def test_a_class_without_requests_misses_nothing():
    assert missed(replace(LOOSE, classes=(ClassTarget(min_prompt_tokens=10**6, ttft_s=1e-6),))) == ()


def test_a_class_that_never_gets_a_token_misses_its_ttft():
    """Without chunking a prompt above the budget stalls."""
    config = replace(CONFIG, enable_chunked_prefill=False)
    slo = replace(LOOSE, classes=(ClassTarget(min_prompt_tokens=5000, ttft_s=9.0, worst_gap_s=9.0),))
    found = evaluate(trace_of((0.0, 100, 5), (1.0, 9000, 5)), config, STEP_TIME, slo)
    assert [(v.reason, v.target is None) for v in found.violations] == [(Reason.STALLED, True), (Reason.TTFT, False)]


def test_the_search_answers_for_a_class():
    """Short prompts are to wait little: the choice is one that gives them that, as every choice is checked to."""
    today = replace(CONFIG, max_num_batched_tokens=8192)
    space = SearchSpace((512, 1024, 8192), (64,), (0, 200, 1000))
    plain = recommend(TRACE, STEP_TIME, today, LOOSE, default_flags=(8192, 1024), space=space)
    waits_s = sorted(
        distribution(ttft_s(replay(TRACE, c.engine_config, STEP_TIME))[TRACE.prompt_tokens <= 1000]).percentile(0.99)
        for c in plain.candidates
    )
    slo = replace(LOOSE, classes=(replace(SHORT, ttft_s=waits_s[0]),))
    found = recommend(TRACE, STEP_TIME, today, slo, default_flags=(8192, 1024), space=space)
    run = replay(TRACE, found.best.engine_config, STEP_TIME)
    assert distribution(ttft_s(run)[TRACE.prompt_tokens <= 1000]).percentile(0.99) == waits_s[0]
    assert {c.engine_config for c in found.candidates if c.meets} < {c.engine_config for c in plain.candidates}


def test_targets_in_one_sentence():
    slo = Slo(
        itl_s=0.08,
        stalled_share=0.01,
        e2e_s=20.0,
        e2e_percentile=0.95,
        classes=(
            ClassTarget(max_prompt_tokens=1000, ttft_s=0.5),
            ClassTarget(2000, 4000, 1, ("model", "small"), itl_s=0.04, e2e_s=9.0, worst_gap_s=0.3, stalled_share=0.02),
        ),
    )
    assert slo_sentence(slo, Objective.LOWEST_TTFT) == (
        "p99 of all token gaps, pooled over requests, at most 80 ms, p95 of E2E at most 20 s, at most 1 % of the "
        "streaming time stalled, for prompts up to 1,000 tokens p99 of TTFT at most 500 ms, for prompts of 2,000 to "
        "4,000 tokens of priority 1 with model small p99 of their token gaps at most 40 ms and every gap at most 300 "
        "ms and p95 of E2E at most 9 s and at most 2 % of their streaming time stalled; among the settings that meet "
        "this, the lowest p99 TTFT."
    )
