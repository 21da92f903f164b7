"""What the budget alone does, the other flags being those of the answer."""

import numpy as np
import plotly.graph_objects as go

from app.figures import theme
from app.figures.labels import BUDGET, LATENCY, percentile
from planner.search import Recommendation
from planner.verdict import seconds

FLAG = "max_num_batched_tokens"


def latency_by_budget(plan: Recommendation) -> go.Figure:
    """Which budget keeps gaps at the target? Gaps and TTFT by budget, with the budget of the closed form."""
    question = "Which budget keeps gaps at the target?"
    others = [flag for flag in plan.space.searched if flag != FLAG]
    answer = plan.closest.engine_config
    along = sorted(
        (
            c
            for c in plan.candidates
            if c.is_complete
            and c.summary.num_gaps
            and all(getattr(c.engine_config, flag) == getattr(answer, flag) for flag in others)
        ),
        key=lambda c: c.engine_config.max_num_batched_tokens,
    )
    if not along:
        return theme.empty(question, "No setting beside the answer gave a token gap to draw.")
    canvas = theme.figure(question, BUDGET.title, LATENCY.title, "simulated; all other flags as in the answer")
    for name, look, values in (
        (f"{percentile(plan.slo.itl_percentile)} token gap", theme.GAP, [c.summary.itl_at_percentile_s for c in along]),
        ("worst gap of any request", theme.WORST_GAP, [c.summary.itl.max_s for c in along]),
        (f"{percentile(plan.slo.ttft_percentile)} TTFT", theme.WAIT, [c.summary.ttft_at_percentile_s for c in along]),
    ):
        canvas.add_scatter(
            x=[c.engine_config.max_num_batched_tokens for c in along],
            y=LATENCY.shown(np.array(values)),
            name=name,
            mode="lines+markers",
            line={"color": look.colour, "dash": look.dash, "width": 2},
            marker={"symbol": look.symbol, "size": 8},
            hovertemplate="budget %{x:,}: %{y:.4g} ms",
        )
    theme.add_limit(canvas, "y", plan.slo.itl_s * LATENCY.per_inside, f"gap target<br>{seconds(plan.slo.itl_s)}")
    if plan.closed_form_budget is not None:
        theme.add_limit(canvas, "x", plan.closed_form_budget, f"closed form {plan.closed_form_budget:,}")
    theme.log_axes(canvas, x=True, y=True)
    return canvas
