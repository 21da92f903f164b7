"""Results in words: the sentences that the screen, the command line and the exports share."""

from collections import Counter
from dataclasses import dataclass

from planner.candidates import Candidate, Reason, Rejection, Stop
from planner.capacity import Curve, Headroom, Replicas, Window
from planner.engine_config import VLLM_VERSION, EngineConfig
from planner.search import GIVES_UP, NUM_DRAWS, SEARCHED, Objective, Recommendation
from planner.slo import ClassTarget, Slo, class_in_words
from traces.requests import RequestTrace

WORTHWHILE = 0.05
"""A gain in TTFT below this share is no reason to restart a server."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer in a sentence."""

    kind: str
    """ "met", "missed" or "unstable"."""
    sentence: str
    """What a manager understands."""


def verdict(plan: Recommendation) -> Verdict:
    """Whether the targets can be met, by how much, what today's flags give, and what the answer leaves out."""
    kind, sentence = _judged(plan)
    summary = plan.closest.summary
    if summary.num_never_run:
        sentence += (
            f" {summary.num_never_run:,} of {summary.num_requests:,} requests can never run in this KV cache and "
            "context length; they are left out."
        )
    return Verdict(kind, sentence)


def _judged(plan: Recommendation) -> tuple[str, str]:
    """Kind and sentence, for the requests that can run."""
    if plan.best is not None:
        return "met", _met_sentence(plan, plan.best)
    closest = plan.closest
    if all(c.summary.outcome != "done" for c in plan.candidates):
        return "unstable", f"Stalled under every setting tried: {rejection_sentence(closest.violations[0])}."
    if all(c.summary.is_unstable for c in plan.candidates):
        load = f"offered load is at least {plan.offered_load:.2f} × capacity, and " if plan.offered_load > 1 else ""
        return "unstable", (
            f"Unstable: {load}under every setting tried the queue grows for as long as the trace lasts "
            f"(first tokens come up to {seconds(closest.summary.ttft.max_s)} late). "
            "One replica cannot carry this load; no precise latency can be given."
        )
    if plan.closed_form_budget is None and any(v.reason is Reason.ITL for v in closest.violations):
        return "missed", (
            f"Missed by every setting: a step that decodes {plan.typical_num_seqs:.0f} requests and prefills at all "
            f"takes longer than the {seconds(plan.slo.itl_s)} target (d = {seconds(plan.typical_decode_s)})."
        )
    reasons = "; ".join(rejection_sentence(v) for v in closest.violations)
    return (
        "missed",
        f"Missed by every setting tried. The closest is {flags_in_words(closest, plan.space.searched)}: {reasons}.",
    )


def _met_sentence(plan: Recommendation, best: Candidate) -> str:
    """The sentence of a met target."""
    slo, now = plan.slo, plan.today.summary
    gap = best.summary.itl_at_percentile_s
    head = f"Met: p{100 * slo.itl_percentile:g} token gap {seconds(gap)} against {seconds(slo.itl_s)} on this traffic"
    if best.summary.num_gaps == 0:
        head = "Met: every request has one output token, so there are no token gaps to judge"
    if best.engine_config == plan.today.engine_config:
        with_today = " with today's flags" if best.summary.num_gaps else "; today's flags can stay"
        return f"{head}{with_today}; {_unbeaten(plan)}."
    _, price = _gain(plan, best)
    if best.summary.itl.max_s > now.itl.max_s:
        price += f", and the worst gap grows from {seconds(now.itl.max_s)} to {seconds(best.summary.itl.max_s)}"
    if plan.today.meets:
        change = f"No need to change: at best {price}." if can_stay(plan) else f"The change gives {price}."
        with_today = f" ({seconds(now.itl_at_percentile_s)})" if now.num_gaps else ""
        return f"{head}; today's flags meet it too{with_today}. {change}"
    why = "; ".join(rejection_sentence(v) for v in plan.today.violations)
    return f"{head}; today's flags miss it ({why}). The change gives {price}."


def can_stay(plan: Recommendation) -> bool:
    """Whether today's flags meet the targets, and nothing that was tried is worth a restart."""
    if plan.best is None or not plan.today.meets:
        return False
    return plan.best.engine_config == plan.today.engine_config or _gain(plan, plan.best)[0] < WORTHWHILE


