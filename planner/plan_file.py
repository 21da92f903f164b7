"""The plan file: a recommendation with everything it stands on, as JSON that opens again to the same."""

import hashlib
import json
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from planner.candidates import Candidate, Rejection
from planner.command import serve_command
from planner.confidence import Confidence
from planner.engine_config import VLLM_VERSION, EngineConfig, changed_flags
from planner.errors import BadPlan
from planner.json_values import from_json, to_json
from planner.metrics import Summary
from planner.reasons import why
from planner.search import SEARCHED, Objective, Recommendation, SearchSpace, in_order
from planner.slo import Slo
from planner.step_time import Coefficient, Covered, Model, StepTime
from planner.verdict import (
    confidence_sentences,
    not_simulated,
    rules_in_force,
    slo_sentence,
    unseen_prefixes,
    verdict,
)
from traces.answers import NO_ANSWERS, ReadAnswers
from traces.receipt import Receipt
from traces.requests import WHOLE, RequestTrace, Selection

PLAN_VERSION = 1
"""Version of the plan file; other versions are refused. A new field with a default needs no new version."""
DISTRIBUTION = "vllm-capacity-planner"
"""The product's name as installed."""


@dataclass(frozen=True, slots=True)
class TraceOrigin:
    """The traffic that was planned for, and how it was read."""

    name: str
    """File, as the user named it."""
    digest: str
    """Digest of the trace replayed."""
    num_requests: int
    """Requests."""
    span_s: float
    """First arrival to last, seconds."""
    first_gap_s: float | None
    """Between the two earliest arrivals, seconds: shows a wrong time unit at once; None for a single request."""
    prompt_tokens_sum: int
    """Over all requests."""
    output_tokens_sum: int
    """Over all requests."""
    hash_block_tokens: int | None
    """Prompt tokens per prefix hash; None when it does not say which prompts begin alike."""
    answers: ReadAnswers
    """What the user said about the file."""
    receipt: Receipt | None
    """How the file was read; None when no file stands behind the trace."""
    selection: Selection = WHOLE
    """Which part of the file was planned for."""

    @property
    def requests_per_s(self) -> float:
        """Mean arrival rate; NaN when all arrive at once."""
        return (self.num_requests - 1) / self.span_s if self.span_s else float("nan")


@dataclass(frozen=True, slots=True)
class ModelOrigin:
    """Where the step times come from."""

    source: str
    """File, or that they were given by hand."""
    digest: str | None
    """The step log's digest; None without one."""
    coefficients: tuple[Coefficient, ...]
    """Terms with their intervals; empty when given by hand."""
    covered: Covered | None
    """Range of work that the log spans; None when given by hand."""


@dataclass(frozen=True, slots=True)
class Words:
    """What was said of the plan when it was made."""

    verdict: str
    """ "met", "missed" or "unstable"."""
    sentence: str
    """The verdict."""
    target: str
    """Targets and objective."""
    why: tuple[str, ...]
    """What binds, which flags never act, what the numbers leave open."""
    rules: tuple[str, ...]
    """Scheduler rules in force."""
    not_simulated: tuple[str, ...]
    """What vLLM has and the replay has not."""
    command: str | None
    """The `vllm serve` line in full; None when nothing meets the targets."""


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """A recommendation with everything it stands on."""

    product_version: str
    """Of this planner, when the plan was made."""
    vllm_version: str
    """Of the scheduler that was simulated."""
    trace: TraceOrigin
    """The traffic."""
    model: ModelOrigin
    """The step times."""
    words: Words
    """What was said."""
    recommendation: Recommendation
    """The answer."""


