"""One setting held against the targets: what a replay gave, and every target it misses."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from planner.engine_config import EngineConfig
from planner.errors import BadPlan
from planner.metrics import UNSTABLE_GROWTH, Summary, distribution, e2e_s, itl_of_requests, summarise, ttft_s
from planner.replay import Replay, replay
from planner.slo import ClassTarget, Slo
from planner.step_time import StepTime
from traces.requests import RequestTrace


class Reason(StrEnum):
    """Why a candidate lost."""

    UNSTABLE = "unstable"
    """The queue grows for as long as the trace lasts."""
    STALLED = "stalled"
    """Some requests wait for ever; latencies speak of the others only."""
    ITL = "itl"
    """Pooled gaps at the percentile are above the target."""
    WORST_GAP = "worst_gap"
    """The longest gap is above its cap."""
    TTFT = "ttft"
    """TTFT at the percentile is above its target."""
    E2E = "e2e"
    """Arrival to last token at the percentile is above its target."""
    STALLED_SHARE = "stalled_share"
    """Streams stand still for a larger share of their time than is allowed."""
    LATER_TOKENS = "later_tokens"
    """It meets every target, but its TTFT at the percentile is higher than the best one's."""
    LARGER_GAPS = "larger_gaps"
    """It meets every target, but its gaps at the percentile are larger than the best one's."""
    NO_BETTER = "no_better"
    """It meets every target and is as good by the objective; another one was preferred, for fewer changes first."""
    ON_FRONT = "on_front"
    """It meets every target and none beats it in both gap and TTFT: as good a choice; measured is its TTFT."""
    BEATEN = "beaten"
    """It meets every target, but another that does has no longer gaps and no higher TTFT; measured is its TTFT."""
    LESS_THROUGHPUT = "less_throughput"
    """It meets every target, but delivers fewer tokens per second than the best one."""
    TURNS_AWAY = "turns_away"
    """It meets every target, but more requests can never run in its KV cache than under other settings."""
    LESS_SURE = "less_sure"
    """It meets every target, but in fewer draws of step times and traffic; measured is the share that misses one."""
    LESS_MARGIN = "less_margin"
    """It meets every target, but comes closer to a limit than the best one; measured is the share of that limit."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """One reason for which a candidate lost, as a measurement against a limit."""

    reason: Reason
    """Which target, or the objective."""
    measured: float
    """What the replay gave, in `unit`."""
    limit: float
    """What would have been allowed, in `unit`."""
    unit: str
    """ "s", "tokens/s", "requests", or "" for a share."""
    percentile: float | None = None
    """Percentile that `measured` is, 0–1; None when it is none."""
    target: ClassTarget | None = None
    """The class of requests whose target it is; None = all requests."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Settings with what a replay of the trace gave."""

    engine_config: EngineConfig
    """The settings."""
    summary: Summary
    """The numbers."""
    violations: tuple[Rejection, ...]
    """Targets it misses; empty when it meets all."""

    @property
    def meets(self) -> bool:
        """Whether every target is met."""
        return not self.violations


def evaluate(
    trace: RequestTrace,
    engine_config: EngineConfig,
    step_time: StepTime,
    slo: Slo,
    cancel: npt.NDArray[np.uint8] | None = None,
) -> Candidate:
    """Replay one setting and hold it against the targets."""
    run = replay(trace, engine_config, step_time, keeps_steps=False, cancel=cancel)
    summary = summarise(run, slo.itl_s, slo.itl_percentile, slo.ttft_percentile, slo.e2e_percentile)
    return Candidate(engine_config, summary, (*violations(summary, slo), *missed_by_classes(trace, run, slo)))


