"""Layouts of request traces, measurements and step tables that somebody else defined, known by their column names.

The columns of nested JSON are called by their paths (`traces.nested`), so that one registry describes every form. One
entry describes one layout. A name counts as it is spelled; a file that differs only in capitals, spaces,
underscores, dots or dashes is recognised too, and the receipt says so.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

import pyarrow as pa

from traces.answers import ReadAnswers
from traces.checks import is_list
from traces.errors import BadData, Choice, InputError, NeedsAnswer, Problem, Question, Unmapped, UnreadableFile
from traces.nested import RowPath
from traces.units import Stated, unit_in_name


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Rows that are no request to replay, told by one column."""

    column: str
    """The column; a file without it has no such rows."""
    keep: tuple[str, ...]
    """Values of the rows that stay; rows without a value stay when the empty text is among them."""
    reason: str
    """What the others are."""


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """The columns that say when the tokens of a request came: its first and last token, gaps, or every token."""

    clock: str
    """Whose clock: "client" (the arrival is when it sent the request) or "engine" (when its front end got it)."""
    unit: str | None = None
    """Unit of times since arrival and of gaps; None = `first`, `last` and `every` are on the clock of the arrival and
    in its unit."""
    first: str | None = None
    """Column with the first token."""
    last: str | None = None
    """Column with the last token; None = after the last gap."""
    gaps: str | None = None
    """Column with lists of gaps between neighbouring messages."""
    every: str | None = None
    """Column with lists of the times of all messages, instead of first and last."""

    @property
    def needed(self) -> tuple[str, ...]:
        """Columns without which a file says nothing about tokens; without gaps all tokens came at once."""
        return tuple(name for name in (self.first, self.last, self.every) if name is not None)

    @property
    def all(self) -> tuple[str, ...]:
        """Every column that is read."""
        return (*self.needed, *(() if self.gaps is None else (self.gaps,)))


@dataclass(frozen=True, slots=True)
class TraceLayout:
    """The columns of one kind of request trace by part, and the unit its makers document."""

    name: str
    """In words, for the receipt. Entries of one name are the same tool's; of those that fit, the first is taken."""
    arrival: str
    """Column with the arrival."""
    prompt: str
    """Column with prompt tokens."""
    output: str
    """Column with output tokens."""
    unit: str | None = None
    """Documented unit of a numeric arrival column; None = not documented, or the name says it."""
    fraction_unit: str | None = None
    """Unit of arrivals with a fractional part, where whole numbers come in more than one unit."""
    limit: str | None = None
    """Column with the most output tokens asked for, where it is not called `max_tokens`."""
    hashes: str | None = None
    """Column with prefix hashes, where it is not called `hash_ids`."""
    hash_block: str | None = None
    """Column with the tokens that a hash stands for."""
    left_out: tuple[LeftOut, ...] = ()
    """Rows that are no request to replay."""
    benchmark: str | None = None
    """Column that tells several benchmarks in one file apart."""
    tokens: TokenTimes | None = None
    """When the tokens came, where the file says it."""
    path: RowPath | None = None
    """Where the requests stand in a nested document."""
    notes: tuple[tuple[str, str], ...] = ()
    """(column, what the user must know where the file has it)."""


TOKENIZED_AGAIN = (
    "the server's own token counts are not in the file: those of the load generator, which tokenizes the texts again, "
    "are taken, and may be others"
)

