from dataclasses import replace

import pytest

from app.figures.budget import latency_by_budget
from planner.search import Recommendation


def test_only_the_budget_changes_along_the_curve_and_the_closed_form_is_marked(plan: Recommendation) -> None:
    canvas = latency_by_budget(plan)
    answer = plan.closest.engine_config
    gap, worst, wait = canvas.data
    for budget, gap_ms, worst_ms, wait_ms in zip(gap.x, gap.y, worst.y, wait.y, strict=True):
        changed = replace(answer, max_num_batched_tokens=int(budget))
        summary = next(c.summary for c in plan.candidates if c.engine_config == changed)
        latencies_s = summary.itl_at_percentile_s, summary.itl.max_s, summary.ttft_at_percentile_s
        assert (gap_ms, worst_ms, wait_ms) == pytest.approx([1e3 * one_s for one_s in latencies_s])
    assert list(gap.x) == sorted(gap.x)
    assert answer.max_num_batched_tokens in gap.x
    texts = [annotation.text for annotation in canvas.layout.annotations]
    assert texts == ["gap target<br>80 ms", f"closed form {plan.closed_form_budget:,}"]
    assert [t.name for t in canvas.data] == ["p99 token gap", "worst gap of any request", "p99 TTFT"]


def test_without_results_the_figure_says_so(plan: Recommendation) -> None:
    assert len(latency_by_budget(replace(plan, candidates=())).data) == 0
