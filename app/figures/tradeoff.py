"""What smoother tokens cost in time to first token."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from app.figures import theme
from app.figures.labels import ITL, TTFT, Quantity, answer_label, percentile
from planner.candidates import Candidate
from planner.search import Recommendation
from planner.verdict import flags_in_words, seconds


@dataclass(slots=True)
class _Point:
    """Candidates with one and the same result."""

    ttft_s: float
    itl_s: float
    meets: bool
    candidate: Candidate
    num_settings: int = 1


def gap_against_ttft(plan: Recommendation) -> go.Figure:
    """What do smoother tokens cost in TTFT? One point per result, the front, and the targets."""
    question = "What do smoother tokens cost in TTFT?"
    gap, first_token = axes_of(plan)
    points = _points(plan)
    if not points:
        return theme.empty(question, "No setting gave a token gap and a first token to draw.")
    num_stopped = sum(not candidate.is_complete for candidate in plan.candidates)
    left_out = f"; {num_stopped:,} settings stopped early, which miss a target, are not drawn" if num_stopped else ""
    canvas = theme.figure(question, first_token.title, gap.title, f"simulated, one point per result{left_out}")
    for name, meets, look in (("misses a target", False, theme.MISSES), ("meets every target", True, theme.MEETS)):
        these = [p for p in points if p.meets == meets]
        canvas.add_scatter(
            x=first_token.shown(np.array([p.ttft_s for p in these])),
            y=gap.shown(np.array([p.itl_s for p in these])),
            name=f"{name} ({sum(p.num_settings for p in these)} settings)",
            mode="markers",
            marker={"color": look.colour, "symbol": look.symbol, "size": 8, "line": {"width": 2, "color": look.colour}},
            customdata=[[_hover(plan, p), *_flags(plan, p.candidate)] for p in these],
            hovertemplate="%{customdata[0]}<extra></extra>",
        )
    front = _front(points)
    canvas.add_scatter(
        x=first_token.shown(np.array([p.ttft_s for p in front])),
        y=gap.shown(np.array([p.itl_s for p in front])),
        name="front: none is better in both",
        mode="lines",
        line={"color": theme.MEETS.colour, "width": 1, "shape": "hv"},
        hoverinfo="skip",
    )
    _add_columns(canvas, plan)
    _add_targets(canvas, plan)
    theme.log_axes(canvas, x=True, y=True)
    canvas.update_layout(height=520)
    return canvas


def axes_of(plan: Recommendation) -> tuple[Quantity, Quantity]:
    """The two quantities, with the percentiles of the targets in their names."""
    gap = Quantity(f"{ITL.name}, {percentile(plan.slo.itl_percentile)}", ITL.unit, ITL.per_inside)
    first_token = Quantity(f"{TTFT.name}, {percentile(plan.slo.ttft_percentile)}", TTFT.unit, TTFT.per_inside)
    return gap, first_token


def _points(plan: Recommendation) -> list[_Point]:
    """Candidates by result; those without a number, or with that of a part only, are left out."""
    by_result: dict[tuple[float, float, bool], _Point] = {}
    for candidate in plan.candidates:
        ttft_s, itl_s = candidate.summary.ttft_at_percentile_s, candidate.summary.itl_at_percentile_s
        if not (candidate.is_complete and ttft_s > 0 and itl_s > 0):
            continue
        key = (ttft_s, itl_s, candidate.meets)
        if key in by_result:
            by_result[key].num_settings += 1
        else:
            by_result[key] = _Point(ttft_s, itl_s, candidate.meets, candidate)
    return list(by_result.values())


def candidate_at(plan: Recommendation, customdata: Sequence[object]) -> Candidate | None:
    """The setting behind a point of `gap_against_ttft`, from the point's `customdata`; None if there is none.

    Parameters
    ----------
    plan : Recommendation
        The plan that was drawn.
    customdata : sequence
        As the browser sends it back: words, then the searched flags.
    """
    drawn = (*plan.candidates, plan.closest, plan.today, plan.vllm_default)
    return next((candidate for candidate in drawn if _flags(plan, candidate) == tuple(customdata[1:])), None)


def _flags(plan: Recommendation, candidate: Candidate) -> tuple[int | float | str | None, ...]:
    """The flags that tell settings apart."""
    return tuple(getattr(candidate.engine_config, flag) for flag in plan.space.searched)


def _hover(plan: Recommendation, point: _Point) -> str:
    """What the pointer shows."""
    more = f"<br>and {point.num_settings - 1} more settings with this result" if point.num_settings > 1 else ""
    flags = flags_in_words(point.candidate, plan.space.searched)
    return f"{flags}<br>gap {seconds(point.itl_s)}, TTFT {seconds(point.ttft_s)}{more}"


def _front(points: list[_Point]) -> list[_Point]:
    """Points that no other beats in both, by growing TTFT."""
    front: list[_Point] = []
    for point in sorted(points, key=lambda p: (p.ttft_s, p.itl_s)):
        if not front or point.itl_s < front[-1].itl_s:
            front.append(point)
    return front


def _add_columns(canvas: go.Figure, plan: Recommendation) -> None:
    """The three settings of the comparison, marked."""
    gap, first_token = axes_of(plan)
    # From the largest to the smallest, so that none hides another with the same result.
    marked: tuple[tuple[str, Candidate, theme.Look, int], ...] = (
        ("vLLM default", plan.vllm_default, theme.VLLM_DEFAULT, 20),
        ("Today", plan.today, theme.TODAY, 12),
        (answer_label(plan), plan.closest, theme.RECOMMENDED, 12),
    )
    for name, candidate, look, size in marked:
        summary = candidate.summary
        canvas.add_scatter(
            x=first_token.shown(np.array([summary.ttft_at_percentile_s])),
            y=gap.shown(np.array([summary.itl_at_percentile_s])),
            name=name,
            mode="markers",
            marker={
                "color": look.colour,
                "symbol": look.symbol,
                "size": size,
                "line": {"width": 2, "color": look.colour},
            },
            customdata=[[f"{name}: {flags_in_words(candidate, plan.space.searched)}", *_flags(plan, candidate)]],
            hovertemplate="%{customdata[0]}<extra></extra>",
        )


def _add_targets(canvas: go.Figure, plan: Recommendation) -> None:
    """Lines that a setting must stay below and left of."""
    theme.add_limit(canvas, "y", plan.slo.itl_s * ITL.per_inside, f"gap target<br>{seconds(plan.slo.itl_s)}")
    if plan.slo.ttft_s is not None:
        theme.add_limit(canvas, "x", plan.slo.ttft_s * TTFT.per_inside, f"TTFT target {seconds(plan.slo.ttft_s)}")
