"""A choice is judged under what might as well have happened, and the one that holds is preferred."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from traces_by_hand import chat_trace, trace_of

from planner.candidates import Candidate, Reason, Rejection, evaluate
from planner.confidence import can_resample, evaluate_draw, nearness, odds, resampled
from planner.engine_config import EngineConfig
from planner.search import GIVES_UP, NUM_DRAWS, NUM_RUNNERS_UP, Objective, SearchSpace, recommend
from planner.slo import ClassTarget, Slo
from planner.step_time import TERMS, SavedModel, StepTime, step_time_from_seconds
from planner.verdict import confidence_sentences, rejection_sentence
from traces.requests import PrefixHashes, RequestTrace
from traces.steps import ServerFacts

STEP_TIME = StepTime(8_000_000, 60_000, 60_000)
TODAY = EngineConfig(max_num_batched_tokens=8192, max_num_seqs=64, num_gpu_blocks=4001)
SPACE = SearchSpace((256, 480, 512, 1024, 2048, 8192), (16, 64), (0, 200))
SLO = Slo(itl_s=0.08)


def plan(model=STEP_TIME, slo=SLO, **options):
    return recommend(chat_trace(), model, TODAY, slo, **({"space": SPACE, "default_flags": (8192, 1024)} | options))


def traces_with_hashes():
    """100 requests, 2 ids each: one of all, one of their own."""
    ids = np.stack([np.full(100, 1 << 32), np.arange(100) * 7], axis=1).ravel()
    return RequestTrace(
        np.arange(100) * 1.0,
        np.arange(100) + 40,
        np.arange(100) + 1,
        np.arange(100),
        priority=np.arange(100) % 3,
        max_tokens=np.arange(100) + 5,
        prefix_hashes=PrefixHashes(ids, np.arange(101) * 2, block_tokens=16),
    )


def test_whole_blocks_are_drawn_and_everything_stays_with_its_request():
    trace = traces_with_hashes()
    again = resampled(trace, 3)
    rows = again.source_row
    assert (rows % 10 == np.tile(np.arange(10), 10)).all(), "ten blocks of ten consecutive arrivals"
    assert (np.diff(rows // 10) >= 0).all(), "in the order of the trace"
    assert (again.prompt_tokens == rows + 40).all()
    assert (again.output_tokens == rows + 1).all()
    assert (again.priority == rows % 3).all()
    assert (again.max_tokens == rows + 5).all()
    assert len(np.unique(rows)) < 100


def test_a_block_drawn_again_brings_other_people():
    """Its prompts are not found in the cache; what its requests share among themselves they still share."""
    again = resampled(traces_with_hashes(), 3)
    ids = again.prefix_hashes.ids.reshape(-1, 2)
    assert len(np.unique(ids[:, 1])) == 100, "no prompt comes twice"
    copy = np.array([np.count_nonzero(again.source_row[:i] == row) for i, row in enumerate(again.source_row)])
    assert copy.max() > 0
    assert (np.unique(ids[:, 0], return_inverse=True)[1] == copy).all()
    assert again.prefix_hashes.offsets.tolist() == list(range(0, 201, 2))


def test_gaps_between_arrivals_stay_with_the_request_that_they_precede():
    """A burst at the end of a quiet trace stays a burst, and begins at zero."""
    trace = trace_of(*((i * 1.0, 10, 1) for i in range(90)), *((89.0 + i / 100, 10, 1) for i in range(1, 11)))
    again = resampled(trace, 5)
    assert again.arrival_s[0] == 0.0
    gap_s = np.diff(trace.arrival_s, prepend=0.0)
    assert np.diff(again.arrival_s) == pytest.approx(gap_s[again.source_row[1:]])


def test_the_same_seed_gives_the_same_traffic_and_long_traces_have_more_blocks():
    trace = replace_span(chat_trace(600), 6000.0)
    assert resampled(trace, 1).digest == resampled(trace, 1).digest != resampled(trace, 2).digest
    runs = np.flatnonzero(np.diff(resampled(trace, 1).source_row) != 1)
    assert (np.diff(runs) % 30 == 0).all(), "20 blocks of five minutes"


def replace_span(trace, span_s):
    arrival_s = (trace.arrival_s - trace.arrival_s[0]) * span_s / trace.span_s
    return RequestTrace(arrival_s, trace.prompt_tokens, trace.output_tokens, trace.source_row)


def test_what_cannot_be_drawn_is_said():
    assert not can_resample(chat_trace(99))
    assert not can_resample(trace_of(*[(0.0, 10, 1)] * 200))
    found = recommend(chat_trace(50), STEP_TIME, TODAY, SLO, default_flags=(8192, 1024), space=SPACE)
    assert found.finalists == ()
    assert "not known" in confidence_sentences(found)[0]


def test_odds_count_each_target_and_all_of_them():
    """Four draws by hand: met; gap missed; gap and the class's TTFT missed; stalled."""
    short = ClassTarget(max_prompt_tokens=100, ttft_s=1.0)
    slo = Slo(itl_s=0.08, classes=(short,))
    met = evaluate(chat_trace(20), TODAY, STEP_TIME, Slo(itl_s=10.0))
    gap = Rejection(Reason.ITL, 0.1, 0.08, "s", 0.99)
    late = Rejection(Reason.TTFT, 2.0, 1.0, "s", 0.99, short)
    stalled = Rejection(Reason.STALLED, 3.0, 0.0, "requests")
    draws = [Candidate(TODAY, met.summary, missed) for missed in ((), (gap,), (gap, late), (stalled,))]
    together, by_target = odds(draws, slo)
    assert together == 0.25
    assert [(one.reason, one.target, one.probability) for one in by_target] == [
        (Reason.UNSTABLE, None, 0.75),
        (Reason.ITL, None, 0.5),
        (Reason.TTFT, short, 0.75),
    ]


