"""One setting held against the targets: what a replay gave, and every target it misses."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from planner.engine_config import EngineConfig
from planner.metrics import UNSTABLE_GROWTH, Summary, summarise
from planner.replay import replay
from planner.slo import Slo
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
    LATER_TOKENS = "later_tokens"
    """It meets every target, but its TTFT at the percentile is higher than the best one's."""
    LARGER_GAPS = "larger_gaps"
    """It meets every target, but its gaps at the percentile are larger than the best one's."""
    NO_BETTER = "no_better"
    """It meets every target and is as good by the objective; another one was preferred, for fewer changes first."""
    LESS_THROUGHPUT = "less_throughput"
    """It meets every target, but delivers fewer tokens per second than the best one."""


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
    summary = summarise(run, slo.itl_s, slo.itl_percentile, slo.ttft_percentile)
    return Candidate(engine_config, summary, violations(summary, slo))


def violations(summary: Summary, slo: Slo) -> tuple[Rejection, ...]:
    """Every target that the numbers miss."""
    found = []
    if summary.outcome != "done":
        waiting = summary.num_requests - summary.num_never_run - summary.num_finished
        found.append(Rejection(Reason.STALLED, float(waiting), 0.0, "requests"))
    elif summary.is_unstable:
        found.append(Rejection(Reason.UNSTABLE, summary.ttft_growth, UNSTABLE_GROWTH, ""))
    if summary.itl_at_percentile_s > slo.itl_s:
        found.append(Rejection(Reason.ITL, summary.itl_at_percentile_s, slo.itl_s, "s", slo.itl_percentile))
    if slo.worst_gap_s is not None and summary.itl.max_s > slo.worst_gap_s:
        found.append(Rejection(Reason.WORST_GAP, summary.itl.max_s, slo.worst_gap_s, "s"))
    if slo.ttft_s is not None and not summary.ttft_at_percentile_s <= slo.ttft_s:
        found.append(Rejection(Reason.TTFT, summary.ttft_at_percentile_s, slo.ttft_s, "s", slo.ttft_percentile))
    return tuple(found)
