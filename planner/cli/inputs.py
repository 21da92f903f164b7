"""What the options say, as the planner's own types: files are read here, and what makes no sense is refused."""

import argparse
from dataclasses import asdict, fields
from pathlib import Path

from planner.acting import flags_sentence
from planner.align import Alignment, align_whole, alignment_sentence, difference_sentence
from planner.calibrate import fit_step_time
from planner.cli.options import BY_HAND_MS
from planner.cli.outputs import say
from planner.engine_config import DRAFTERS, EngineConfig, default_flags, flags_from_facts
from planner.errors import BadPlan
from planner.slo import ClassTarget, Slo, read_class_target
from planner.step_time import Model, SavedModel, StepTime, StepTimeFit, read_model
from planner.verdict import unseen_prefixes
from traces.answers import ReadAnswers
from traces.read import read_steps, read_trace
from traces.requests import WHOLE, RequestTrace, Selection
from traces.selection import select
from traces.steps import ServerFacts, StepLog


def bad_usage(message: str) -> BadPlan:
    """An option that makes no sense, to be raised."""
    return BadPlan("command line", message)


def asked_answers(arguments: argparse.Namespace) -> ReadAnswers:
    """The answers given on the command line."""
    try:
        return ReadAnswers(**{field.name: getattr(arguments, field.name) for field in fields(ReadAnswers)})
    except ValueError as fault:
        raise bad_usage(str(fault)) from fault


def asked_trace(arguments: argparse.Namespace) -> RequestTrace:
    """The trace, with its notices on standard error."""
    path = Path(arguments.trace)
    trace = read_trace(path, path.name, asked_answers(arguments))
    for notice in trace.receipt.notices if trace.receipt else ():
        say(f"{path}: {notice}")
    return select(trace, _selection(arguments))


def _selection(arguments: argparse.Namespace) -> Selection:
    """The part of the trace that is asked for; all of it where a command does not ask."""
    if "rate" not in arguments:
        return WHOLE
    from_s, until_s = arguments.from_s, arguments.until_s
    check_positive(arguments, "rate", "until_s")
    _check_not_negative(arguments, "from_s", "sample_seed", "spread_seed")
    check_percent(arguments, "sample")
    if until_s is not None and until_s <= from_s:
        raise bad_usage(f"--until-s is {until_s:g}, --from-s {from_s:g}; the window must end after it begins")
    words: dict[str, list[str]] = {}
    for one in arguments.only:
        column, equals, word = one.partition("=")
        if not equals:
            raise bad_usage(f"--only {one!r}: give COLUMN=WORD")
        words.setdefault(column, []).append(word)
    return Selection(
        spread_seed=arguments.spread_seed,
        window_s=None if from_s == 0.0 and until_s is None else (from_s, until_s),
        keep=tuple((column, tuple(chosen)) for column, chosen in words.items()),
        share=arguments.sample / 100.0,
        sample_seed=arguments.sample_seed,
        rate=arguments.rate,
    )


def say_unseen_prefixes(trace: RequestTrace, config: EngineConfig) -> None:
    """On standard error: whether TTFT is an upper bound."""
    said = unseen_prefixes(trace, config)
    if said is not None:
        say(said)


def asked_steps(arguments: argparse.Namespace, file: str) -> StepLog:
    """A step log."""
    return read_steps(Path(file), Path(file).name, asked_answers(arguments))


def aligned(log: StepLog, arguments: argparse.Namespace, trace: RequestTrace) -> Alignment:
    """The log's steps explained by the trace, with how many on standard error."""
    alignment = align_whole(log, trace, asked_config(arguments, flags_from_facts(log.facts)))
    say(alignment_sentence(alignment, len(log)))
    say(flags_sentence(alignment.flag_uses))
    for one in alignment.differences:
        say(f"  {difference_sentence(one)}")
    return alignment


def fitted(log: StepLog, arguments: argparse.Namespace, alignment: Alignment | None = None) -> StepTimeFit:
    """A fit to a step log, with its notices on standard error."""
    num_kv_tokens = None
    if arguments.num_gpu_blocks is not None:
        block_size = arguments.block_size or log.facts.block_size or EngineConfig().block_size
        num_kv_tokens = (arguments.num_gpu_blocks - 1) * block_size
    fit = fit_step_time(log, num_kv_tokens, alignment)
    for notice in (*(log.receipt.notices if log.receipt else ()), *fit.notices):
        say(f"{fit.source}: {notice}")
    return fit


def asked_replay(
    arguments: argparse.Namespace,
) -> tuple[RequestTrace, SavedModel | StepTime, EngineConfig]:
    """What one replay needs: flags that are not given are those of the model's server, else vLLM's defaults."""
    trace, model = asked_trace(arguments), _given_model(arguments)
    facts = _facts(model)
    if facts != ServerFacts():
        say("Flags that are not given here are those of the model's server.")
    config = asked_config(arguments, flags_from_facts(facts))
    say_unseen_prefixes(trace, config)
    return trace, model, config


def asked_search(
    arguments: argparse.Namespace,
) -> tuple[RequestTrace, Model, EngineConfig]:
    """What a search needs: today's flags are those that its log states, elsewhere vLLM's defaults on this GPU."""
    trace = asked_trace(arguments)
    model, known = _model(arguments, trace)
    today = asked_config(arguments, known)
    say_unseen_prefixes(trace, today)
    return trace, model, today