def save_plan(
    plan: Recommendation,
    trace: RequestTrace,
    model: Model,
    *,
    trace_name: str = "",
    answers: ReadAnswers = NO_ANSWERS,
) -> SavedPlan:
    """Put a recommendation together with what it stands on.

    Parameters
    ----------
    plan : Recommendation
    trace : RequestTrace
        The one it was made for.
    model : Model
        As given to `recommend`.
    trace_name : str
        File of the trace, where it has no receipt.
    answers : ReadAnswers
        What the user said about that file.
    """
    logged = None if isinstance(model, StepTime) else model
    return SavedPlan(
        product_version=product_version(),
        vllm_version=VLLM_VERSION,
        trace=trace_origin(trace, trace_name, answers),
        model=ModelOrigin(
            source=plan.model_source,
            digest=None if logged is None else logged.digest,
            coefficients=() if logged is None else logged.coefficients,
            covered=None if logged is None else logged.covered,
        ),
        words=_words(plan, trace),
        recommendation=plan,
    )


def trace_origin(trace: RequestTrace, name: str = "", answers: ReadAnswers = NO_ANSWERS) -> TraceOrigin:
    """What a result says of its traffic; `name` where no receipt has it."""
    gaps_s = trace.arrival_s[1:2] - trace.arrival_s[:1]
    return TraceOrigin(
        name=name if trace.receipt is None else trace.receipt.file_name,
        digest=trace.digest,
        num_requests=len(trace),
        span_s=trace.span_s,
        first_gap_s=float(gaps_s[0]) if len(gaps_s) else None,
        prompt_tokens_sum=int(trace.prompt_tokens.sum()),
        output_tokens_sum=int(trace.output_tokens.sum()),
        hash_block_tokens=None if trace.prefix_hashes is None else trace.prefix_hashes.block_tokens,
        answers=answers,
        receipt=trace.receipt,
        selection=trace.selection,
    )


def _words(plan: Recommendation, trace: RequestTrace) -> Words:
    """Everything that is said about a plan."""
    config = plan.closest.engine_config
    found, unseen = verdict(plan), unseen_prefixes(trace, config)
    return Words(
        verdict=found.kind,
        sentence=found.sentence,
        target=slo_sentence(plan.slo, plan.objective),
        why=(
            *why(plan),
            *confidence_sentences(plan),
            *(() if unseen is None else (unseen,)),
        ),
        rules=rules_in_force(config),
        not_simulated=not_simulated(),
        command=serve_command(plan.best.engine_config) if plan.best else None,
    )


def product_version() -> str:
    """Version of this planner; "not installed" when it runs from its sources alone."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "not installed"


def write_plan(saved: SavedPlan) -> str:
    """Write a plan file: one JSON object, seconds, tokens and nanoseconds as named, NaN as null."""
    plan, words = saved.recommendation, saved.words
    document = {
        "version": PLAN_VERSION,
        "planner": saved.product_version,
        "verdict": words.verdict,
        "sentence": words.sentence,
        "target": words.target,
        "why": words.why,
        "command": words.command,
        "recommended": _candidate(plan.best) if plan.best else None,
        "closest": _candidate(plan.closest),
        "today": _candidate(plan.today),
        "vllm_default": _candidate(plan.vllm_default),
        "losers": [_loser(candidate, rejection, plan.today.engine_config) for candidate, rejection in plan.losers],
        **{name: getattr(plan, name) for name in NUMBERS},
        "num_stopped": plan.num_stopped,
        "slo": plan.slo,
        "finalists": plan.finalists,
        "objective": plan.objective,
        "space": plan.space,
        "model": {"step_time": plan.step_time, **to_json(saved.model)},
        "trace": saved.trace,
        "simulated": {"vllm": saved.vllm_version, "rules": words.rules, "not_simulated": words.not_simulated},
    }
    written = to_json(document)
    return json.dumps(written | {"digest": _digest(written)}, indent=2, sort_keys=True) + "\n"


def _digest(document: dict[str, Any]) -> str:
    """Digest of what a plan file says, but for the digest itself; how numbers and lines are spaced is no matter."""
    told = json.loads(json.dumps({n: v for n, v in document.items() if n != "digest"}), parse_int=float)
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


NUMBERS = {
    "closed_form_budget": int | None,
    "typical_decode_s": float,
    "typical_num_seqs": float,
    "probability_met": float | None,
    "extrapolated_share": float | None,
    "offered_load": float,
    "num_replays": int,
}
"""Fields of `Recommendation` that stand at the top of the file."""


def _candidate(candidate: Candidate) -> dict[str, Any]:
    """Settings, numbers and missed targets."""
    return {"flags": candidate.engine_config, "summary": candidate.summary, "violations": candidate.violations}


def _loser(candidate: Candidate, rejection: Rejection, today: EngineConfig) -> dict[str, Any]:
    """The searched flags, why it lost, and its numbers; flags that are not named are today's."""
    config = candidate.engine_config
    flags = {name: getattr(config, name) for name in (*SEARCHED, *changed_flags(today, config))}
    return {**_candidate(candidate), "flags": flags, **to_json(rejection)}