def advice(plan: Recommendation) -> str:
    """What to do with the command of a met plan."""
    assert plan.best is not None
    if plan.best.engine_config == plan.today.engine_config:
        return "Keep today's flags:"
    return "Today's flags can stay. For the small gain, change these:" if can_stay(plan) else "Change these flags:"


def _unbeaten(plan: Recommendation) -> str:
    """What the objective says of a choice, among the settings that meet the targets."""
    if is_surest(plan):
        return "nothing that the objective would prefer meets the targets as surely"
    return {
        Objective.LOWEST_TTFT: "nothing that was tried and meets the targets has a lower TTFT",
        Objective.MOST_HEADROOM: "nothing that was tried and meets the targets has smaller gaps",
        Objective.HIGHEST_THROUGHPUT: "nothing that was tried and meets the targets delivers more",
        Objective.PARETO: "nothing that was tried and meets the targets beats them in both gap and TTFT",
    }[plan.objective]


def is_surest(plan: Recommendation) -> bool:
    """Whether the choice is not the best by the objective, but holds more often."""
    return bool(plan.best and plan.finalists and plan.best.engine_config != plan.finalists[0].engine_config)


def _gain(plan: Recommendation, best: Candidate) -> tuple[float, str]:
    """What the objective gains over today's flags, as a share and in words; the price in TTFT is always said."""
    own, now, slo = best.summary, plan.today.summary, plan.slo
    sooner = 1 - own.ttft_at_percentile_s / now.ttft_at_percentile_s
    smaller = 1 - own.itl_at_percentile_s / now.itl_at_percentile_s if now.itl_at_percentile_s > 0 else 0.0
    ttft, gap, rate = (
        f"{own_words} {'as today' if own_words == now_words else f'instead of {now_words}'}"
        for own_words, now_words in (
            (seconds(own.ttft_at_percentile_s), seconds(now.ttft_at_percentile_s)),
            (seconds(own.itl_at_percentile_s), seconds(now.itl_at_percentile_s)),
            (tokens_per_s(own.output_tokens_per_s), tokens_per_s(now.output_tokens_per_s)),
        )
    )
    ttft = f"TTFT p{100 * slo.ttft_percentile:g} {ttft}"
    gap = f"a p{100 * slo.itl_percentile:g} token gap of {gap}"
    return {
        Objective.LOWEST_TTFT: (sooner, ttft),
        Objective.MOST_HEADROOM: (smaller, f"{gap}, {ttft}"),
        Objective.HIGHEST_THROUGHPUT: (own.output_tokens_per_s / now.output_tokens_per_s - 1, f"{rate}, {ttft}"),
        Objective.PARETO: (max(sooner, smaller), f"{gap}, {ttft}"),
    }[plan.objective]