AIPERF = TraceLayout(
    "AIPerf profile export",
    "metadata.request_start_ns",
    # The server's own counts; see TOKENIZED_AGAIN for the others.
    "metrics.usage_prompt_tokens (tokens)",
    "metrics.usage_completion_tokens (tokens)",
    left_out=(
        LeftOut("metadata.benchmark_phase", ("profiling", ""), "requests of the warm-up"),
        LeftOut("metadata.was_cancelled", ("false", ""), "requests that were cancelled"),
        LeftOut("error", ("",), "requests that failed"),
    ),
    tokens=TokenTimes(
        "client", "ms", first="metrics.time_to_first_token (ms)", gaps="metrics.inter_chunk_latency (ms)"
    ),
)
INFERENCE_PERF = TraceLayout(
    "inference-perf requests",
    "start_time",
    "info.response_metrics.server_usage.prompt_tokens",
    "info.response_metrics.server_usage.completion_tokens",
    unit="s",
    limit="request.max_tokens",
    left_out=(LeftOut("error", ("",), "requests that failed"),),
    tokens=TokenTimes("client", every="info.response_metrics.chunk_times"),
    path=RowPath(marks=("start_time", "request", "info"), texts=("request",)),
)
OTLP = TraceLayout(
    "vLLM OTLP llm_request spans",
    "startTimeUnixNano",
    "attributes.gen_ai.usage.prompt_tokens",
    "attributes.gen_ai.usage.completion_tokens",
    unit="ns",
    limit="attributes.gen_ai.request.max_tokens",
    left_out=(LeftOut("name", ("llm_request",), "spans that are no llm_request"),),
    # vLLM counts both from the arrival at its front end, which is where the span starts.
    tokens=TokenTimes(
        "engine",
        "s",
        first="attributes.gen_ai.latency.time_to_first_token",
        last="attributes.gen_ai.latency.e2e",
    ),
    path=RowPath(marks=("resourceSpans",), steps=("resourceSpans", "[]", "scopeSpans", "[]", "spans", "[]")),
)