def open_plan(path: str) -> SavedPlan:
    """Read a plan file from disk; raises `BadPlan` as `read_plan` does."""
    try:
        return read_plan(Path(path).read_text(encoding="utf-8"), path)
    except (OSError, UnicodeDecodeError) as fault:
        raise BadPlan(path, f"cannot be read: {fault}. {_WRITTEN_BY}") from fault


def read_plan(text: str, file_name: str = "plan file") -> SavedPlan:
    """Read a plan file; writing it again gives the same bytes.

    Parameters
    ----------
    text : str
        What `write_plan` wrote.
    file_name : str
        As the user named it, for messages.

    Raises
    ------
    BadPlan
        Not such a file, of another version, incomplete or edited; lists every fault.
    """
    try:
        document = json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        raise BadPlan(file_name, f"not JSON ({error}). {_WRITTEN_BY}") from None
    if not isinstance(document, dict) or "version" not in document or "recommended" not in document:
        raise BadPlan(file_name, f'JSON without "version" and "recommended". {_WRITTEN_BY}')
    if document["version"] != PLAN_VERSION:
        raise BadPlan(
            file_name,
            f"version: found {document['version']!r}; allowed: {PLAN_VERSION}. "
            f"Planner {document.get('planner')!r} wrote it, this is {product_version()}; open it with that one.",
        )
    faults: list[str] = []
    saved = _saved_plan(document, faults)
    if saved is not None and not faults:
        told = {name: value for name, value in document.items() if name != "digest"}
        faults = _differences(told, json.loads(write_plan(saved)), "")
        if not faults and document.get("digest") not in (None, _digest(document)):  # older releases wrote none
            faults = ["digest: not that of what the file says, so something in it was changed after it was written"]
    if saved is None or faults:
        raise BadPlan(file_name, "\n".join(faults))
    return saved


_WRITTEN_BY = "A plan file is what `planner plan -o` and the Export page write."


def _refuse(word: str) -> None:
    """Refuse NaN and its kin, which Python reads though JSON has none of them."""
    raise ValueError(f"{word} is no JSON")


def _saved_plan(document: dict[str, Any], faults: list[str]) -> SavedPlan | None:
    """Put a plan together from its file; None and faults when a part is broken."""

    def take(kind: Any, name: str, within: Any = document) -> Any:
        if isinstance(within, dict) and name in within:
            return from_json(kind, within[name], name, faults)
        faults.append(f"{name!r} is missing")
        return None

    model = dict(document["model"]) if isinstance(document.get("model"), dict) else {}
    simulated = document.get("simulated")
    step_time = take(StepTime, "step_time", model)
    numbers = {name: take(kind, name) for name, kind in NUMBERS.items()}
    known = _Candidates(document, faults)
    words = Words(
        take(str, "verdict"),
        take(str, "sentence"),
        take(str, "target"),
        take(tuple[str, ...], "why"),
        take(tuple[str, ...], "rules", simulated),
        take(tuple[str, ...], "not_simulated", simulated),
        take(str | None, "command"),
    )
    model.pop("step_time", None)
    origin = from_json(ModelOrigin, model, "model", faults)
    trace = take(TraceOrigin, "trace")
    rest = {"slo": take(Slo, "slo"), "objective": take(Objective, "objective"), "space": take(SearchSpace, "space")}
    finalists = from_json(tuple[Confidence, ...], document.get("finalists", []), "finalists", faults)
    num_stopped = from_json(int, document.get("num_stopped", 0), "num_stopped", faults)
    versions = take(str, "planner"), take(str, "vllm", simulated)
    if faults:
        return None
    recommendation = Recommendation(
        **known.parts,
        **numbers,
        **rest,
        finalists=finalists,
        num_stopped=num_stopped,
        step_time=step_time,
        model_source=origin.source,
        trace_digest=trace.digest,
    )
    return SavedPlan(*versions, trace=trace, model=origin, words=words, recommendation=recommendation)


