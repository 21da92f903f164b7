"""When a replay may stop: what was counted so far proves that a target cannot be met, whatever comes."""

from typing import Any

import numpy as np
import numpy.typing as npt

from planner import kernel
from planner.errors import BadPlan
from planner.slo import ClassTarget, Slo
from traces.requests import RequestTrace

LONGEST_S = 1e9
"""Limits above this are no limits, seconds."""
ROUNDING_NS = 1000
"""Times since an arrival are differences of float seconds, waits in the kernel are whole nanoseconds: apart by less."""
MOST_CLASSES = 62
"""Classes of targets that a replay can count; those beyond are judged at its end."""


def caps(
    trace: RequestTrace, can_run: npt.NDArray[np.bool_], slo: Slo
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Caps for `replay`, in the order of the targets, and the classes that each request belongs to.

    Gaps are not told apart by class, so a class's targets of its gaps are judged at the end of a replay only.

    A percentile is the element at position int(share·n) of the n sorted values, so it is above the limit when at least
    n − int(share·n) values are. How many values there will be is known from above: a gap less than there are output
    tokens, one first and one last token a request. That number less never needs more of them above the limit, save one
    where share·n is rounded; that one is added.

    Parameters
    ----------
    trace : RequestTrace
        n requests.
    can_run : (n,) bool
        Those that will be replayed.
    slo : Slo

    Returns
    -------
    caps : (c,) kernel.CAP
    classes : (n,) int64
        Bit 0 for all requests, bit k + 1 for the class k of the targets.
    """
    num_gaps = int((trace.output_tokens[can_run] - 1).sum())
    num, classes = int(can_run.sum()), np.ones(len(trace), np.int64)
    share = np.inf if slo.stalled_share is None else slo.stalled_share * (1 + 1e-9)
    rows = [_cap(kernel.GAPS, 1, slo.itl_s, num_gaps, _most_above(num_gaps, slo.itl_percentile))]
    if slo.worst_gap_s is not None:
        rows.append(_cap(kernel.GAPS, 1, slo.worst_gap_s, num_gaps, 0))
    if slo.stalled_share is not None:
        # The excess counts from a nanosecond above the target on, so that it is never too large.
        rows.append(_cap(kernel.GAPS, 1, slo.itl_s + 1e-9, num_gaps, num_gaps, share))
    rows += _of_class(1, num, slo.ttft_s, slo.e2e_s, None, slo)
    for k, target in enumerate(slo.classes[:MOST_CLASSES]):
        is_member = members(trace, target) & can_run
        classes[is_member] |= 2 << k
        rows += _of_class(2 << k, int(is_member.sum()), target.ttft_s, target.e2e_s, target.worst_gap_s, slo)
    return np.array(rows, kernel.CAP), classes


def members(trace: RequestTrace, target: ClassTarget) -> npt.NDArray[np.bool_]:
    """Which requests a target is for: (n,) bool.

    Raises
    ------
    BadPlan
        It names a column or a word that the trace does not have.
    """
    is_member = trace.prompt_tokens >= target.min_prompt_tokens
    if target.max_prompt_tokens is not None:
        is_member &= trace.prompt_tokens <= target.max_prompt_tokens
    if target.priority is not None:
        is_member &= trace.priority == target.priority if trace.priority is not None else False
    if target.label is not None:
        column, word = target.label
        words = {labels.name: labels for labels in trace.labels}
        if column not in words or word not in words[column].words:
            there = "; ".join(f"{one.name} with {', '.join(one.words[:10])}" for one in trace.labels) or "none"
            raise BadPlan("targets", f"no request has {column} {word!r}; columns of words in this trace: {there}")
        is_member &= words[column].codes == words[column].words.index(word)
    return is_member


def _of_class(
    classes: int, num: int, ttft_s: float | None, e2e_s: float | None, worst_gap_s: float | None, slo: Slo
) -> list[tuple[Any, ...]]:
    """Caps on values that each of `num` requests has one of."""
    rows = []
    if ttft_s is not None:
        rows.append(_cap(kernel.FIRST_TOKENS, classes, ttft_s, num, _most_above(num, slo.ttft_percentile)))
    if e2e_s is not None:
        rows.append(_cap(kernel.LAST_TOKENS, classes, e2e_s, num, _most_above(num, slo.e2e_percentile)))
    if worst_gap_s is not None:
        rows.append(_cap(kernel.WORST_GAPS, classes, worst_gap_s, num, 0))
    return rows


def _most_above(most: int, share: float) -> int:
    """How many of at most `most` values may be above a limit without its percentile being above it for certain."""
    return max(most - int(share * most), 1)


def _cap(
    kind: int, classes: int, limit_s: float, num: int, most_above: int, most_share: float = np.inf
) -> tuple[Any, ...]:
    """A row of `kernel.CAP` for at most `num` values: the longest time in whole nanoseconds not above the limit."""
    limit_s = min(limit_s, LONGEST_S)
    limit_ns = int(limit_s * 1e9) + 2
    while limit_ns / 1e9 > limit_s:
        limit_ns -= 1
    if kind in (kernel.FIRST_TOKENS, kernel.LAST_TOKENS):
        limit_ns += ROUNDING_NS
    return kind, classes, limit_ns, most_above, 0, 0, most_share, num, 0.0, 0.0
