"""Where in the grid of budget and seats the targets are met, one threshold at a time."""

import numpy as np
import plotly.graph_objects as go

from app.figures import theme
from app.figures.labels import BUDGET, SEATS, answer_label, percent, percentile, three_digits, threshold
from app.figures.tradeoff import axes_of
from planner.candidates import Candidate
from planner.search import Recommendation
from planner.verdict import rejection_sentence, seconds

FLAG = "long_prefill_token_threshold"
MARK = "✓"
"""In the cells that meet every target."""


def gap_by_budget_and_seats(plan: Recommendation, tokens: int) -> go.Figure:
    """Which budgets and seats keep gaps small? A cell per setting with this threshold, tokens.

    Where a replay was stopped the cell has a cross. Where further flags were searched, they are as in the answer.
    """
    question = "Which budgets and seats keep gaps small?"
    gap, _ = axes_of(plan)
    budgets, seats = plan.space.max_num_batched_tokens, plan.space.max_num_seqs
    cells = {
        (c.engine_config.max_num_seqs, c.engine_config.max_num_batched_tokens): c
        for c in plan.candidates
        if getattr(c.engine_config, FLAG) == tokens and _others(plan, c) == _others(plan, plan.closest)
    }
    grid = [[cells.get((num_seqs, budget)) for budget in budgets] for num_seqs in seats]
    shown = np.array([[_gap_ms(cell) for cell in row] for row in grid])
    if np.isnan(shown).all():
        return theme.empty(question, "No setting with this threshold was replayed to its end.")
    about = f"threshold {threshold(tokens)}; simulated, {MARK} meets every target; empty: not tried"
    canvas = theme.figure(question, BUDGET.title, SEATS.title, about)
    names = [[f"{value:,}" for value in values] for values in (budgets, seats)]
    low, high = np.log10(np.nanmin(shown)), np.log10(np.nanmax(shown))
    ticks = [10**place for place in np.linspace(low, high, 4)]
    canvas.add_heatmap(
        x=names[0],
        y=names[1],
        z=np.log10(shown),
        text=[[_words(cell) for cell in row] for row in grid],
        texttemplate="%{text}",
        textfont={"size": 12},
        customdata=np.dstack([shown.astype(object), np.array([[_hover(plan, cell) for cell in row] for row in grid])]),
        hovertemplate="%{customdata[1]}<extra></extra>",
        hoverongaps=False,
        colorscale="Cividis_r",
        colorbar={"title": gap.unit, "tickvals": np.log10(ticks), "ticktext": [three_digits(tick) for tick in ticks]},
        xgap=2,
        ygap=2,
    )
    _add_stopped(canvas, plan, grid, names)
    _add_columns(canvas, plan, tokens, names)
    canvas.update_xaxes(type="category")
    canvas.update_yaxes(type="category")
    canvas.update_layout(height=520)
    return canvas


def _others(plan: Recommendation, candidate: Candidate) -> tuple[object, ...]:
    """The further flags."""
    return tuple(getattr(candidate.engine_config, name) for name in plan.space.searched[3:])


def _gap_ms(cell: Candidate | None) -> float:
    """What is drawn; NaN where there is no whole result."""
    return 1e3 * cell.summary.itl_at_percentile_s if cell is not None and cell.is_complete else float("nan")


def _words(cell: Candidate | None) -> str:
    """What stands in a cell."""
    gap_ms = _gap_ms(cell)
    if cell is None or gap_ms != gap_ms:
        return ""
    return f"{MARK}<br>{three_digits(gap_ms)}" if cell.meets else three_digits(gap_ms)


def _hover(plan: Recommendation, cell: Candidate | None) -> str:
    """Every figure of a cell."""
    if cell is None:
        return "not tried"
    config, own = cell.engine_config, cell.summary
    name = f"budget {config.max_num_batched_tokens:,}, seats {config.max_num_seqs:,}"
    missed = "; ".join(rejection_sentence(one) for one in cell.violations)
    if not cell.is_complete:
        return f"{name}<br>stopped early: {missed}"
    return "<br>".join(
        (
            name,
            f"gap {percentile(plan.slo.itl_percentile)} {seconds(own.itl_at_percentile_s)}, p50 "
            f"{seconds(own.itl.p50_s)}, worst {seconds(own.itl.max_s)}",
            f"stalled {seconds(own.stalled_s)}, {percent(own.stalled_share)} of the streaming time",
            f"TTFT {percentile(plan.slo.ttft_percentile)} {seconds(own.ttft_at_percentile_s)}, p50 "
            f"{seconds(own.ttft.p50_s)}",
            f"E2E p50 {seconds(own.e2e.p50_s)}, {own.output_tokens_per_s:,.0f} output tokens/s",
            f"{own.num_preemptions:,} preemptions, KV cache at most {percent(own.peak_kv_usage)} used",
            missed or "meets every target",
        )
    )


def _add_stopped(
    canvas: go.Figure, plan: Recommendation, grid: list[list[Candidate | None]], names: list[list[str]]
) -> None:
    """Say of settings that were not replayed to their end why; their cells stay empty."""
    stopped = [
        (names[0][i], names[1][k], _hover(plan, cell))
        for k, row in enumerate(grid)
        for i, cell in enumerate(row)
        if cell is not None and not cell.is_complete
    ]
    if stopped:
        x, y, about = zip(*stopped, strict=True)
        canvas.add_scatter(
            x=x,
            y=y,
            name=f"stopped early, misses a target ({len(stopped)} settings)",
            mode="markers",
            marker={"symbol": theme.MISSES.symbol, "size": 7, "color": theme.MISSES.colour},
            customdata=about,
            hovertemplate="%{customdata}<extra></extra>",
        )


def _add_columns(canvas: go.Figure, plan: Recommendation, tokens: int, names: list[list[str]]) -> None:
    """Frame the cells of the three settings of the comparison, where they have this threshold."""
    for name, candidate, look, size in (
        ("vLLM default", plan.vllm_default, theme.VLLM_DEFAULT, 40),
        ("Today", plan.today, theme.TODAY, 34),
        (answer_label(plan), plan.closest, theme.RECOMMENDED, 34),
    ):
        config = candidate.engine_config
        place = f"{config.max_num_batched_tokens:,}", f"{config.max_num_seqs:,}"
        if getattr(config, FLAG) == tokens and place[0] in names[0] and place[1] in names[1]:
            canvas.add_scatter(
                x=[place[0]],
                y=[place[1]],
                name=name,
                mode="markers",
                marker={"symbol": "square-open", "size": size, "color": look.colour, "line": {"width": 3}},
                hoverinfo="skip",
            )
