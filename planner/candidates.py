"""One setting held against the targets: what a replay gave, and every target it misses."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from planner import kernel
from planner.early import caps, members
from planner.engine_config import EngineConfig
from planner.errors import BadFlags, BadPlan
from planner.metrics import UNSTABLE_GROWTH, Summary, distribution, e2e_s, itl_of_requests, summarise, ttft_s
from planner.replay import NO_CAPS, Replay, replay, requests_that_never_run
from planner.slo import ClassTarget, Slo, class_in_words
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
class Stop:
    """Where a replay was stopped because a target could no longer be met, whatever came."""

    at_s: float
    """Simulated time, seconds since the trace's zero."""
    num_above: int
    """Values above the limit by then; more may have followed."""
    num_allowed: int | None
    """How many may be above it for certain, of all that could have come; None = it was a share of the time."""


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
    stop: Stop | None = None
    """Where the replay was stopped for this reason: `measured` is then a lower bound. None = it went on to its end."""


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

    @property
    def is_complete(self) -> bool:
        """Whether the replay went on to its end; if not, all numbers are those so far."""
        return self.summary.outcome != "stopped"


def check_asked(trace: RequestTrace, config: EngineConfig, slo: Slo) -> None:
    """Refuse what would be met for want of requests: a trace of which none can run, and targets of none of them.

    Raises
    ------
    BadFlags, BadPlan
        None can run under `config`; a class has no members. Says what there is.
    """
    shortest = int(trace.prompt_tokens.argmin())
    if requests_that_never_run(trace, config).all():
        raise BadFlags(
            "flags",
            f"none of the {len(trace):,} requests can run: the shortest prompt has {trace.prompt_tokens[shortest]:,} "
            f"tokens, max_model_len is {config.max_model_len or 'not limited'}, and the KV cache holds "
            f"{config.num_kv_tokens:,} tokens. Give the flags of a server that can serve this trace.",
        )
    for target in slo.classes:
        if not members(trace, target).any():
            known = [] if trace.priority is None else np.unique(trace.priority)[:10].tolist()
            priorities = ", ".join(map(str, known)) or "not given"
            raise BadPlan(
                "targets",
                f"no request is among {class_in_words(target)}: prompts have {trace.prompt_tokens[shortest]:,} to "
                f"{trace.prompt_tokens.max():,} tokens, priorities are {priorities}",
            )


def evaluate(
    trace: RequestTrace,
    engine_config: EngineConfig,
    step_time: StepTime,
    slo: Slo,
    cancel: npt.NDArray[np.uint8] | None = None,
    stops_early: bool = False,
) -> Candidate:
    """Replay one setting and hold it against the targets; told so, only until one of them is missed for good."""
    given, classes = NO_CAPS, None
    if stops_early:
        given, classes = caps(trace, ~requests_that_never_run(trace, engine_config), slo)
    run = replay(trace, engine_config, step_time, caps=given, classes=classes, keeps_steps=False, cancel=cancel)
    summary = summarise(run, slo.itl_s, slo.itl_percentile, slo.ttft_percentile, slo.e2e_percentile)
    if run.outcome == "stopped":
        return Candidate(engine_config, summary, _missed_for_good(run, slo))
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


def _missed_for_good(run: Replay, slo: Slo) -> tuple[Rejection, ...]:
    """Every target that a stopped replay was certain to miss."""
    found = []
    for cap in run.caps:
        kind, is_share = cap["kind"], bool(cap["most_share"] < np.inf)
        least_share = float(cap["excess_ns"] / max(cap["sum_ns"] + float(cap["num_left"]) * cap["limit_ns"], 1.0))
        if not (least_share > cap["most_share"] if is_share else cap["num_above"] > cap["most_above"]):
            continue
        stop = Stop(run.end_s, int(cap["num_above"]), None if is_share else int(cap["most_above"]))
        place = int(cap["classes"]).bit_length() - 2
        target = slo if place < 0 else slo.classes[place]
        whose = None if isinstance(target, Slo) else target
        if is_share:
            limit = slo.stalled_share or 0.0
            found.append(Rejection(Reason.STALLED_SHARE, least_share, limit, "", stop=stop))
        elif kind == kernel.WORST_GAPS or cap["most_above"] == 0:
            longest_s, limit = float(cap["longest_ns"] / 1e9), target.worst_gap_s or 0.0
            found.append(Rejection(Reason.WORST_GAP, longest_s, limit, "s", target=whose, stop=stop))
        else:
            reason, limit, share = {
                kernel.GAPS: (Reason.ITL, slo.itl_s, slo.itl_percentile),
                kernel.FIRST_TOKENS: (Reason.TTFT, target.ttft_s or 0.0, slo.ttft_percentile),
                kernel.LAST_TOKENS: (Reason.E2E, target.e2e_s or 0.0, slo.e2e_percentile),
            }[int(kind)]
            found.append(Rejection(reason, limit, limit, "s", share, whose, stop))
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
