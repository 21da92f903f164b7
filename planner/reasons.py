"""Why the answer is what it is: what binds, which flags never act, what one notch on each would give."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from planner.candidates import Candidate, Reason
from planner.engine_config import changed_flags, flag_faults
from planner.search import SEARCHED, Objective, Recommendation
from planner.verdict import (
    flag_value,
    flags_in_words,
    is_surest,
    rejection_sentence,
    seconds,
    target_name,
    tokens_per_s,
)


def why(plan: Recommendation) -> tuple[str, ...]:
    """Which flag bounds the longest gap, what keeps the answer from being better, which flags and values do nothing."""
    return (*freeze_bound(plan), binding_constraint(plan), *no_op_flags(plan), *never_tried(plan))


def freeze_bound(plan: Recommendation) -> tuple[str, ...]:
    """Which flag keeps the longest token gap from being longer: the one whose next value lengthens it most.

    Where none does, which one would shorten it most: the flag that lengthens it may stand on the largest value tried.
    """
    by_gap = sorted(notches(plan), key=lambda notch: notch.candidate.summary.itl.max_s)
    if not plan.closest.summary.num_gaps or not by_gap:
        return ()
    shortest, longest = by_gap[0], by_gap[-1]
    worst_s, shorter_s, longer_s = (c.summary.itl.max_s for c in (plan.closest, shortest.candidate, longest.candidate))

    def instead(notch: Notch) -> str:
        here = getattr(plan.closest.engine_config, notch.flag)
        return f"{flag_value(notch.flag, notch.value)} instead of {flag_value(notch.flag, here)}"

    if longer_s > worst_s and seconds(longer_s) != seconds(worst_s):
        return (
            f"{longest.flag} bounds the longest token gap: with {instead(longest)} it is {seconds(longer_s)} "
            f"instead of {seconds(worst_s)}.",
        )
    if shorter_s < worst_s and seconds(shorter_s) != seconds(worst_s):
        return (
            f"Nothing one notch away lengthens the longest token gap of {seconds(worst_s)}; with {shortest.flag} "
            f"{instead(shortest)} it is {seconds(shorter_s)}.",
        )
    return (f"No flag acts on the longest token gap: one notch on any leaves it at {seconds(worst_s)}.",)


def binding_constraint(plan: Recommendation) -> str:
    """What keeps the answer from being better by the objective, or keeps every setting from meeting the targets."""
    best = plan.best
    if best is None:
        return _what_all_miss(plan)
    if is_surest(plan):
        return _what_is_less_sure(plan)
    slo, (better, nothing) = plan.slo, _by_objective(plan)
    chosen = ""
    if plan.objective is Objective.PARETO:
        chosen = f"People choose, out of {len(_front(plan)):,} on the front: none beats another in both gap and TTFT. "
    beside = {id(notch.candidate): notch.candidate for notch in notches(plan)}.values()
    tempting = [c for c in beside if c.violations and not c.summary.is_unstable and better(c)]
    tempting = [
        c for c in tempting if _gives(plan, c) != _gives(plan, best)
    ]  # better by what no digit shows tempts none
    if tempting:
        nearest = min(tempting, key=_overshoot)
        summary, missed = nearest.summary, nearest.violations[0]
        said = (
            f"The target binds: {flags_in_words(nearest, plan.space.searched)} would give {_gives(plan, nearest)}, "
            f"but {rejection_sentence(missed)}."
        )
        room = (plan.closed_form_budget or 0) - round(plan.typical_num_seqs)
        if missed.reason is Reason.ITL and missed.target is None and 0 < room < summary.max_step_prefill_tokens:
            said += (
                f" At {plan.typical_num_seqs:.0f} decoding, a step of more than {room:,} prefill tokens takes longer "
                f"than {seconds(slo.itl_s)}."
            )
        return chosen + said
    if best.summary.num_preemptions:
        return (
            f"{chosen}KV memory binds: {best.summary.num_preemptions:,} preemptions even under the recommended flags."
        )
    seats = best.engine_config.max_num_active_seqs or best.engine_config.max_num_seqs
    if (
        best.summary.peak_running == seats >= max(plan.space.max_num_seqs)
        and plan.objective is not Objective.MOST_HEADROOM
    ):
        return f"{chosen}Seats may bind: all {seats:,} are taken at times, and no setting that was tried has more."
    return f"{chosen}No target binds: nothing one notch away that misses one {nothing}."


def _what_is_less_sure(plan: Recommendation) -> str:
    """What the objective would have preferred, and how much less often its targets hold."""
    assert plan.best is not None
    first = plan.finalists[0]
    preferred = next(c for c in plan.candidates if c.engine_config == first.engine_config)
    chosen = next(f for f in plan.finalists if f.engine_config == plan.best.engine_config)
    return (
        f"Certainty decides: {flags_in_words(preferred, plan.space.searched)} would give {_gives(plan, preferred)}, "
        f"but meets the targets in {100 * first.together:.0f} % of draws instead of {100 * chosen.together:.0f} %."
    )


def _gives(plan: Recommendation, candidate: Candidate) -> str:
    """What a setting gives by the objective, in words."""
    slo, summary = plan.slo, candidate.summary
    return {
        Objective.MOST_HEADROOM: f"p{100 * slo.itl_percentile:g} token gap {seconds(summary.itl_at_percentile_s)}",
        Objective.HIGHEST_THROUGHPUT: tokens_per_s(summary.output_tokens_per_s),
    }.get(plan.objective, f"TTFT p{100 * slo.ttft_percentile:g} {seconds(summary.ttft_at_percentile_s)}")


def _by_objective(plan: Recommendation) -> tuple[Callable[[Candidate], bool], str]:
    """Whether a setting does better than the choice by the objective, and what none of those that miss a target does.

    The front as a whole is the answer of `Objective.PARETO`: better is what would extend it.
    """
    assert plan.best is not None
    summary = plan.best.summary
    soonest_s = min(c.summary.ttft_at_percentile_s for c in _front(plan))
    better: dict[Objective, tuple[Callable[[Candidate], bool], str]] = {
        Objective.LOWEST_TTFT: (
            lambda c: c.summary.ttft_at_percentile_s < summary.ttft_at_percentile_s,
            "would bring the first token sooner",
        ),
        Objective.MOST_HEADROOM: (
            lambda c: c.summary.itl_at_percentile_s < summary.itl_at_percentile_s,
            "would have smaller gaps",
        ),
        Objective.HIGHEST_THROUGHPUT: (
            lambda c: c.summary.output_tokens_per_s > summary.output_tokens_per_s,
            "would deliver more",
        ),
        Objective.PARETO: (
            lambda c: c.summary.ttft_at_percentile_s < soonest_s,
            "would bring the first token sooner than the front does",
        ),
    }
    return better[plan.objective]


def _front(plan: Recommendation) -> list[Candidate]:
    """The choice, and with `Objective.PARETO` what else none beats in both gap and TTFT."""
    assert plan.best is not None
    return [plan.best, *(c for c, rejection in plan.losers if rejection.reason is Reason.ON_FRONT)]


def _what_all_miss(plan: Recommendation) -> str:
    """Why no setting meets the targets: too much load, a target that nothing reaches, or targets that pull apart."""
    if all(c.summary.is_unstable for c in plan.candidates) and plan.offered_load > 1:
        return f"Load binds: at least {plan.offered_load:.2f} × capacity is offered, which no setting can carry."
    said = []
    for missed in plan.closest.violations:
        keepers = [
            c
            for c in plan.candidates
            if all((v.reason, v.target) != (missed.reason, missed.target) for v in c.violations)
        ]
        name = target_name(missed.reason, missed.target, plan.slo)
        if keepers:
            nearest = min(keepers, key=_overshoot)
            others = "; ".join(rejection_sentence(v) for v in nearest.violations)
            said.append(
                f"{flags_in_words(nearest, plan.space.searched)} meets the target of {name}, but not all: {others}"
            )
        else:
            said.append(f"nothing that was tried meets the target of {name}")
    return f"The targets bind: {'. And '.join(said)}."


def _overshoot(candidate: Candidate) -> float:
    """How far a setting is from the targets: the most of measured ÷ limit; past counting where nothing was allowed."""
    return max((v.measured / v.limit if v.limit else float("inf") for v in candidate.violations), default=0.0)


def no_op_flags(plan: Recommendation) -> tuple[str, ...]:
    """Flags of the chosen setting that never act on this trace, in words."""
    candidate = plan.best or plan.closest
    config, summary = candidate.engine_config, candidate.summary
    found = []
    runs = f"at most {summary.peak_running:,} request{'s run' if summary.peak_running != 1 else ' runs'}"
    caps = {"max_num_seqs": config.max_num_seqs, "max_num_active_seqs": config.max_num_active_seqs}
    for name, cap in caps.items():
        if cap is not None and summary.peak_running < cap:
            found.append(f"{name} {cap:,} is never reached: {runs}.")
    if summary.max_step_tokens < config.max_num_batched_tokens:
        found.append(
            f"max_num_batched_tokens {config.max_num_batched_tokens:,} is never reached: "
            f"no step carries more than {summary.max_step_tokens:,} tokens."
        )
    threshold = config.long_prefill_token_threshold
    if summary.max_step_prefill_tokens < threshold and config.speculative_method is None:
        found.append(
            f"long_prefill_token_threshold {threshold:,} never acts: "
            f"no step carries more than {summary.max_step_prefill_tokens:,} prefill tokens."
        )
    known = {c.engine_config: c.summary for c in plan.candidates}
    for name in plan.space.searched[len(SEARCHED) :]:
        others = [known.get(replace(config, **{name: value})) for value in plan.space.values(name)]
        if len(others) > 1 and all(other == summary for other in others):
            found.append(f"{name} never acts: every value that was tried gives the same numbers.")
    return tuple(found)


def never_tried(plan: Recommendation) -> tuple[str, ...]:
    """Values that were to be tried and that vLLM takes beside none of the others, in words."""
    today, configs = plan.today.engine_config, [candidate.engine_config for candidate in plan.candidates]
    found = []
    for name in plan.space.searched:
        known = {getattr(config, name) for config in configs}
        for value in plan.space.values(name):
            faults = [] if value in known else flag_faults(replace(today, **{name: value}))
            if faults:
                found.append(f"{name} {flag_value(name, value)} was not tried: {'; '.join(faults)}.")
    return tuple(found)


class Notch(NamedTuple):
    """One flag of the answer on its next lower or next higher value, the others as they are."""

    flag: str
    """Its name."""
    value: Any
    """What it is set to."""
    candidate: Candidate
    """What that gives."""

    def said(self, plan: Recommendation) -> str:
        """The change in words."""
        here = getattr(plan.closest.engine_config, self.flag)
        return f"{self.flag} {flag_value(self.flag, here)} → {flag_value(self.flag, self.value)}"


def notches(plan: Recommendation) -> tuple[Notch, ...]:
    """How sensitive the answer is: each searched flag on the next lower and the next higher value tried beside it."""
    here = plan.closest.engine_config
    found = []
    for flag in plan.space.searched:
        beside = {
            getattr(one.engine_config, flag): one
            for one in plan.candidates
            if one.is_complete and set(changed_flags(here, one.engine_config)) <= {flag}
        }
        values = sorted(beside, key=lambda value: (value is None, value))
        place = values.index(getattr(here, flag))
        near = (*values[max(place - 1, 0) : place], *values[place + 1 : place + 2])
        found += [Notch(flag, value, beside[value]) for value in near]
    return tuple(found)
