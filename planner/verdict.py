"""Results in words: the sentences that the screen, the command line and the exports share."""

from dataclasses import dataclass

from planner.candidates import Candidate, Reason, Rejection
from planner.engine_config import VLLM_VERSION, EngineConfig
from planner.search import Objective, Recommendation
from planner.slo import Slo
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
    """Whether the targets can be met, by how much, and what today's flags give."""
    if plan.best is not None:
        return Verdict("met", _met_sentence(plan, plan.best))
    closest = plan.closest
    if all(c.summary.is_unstable for c in plan.candidates):
        return Verdict(
            "unstable",
            "Unstable: under every setting tried the queue grows for as long as the trace lasts "
            f"(the last arrivals wait {seconds(closest.summary.ttft.max_s)} for their first token). "
            "One replica cannot carry this load; no precise latency can be given.",
        )
    if plan.closed_form_budget is None:
        return Verdict(
            "missed",
            f"Missed by every setting: a step that decodes {plan.typical_num_seqs:.0f} requests and prefills at all "
            f"takes longer than the {seconds(plan.slo.itl_s)} target (d = {seconds(plan.typical_decode_s)}).",
        )
    reasons = "; ".join(rejection_sentence(v) for v in closest.violations)
    return Verdict("missed", f"Missed by every setting tried. The closest is {flags_in_words(closest)}: {reasons}.")


def _met_sentence(plan: Recommendation, best: Candidate) -> str:
    """The sentence of a met target."""
    name = f"p{100 * plan.slo.itl_percentile:g} token gap"
    gap, today = best.summary.itl_at_percentile_s, plan.today.summary.itl_at_percentile_s
    head = f"Met: {name} {seconds(gap)} against {seconds(plan.slo.itl_s)} on this traffic"
    if best.engine_config == plan.today.engine_config:
        return f"{head} with today's flags; nothing that was tried is better."
    ttft, ttft_today = best.summary.ttft_at_percentile_s, plan.today.summary.ttft_at_percentile_s
    price = f"TTFT p{100 * plan.slo.ttft_percentile:g} {seconds(ttft)} instead of {seconds(ttft_today)}"
    if plan.today.meets:
        gain = 1 - ttft / ttft_today
        advice = f"The change gives {price}." if gain >= WORTHWHILE else f"No need to change: at best {price}."
        return f"{head}; today's flags meet it too ({seconds(today)}). {advice}"
    why = "; ".join(rejection_sentence(v) for v in plan.today.violations)
    return f"{head}; today's flags miss it ({why}). {price}."


def rejection_sentence(rejection: Rejection) -> str:
    """One reason in words, measured against limit."""
    if rejection.reason is Reason.UNSTABLE:
        return "unstable, the queue grows for as long as the trace lasts"
    what = {
        Reason.ITL: "token gap at the percentile",
        Reason.WORST_GAP: "worst token gap",
        Reason.TTFT: "TTFT at the percentile",
        Reason.NOT_BEST: "meets the targets, but",
    }[rejection.reason]
    if rejection.unit == "tokens/s":
        return f"{what} {rejection.measured:,.0f} tokens/s against {rejection.limit:,.0f}"
    return f"{what} {seconds(rejection.measured)} against {seconds(rejection.limit)}"


def binding_constraint(plan: Recommendation) -> str:
    """What keeps the answer from being better, in a sentence."""
    if plan.best is None:
        return "No setting meets the targets: see what the closest one misses."
    best_ttft = plan.best.summary.ttft_at_percentile_s
    tempting = [
        candidate
        for candidate, _ in plan.losers
        if candidate.violations
        and not candidate.summary.is_unstable
        and candidate.summary.ttft_at_percentile_s < best_ttft
    ]
    if tempting:
        nearest = min(tempting, key=lambda c: max(v.measured / v.limit for v in c.violations))
        return (
            f"The target binds: {flags_in_words(nearest)} would give TTFT p{100 * plan.slo.ttft_percentile:g} "
            f"{seconds(nearest.summary.ttft_at_percentile_s)}, but {rejection_sentence(nearest.violations[0])}."
        )
    if plan.best.summary.num_preemptions:
        return f"KV memory binds: {plan.best.summary.num_preemptions:,} preemptions even under the recommended flags."
    return "No target binds: nothing that misses one would bring the first token sooner."


def no_op_flags(plan: Recommendation) -> tuple[str, ...]:
    """Flags of the chosen setting that never act on this trace, in words."""
    candidate = plan.best or plan.closest
    config, summary = candidate.engine_config, candidate.summary
    found = []
    if summary.peak_running < config.max_num_seqs:
        found.append(
            f"max_num_seqs {config.max_num_seqs:,} is never reached: at most {summary.peak_running:,} requests run."
        )
    if summary.max_step_tokens < config.max_num_batched_tokens:
        found.append(
            f"max_num_batched_tokens {config.max_num_batched_tokens:,} is never reached: "
            f"no step carries more than {summary.max_step_tokens:,} tokens."
        )
    return tuple(found)


def slo_sentence(slo: Slo, objective: Objective) -> str:
    """Targets and objective in one sentence."""
    parts = [f"p{100 * slo.itl_percentile:g} of all token gaps, pooled over requests, at most {seconds(slo.itl_s)}"]
    if slo.worst_gap_s is not None:
        parts.append(f"no gap above {seconds(slo.worst_gap_s)}")
    if slo.ttft_s is not None:
        parts.append(f"p{100 * slo.ttft_percentile:g} of TTFT at most {seconds(slo.ttft_s)}")
    goal = {
        Objective.LOWEST_TTFT: f"the lowest p{100 * slo.ttft_percentile:g} TTFT",
        Objective.MOST_HEADROOM: "the smallest gap",
        Objective.HIGHEST_THROUGHPUT: "the highest throughput",
    }[objective]
    return f"{', '.join(parts)}; among the settings that meet this, {goal}."


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
        "every request ends on its length limit (output tokens = max_tokens)",
    )


def unseen_prefixes(trace: RequestTrace, config: EngineConfig) -> str | None:
    """What it means for the numbers that the trace does not say which prompts begin alike; None when it does."""
    if trace.prefix_hashes is not None or not config.enable_prefix_caching:
        return None
    return "The trace has no prefix hashes: no prompt is found in the prefix cache, so TTFT is an upper bound."


def not_simulated() -> tuple[str, ...]:
    """What vLLM has and the replay has not."""
    return (
        "stop tokens (output lengths count as foreseen), aborted requests",
        "encoder inputs, LoRA limits, KV connectors, hybrid and Mamba caches, pipeline and data parallelism",
    )


def flags_in_words(candidate: Candidate) -> str:
    """The three searched flags."""
    config = candidate.engine_config
    return (
        f"budget {config.max_num_batched_tokens:,}, seats {config.max_num_seqs:,}, "
        f"threshold {config.long_prefill_token_threshold or 'off'}"
    )


def seconds(value_s: float) -> str:
    """A duration with three significant digits at most, in the unit people say."""
    if value_s != value_s:
        return "–"
    # The borders lie where three digits would round up to the next unit.
    if abs(value_s) < 0.9995e-3:
        return f"{value_s * 1e6:.3g} µs"
    if abs(value_s) < 0.9995:
        return f"{value_s * 1e3:.3g} ms"
    if abs(value_s) < 999.5:
        return f"{value_s:.3g} s"
    return f"{value_s:,.0f} s"
