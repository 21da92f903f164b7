"""The report of `planner inspect`: what is inside a replay, for people and as one JSON object."""

from dataclasses import asdict, dataclass
from typing import Any

from planner.inside.phases import Life, life_of
from planner.inside.recording import Share
from planner.inside.step_table import StepRow, step_table
from planner.inside.timeline import Timeline, timeline
from planner.inside.words import gap_sentence, life_sentence, named, request_name
from planner.inside.worst_gaps import WorstGap, worst_gaps
from planner.replay import Replay
from planner.verdict import seconds
from traces.requests import RequestTrace

NUM_BUCKETS = 24
"""Rows of the timeline on a terminal."""


@dataclass(frozen=True, slots=True)
class InsideReport:
    """What was asked for."""

    timeline: Timeline
    """The engine over the window."""
    gaps: tuple[WorstGap, ...]
    """The longest gaps that end in the window."""
    steps: tuple[StepRow, ...]
    """The steps around the moment asked for; empty when none was."""
    life: Life | None
    """The request asked for."""


def inside_report(
    trace: RequestTrace,
    run: Replay,
    window_s: tuple[float, float] | None = None,
    num_gaps: int = 10,
    at_s: float | None = None,
    request: int | None = None,
) -> InsideReport:
    """Look at a window, a moment and a request of a replay.

    Parameters
    ----------
    trace : RequestTrace
        The trace of `run`.
    run : Replay
    window_s : (float, float), optional
        Seconds; the whole replay if not given.
    num_gaps : int
        Most gaps.
    at_s : float, optional
        The moment whose steps are listed, seconds.
    request : int, optional
        Row of the trace.
    """
    from_s, until_s = window_s or (0.0, run.end_s)
    return InsideReport(
        timeline=timeline(run, NUM_BUCKETS, from_s, until_s),
        gaps=worst_gaps(trace, run, num_gaps, from_s, until_s),
        steps=() if at_s is None else step_table(trace, run, at_s, num_steps=11),
        life=None if request is None else life_of(trace, run, request),
    )


def report_document(trace: RequestTrace, report: InsideReport) -> dict[str, Any]:
    """The report as a JSON object; requests are data rows of the file, counted from 1."""
    view = report.timeline
    bands = ("running", "waiting", "kv_usage", "prefill_tokens", "step_s")
    document: dict[str, Any] = {
        "timeline": {
            "start_s": view.start_s.tolist(),
            "end_s": view.end_s.tolist(),
            "preemptions": view.num_preemptions.tolist(),
        }
        | {
            name: {"low": getattr(view, name).low.tolist(), "high": getattr(view, name).high.tolist()} for name in bands
        },
        "worst_gaps": [
            asdict(gap)
            | {
                "gap_s": gap.gap_s,
                "request": _row(trace, gap.request),
                "parts": dict(gap.parts),
                "culprits": _shares(trace, gap.culprits),
                "sentence": gap_sentence(trace, gap),
            }
            for gap in report.gaps
        ],
        "steps": [_step_document(trace, row) for row in report.steps],
    }
    if report.life is not None:
        life = report.life
        document["request"] = {
            "row": _row(trace, life.request),
            "sentence": life_sentence(trace, life),
            "ttft_s": life.ttft_s,
            "e2e_s": life.e2e_s,
            "phases": [asdict(phase) for phase in life.phases],
        }
    return document


def report_lines(trace: RequestTrace, report: InsideReport) -> list[str]:
    """The report for people."""
    lines = [
        "Over time (lowest–highest in each bucket; simulated)",
        "     from        running        waiting   KV use %  prefill tokens/step  preemptions",
    ]
    view = report.timeline
    for k, start_s in enumerate(view.start_s.tolist()):
        lines.append(
            f"{seconds(start_s):>9}  {_band(view, 'running', k):>13}  {_band(view, 'waiting', k):>13}  "
            f"{_band(view, 'kv_usage', k, 100.0):>9}  {_band(view, 'prefill_tokens', k):>19}  "
            f"{view.num_preemptions[k]:>11,}"
        )
    lines += ["", "Worst gaps (longest first; requests are data rows, counted from 1)"]
    for gap in report.gaps:
        others = f" and {gap.num_requests - 1:,} more" if gap.num_requests > 1 else ""
        who = f"{request_name(trace, gap.request)}{others}"
        lines.append(f"  {seconds(gap.gap_s):>8} until {gap.end_s:.3f} s, {who}: {gap_sentence(trace, gap)}")
    if not report.gaps:
        lines.append("  none: no gap between two tokens of one request ends here")
    if report.steps:
        lines += ["", "Steps"]
        lines.extend(_step_line(trace, row) for row in report.steps)
    if report.life is not None:
        lines += ["", life_sentence(trace, report.life)]
    return lines


def _band(view: Timeline, name: str, k: int, scale: float = 1.0) -> str:
    """Lowest and highest value in bucket k; one number where they agree."""
    band = getattr(view, name)
    low, high = (f"{scale * values[k]:,.0f}" for values in (band.low, band.high))
    return low if low == high else f"{low}–{high}"


def _step_line(trace: RequestTrace, row: StepRow) -> str:
    """One step."""
    parts = [f"{len(row.decoded):,} {'decode' if len(row.decoded) == 1 else 'decodes'}"]
    if row.prefilled:
        parts.append(f"{_total(row.prefilled):,} prefill tokens of {named(trace, row.prefilled)}")
    for what, shares in (("admitted", row.admitted), ("resumed", row.resumed)):
        if shares:
            hits = f" with {_total(shares):,} tokens from the prefix cache" if _total(shares) else ""
            parts.append(f"{len(shares):,} {what}{hits}")
    if row.preempted:
        parts.append(f"preempted, {_total(row.preempted):,} computed tokens lost: {named(trace, row.preempted)}")
    if row.finished:
        parts.append(f"{len(row.finished):,} finished")
    if row.held_by is not None and row.head is not None:
        parts.append(f"{row.num_waiting:,} wait, first {request_name(trace, row.head)}: {row.held_by}")
    took = seconds(row.end_s - row.start_s)
    return f"  {row.step:>7} at {row.start_s:.3f} s, {took:>7}, {row.num_free_blocks:,} blocks free: {'; '.join(parts)}"


def _total(shares: tuple[Share, ...]) -> int:
    """Tokens of all."""
    return sum(share.num_tokens for share in shares)


def _step_document(trace: RequestTrace, row: StepRow) -> dict[str, Any]:
    """One step as a JSON object."""
    shares = ("prefilled", "decoded", "admitted", "resumed", "preempted")
    return (
        asdict(row)
        | {name: _shares(trace, getattr(row, name)) for name in shares}
        | {
            "finished": [_row(trace, request) for request in row.finished],
            "head": None if row.head is None else _row(trace, row.head),
        }
    )


def _shares(trace: RequestTrace, shares: tuple[Share, ...]) -> list[dict[str, int]]:
    """Requests with their tokens."""
    return [{"request": _row(trace, share.request), "tokens": share.num_tokens} for share in shares]


def _row(trace: RequestTrace, request: int) -> int:
    """The data row of a request, counted from 1."""
    return int(trace.source_row[request]) + 1