def _model(arguments: argparse.Namespace, trace: RequestTrace) -> tuple[Model, EngineConfig]:
    """The model to plan with, and what its log says of today's flags."""
    usual = default_flags(arguments.gpu_memory_gib)
    if arguments.align and not arguments.steps:
        raise bad_usage("--align needs --steps, the log to explain by the trace")
    if arguments.steps:
        if arguments.model or any(getattr(arguments, f"{name}_ms") is not None for name in BY_HAND_MS):
            raise bad_usage("give --steps, --model, or the times of a step, not two of them")
        log = asked_steps(arguments, arguments.steps)
        if arguments.align and trace.selection != WHOLE:
            raise bad_usage(
                "--align needs the whole trace: run planner calibrate LOG --trace TRACE -o M.json, then give --model"
            )
        alignment = aligned(log, arguments, trace) if arguments.align else None
        return fitted(log, arguments, alignment), flags_from_facts(log.facts, usual)
    if not arguments.model and arguments.base_ms is None:
        raise bad_usage("a plan needs --steps STEPLOG, --model M.json, or --base-ms and its companions")
    model = _given_model(arguments)
    facts = _facts(model)
    if facts == ServerFacts():
        say(
            f"Today's flags are those given here, and vLLM's defaults for {arguments.gpu_memory_gib:g} GiB; a log has "
            "them."
        )
    return model, flags_from_facts(facts, usual)


def _facts(model: SavedModel | StepTime) -> ServerFacts:
    """What the model's log says of its server."""
    return ServerFacts() if isinstance(model, StepTime) else model.facts


def _given_model(arguments: argparse.Namespace) -> SavedModel | StepTime:
    """The model given as a file or as three numbers."""
    given = {name: getattr(arguments, f"{name}_ms") for name in BY_HAND_MS}
    if arguments.model:
        if any(value is not None for value in given.values()):
            raise bad_usage("give either --model or the times of a step, not both")
        return _saved_model(arguments.model)
    times_ms = [default if given[name] is None else given[name] for name, (default, _) in BY_HAND_MS.items()]
    if min(times_ms) < 0 or max(times_ms) > 1e6:
        raise bad_usage("--base-ms, --per-seq-ms and --per-prefill-token-ms must not be negative or hours")
    if times_ms[0] == times_ms[1] == 0:
        raise bad_usage("--base-ms and --per-seq-ms are both 0: steps must take time")
    return StepTime(*(round(value * 1e6) for value in times_ms))


def _saved_model(path: str) -> SavedModel:
    """A model file."""
    try:
        return read_model(Path(path).read_text(encoding="utf-8-sig"), path)
    except (OSError, UnicodeDecodeError) as fault:
        raise BadPlan(path, f"cannot be read: {fault}") from fault


def asked_config(arguments: argparse.Namespace, known: EngineConfig) -> EngineConfig:
    """`known`, with the flags given on the command line in place.

    With a drafter that does not support it, vLLM turns asynchronous scheduling off unless it is asked for explicitly.
    """
    given = {f.name: value for f in fields(EngineConfig) if (value := getattr(arguments, f.name)) is not None}
    drafter = DRAFTERS.get(given.get("speculative_method"))
    if drafter is not None and not drafter.allows_async:
        given.setdefault("async_scheduling", False)
    return EngineConfig(**{**asdict(known), **given})


def asked_slo(arguments: argparse.Namespace) -> Slo:
    """The targets given on the command line."""
    check_positive(arguments, "itl_ms", "worst_gap_ms", "ttft_ms", "e2e_ms")
    check_percent(arguments, "itl_percentile", "ttft_percentile", "e2e_percentile")
    _check_not_negative(arguments, "gpu_memory_gib", "stalled_percent")
    if arguments.stalled_percent is not None and arguments.stalled_percent > 100:
        raise bad_usage(f"--stalled-percent is {arguments.stalled_percent:g}; it must be at most 100")

    def scaled(value: float | None, unit: float) -> float | None:
        return None if value is None else value / unit

    return Slo(
        itl_s=arguments.itl_ms / 1e3,
        itl_percentile=arguments.itl_percentile / 100,
        worst_gap_s=scaled(arguments.worst_gap_ms, 1e3),
        ttft_s=scaled(arguments.ttft_ms, 1e3),
        ttft_percentile=arguments.ttft_percentile / 100,
        stalled_share=scaled(arguments.stalled_percent, 100),
        e2e_s=scaled(arguments.e2e_ms, 1e3),
        e2e_percentile=arguments.e2e_percentile / 100,
        classes=tuple(_class_target(text) for text in arguments.class_target),
    )


def check_positive(arguments: argparse.Namespace, *names: str) -> None:
    """Refuse options that are given and not above 0."""
    for name in names:
        value = getattr(arguments, name)
        if value is not None and not value > 0:
            raise bad_usage(f"{_option(name)} is {value:g}; it must be above 0")


def check_percent(arguments: argparse.Namespace, *names: str) -> None:
    """Refuse percentages that leave nothing, or of more than there is."""
    for name in names:
        value = getattr(arguments, name)
        if not 0 < value <= 100:
            raise bad_usage(f"{_option(name)} is {value:g}; it must be above 0 and at most 100")


def _check_not_negative(arguments: argparse.Namespace, *names: str) -> None:
    """Refuse options that are given and below 0."""
    for name in names:
        value = getattr(arguments, name)
        if value is not None and value < 0:
            raise bad_usage(f"{_option(name)} is {value:g}; it must not be negative")


def _option(name: str) -> str:
    """An option as it is given."""
    return f"--{name.replace('_', '-')}"


def _class_target(text: str) -> ClassTarget:
    """A class of requests and what is wanted for it, as one option says it."""
    try:
        return read_class_target(text)
    except ValueError as fault:
        raise bad_usage(f"--class-target {fault}") from fault