def rejection_sentence(rejection: Rejection) -> str:
    """One reason in words, measured against limit."""
    if rejection.stop is not None:
        return _stop_sentence(rejection, rejection.stop)
    if rejection.reason is Reason.UNSTABLE:
        return "unstable, the queue grows for as long as the trace lasts"
    if rejection.reason is Reason.STALLED:
        return f"stalled, {rejection.measured:,.0f} requests wait for ever; latencies are those of the others"
    if rejection.reason is Reason.NO_BETTER:
        return "meets the targets, no better by the objective"
    if rejection.reason is Reason.ON_FRONT:
        return f"meets the targets, and none beats it in both gap and TTFT ({seconds(rejection.measured)})"
    if rejection.reason is Reason.BEATEN:
        return f"meets the targets, but another is no worse in gap and in TTFT ({seconds(rejection.measured)})"
    if rejection.reason is Reason.TURNS_AWAY:
        return f"meets the targets, but {rejection.measured:,.0f} requests can never run against {rejection.limit:,.0f}"
    if rejection.reason is Reason.LESS_SURE:
        missed, least = (f"{100 * share:.3g} %" for share in (rejection.measured, rejection.limit))
        return f"meets the targets, but misses one in {missed} of the draws against {least}"
    if rejection.reason is Reason.LESS_MARGIN:
        near, other = (f"{100 * share:.3g} %" for share in (rejection.measured, rejection.limit))
        return f"meets the targets, but comes to {near} of a limit against {other}"
    whose = "" if rejection.target is None else f"{class_in_words(rejection.target)}: "
    if rejection.reason is Reason.STALLED_SHARE:
        measured, limit = (f"{100 * share:.3g} %" for share in (rejection.measured, rejection.limit))
        return f"{whose}stalled {measured} of the streaming time against {limit}"
    percentile = "" if rejection.percentile is None else f"p{100 * rejection.percentile:g} "
    what = {
        Reason.ITL: f"{percentile}token gap",
        Reason.WORST_GAP: "worst token gap",
        Reason.TTFT: f"{percentile}TTFT",
        Reason.E2E: f"{percentile}E2E",
        Reason.LATER_TOKENS: f"meets the targets, but {percentile}TTFT",
        Reason.LARGER_GAPS: f"meets the targets, but {percentile}token gap",
        Reason.LESS_THROUGHPUT: "meets the targets, but",
    }[rejection.reason]
    if rejection.unit == "tokens/s":
        rate, best = tokens_per_s(rejection.measured), tokens_per_s(rejection.limit)
        if rate == best:
            return f"{what} {rejection.limit - rejection.measured:.2g} tokens/s less than {best}"
        return f"{what} {rate} against {best}"
    measured, limit = seconds(rejection.measured), seconds(rejection.limit)
    if measured == limit and rejection.measured != rejection.limit:
        measured = f"{1e3 * rejection.measured:.6g} ms"  # three digits would not show that it is above
    return f"{whose}{what} {measured} against {limit}"


def _stop_sentence(rejection: Rejection, stop: Stop) -> str:
    """The reason why a replay did not go on to its end: what is certain, and since when."""
    when = f"certain at {seconds(stop.at_s)}, where its replay was stopped"
    whose = "" if rejection.target is None else f"{class_in_words(rejection.target)}: "
    if stop.num_allowed is None:
        share, limit = (f"{100 * value:.3g} %" for value in (rejection.measured, rejection.limit))
        return f"stalled at least {share} of the streaming time against {limit}: {when}"
    limit = seconds(rejection.limit)
    if rejection.reason is Reason.WORST_GAP:
        return f"{whose}worst token gap at least {seconds(rejection.measured)} against {limit}: {when}"
    what = {Reason.ITL: "token gap", Reason.TTFT: "TTFT", Reason.E2E: "E2E"}[rejection.reason]
    percentile = "" if rejection.percentile is None else f"p{100 * rejection.percentile:g} "
    return (
        f"{whose}{percentile}{what} above {limit}: {when}; {stop.num_above:,} were above it by then, "
        f"and {stop.num_allowed:,} may be in the end"
    )


def effort(plan: Recommendation) -> str:
    """What the search went through."""
    stopped = ""
    if plan.num_stopped:
        share = f"{100 * plan.num_stopped / plan.num_replays:.0f} %"
        stopped = f", {plan.num_stopped:,} of these ({share}) stopped early because a target could no longer be met"
    return (
        f"{len(plan.candidates):,} settings tried in {plan.num_replays:,} replays (settings that provably act alike "
        f"share one){stopped}."
    )


def losers_sentence(plan: Recommendation) -> str:
    """How many of the settings tried were not chosen, by the first reason."""
    reasons = Counter(rejection.reason for _, rejection in plan.losers)
    return f"Not chosen: {', '.join(f'{num:,} {LOST_FOR[reason]}' for reason, num in reasons.most_common())}."


LOST_FOR = {
    Reason.UNSTABLE: "unstable",
    Reason.STALLED: "stalled",
    Reason.ITL: "token gap above its target",
    Reason.WORST_GAP: "worst gap above its cap",
    Reason.TTFT: "TTFT above its target",
    Reason.E2E: "E2E above its target",
    Reason.STALLED_SHARE: "stalled time above its target",
    Reason.LATER_TOKENS: "higher TTFT",
    Reason.LARGER_GAPS: "larger gaps",
    Reason.LESS_THROUGHPUT: "less throughput",
    Reason.NO_BETTER: "no better",
    Reason.ON_FRONT: "on the front as well",
    Reason.BEATEN: "beaten in gap or TTFT",
    Reason.TURNS_AWAY: "turning requests away",
    Reason.LESS_SURE: "less sure",
    Reason.LESS_MARGIN: "nearer to a limit",
}
"""Reasons in a few words, after a number of settings."""