def violations(summary: Summary, slo: Slo) -> tuple[Rejection, ...]:
    """Every target that the numbers miss."""
    found = []
    if summary.outcome != "done":
        waiting = summary.num_requests - summary.num_never_run - summary.num_finished
        found.append(Rejection(Reason.STALLED, float(waiting), 0.0, "requests"))
    elif summary.is_unstable:
        found.append(Rejection(Reason.UNSTABLE, summary.ttft_growth, UNSTABLE_GROWTH, ""))
    found += missed_latencies(
        summary.itl_at_percentile_s,
        summary.itl.max_s,
        summary.ttft_at_percentile_s,
        summary.e2e_at_percentile_s,
        summary.stalled_share,
        slo,
    )
    return tuple(found)


def missed_by_classes(
    trace: RequestTrace, run: Replay, slo: Slo, among: npt.NDArray[np.bool_] | None = None
) -> list[Rejection]:
    """Every target of a class that its requests, or those of them that are `among` these (n,), miss."""
    can_run = ~run.never_runs if among is None else among & ~run.never_runs
    return [m for target in slo.classes for m in _missed_by_class(run, members(trace, target) & can_run, target, slo)]


def _missed_by_class(run: Replay, is_member: npt.NDArray[np.bool_], target: ClassTarget, slo: Slo) -> list[Rejection]:
    """Every target of one class that its requests miss; a class without requests misses none."""
    if not is_member.any():
        return []
    found = []
    if target.itl_s is not None or target.stalled_share is not None:
        gaps = itl_of_requests(run, is_member)
        gap_s, stalled = gaps.percentile(slo.itl_percentile), gaps.excess_share(target.itl_s or slo.itl_s)
        if target.itl_s is not None and gap_s > target.itl_s:
            found.append(Rejection(Reason.ITL, gap_s, target.itl_s, "s", slo.itl_percentile, target))
        if target.stalled_share is not None and stalled > target.stalled_share:
            found.append(Rejection(Reason.STALLED_SHARE, stalled, target.stalled_share, "", None, target))
    for reason, values_s, limit_s, percentile in (
        (Reason.WORST_GAP, run.worst_gap_s, target.worst_gap_s, None),
        (Reason.TTFT, ttft_s(run), target.ttft_s, slo.ttft_percentile),
        (Reason.E2E, e2e_s(run), target.e2e_s, slo.e2e_percentile),
    ):
        if limit_s is not None:
            values = distribution(values_s[is_member])
            measured_s = values.percentile(1.0 if percentile is None else percentile)
            # No gap is no stall, but no first or last token is no answer.
            if measured_s > limit_s or (percentile is not None and values.num == 0):
                found.append(Rejection(reason, measured_s, limit_s, "s", percentile, target))
    return found


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


def missed_latencies(
    itl_at_percentile_s: float,
    worst_gap_s: float,
    ttft_at_percentile_s: float,
    e2e_at_percentile_s: float,
    stalled_share: float,
    slo: Slo,
) -> tuple[Rejection, ...]:
    """Every target that these values (seconds, a share) miss; NaN of gaps misses none, NaN of TTFT or E2E does."""
    found = []
    if itl_at_percentile_s > slo.itl_s:
        found.append(Rejection(Reason.ITL, itl_at_percentile_s, slo.itl_s, "s", slo.itl_percentile))
    if slo.worst_gap_s is not None and worst_gap_s > slo.worst_gap_s:
        found.append(Rejection(Reason.WORST_GAP, worst_gap_s, slo.worst_gap_s, "s"))
    if slo.ttft_s is not None and not ttft_at_percentile_s <= slo.ttft_s:
        found.append(Rejection(Reason.TTFT, ttft_at_percentile_s, slo.ttft_s, "s", slo.ttft_percentile))
    if slo.e2e_s is not None and not e2e_at_percentile_s <= slo.e2e_s:
        found.append(Rejection(Reason.E2E, e2e_at_percentile_s, slo.e2e_s, "s", slo.e2e_percentile))
    if slo.stalled_share is not None and stalled_share > slo.stalled_share:
        found.append(Rejection(Reason.STALLED_SHARE, stalled_share, slo.stalled_share, ""))
    return tuple(found)
