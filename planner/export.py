"""A chosen configuration in the forms people start vLLM with. Nothing is decided here."""

import json
import math
from dataclasses import asdict
from typing import Any

from planner.candidates import Candidate, Rejection
from planner.engine_config import VLLM_VERSION, EngineConfig, changed_flags
from planner.search import SEARCHED, Recommendation
from planner.verdict import not_simulated, rejection_sentence, rules_in_force, verdict
from traces.requests import RequestTrace

MODEL = "MODEL"
"""Stands where the user's model belongs."""
NOT_EXPORTED = (
    "num_gpu_blocks",
    "speculative_method",
    "num_speculative_tokens",
    "draft_acceptance_rate",
)
"""vLLM finds the first out by itself; the others belong into the user's own --speculative-config."""


def serve_command(config: EngineConfig, today: EngineConfig | None = None, model: str = MODEL) -> str:
    """The `vllm serve` command line.

    Parameters
    ----------
    config : EngineConfig
    today : EngineConfig, optional
        When given, only flags that differ from it are written.
    model : str
    """
    parts = [f"vllm serve {model}"]
    for name, value in flags(config, today).items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            parts.append(f"--{option}" if value else f"--no-{option}")
        else:
            parts.append(f"--{option} {value}")
    return " \\\n  ".join(parts) if len(parts) > 3 else " ".join(parts)


def config_yaml(config: EngineConfig, model: str = MODEL) -> str:
    """A file for `vllm serve --config`."""
    lines = [f"model: {model}"]
    for name, value in flags(config).items():
        text = str(value).lower() if isinstance(value, bool) else value
        lines.append(f"{name.replace('_', '-')}: {text}")
    return "\n".join(lines) + "\n"


def flags(config: EngineConfig, today: EngineConfig | None = None) -> dict[str, bool | int | float]:
    """Flags under vLLM's names: those that differ from `today`, or the searched ones and what is not vLLM's default.

    When nothing differs from `today`, the searched ones.
    """
    changed = changed_flags(today or EngineConfig(), config)
    names = dict.fromkeys([*SEARCHED, *changed] if today is None or not changed else changed)
    values = {name: getattr(config, name) for name in names if name not in NOT_EXPORTED}
    return {name: value for name, value in values.items() if value is not None}


def plan_json(plan: Recommendation, receipt: dict[str, Any] | None = None) -> str:
    """Everything the answer stands on, as one JSON object; numbers in seconds and tokens.

    Parameters
    ----------
    plan : Recommendation
    receipt : dict, optional
        How the trace was read.
    """
    chosen = plan.best or plan.closest
    document = {
        "verdict": verdict(plan).kind,
        "sentence": verdict(plan).sentence,
        "command": serve_command(plan.best.engine_config) if plan.best else None,
        "recommended": _candidate(plan.best) if plan.best else None,
        "closest": _candidate(plan.closest),
        "today": _candidate(plan.today),
        "vllm_default": _candidate(plan.vllm_default),
        "probability_met": plan.probability_met,
        "extrapolated_share": plan.extrapolated_share,
        "closed_form_budget": plan.closed_form_budget,
        "typical_decode_s": plan.typical_decode_s,
        "typical_num_seqs": plan.typical_num_seqs,
        "offered_load": plan.offered_load,
        "slo": asdict(plan.slo),
        "objective": plan.objective.value,
        "space": asdict(plan.space),
        "losers": [_loser(candidate, rejection) for candidate, rejection in plan.losers],
        "num_replays": plan.num_replays,
        "model": {"step_time": plan.step_time._asdict(), "source": plan.model_source},
        "trace": {"digest": plan.trace_digest, "receipt": receipt},
        "simulated": {
            "vllm": VLLM_VERSION,
            "rules": list(rules_in_force(chosen.engine_config)),
            "not_simulated": list(not_simulated()),
        },
    }
    return json.dumps(without_nan(document), indent=2, sort_keys=True)


def receipt_of(trace: RequestTrace) -> dict[str, Any] | None:
    """How the trace was read, with the totals to check it by; None when no file stands behind it."""
    if trace.receipt is None:
        return None
    gaps_s = trace.arrival_s[1:2] - trace.arrival_s[:1]
    return {
        **asdict(trace.receipt),
        "first_gap_s": float(gaps_s[0]) if len(gaps_s) else None,
        "span_s": trace.span_s,
        "prompt_tokens_sum": int(trace.prompt_tokens.sum()),
        "output_tokens_sum": int(trace.output_tokens.sum()),
    }


def without_nan(value: Any) -> Any:
    """The same document with NaN and infinities as null, since JSON has neither."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _candidate(candidate: Candidate) -> dict[str, Any]:
    """Settings, numbers and missed targets."""
    return {
        "flags": asdict(candidate.engine_config),
        "summary": asdict(candidate.summary),
        "violations": [rejection_sentence(v) for v in candidate.violations],
    }


def _loser(candidate: Candidate, rejection: Rejection) -> dict[str, Any]:
    """One line of the list of losers."""
    return {
        "flags": {name: getattr(candidate.engine_config, name) for name in SEARCHED},
        "reason": rejection.reason.value,
        "measured": rejection.measured,
        "limit": rejection.limit,
        "unit": rejection.unit,
    }