def kv_sentence(plan: Recommendation) -> str | None:
    """What a chosen KV cache of another size asks for; None where it is today's."""
    config, today = plan.closest.engine_config, plan.today.engine_config
    if config.num_gpu_blocks == today.num_gpu_blocks:
        return None
    return (
        f"This needs a KV cache of {config.num_kv_tokens:,} tokens instead of {today.num_kv_tokens:,}: choose "
        "--gpu-memory-utilization so that vLLM prints it at start."
    )


def confidence_sentences(plan: Recommendation) -> tuple[str, ...]:
    """How often the targets hold when step times and traffic are drawn anew, and what that did to the choice."""
    if plan.best is None:
        return ()
    if not plan.finalists:
        return (
            "How sure that is, is not known: coefficients given by hand have no interval, and traffic that is short or "
            "all at once cannot be drawn anew.",
        )
    chosen = next(f for f in plan.finalists if f.engine_config == plan.best.engine_config)
    drawn = {"the fitted coefficients": chosen.step_times, "the traffic": chosen.traffic}
    known = {what: share for what, share in drawn.items() if share is not None}
    alone = "".join(f"With {what} alone: {100 * share:.0f} %. " for what, share in known.items() if len(known) > 1)
    by_target = ", ".join(
        f"{target_name(one.reason, one.target, plan.slo)} {100 * one.probability:.0f} %" for one in chosen.by_target
    )
    said = [
        f"Probability that the targets are met, with {' and '.join(known)} drawn anew: {100 * chosen.together:.0f} % "
        f"({NUM_DRAWS} draws).",
        f"{alone}Each target by itself: {by_target}.",
    ]
    said += [f"Unknown is what {what} could do: {MISSING[what]}." for what, share in drawn.items() if share is None]
    if len(plan.finalists) > 1:
        configs = {c.engine_config: c for c in plan.candidates}
        others = "; ".join(
            f"{flags_in_words(configs[f.engine_config], plan.space.searched)} {100 * f.together:.0f} %"
            for f in plan.finalists
            if f is not chosen
        )
        said.append(
            f"Among settings within {100 * GIVES_UP:.0f} % of the best by the objective, the one whose targets hold in "
            f"most draws is taken; the others: {others}."
        )
    return tuple(said)


MISSING = {
    "the fitted coefficients": "given by hand, they have no interval",
    "the traffic": "too short, or all at once, it cannot be drawn anew",
}
"""Why something was not drawn."""


def target_name(reason: Reason, target: ClassTarget | None, slo: Slo) -> str:
    """A target in a few words."""
    what = {
        Reason.UNSTABLE: "keeps up",
        Reason.STALLED: "nobody waits for ever",
        Reason.ITL: f"p{100 * slo.itl_percentile:g} token gap",
        Reason.WORST_GAP: "worst gap",
        Reason.TTFT: f"p{100 * slo.ttft_percentile:g} TTFT",
        Reason.E2E: f"p{100 * slo.e2e_percentile:g} E2E",
        Reason.STALLED_SHARE: "stalled time",
    }[reason]
    return what if target is None else f"{what} of {class_in_words(target)}"


def capacity_sentence(headroom: Headroom, replicas: Replicas, growth: float) -> str:
    """Where the targets break, and how many replicas a growth needs."""
    if headroom.met is None:
        said = "The targets are missed at every load that was tried."
    elif headroom.missed is None:
        said = f"The targets hold up to {headroom.met.load:.3g} times this load, the most that was tried."
    else:
        broken = "; ".join(rejection_sentence(v) for v in headroom.missed.candidate.violations)
        said = (
            f"The targets hold up to {headroom.met.load:.3g} times this load ({headroom.met.requests_per_s:.3g} "
            f"requests/s) and break at {headroom.missed.load:.3g} times: {broken}."
        )
    here = "this load" if growth == 1 else f"{growth:g} times this load"
    if replicas.num_replicas is None:
        return f"{said} No number of replicas that was tried meets them at {here}."
    noun = "replica meets" if replicas.num_replicas == 1 else "replicas meet"
    said += f" At {here}, {replicas.num_replicas:,} {noun} them."
    if replicas.share_confirmed < 1.0:
        said += (
            f" The routing is an estimate: {100 * replicas.share_confirmed:.3g} % of the requests went where the "
            f"replay had the fewest outstanding; over all, {replicas.mean_excess:.2g} more than that on average."
        )
    return said


