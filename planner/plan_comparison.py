"""Two plans side by side: what they stand on, and what they say."""

from dataclasses import asdict, dataclass, fields
from typing import Any

from planner.candidates import Candidate
from planner.engine_config import EngineConfig
from planner.plan_file import SavedPlan
from planner.search import MORE, SEARCHED, SearchSpace
from planner.verdict import flag_value, seconds, tokens_per_s
from traces.answers import NO_ANSWERS
from traces.selection import selection_sentence

Value = str | int | float | bool | None
"""What stands in a row: text, a number in the row's unit, a switch, or nothing."""


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that both plans have."""

    name: str
    """What it is."""
    first: Value
    """In the first plan."""
    second: Value
    """In the second."""
    unit: str = ""
    """ "s", "tokens/s", "× capacity", "share" (0–1) of a number; "yes or no" of a fact; "" for text, counts, flags."""

    @property
    def differs(self) -> bool:
        """Whether the plans disagree; two NaN do not."""
        return repr(self.first) != repr(self.second)


@dataclass(frozen=True, slots=True)
class PlanComparison:
    """Two plans side by side."""

    inputs: tuple[Row, ...]
    """What they stand on."""
    answers: tuple[Row, ...]
    """What they say."""

    @property
    def changed_inputs(self) -> tuple[Row, ...]:
        """Inputs in which they differ."""
        return tuple(row for row in self.inputs if row.differs)


def compare_plans(first: SavedPlan, second: SavedPlan) -> PlanComparison:
    """Put two plans side by side, row by row."""
    return PlanComparison(
        inputs=_rows(_inputs(first), _inputs(second)),
        answers=_rows(_answers(first), _answers(second)),
    )


def inputs_sentence(compared: PlanComparison) -> str:
    """Whether the difference of the answers has a cause in the inputs."""
    names = [row.name for row in compared.changed_inputs]
    if not names:
        return "Both plans stand on the same inputs."
    return f"The plans stand on different inputs: {', '.join(names)}."


def value_in_words(value: Value, unit: str) -> str:
    """One cell as people read it."""
    if value is None or value != value:
        return "–"
    if isinstance(value, bool):
        return ("yes" if value else "no") if unit == "yes or no" else "on" if value else "off"
    if isinstance(value, str):
        return value
    if unit == "s":
        return seconds(value)
    if unit == "tokens/s":
        return tokens_per_s(value)
    if unit == "share":
        return f"{100 * value:.3g} %"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3g} {unit}".rstrip()


def _rows(first: list[tuple[str, Value, str]], second: list[tuple[str, Value, str]]) -> tuple[Row, ...]:
    """The same rows of both plans."""
    return tuple(Row(name, one, other, unit) for (name, one, unit), (_, other, _) in zip(first, second, strict=True))


def _inputs(saved: SavedPlan) -> list[tuple[str, Value, str]]:
    """What a plan stands on: name, value, unit."""
    plan, trace = saved.recommendation, saved.trace
    today = plan.today.engine_config
    given = [f"{name} {value}" for name, value in asdict(trace.answers).items() if value != getattr(NO_ANSWERS, name)]
    return [
        ("planner", saved.product_version, ""),
        ("vLLM simulated", saved.vllm_version, ""),
        ("trace file", trace.name, ""),
        ("trace digest", trace.digest[:12], ""),
        ("part of it", selection_sentence(trace.selection), ""),
        ("requests", trace.num_requests, ""),
        ("span of arrivals", trace.span_s, "s"),
        ("said about the file", ", ".join(given) or None, ""),
        ("step times from", saved.model.source, ""),
        *((f"step time {name}", value, "") for name, value in plan.step_time._asdict().items()),
        ("target", saved.words.target, ""),
        *((f"today {f.name}", getattr(today, f.name), "") for f in fields(EngineConfig)),
        *((f"searched {name}", _searched(plan.space, name), "") for name in (*SEARCHED, *MORE)),
    ]


def _searched(space: SearchSpace, name: str) -> str | None:
    """The values tried for a flag; None where it was not searched."""
    return ", ".join(flag_value(name, value) for value in space.values(name)) or None


def _answers(saved: SavedPlan) -> list[tuple[str, Value, str]]:
    """What a plan says: name, value, unit."""
    plan = saved.recommendation
    return [
        ("verdict", saved.words.verdict, ""),
        ("sentence", saved.words.sentence, ""),
        *((name, getattr(plan.best.engine_config, name) if plan.best else None, "") for name in (*SEARCHED, *MORE)),
        ("probability that targets are met", plan.probability_met, "share"),
        ("steps outside the calibrated range", plan.extrapolated_share, "share"),
        ("offered load", plan.offered_load, "× capacity"),
        *_numbers("recommended", plan.best),
        *_numbers("today", plan.today),
        *_numbers("vLLM default", plan.vllm_default),
    ]


def _numbers(name: str, candidate: Candidate | None) -> list[tuple[str, Value, str]]:
    """The numbers of one setting; nothing where there is none."""
    summary = None if candidate is None else candidate.summary
    measures: list[tuple[str, Any, str]] = [
        ("ITL p50, pooled gaps", lambda s: s.itl.p50_s, "s"),
        ("ITL at the target's percentile", lambda s: s.itl_at_percentile_s, "s"),
        ("worst gap", lambda s: s.itl.max_s, "s"),
        ("stalled time", lambda s: s.stalled_s, "s"),
        ("TTFT p50", lambda s: s.ttft.p50_s, "s"),
        ("TTFT at the target's percentile", lambda s: s.ttft_at_percentile_s, "s"),
        ("E2E p50", lambda s: s.e2e.p50_s, "s"),
        ("output", lambda s: s.output_tokens_per_s, "tokens/s"),
        ("preemptions", lambda s: s.num_preemptions, ""),
        ("unstable", lambda s: s.is_unstable, "yes or no"),
    ]
    return [(f"{name}: {what}", None if summary is None else of(summary), unit) for what, of, unit in measures]