def test_nearness_is_the_largest_share_of_a_limit():
    summary = evaluate(chat_trace(20), TODAY, STEP_TIME, SLO).summary
    candidate = Candidate(TODAY, summary, ())
    by_ttft = summary.ttft_at_percentile_s / 0.01
    assert nearness(candidate, Slo(itl_s=1e9, ttft_s=0.01, stalled_share=0.0)) == pytest.approx(by_ttft)
    assert nearness(candidate, Slo(itl_s=1e-9, ttft_s=1e9)) == pytest.approx(summary.itl_at_percentile_s / 1e-9)


@pytest.mark.parametrize("objective", list(Objective))
def test_the_choice_is_the_finalist_that_holds_most_often(objective):
    """Everything that was said of it is found again by judging each finalist by itself."""
    found = plan(objective=objective)
    assert 1 <= len(found.finalists) <= 1 + NUM_RUNNERS_UP
    for one in found.finalists:
        draws = [evaluate_draw(chat_trace(), one.engine_config, STEP_TIME, SLO, seed) for seed in range(NUM_DRAWS)]
        assert (one.together, one.by_target) == odds(draws, SLO)
    most = max(one.together for one in found.finalists)
    first = next(one for one in found.finalists if one.together == most)
    assert found.best.engine_config == first.engine_config
    assert found.probability_met == first.traffic == first.together
    assert first.step_times is None
    if len(found.finalists) == 1:
        assert first.together == 1.0 or objective in (Objective.PARETO, Objective.LOWEST_TTFT)


def test_certainty_costs_little_of_the_objective_and_every_loser_says_why():
    found = plan(objective=Objective.MOST_HEADROOM)
    assert found.best.engine_config != found.finalists[0].engine_config, "or this test shows nothing"
    by_config = {c.engine_config: c for c in found.candidates}
    least_s = by_config[found.finalists[0].engine_config].summary.itl_at_percentile_s
    assert found.best.summary.itl_at_percentile_s <= (1 + GIVES_UP) * least_s
    reasons = {c.engine_config: rejection for c, rejection in found.losers}
    assert reasons[found.finalists[0].engine_config].reason is Reason.LESS_SURE
    assert "draws" in rejection_sentence(reasons[found.finalists[0].engine_config])
    for candidate, rejection in found.losers:
        if candidate.meets:
            assert rejection.measured >= rejection.limit
    assert "most draws" in confidence_sentences(found)[-1]


def test_step_times_and_traffic_are_drawn_alone_and_together():
    draws = np.zeros((400, len(TERMS)))
    draws[:, :3] = np.array([8e-3, 60e-6, 60e-6]) * np.random.default_rng(1).normal(1.0, 0.1, (400, 3))
    model = SavedModel(STEP_TIME, (), draws, None, None, ServerFacts(), None, None, None, "by hand", None)
    found = plan(model)
    best = found.best.engine_config
    rows = np.linspace(0, 399, NUM_DRAWS).astype(int)
    drawn = [step_time_from_seconds(values) for values in draws[rows]]
    chosen = next(one for one in found.finalists if one.engine_config == best)
    both = [evaluate_draw(chat_trace(), best, one, SLO, i) for i, one in enumerate(drawn)]
    assert chosen.together == odds(both, SLO)[0]
    assert chosen.step_times == odds([evaluate(chat_trace(), best, one, SLO) for one in drawn], SLO)[0]
    alone = [evaluate_draw(chat_trace(), best, STEP_TIME, SLO, i) for i in range(NUM_DRAWS)]
    assert chosen.traffic == odds(alone, SLO)[0]
    assert found.probability_met == chosen.together
    said = confidence_sentences(found)
    assert "fitted coefficients" in said[0]
    assert "With the traffic alone" in said[1]


def test_confidence_does_not_depend_on_the_executor():
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(5) as five:
        assert plan(executor=one).finalists == plan(executor=five).finalists
