"""Layouts of request traces and step tables that somebody else defined, known by their column names.

One entry describes one layout. A name counts as it is spelled; a file that differs only in capitals, spaces,
underscores, dots or dashes is recognised too, and the receipt says so.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from traces.answers import ReadAnswers
from traces.errors import BadData, Choice, NeedsAnswer, Problem, Question, UnreadableFile
from traces.units import Stated, unit_in_name


@dataclass(frozen=True, slots=True)
class TraceLayout:
    """The column names of one kind of request trace, and the unit its makers document."""

    name: str
    """In words, for the receipt."""
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


TRACE_LAYOUTS = (
    TraceLayout("planner trace", "arrival_s", "prompt_tokens", "output_tokens"),
    TraceLayout("inference trace", "arrival_time", "prompt_tokens", "output_tokens", fraction_unit="s"),
    TraceLayout("Azure LLM inference trace", "TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    # Mooncake's own timestamps are whole milliseconds, vLLM's timed_trace has seconds; whole numbers may be either.
    TraceLayout("Mooncake trace or vLLM timed_trace", "timestamp", "input_length", "output_length", fraction_unit="s"),
    TraceLayout("BurstGPT trace", "Timestamp", "Request tokens", "Response tokens", unit="s"),
    TraceLayout("ServeGen trace", "timestamp_s", "input_tokens", "output_tokens"),
    TraceLayout("Vidur trace", "arrived_at", "num_prefill_tokens", "num_decode_tokens", unit="s"),
    TraceLayout("LiteLLM log", "timestamp", "prompt_tokens", "completion_tokens"),
    TraceLayout("LLMServingSim workload", "arrival_time_ns", "input_toks", "output_toks"),
    TraceLayout("LLMServingSim benchmark", "arrival_time", "input_toks", "output_toks", fraction_unit="s"),
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
    "decode_reqs": (*("num_decode_reqs", "gen_reqs", "generation_requests", "batch.num_decode_reqs", "decode_seqs"),),
    "prefill_reqs": ("num_prefill_reqs", "ctx_reqs", "context_requests", "batch.num_prefill_reqs"),
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


@dataclass(frozen=True, slots=True)
class TraceColumns:
    """Which column of one file plays which part."""

    layout: str
    """The layout in words."""
    arrival: str
    """Name of the arrival column."""
    prompt: str
    """Name of the column with prompt tokens."""
    output: str
    """Name of the column with output tokens."""
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

    @property
    def all(self) -> tuple[str, ...]:
        """Every column that is read."""
        optional = (name for name in (self.priority, self.limit, self.hashes) if name is not None)
        return (self.arrival, self.prompt, self.output, *optional)


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
    if len(layouts) == 1:
        columns, name = {role: spelled[known] for role, known in _names(layouts[0]).items()}, layouts[0].name
    else:
        columns, name = _column_by_column(schema, form, named, file_name), "columns by name"
    _refuse_twins(schema.names, columns.values(), file_name)
    notices = [
        text.format(column) for column in schema.names for key, text in UNUSED_COLUMNS.items() if column.lower() == key
    ]
    loose = [column for column in columns.values() if column not in _all_names() and column not in named.values()]
    if loose:
        notices.append("columns recognised although spelled in another way: " + ", ".join(map(repr, loose)))
    hashes = _optional(schema, HASH_NAMES, is_list=True)
    notices += [
        f"column {column!r} is not used (not one list of ids per row): prompts count as unlike, TTFT is an upper bound"
        for column in schema.names
        if column.lower() in HASH_NAMES and hashes is None
    ]
    stated = _stated(columns["arrival"], layouts[0] if len(layouts) == 1 and not loose else None)
    return TraceColumns(
        name,
        columns["arrival"],
        columns["prompt"],
        columns["output"],
        stated,
        tuple(notices),
        priority=_optional(schema, PRIORITY_NAMES, is_list=False),
        limit=_optional(schema, LIMIT_NAMES, is_list=False),
        hashes=hashes,
    )


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
        hand = "--step-time-column, --prefill-tokens-column and --decode-reqs-column"
        raise _unknown_layout(schema.names, form, wanted, hand, file_name)
    problems = [
        _absent(STEP_ROLES_NEEDED[role], schema.names, f"--{role.replace('_', '-')}-column") for role in missing
    ]
    problems += _misnamed(schema.names, named)
    if problems:
        raise BadData(file_name, tuple(problems))
    columns = {role: named.get(role) or names[0] for role, names in found.items() if named.get(role) or names}
    _refuse_twins(schema.names, columns.values(), file_name)
    notices: tuple[str, ...] = ()
    if len(found["step_time"]) > 1 and not named["step_time"]:
        others = ", ".join(map(repr, found["step_time"][1:]))
        notices = (f"column {columns['step_time']!r} is taken as the time of a step; {others} not used",)
    needed = ", ".join(columns[role] for role in STEP_ROLES_NEEDED)
    return StepColumns(f"step table ({needed})", tuple(columns.items()), notices)


def _optional(schema: pa.Schema, names: tuple[str, ...], is_list: bool) -> str | None:
    """Return the one column that is called so and is a list or not, or None."""
    found = [field.name for field in schema if field.name.lower() in names and _is_list(field.type) == is_list]
    return found[0] if len(found) == 1 else None


def _is_list(kind: pa.DataType) -> bool:
    """Whether a column holds lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


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
        wanted = "a request trace; known: " + ", ".join(layout.name for layout in TRACE_LAYOUTS)
        hand = "--arrival-column, --prompt-column and --output-column"
        raise _unknown_layout(schema.names, form, wanted, hand, file_name)
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
        raise BadData(file_name, tuple(problems))
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
    """Layouts whose every column is there; those spelled exactly win over those spelled loosely."""
    exact = [layout for layout in TRACE_LAYOUTS if set(_names(layout).values()) <= set(names)]
    return exact or [layout for layout in TRACE_LAYOUTS if set(_names(layout).values()) <= set(spelled)]


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


def _unknown_layout(names: list[str], form: str, wanted: str, hand: str, file_name: str) -> UnreadableFile:
    """Say that nothing in the file is known."""
    numeric = all(name.replace(".", "", 1).replace("-", "", 1).isdigit() for name in names)
    return UnreadableFile(
        file_name,
        f"{form} whose layout is not known; columns found: {_listed(names)}. Not recognised as {wanted}. "
        f"Name the columns by hand with {hand}, or export flat columns."
        + (HEADER_HINT if numeric else "")
        + _other_kind(names),
    )


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