def curve_sentence(curve: Curve) -> str:
    """Where waiting begins to grow faster than load, and from where on nothing can be promised."""
    loads = [point.load for point in curve.points]
    if any(point.requests_per_s != point.requests_per_s for point in curve.points):
        return "All requests arrive at one instant: another load changes nothing."
    if all(point.candidate.summary.is_unstable for point in curve.points):
        return f"The queue grows for ever from {min(loads):.3g} times this load on, the least that is drawn: unstable."
    if curve.knee is None:
        return f"No knee up to {max(loads):.3g} times this load, the most that is drawn."
    wait_s = curve.knee.candidate.summary.ttft_at_percentile_s
    said = f"The knee lies near {curve.knee.load:.3g} times this load: beyond it TTFT ({seconds(wait_s)} there) grows "
    unstable = [point.load for point in curve.points if point.candidate.summary.is_unstable]
    if unstable:
        return f"{said}faster than load. Unstable from {min(unstable):.3g} times this load on."
    return f"{said}faster than load."


def windows_sentence(windows: tuple[Window, ...]) -> str:
    """Which stretch of the trace breaks a target, the worst first."""
    broken = [window for window in windows if window.violations]
    if not broken:
        return "Every stretch of the trace meets the targets."
    worst = max(broken, key=lambda w: max(v.measured / v.limit if v.limit else 1.0 for v in w.violations))
    reasons = "; ".join(rejection_sentence(violation) for violation in worst.violations)
    return (
        f"{len(broken):,} of {len(windows):,} stretches miss a target, worst {seconds(worst.from_s)} to "
        f"{seconds(worst.until_s)} after the first arrival: {reasons}."
    )


def slo_sentence(slo: Slo, objective: Objective) -> str:
    """Targets and objective in one sentence."""
    parts = [f"p{100 * slo.itl_percentile:g} of all token gaps, pooled over requests, at most {seconds(slo.itl_s)}"]
    if slo.worst_gap_s is not None:
        parts.append(f"no gap above {seconds(slo.worst_gap_s)}")
    if slo.ttft_s is not None:
        parts.append(f"p{100 * slo.ttft_percentile:g} of TTFT at most {seconds(slo.ttft_s)}")
    if slo.e2e_s is not None:
        parts.append(f"p{100 * slo.e2e_percentile:g} of E2E at most {seconds(slo.e2e_s)}")
    if slo.stalled_share is not None:
        parts.append(f"at most {100 * slo.stalled_share:.3g} % of the streaming time stalled")
    parts += [class_sentence(target, slo) for target in slo.classes]
    goal = {
        Objective.LOWEST_TTFT: f"the lowest p{100 * slo.ttft_percentile:g} TTFT",
        Objective.MOST_HEADROOM: "the smallest gap",
        Objective.HIGHEST_THROUGHPUT: "the highest throughput",
        Objective.PARETO: "those that none beats in both gap and TTFT, of which the fewest changes are shown first",
    }[objective]
    return f"{', '.join(parts)}; among the settings that meet this, {goal}."


def class_sentence(target: ClassTarget, slo: Slo) -> str:
    """The targets of a class."""
    limits = (
        (f"p{100 * slo.itl_percentile:g} of their token gaps", target.itl_s),
        ("every gap", target.worst_gap_s),
        (f"p{100 * slo.ttft_percentile:g} of TTFT", target.ttft_s),
        (f"p{100 * slo.e2e_percentile:g} of E2E", target.e2e_s),
    )
    asked = [f"{what} at most {seconds(limit_s)}" for what, limit_s in limits if limit_s is not None]
    if target.stalled_share is not None:
        asked.append(f"at most {100 * target.stalled_share:.3g} % of their streaming time stalled")
    return f"for {class_in_words(target)} {' and '.join(asked)}"


