from dataclasses import replace

import numpy as np
import pytest

from app.figures.data import drawn_values
from app.figures.grid import MARK, gap_by_budget_and_seats
from planner.search import Recommendation


def test_every_setting_with_the_threshold_has_its_cell(plan: Recommendation) -> None:
    for tokens in plan.space.long_prefill_token_threshold:
        grid = gap_by_budget_and_seats(plan, tokens).data[0]
        assert list(grid.x) == [f"{budget:,}" for budget in plan.space.max_num_batched_tokens]
        assert list(grid.y) == [f"{seats:,}" for seats in plan.space.max_num_seqs]
        found = 0
        for candidate in plan.candidates:
            config = candidate.engine_config
            if config.long_prefill_token_threshold == tokens and f"{config.max_num_batched_tokens:,}" in grid.x:
                if f"{config.max_num_seqs:,}" not in grid.y or not candidate.is_complete:
                    continue
                place = (
                    plan.space.max_num_seqs.index(config.max_num_seqs),
                    plan.space.max_num_batched_tokens.index(config.max_num_batched_tokens),
                )
                gap_ms = 1e3 * candidate.summary.itl_at_percentile_s
                assert 10 ** grid.z[place] == pytest.approx(gap_ms)
                assert grid.text[place[0]][place[1]].startswith(MARK) == candidate.meets
                hover = grid.customdata[place][1]
                assert ("meets every target" in hover) == candidate.meets
                for part in ("gap p99", "worst", "TTFT p99", "E2E p50", "preemptions", "KV cache"):
                    assert part in hover
                found += 1
        assert found == grid.z.size - np.isnan(grid.z).sum() > 0


def test_what_was_not_replayed_to_its_end_is_empty_and_says_why(plan: Recommendation) -> None:
    first = plan.candidates[0]
    stopped = replace(first, summary=replace(first.summary, outcome="stopped"))
    cut = replace(plan, candidates=(stopped, *plan.candidates[2:]))
    canvas = gap_by_budget_and_seats(cut, first.engine_config.long_prefill_token_threshold)
    values = drawn_values(canvas)
    gap = values["ms"].isna()
    about = values[gap & values["about"].notna()]["about"]
    assert about.str.contains("stopped early|not tried").all()
    marks = next(trace for trace in canvas.data if (trace.name or "").startswith("stopped early, misses a target ("))
    assert (marks.x[0], marks.y[0]) == ("1,024", "64")
    nothing = replace(plan, candidates=())
    assert len(gap_by_budget_and_seats(nothing, 0).data) == 0


def test_the_answer_is_framed_where_it_has_the_threshold(plan: Recommendation) -> None:
    tokens = plan.closest.engine_config.long_prefill_token_threshold
    names = [trace.name for trace in gap_by_budget_and_seats(plan, tokens).data]
    assert "Recommended" in names
    other = next(t for t in plan.space.long_prefill_token_threshold if t != tokens)
    assert "Recommended" not in [trace.name for trace in gap_by_budget_and_seats(plan, other).data]