class _Candidates:
    """The settings of a plan file, each of them once, however often the file names it."""

    def __init__(self, document: dict[str, Any], faults: list[str]) -> None:
        self.document, self.faults = document, faults
        self.known: dict[EngineConfig, Candidate] = {}
        self.parts: dict[str, Any] = {}
        today = self.named("today")
        best = None if document["recommended"] is None else self.named("recommended")
        losers = self.losers(today.engine_config) if today is not None else ()
        others = {name: self.named(name) for name in ("closest", "vllm_default")}
        if faults:
            return
        everybody = in_order([*([] if best is None else [best]), *(candidate for candidate, _ in losers)])
        self.parts = {"best": best, "today": today, "losers": losers, "candidates": everybody, **others}
        for name, one in {"today": today, **others}.items():
            if one not in everybody:
                faults.append(f"{name}: its flags are among neither the losers nor the recommended")

    def named(self, name: str) -> Candidate | None:
        """One that stands in the file by itself."""
        return self.take(self.document.get(name), name, None)

    def losers(self, today: EngineConfig) -> tuple[tuple[Candidate, Rejection], ...]:
        """Those with the reason they lost."""
        rows = self.document.get("losers")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            self.faults.append("losers: allowed: a list of objects")
            return ()
        found = []
        for i, row in enumerate(rows):
            reason = {n: item for n, item in row.items() if n not in ("flags", "summary", "violations")}
            rejection = from_json(Rejection, reason, f"losers[{i}]", self.faults)
            candidate = self.take(row, f"losers[{i}]", today)
            if candidate is not None:
                found.append((candidate, rejection))
        return tuple(found)

    def take(self, value: Any, where: str, today: EngineConfig | None) -> Candidate | None:
        """One candidate; flags that are not there are today's."""
        if not isinstance(value, dict):
            self.faults.append(f"{where}: allowed: an object with flags, summary and violations")
            return None
        given = value.get("flags")
        if today is not None and isinstance(given, dict):
            given = {**to_json(today), **given}
        config = from_json(EngineConfig, given, f"{where}.flags", self.faults)
        summary = from_json(Summary, value.get("summary"), f"{where}.summary", self.faults)
        missed = from_json(tuple[Rejection, ...], value.get("violations"), f"{where}.violations", self.faults)
        if config is None or summary is None or missed is None:
            return None
        return self.known.setdefault(config, Candidate(config, summary, missed))


def _differences(found: Any, expected: Any, where: str) -> list[str]:
    """Where a file says something else than its own numbers give: it was edited, or has parts that nobody knows."""
    if found == expected:
        return []
    if isinstance(found, dict) and isinstance(expected, dict):
        faults = []
        for name, value in found.items():
            place = f"{where}.{name}".lstrip(".")
            faults += _differences(value, expected[name], place) if name in expected else [f"{place}: not known"]
        return faults
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        pairs = enumerate(zip(found, expected, strict=True))
        return [fault for i, (one, other) in pairs for fault in _differences(one, other, f"{where}[{i}]")]
    return [f"{where}: found {json.dumps(found)[:60]}; the rest of the file gives {json.dumps(expected)[:60]}"]