def rules_in_force(config: EngineConfig) -> tuple[str, ...]:
    """Scheduler rules that the replay follows, in words."""
    policy = "by priority" if config.scheduling_policy == "priority" else "first come first served"
    switches = {
        "asynchronous scheduling": config.async_scheduling,
        "prefix caching": config.enable_prefix_caching,
        "chunked prefill": config.enable_chunked_prefill,
        "admission only when the whole known sequence fits (scheduler_reserve_full_isl)": (
            config.scheduler_reserve_full_isl
        ),
        "adaptive long-prefill threshold": config.long_prefill_token_threshold_adaptive,
    }
    drafts: tuple[str, ...] = ()
    if config.speculative_method is not None:
        rate = f"{100 * config.draft_acceptance_rate:.0f} % of drafts accepted in turn"
        drafts = (
            f"speculative decoding: {config.num_speculative_tokens} drafts ({config.speculative_method}), {rate}",
        )
    return (
        f"vLLM {VLLM_VERSION} V1 scheduler, {policy}",
        *(f"{name}: {'on' if is_on else 'off'}" for name, is_on in switches.items()),
        *drafts,
        "requests end on their length limit, foreseen, or on a stop token where the trace's max_tokens says so",
    )


def unseen_prefixes(trace: RequestTrace, config: EngineConfig) -> str | None:
    """What it means for the numbers that the trace does not say which prompts begin alike; None when it does."""
    if trace.prefix_hashes is not None or not config.enable_prefix_caching:
        return None
    return "The trace has no prefix hashes: no prompt is found in the prefix cache, so TTFT is an upper bound."


def not_simulated() -> tuple[str, ...]:
    """What vLLM has and the replay has not."""
    return (
        "aborted requests",
        "encoder inputs, LoRA limits, KV connectors, hybrid and Mamba caches, pipeline and data parallelism",
    )


def flags_in_words(candidate: Candidate, names: tuple[str, ...] = SEARCHED) -> str:
    """The searched flags."""
    return ", ".join(f"{FLAG_NAMES[name]} {flag_value(name, getattr(candidate.engine_config, name))}" for name in names)


FLAG_NAMES = {
    "max_num_batched_tokens": "budget",
    "max_num_seqs": "seats",
    "long_prefill_token_threshold": "threshold",
    "num_gpu_blocks": "KV blocks",
    "max_num_active_seqs": "admission cap",
    "long_prefill_token_threshold_adaptive": "adaptive threshold",
    "watermark": "watermark",
    "enable_chunked_prefill": "chunked prefill",
    "scheduling_policy": "policy",
    "async_scheduling": "async scheduling",
}
"""The flags that can be searched, as they are called in a sentence."""


def flag_value(name: str, value: str | int | float | bool | None) -> str:
    """What a searched flag is set to."""
    if name == "long_prefill_token_threshold" and value == 0:
        return "off"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return value if isinstance(value, str) else f"{value:,}"


def rate_in_words(rate_rps: float) -> str:
    """An arrival rate with three significant digits at most; "–" where all arrive at once."""
    return "–" if rate_rps != rate_rps else f"{float(f'{rate_rps:.3g}'):,g}"


def tokens_per_s(rate: float) -> str:
    """A throughput with three significant digits at most."""
    return f"{float(f'{rate:.3g}'):,g} tokens/s"


def seconds(value_s: float) -> str:
    """A duration with three significant digits at most, in the unit people say."""
    if value_s != value_s:
        return "–"
    if value_s == 0:
        return "0 s"
    # The borders lie where three digits would round up to the next unit.
    if abs(value_s) < 0.9995e-3:
        return f"{value_s * 1e6:.3g} µs"
    if abs(value_s) < 0.9995:
        return f"{value_s * 1e3:.3g} ms"
    if abs(value_s) < 999.5:
        return f"{value_s:.3g} s"
    return f"{float(f'{value_s:.3g}'):,.0f} s"