TRACE_LAYOUTS = (
    TraceLayout(
        "planner trace",
        "arrival_s",
        "prompt_tokens",
        "output_tokens",
        tokens=TokenTimes("client", every="token_s"),
    ),
    TraceLayout("inference trace", "arrival_time", "prompt_tokens", "output_tokens", fraction_unit="s"),
    TraceLayout("Azure LLM inference trace", "TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    # Mooncake's own timestamps are whole milliseconds, vLLM's timed_trace has seconds; whole numbers may be either.
    TraceLayout(
        "Mooncake trace or vLLM timed_trace",
        "timestamp",
        "input_length",
        "output_length",
        fraction_unit="s",
        notes=(
            (
                "session_id",
                "input_length is read as the whole prompt of each turn: where it counts only what a turn adds "
                "(Mooncake-delta), the prompts of later turns are longer than read here",
            ),
        ),
    ),
    TraceLayout("BurstGPT trace", "Timestamp", "Request tokens", "Response tokens", unit="s"),
    TraceLayout("ServeGen trace", "timestamp_s", "input_tokens", "output_tokens"),
    TraceLayout("Vidur trace", "arrived_at", "num_prefill_tokens", "num_decode_tokens", unit="s"),
    TraceLayout(
        "LiteLLM log",
        "timestamp",
        "prompt_tokens",
        "completion_tokens",
        left_out=(LeftOut("status", ("success", ""), "requests that failed"),),
    ),
    TraceLayout("LLMServingSim workload", "arrival_time_ns", "input_toks", "output_toks"),
    TraceLayout("LLMServingSim benchmark", "arrival_time", "input_toks", "output_toks", fraction_unit="s"),
    TraceLayout(
        "vllm bench serve result",
        "start_times",
        "input_lens",
        "output_lens",
        unit="s",
        left_out=(LeftOut("errors", ("",), "requests that failed"),),
        benchmark="document",
        tokens=TokenTimes("client", "s", first="ttfts", gaps="itls"),
        path=RowPath(
            marks=("input_lens", "ttfts"),
            lists=("start_times", "input_lens", "output_lens", "ttfts", "itls", "errors"),
        ),
    ),
    TraceLayout(
        "GuideLLM benchmarks",
        "info.timings.request_start",
        "prompt_tokens",
        "output_tokens",
        unit="s",
        left_out=(LeftOut("status", ("successful",), "requests that failed or were cut off at the end"),),
        benchmark="benchmark",
        tokens=TokenTimes(
            "client", first="info.timings.first_token_iteration", last="info.timings.last_token_iteration"
        ),
        path=RowPath(marks=("benchmarks",), steps=("benchmarks", "[benchmark]", "requests", "{status}", "[]")),
    ),
    AIPERF,
    replace(
        AIPERF,
        prompt="metrics.input_sequence_length (tokens)",
        output="metrics.output_sequence_length (tokens)",
        notes=(("metrics.output_sequence_length (tokens)", TOKENIZED_AGAIN),),
    ),
    INFERENCE_PERF,
    replace(
        INFERENCE_PERF,
        prompt="info.input_tokens",
        output="info.response_metrics.output_tokens",
        notes=(("info.response_metrics.output_tokens", TOKENIZED_AGAIN),),
    ),
    OTLP,
    # OpenTelemetry's present names for the same two counts.
    replace(OTLP, prompt="attributes.gen_ai.usage.input_tokens", output="attributes.gen_ai.usage.output_tokens"),
    TraceLayout(
        "Dynamo request trace",
        "request.request_received_ms",
        "request.replay.input_length",
        "request.output_tokens",
        hashes="request.replay.input_sequence_hashes",
        hash_block="request.replay.trace_block_size",
        left_out=(LeftOut("event_type", ("request_end",), "events other than the end of a request"),),
        notes=(
            (
                "agent_context.session_id",
                "requests of one session wait for each other: here they arrive at their own time stamps, however fast "
                "the answers come",
            ),
        ),
    ),
)

ROW_PATHS = tuple({layout.path: None for layout in TRACE_LAYOUTS if layout.path is not None})
"""Where the requests stand in every nested document that is known."""


@dataclass(frozen=True, slots=True)
class NoTrace:
    """A kind of file that people have and that cannot be a request trace."""

    columns: tuple[str, ...]
    """Columns by which it is known."""
    reason: str
    """What it lacks, and what to give instead."""


NO_TRACES = (
    NoTrace(
        ("dependencies", "not_before_ms"),
        "this is Dynamo's agentic Mooncake trace: its requests wait for the answers of others and have no arrival of "
        "their own. Give the Dynamo request trace it was made from (request_received_ms).",
    ),
    NoTrace(
        ("num_turns", "tool_call_latency"),
        "this is an Applied-Compute agentic trace: it says how long tools take between turns, and when no request "
        "arrives. Give a trace with arrivals.",
    ),
    NoTrace(
        ("Run Info", "Benchmark", "Timings"),
        "this is GuideLLM's CSV: it has one line per benchmark and no requests. Give its JSON.",
    ),
    NoTrace(
        ("total_input_tokens", "mean_ttft_ms"),
        "this is a result of vllm bench serve without its requests. Run it with --save-result --save-detailed.",
    ),
    NoTrace(
        ("asctime", "levelname", "message"),
        "this is vLLM's log in JSON lines without iterations: its requests have neither prompt nor output tokens. "
        "Start the server with --otlp-traces-endpoint and give the spans.",
    ),
)

ARRIVAL_STEMS = ("arrival", "arrival_time", "arrival_timestamp", "arrived_at", "timestamp", "request_time")
"""Arrival columns outside the layouts; a unit may follow, as in `arrival_ms`."""

UNUSED_COLUMNS = {
    "delay": "column {!r} is not used: a request that waits for an earlier answer arrives at its own time stamp",
}
"""Columns that mean something for serving and that the trace does not carry."""

PRIORITY_NAMES = ("priority",)
LIMIT_NAMES = ("max_tokens", "max_completion_tokens")
HASH_NAMES = ("hash_ids", "prefix_hashes")
"""Columns that a trace may have; the last are lists, one id per block of prompt tokens."""

STEP_COLUMNS = {
    "step_time": (
        *("itl_ms", "itl_us", "itl_s", "step_s", "step_ms", "step_us", "step_time_ms", "step_time_us"),
        *("step_time_s", "step.duration_us", "step.duration_ms", "duration_us", "duration_ms", "elapsed_us"),
        *("elapsed_ms", "elapsed_s", "elapsed_time_ms", "elapsed_time_s", "step_time", "elapsed", "duration"),
    ),
    "prefill_tokens": ("prefill_tokens", "ctx_tokens", "context_tokens", "batch.prefill_tokens"),
    "decode_reqs": (
        *("num_decode_reqs", "decode_reqs", "gen_reqs", "generation_requests", "batch.num_decode_reqs", "decode_seqs"),
    ),
    "prefill_reqs": ("num_prefill_reqs", "prefill_reqs", "ctx_reqs", "context_requests", "batch.num_prefill_reqs"),
    "kv_decode_tokens": ("kv_decode_tokens",),
    "kv_prefill_tokens": ("kv_prefill_tokens",),
    "prefill_attention": ("prefill_attention", "prefill_attn_product"),
    "kv_usage": ("kv_usage", "kv.usage_gpu_ratio"),
    "decode_tokens": ("num_decode_tokens", "gen_tokens", "generation_tokens"),
    "encoder_inputs": ("num_encoder_inputs",),
    "weight": ("weight", "n_steps"),
}
"""Columns of step tables by what they mean, most trusted name first: a period between outputs (`itl`) covers the
whole turn of the engine, an elapsed time may leave the scheduler out."""

STEP_ROLES_NEEDED = {
    "step_time": "step_ms",
    "prefill_tokens": "prefill_tokens",
    "decode_reqs": "num_decode_reqs",
}
"""Without these a table is no step log; the names that a message proposes."""

HEADER_HINT = " The first line holds numbers only: is the line with the column names missing?"


SESSION_NAMES = ("session_id", "session", "conversation_id", "conversation", "chat_id", "trace_id")
"""Columns that tell which requests belong together, in lower case, the first one that is there."""
LABEL_NAMES = (
    *SESSION_NAMES,
    *(
        "model",
        "model_name",
        "tenant",
        "tenant_id",
        "user",
        "user_id",
        "customer",
        "customer_id",
        "client",
        "client_id",
    ),
    *("org", "organization", "team", "project", "app", "application", "service", "service_tier", "route", "endpoint"),
    *("region", "class", "category", "workload", "role", "log type", "log_type", "request_type", "source"),
)
"""Columns of words by which people choose requests, in lower case."""


@dataclass(frozen=True, slots=True)
class TraceColumns:
    """Which column of one file plays which part."""

    layout: str
    """The layout in words."""
    arrival: str
    """Name of the arrival column."""
    prompt: str | None
    """Name of the column with prompt tokens; None only for measurements, which may lack them."""
    output: str | None
    """Name of the column with output tokens; None only for measurements, where the times of the tokens say it."""
    stated: Stated
    """What is known about the unit of the arrival column."""
    notices: tuple[str, ...]
    """What the user must know about this choice."""
    priority: str | None = None
    """Name of the column with priorities."""
    limit: str | None = None
    """Name of the column with the most output tokens each request asked for."""
    hashes: str | None = None
    """Name of the column with prefix hashes."""
    hash_block: str | None = None
    """Name of the column with the tokens that a hash stands for."""
    left_out: tuple[LeftOut, ...] = ()
    """Rows that are no request to replay."""
    benchmark: str | None = None
    """Name of the column that tells several benchmarks apart."""
    tokens: TokenTimes | None = None
    """When the tokens came; only for measurements."""
    labels: tuple[str, ...] = ()
    """Columns of words to choose requests by."""

    @property
    def parts(self) -> tuple[tuple[str, str], ...]:
        """Part and column, for the receipt."""
        parts = (("arrival", self.arrival), ("prompt", self.prompt), ("output", self.output))
        return tuple((part, column) for part, column in parts if column is not None)

    @property
    def all(self) -> tuple[str, ...]:
        """Every column that is read."""
        optional = (self.prompt, self.output, self.priority, self.limit, self.hashes, self.hash_block, self.benchmark)
        rules = (rule.column for rule in self.left_out)
        tokens = () if self.tokens is None else self.tokens.all
        named = (self.arrival, *(name for name in optional if name is not None), *rules, *tokens, *self.labels)
        return tuple(dict.fromkeys(named))


@dataclass(frozen=True, slots=True)
class StepColumns:
    """Which column of one file plays which part in a step log."""

    layout: str
    """The layout in words."""
    by_role: tuple[tuple[str, str], ...]
    """(role of `STEP_COLUMNS`, column name) for every column that is used."""
    notices: tuple[str, ...]
    """What the user must know about this choice."""

    def column(self, role: str) -> str:
        """Return the column that plays a part."""
        return dict(self.by_role)[role]


TRACE_FIELDS = ("arrival_column", "prompt_column", "output_column")
STEP_FIELDS = ("step_time_column", "prefill_tokens_column", "decode_reqs_column")
"""Answers that name a column by hand."""
F = TypeVar("F", bound=InputError)


def recognise_trace(schema: pa.Schema, form: str, answers: ReadAnswers, file_name: str) -> TraceColumns:
    """Find the arrival, prompt and output column by name.

    Parameters
    ----------
    schema : pa.Schema
        Names and types of the file's columns.
    form : str
        The form of the file, for messages ("Parquet").
    answers : ReadAnswers
        Columns the user named go first.
    file_name : str
        For messages.

    Returns
    -------
    TraceColumns

    Raises
    ------
    UnreadableFile
        No column is known.
    BadData
        Some columns are missing, or a name occurs twice; the nearest names are given.
    NeedsAnswer
        Several columns could play one part.
    """
    named = {"arrival": answers.arrival_column, "prompt": answers.prompt_column, "output": answers.output_column}
    spelled = _spelled_as_known(schema.names, (n for layout in TRACE_LAYOUTS for n in _names(layout).values()))
    layouts = [] if any(named.values()) else _complete(schema.names, spelled)
    if not layouts and not any(named.values()):
        _refuse_known(schema.names, file_name)
    layout = layouts[0] if len(layouts) == 1 else None
    if layout is not None:
        columns, name = {role: spelled[known] for role, known in _names(layout).items()}, layout.name
    else:
        columns, name = _column_by_column(schema, form, named, file_name), "columns by name"
    _refuse_twins(schema.names, columns.values(), file_name)
    loose = [column for column in columns.values() if column not in _all_names() and column not in named.values()]
    notices = ("columns recognised although spelled in another way: " + ", ".join(map(repr, loose)),) if loose else ()
    found = TraceColumns(
        name,
        columns["arrival"],
        columns["prompt"],
        columns["output"],
        _stated(columns["arrival"], None if loose else layout),
        notices,
    )
    return _with_optional(found, layout, schema)


def recognise_measured(schema: pa.Schema, file_name: str) -> TraceColumns:
    """Find the columns of a file that says when the tokens of its requests came.

    Parameters
    ----------
    schema : pa.Schema
        Names and types of the file's columns.
    file_name : str
        For messages.

    Returns
    -------
    TraceColumns
        With `tokens`; `prompt` and `output` only where the file has them.

    Raises
    ------
    UnreadableFile
        No layout with times of tokens.
    BadData
        A name occurs twice.
    """
    timed = [layout for layout in TRACE_LAYOUTS if layout.tokens is not None]
    fitting = [one for one in timed if one.tokens and {one.arrival, *one.tokens.needed} <= set(schema.names)]
    if not fitting:
        known = "; ".join(f"{one.name} ({', '.join((one.arrival, *one.tokens.needed))})" for one in timed if one.tokens)
        raise UnreadableFile(
            file_name,
            f"no measured token times; columns found: {_listed(schema.names)}. Known, each once: {known}. Give what "
            "vllm bench serve --save-result --save-detailed writes, or a Parquet file with arrival_s and token_s.",
        )
    layout = next((one for one in fitting if {one.prompt, one.output} <= set(schema.names)), fitting[0])
    assert layout.tokens is not None
    prompt, output = (name if name in schema.names else None for name in (layout.prompt, layout.output))
    if output is None and layout.tokens.every is None:
        raise BadData(file_name, (_absent(layout.output, schema.names, "--output-column"),))
    stated = _stated(layout.arrival, layout)
    found = TraceColumns(layout.name, layout.arrival, prompt, output, stated, (), tokens=layout.tokens)
    _refuse_twins(schema.names, (layout.arrival, layout.prompt, layout.output, *layout.tokens.all), file_name)
    return _with_optional(found, layout, schema)


def recognise_steps(schema: pa.Schema, form: str, answers: ReadAnswers, file_name: str) -> StepColumns:
    """Find the columns of a step table by name; raises as `recognise_trace` does."""
    named = {
        "step_time": answers.step_time_column,
        "prefill_tokens": answers.prefill_tokens_column,
        "decode_reqs": answers.decode_reqs_column,
    }
    flat = [column.name for column in schema if not pa.types.is_nested(column.type)]
    spelled = _spelled_as_known(flat, (name for names in STEP_COLUMNS.values() for name in names))
    found = {role: [spelled[name] for name in names if name in spelled] for role, names in STEP_COLUMNS.items()}
    missing = [role for role in STEP_ROLES_NEEDED if not found[role] and not named.get(role)]
    if len(missing) > 1 and not any(named.values()):
        wanted = "a step log (needed: step time, prefill tokens, decoding requests)"
        raise _unknown_layout(schema.names, form, wanted, STEP_FIELDS, file_name)
    problems = [
        _absent(STEP_ROLES_NEEDED[role], schema.names, f"--{role.replace('_', '-')}-column") for role in missing
    ]
    problems += _misnamed(schema.names, named)
    if problems:
        raise _unmapped(BadData(file_name, tuple(problems)), STEP_FIELDS, schema.names)
    columns = {role: named.get(role) or names[0] for role, names in found.items() if named.get(role) or names}
    _refuse_twins(schema.names, columns.values(), file_name)
    notices: tuple[str, ...] = ()
    if len(found["step_time"]) > 1 and not named["step_time"]:
        others = ", ".join(map(repr, found["step_time"][1:]))
        notices = (f"column {columns['step_time']!r} is taken as the time of a step; {others} not used",)
    needed = ", ".join(columns[role] for role in STEP_ROLES_NEEDED)
    return StepColumns(f"step table ({needed})", tuple(columns.items()), notices)


def _with_optional(columns: TraceColumns, layout: TraceLayout | None, schema: pa.Schema) -> TraceColumns:
    """Add the columns that a trace may have, and say which are not used."""
    stated = TraceLayout("", "", "", "") if layout is None else layout
    hashes = _optional(schema, HASH_NAMES if stated.hashes is None else (stated.hashes,), lists=True)
    notices = [text for column, text in stated.notes if column in schema.names]
    notices += [
        text.format(column) for column in schema.names for key, text in UNUSED_COLUMNS.items() if column.lower() == key
    ]
    notices += [
        f"column {column!r} is not used (not one list of ids per row): prompts count as unlike, TTFT is an upper bound"
        for column in schema.names
        if column.lower() in HASH_NAMES and hashes is None
    ]
    return replace(
        columns,
        notices=(*columns.notices, *notices),
        priority=_optional(schema, PRIORITY_NAMES, lists=False),
        limit=_optional(schema, LIMIT_NAMES if stated.limit is None else (stated.limit.lower(),), lists=False),
        hashes=hashes,
        hash_block=_optional(schema, (stated.hash_block or "",), lists=False),
        left_out=stated.left_out,
        benchmark=_optional(schema, (stated.benchmark or "",), lists=False),
        labels=tuple(
            field.name
            for field in schema
            if field.name.lower() in LABEL_NAMES
            and not pa.types.is_nested(field.type)
            and schema.names.count(field.name) == 1
            and field.name not in (columns.arrival, columns.prompt, columns.output)
        ),
    )


def _refuse_known(names: list[str], file_name: str) -> None:
    """Refuse a file of which it is known why it cannot be a trace."""
    for kind in NO_TRACES:
        if set(kind.columns) <= set(names):
            raise UnreadableFile(file_name, kind.reason)


def _optional(schema: pa.Schema, names: tuple[str, ...], lists: bool) -> str | None:
    """Return the one column that is called so and is a list or not, or None."""
    found = [field.name for field in schema if field.name.lower() in names and is_list(field.type) == lists]
    return found[0] if len(found) == 1 else None


def _column_by_column(schema: pa.Schema, form: str, named: dict[str, str | None], file_name: str) -> dict[str, str]:
    """Choose each column by itself; raise with every fault or question at once."""
    known = {role: [_names(layout)[role] for layout in TRACE_LAYOUTS] for role in ("prompt", "output")}
    known["arrival"] = [_names(layout)["arrival"] for layout in TRACE_LAYOUTS] + list(ARRIVAL_STEMS)
    stems = {_plain(stem) for stem in known["arrival"]}
    found: dict[str, list[str]] = {"arrival": [], "prompt": [], "output": []}
    for column in dict.fromkeys(schema.names):
        if _without_unit(column) in stems or _plain(column) in stems:
            found["arrival"].append(column)
        for role in ("prompt", "output"):
            if _plain(column) in {_plain(name) for name in known[role]}:
                found[role].append(column)
    if not any(found.values()) and not any(named.values()):
        wanted = "a request trace; known: " + ", ".join(dict.fromkeys(layout.name for layout in TRACE_LAYOUTS))
        raise _unknown_layout(schema.names, form, wanted, TRACE_FIELDS, file_name)
    problems = _misnamed(schema.names, named)
    questions = []
    for role, columns in found.items():
        clocks = [c.name for c in schema if pa.types.is_timestamp(c.type)] if role == "arrival" and not columns else []
        if named[role] or len(columns) == 1:
            continue
        if columns or clocks:
            questions.append(_which_column(role, columns or clocks))
        else:
            expected = _best_layout(schema.names)
            free = [name for name in schema.names if name not in sum(found.values(), [])]
            problems.append(_absent(_names(expected)[role], schema.names, f"--{role}-column", free))
    if problems:
        raise _unmapped(BadData(file_name, tuple(problems)), TRACE_FIELDS, schema.names)
    if questions:
        raise NeedsAnswer(file_name, tuple(questions))
    return {role: named[role] or columns[0] for role, columns in found.items()}


def _stated(arrival: str, layout: TraceLayout | None) -> Stated:
    """What is known about the unit of the arrival column."""
    in_name = unit_in_name(arrival)
    if in_name is not None:
        return Stated(arrival, in_name, in_name, f"the column name {arrival!r}")
    if layout is None:
        return Stated(arrival, None, None, "the column name")
    return Stated(arrival, layout.unit, layout.fraction_unit, f"the layout ({layout.name})")


def _complete(names: list[str], spelled: dict[str, str]) -> list[TraceLayout]:
    """Layouts whose every column is there, one a name; those spelled exactly win over those spelled loosely."""
    exact = [layout for layout in TRACE_LAYOUTS if set(_names(layout).values()) <= set(names)]
    found = exact or [layout for layout in TRACE_LAYOUTS if set(_names(layout).values()) <= set(spelled)]
    return list({layout.name: layout for layout in reversed(found)}.values())[::-1]


def _spelled_as_known(names: list[str], known: Iterable[str]) -> dict[str, str]:
    """Map each known name that the file has to the file's own spelling; a unit at the end must be the same."""
    by_plain: dict[tuple[str, str | None], str] = {}
    for name in names:
        by_plain.setdefault((_plain(name), unit_in_name(name)), name)
    spelled = {name: by_plain.get((_plain(name), unit_in_name(name))) for name in known}
    return {name: name if name in names else own for name, own in spelled.items() if own is not None}


def _names(layout: TraceLayout) -> dict[str, str]:
    """Role to column name."""
    return {"arrival": layout.arrival, "prompt": layout.prompt, "output": layout.output}


def _all_names() -> set[str]:
    """Every column name that is known as it is spelled."""
    names = {name for layout in TRACE_LAYOUTS for name in _names(layout).values()}
    return names | {stem + end for stem in ARRIVAL_STEMS for end in ("", "_s", "_ms", "_us", "_ns")}


def _best_layout(names: list[str]) -> TraceLayout:
    """Return the layout that most columns speak for."""
    return max(TRACE_LAYOUTS, key=lambda layout: len(set(_names(layout).values()) & set(names)))


def _plain(name: str) -> str:
    """Reduce a name to its letters and digits."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _without_unit(name: str) -> str:
    """Reduce a name likewise, without a unit at its end."""
    return _plain(name.rpartition("_")[0]) if unit_in_name(name) else _plain(name)


def _which_column(role: str, columns: list[str]) -> Question:
    """Ask which of several columns plays a part."""
    part = {"arrival": "the arrival time", "prompt": "the prompt tokens", "output": "the output tokens"}[role]
    if len(columns) == 1:
        text = f"No column is named like {part}, but {columns[0]!r} holds time stamps: is that it?"
    else:
        text = f"Several columns could hold {part}: {', '.join(map(repr, columns))}. Which one does?"
    return Question(f"{role}_column", None, text, tuple(Choice(c, f"column {c!r} holds {part}") for c in columns))


def _absent(expected: str, names: list[str], option: str, free: list[str] | None = None) -> Problem:
    """Say that a column is missing and which one, of those without a part, is nearest."""
    near = _nearest(expected, names if free is None else free)
    hint = f" (nearest: {near!r})" if near else ""
    return Problem(
        expected,
        f"required column not found{hint}; columns found: {_listed(names)}",
        "exactly one such column",
        f"Rename the column, or name it with {option}.",
    )


def _misnamed(names: list[str], named: dict[str, str | None]) -> list[Problem]:
    """Columns that the user named and the file does not have."""
    return [
        _absent(column, names, f"--{role.replace('_', '-')}-column")
        for role, column in named.items()
        if column is not None and column not in names
    ]


def _refuse_twins(names: list[str], used: Iterable[str], file_name: str) -> None:
    """Refuse a column name that occurs twice: nobody can say which is meant."""
    problems = tuple(
        Problem(
            name,
            f"duplicate column name, {names.count(name)} columns are called so",
            "each name once",
            "Rename or remove the others.",
        )
        for name in used
        if names.count(name) > 1
    )
    if problems:
        raise BadData(file_name, problems)


def _unmapped(fault: F, fields: tuple[str, ...], names: list[str]) -> F:
    """Add to a fault what can be named by hand."""
    fault.unmapped = Unmapped(fields, tuple(dict.fromkeys(names)))
    return fault


def _unknown_layout(
    names: list[str], form: str, wanted: str, hand_fields: tuple[str, ...], file_name: str
) -> UnreadableFile:
    """Say that nothing in the file is known."""
    *first, last = ("--" + field.replace("_", "-") for field in hand_fields)
    numeric = all(name.replace(".", "", 1).replace("-", "", 1).isdigit() for name in names)
    fault = UnreadableFile(
        file_name,
        f"{form} whose layout is not known; columns found: {_listed(names)}. Not recognised as {wanted}. "
        f"Name the columns by hand with {', '.join(first)} and {last}, or export flat columns."
        + (HEADER_HINT if numeric else "")
        + _other_kind(names),
    )
    return _unmapped(fault, hand_fields, names)


def _other_kind(names: list[str]) -> str:
    """Say so when a trace was given as a step log, or a step log as a trace."""
    traces = [layout.name for layout in TRACE_LAYOUTS if set(_names(layout).values()) <= set(names)]
    if traces:
        return f" It looks like a request trace ({traces[0]}): give it as the trace."
    if all(set(STEP_COLUMNS[role]) & set(names) for role in STEP_ROLES_NEEDED):
        return " It looks like a step log: give it as the step log."
    return ""


def _nearest(expected: str, names: list[str]) -> str | None:
    """Return the most similar name, or None."""
    by_plain = {_plain(name): name for name in names}
    near = difflib.get_close_matches(_plain(expected), by_plain, n=1, cutoff=0.6)
    return by_plain[near[0]] if near else None


def _listed(names: list[str]) -> str:
    """List names for a message, shortened."""
    shown = [name if len(name) <= 40 else name[:40] + "…" for name in names[:12]]
    more = f" and {len(names) - 12:,} more" if len(names) > 12 else ""
    return ", ".join(map(repr, shown)) + more
