"""How sure a choice is: judged again under the uncertainty of the step times, and under traffic drawn anew."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from planner.candidates import Candidate, Reason, evaluate
from planner.engine_config import EngineConfig
from planner.metrics import MIN_REQUESTS_TO_JUDGE_STABILITY
from planner.slo import ClassTarget, Slo
from planner.step_time import StepTime
from traces.requests import RequestTrace, SharedPrefixes

BLOCK_S = 300.0
"""Arrivals are drawn anew in blocks that last about so long, seconds, or a tenth of the span where that is less."""
LEAST_BLOCKS = 10
"""A trace is cut into at least so many."""


@dataclass(frozen=True, slots=True)
class TargetOdds:
    """How often one target holds."""

    reason: Reason
    """The target; UNSTABLE: that the engine keeps up and nobody waits for ever."""
    probability: float
    """Share of the draws in which it is met, 0–1."""
    target: ClassTarget | None = None
    """The class of requests whose target it is; None = all requests."""


@dataclass(frozen=True, slots=True)
class Confidence:
    """One setting judged again; every probability is the share of draws in which every target is met, 0–1."""

    engine_config: EngineConfig
    """The setting."""
    together: float
    """Under everything that is known to vary: step times and traffic drawn at once, or the one of them that can be."""
    by_target: tuple[TargetOdds, ...]
    """The same draws, target by target."""
    step_times: float | None = None
    """Under joint draws of the coefficients alone; None = not known, or not asked because another was chosen."""
    traffic: float | None = None
    """Under traffic drawn anew alone; None likewise."""


def can_resample(trace: RequestTrace) -> bool:
    """Whether traffic can be drawn anew: not from few requests, nor from requests that all come at once."""
    return len(trace) >= MIN_REQUESTS_TO_JUDGE_STABILITY and trace.span_s > 0.0


def resampled(trace: RequestTrace, seed: int) -> RequestTrace:
    """Draw traffic that might as well have come: blocks of consecutive arrivals, with replacement.

    Every block has the same number of requests (give or take one), each with its tokens, its prefix hashes and its
    distance from the arrival before; a busy block is a short one. What was drawn stays in the order of the trace, so
    that a rise of the load stays a rise and a conversation goes on after it began. A block that is drawn again brings
    other people with the same habits: its prefix hashes are equal among themselves and to those of blocks drawn as
    often, not to those of the first copy, which would find all of its prompts in the cache.

    Parameters
    ----------
    trace : RequestTrace
        n requests for which `can_resample`.
    seed : int
        The same seed gives the same traffic.

    Source
    ------
    H. R. Künsch, The jackknife and the bootstrap for general stationary observations, Annals of Statistics 1989.
    Differs: blocks do not overlap, and keep their order.
    """
    num_blocks = min(max(LEAST_BLOCKS, int(np.ceil(trace.span_s / BLOCK_S))), len(trace))
    cuts = np.arange(num_blocks + 1) * len(trace) // num_blocks
    drawn = np.sort(np.random.default_rng(seed).integers(0, num_blocks, num_blocks))
    index = np.concatenate([np.arange(cuts[block], cuts[block + 1]) for block in drawn])
    arrival_s = np.cumsum(np.diff(trace.arrival_s, prepend=trace.arrival_s[0])[index])
    copy = np.repeat(np.arange(num_blocks) - np.searchsorted(drawn, drawn), np.diff(cuts)[drawn])
    part = trace.at(index)
    hashes = part.prefix_hashes
    if hashes is not None:
        shared = hashes.shared
        ids = hashes.ids + np.repeat(copy * (1 + hashes.ids.max(initial=0)), np.diff(hashes.offsets))
        branch = shared.branch + np.repeat(copy * (1 + shared.branch.max(initial=0)), np.diff(shared.offsets))
        hashes = replace(hashes, ids=ids, known=SharedPrefixes(branch, shared.until, shared.offsets))
    return replace(part, arrival_s=arrival_s - arrival_s[0], prefix_hashes=hashes)


def evaluate_draw(
    trace: RequestTrace,
    engine_config: EngineConfig,
    step_time: StepTime,
    slo: Slo,
    seed: int | None,
    cancel: npt.NDArray[np.uint8] | None = None,
) -> Candidate:
    """`evaluate` under the traffic of a seed; None = the trace itself."""
    return evaluate(trace if seed is None else resampled(trace, seed), engine_config, step_time, slo, cancel)


def odds(draws: Sequence[Candidate], slo: Slo) -> tuple[float, tuple[TargetOdds, ...]]:
    """Share of the draws that meet every target, and each of them."""
    missed = [{(_kept_up(v.reason), v.target) for v in draw.violations} for draw in draws]
    asked = [(Reason.UNSTABLE, None), *_asked(slo)]
    return sum(draw.meets for draw in draws) / len(draws), tuple(
        TargetOdds(reason, sum((reason, target) not in one for one in missed) / len(draws), target)
        for reason, target in asked
    )


def _kept_up(reason: Reason) -> Reason:
    """One word for a queue that grows and a queue that stands."""
    return Reason.UNSTABLE if reason is Reason.STALLED else reason


def _asked(slo: Slo) -> list[tuple[Reason, ClassTarget | None]]:
    """Every target that is set."""
    limits = {
        Reason.ITL: slo.itl_s,
        Reason.WORST_GAP: slo.worst_gap_s,
        Reason.TTFT: slo.ttft_s,
        Reason.E2E: slo.e2e_s,
        Reason.STALLED_SHARE: slo.stalled_share,
    }
    found: list[tuple[Reason, ClassTarget | None]] = [(r, None) for r, limit in limits.items() if limit is not None]
    for one in slo.classes:
        of_class = {
            Reason.ITL: one.itl_s,
            Reason.WORST_GAP: one.worst_gap_s,
            Reason.TTFT: one.ttft_s,
            Reason.E2E: one.e2e_s,
            Reason.STALLED_SHARE: one.stalled_share,
        }
        found += [(reason, one) for reason, limit_s in of_class.items() if limit_s is not None]
    return found


def nearness(candidate: Candidate, slo: Slo) -> float:
    """How close a setting comes to the limit of all requests that it comes closest to: measured ÷ limit."""
    summary = candidate.summary
    pairs = (
        (summary.itl_at_percentile_s, slo.itl_s),
        (summary.itl.max_s, slo.worst_gap_s),
        (summary.ttft_at_percentile_s, slo.ttft_s),
        (summary.e2e_at_percentile_s, slo.e2e_s),
        (summary.stalled_share, slo.stalled_share),
    )
    # A limit of nothing stalled cannot be approached, and without gaps there is none to measure.
    return max((measured / limit for measured, limit in pairs if limit and measured == measured), default=0.0)
