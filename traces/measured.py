"""What was measured of real requests: when the tokens of each came, by a client's clock or an engine's."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from traces.answers import NO_ANSWERS, ReadAnswers
from traces.checks import NUM_ROWS_NAMED, Faults, Mask, check_amounts, is_list
from traces.errors import BadData, Problem, UnreadableFile
from traces.formats import TokenTimes, recognise_measured
from traces.read import CheckedRequests, check_requests
from traces.receipt import Dropped, Receipt
from traces.tables import OpenedFile, Source
from traces.units import NS_PER_UNIT

BEYOND_ANY_CLOCK = 2.0**63
"""No unit makes a time of a larger number."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredRequests:
    """n requests that got their tokens, ordered by arrival; every array is (n,) unless said.

    With `prompt_tokens`, the file is a request trace as well: `traces.read.read_trace` gives it, and `source_row` tells
    which of its requests these are.
    """

    arrival_s: Floats
    """When each was sent (a client's clock) or reached the engine's front end (an engine's), seconds since the file's
    first request."""
    first_token_s: Floats
    """When its first token came, same clock."""
    last_token_s: Floats
    """When its last token came, same clock."""
    num_outputs: Ints
    """Tokens it got, at least 1."""
    gap_s: Floats
    """(g,) gaps between neighbouring tokens, of all requests; empty when the file has none. Tokens that came in one
    message are 0 apart."""
    worst_gap_s: Floats
    """Largest gap of each; NaN below two tokens or when the file has none."""
    prompt_tokens: Ints | None = None
    """Tokens in its prompt; None when the file does not say."""
    source_row: Ints | None = None
    """Data row of the file, counted from 0."""
    clock: str = "client"
    """Whose clock, "client" or "engine"."""
    receipt: Receipt | None = None
    """How the file was read; None for measurements that no file stands behind."""


def read_measured(
    file: Source | OpenedFile, file_name: str | None = None, answers: ReadAnswers = NO_ANSWERS
) -> MeasuredRequests:
    """Read what was measured of real requests.

    Parameters
    ----------
    file : bytes, memoryview, path or OpenedFile
        The layouts of `traces.formats` with `tokens`: Parquet or JSON lines with `arrival_s` and `token_s` (lists of
        receipt times), the result of `vllm bench serve --save-result --save-detailed`, GuideLLM's JSON, AIPerf's
        profile export, inference-perf's requests, vLLM's OTLP spans; each also compressed. Or from
        `traces.read.open_requests`.
    file_name : str, optional
        As the user named it; the last part of a path when absent.
    answers : ReadAnswers
        What the user said about the file.

    Returns
    -------
    MeasuredRequests
        The requests of the trace in the same file that say when their tokens came.

    Raises
    ------
    UnreadableFile
        Not a file we can open, or no times of tokens that are known.
    BadData
        Columns or rows are wrong; lists every fault.
    NeedsAnswer
        The file alone does not settle its meaning.
    """
    if file_name is None:
        file_name = "measurements" if isinstance(file, bytes | memoryview | OpenedFile) else Path(file).name
    checked = check_requests(
        file, file_name, answers, lambda schema, _form, _answers, name: recognise_measured(schema, name)
    )
    tokens = checked.columns.tokens
    assert tokens is not None
    if tokens.unit is None and checked.receipt.time_unit not in NS_PER_UNIT:
        found = f"arrivals are read as {checked.receipt.time_unit} while the times of tokens are numbers"
        raise BadData(file_name, (Problem(checked.columns.arrival, found, "one clock for both", "Export numbers."),))
    messages, faults = _messages(checked, tokens)
    problems = tuple(problem for fault in faults for problem in fault.problems)
    if problems and not answers.drop_bad_rows:
        raise BadData(file_name, problems)
    timed = ~(np.isnan(messages.first_s) | np.isnan(messages.last_s))
    keep = timed & ~np.logical_or.reduce([fault.bad for fault in faults])
    if not keep.any():
        raise UnreadableFile(file_name, "no request says when its tokens came.")
    dropped = tuple(Dropped(f"column {p.column!r}: {p.found}", p.num_rows, p.rows) for p in problems)
    if not timed.all():
        rows = checked.rows[~timed]
        dropped += (Dropped("no times of tokens", len(rows), tuple(rows[:NUM_ROWS_NAMED].tolist())),)
    return _measured(checked, messages, keep, dropped)


@dataclass(frozen=True, slots=True, eq=False)
class _Messages:
    """When the messages with tokens of n requests came, seconds since the file's first request."""

    first_s: Floats
    """(n,) the first message; NaN where the file does not say."""
    last_s: Floats
    """(n,) the last one; NaN likewise."""
    gaps_s: list[Floats] | None
    """n times the gaps between neighbouring messages; None when the file has none."""


def _messages(checked: CheckedRequests, tokens: TokenTimes) -> tuple[_Messages, tuple[Faults, ...]]:
    """Read when the tokens came, and what is wrong with it."""
    ns_per_unit = NS_PER_UNIT[tokens.unit or checked.receipt.time_unit]
    arrival_s = checked.arrival_ns / 1e9

    def seconds(values: npt.NDArray[Any]) -> Floats:
        """Seconds since the file's first request, rounded as arrivals are: no token falls before its request."""
        return np.rint((values - checked.origin) * ns_per_unit) / 1e9

    gaps_s = None
    if tokens.every is not None:
        faults = [Faults(tokens.every, checked.rows)]
        every_s = [seconds(some) for some in _lists(checked.table[tokens.every], faults[0])]
        first_s, last_s = (np.array([some[end] if len(some) else np.nan for some in every_s]) for end in (0, -1))
        gaps_s = [np.diff(some) for some in every_s]
    else:
        names = [name for name in (tokens.first, tokens.last) if name is not None]
        faults = [Faults(name, checked.rows) for name in names]
        ends = [_amounts(checked.table[fault.column], fault) for fault in faults]
        ends_s = [seconds(end) if tokens.unit is None else arrival_s + end / (1e9 / ns_per_unit) for end in ends]
        if tokens.gaps is not None:
            faults.append(Faults(tokens.gaps, checked.rows))
            gaps_s = [some / (1e9 / ns_per_unit) for some in _lists(checked.table[tokens.gaps], faults[-1])]
        first_s = ends_s[0]
        last_s = ends_s[1] if tokens.last else first_s + np.array([some.sum() for some in gaps_s or ()])
    if gaps_s is not None:
        back = np.array([bool((some < 0).any()) for some in gaps_s])
        faults[-1].add(back, "time goes back between two tokens", "times that never decrease")
    faults[0].add(first_s < arrival_s, "a token before the request was sent", "one clock for arrivals and tokens")
    faults[0].add(last_s < first_s, "the last token before the first", "times that never decrease")
    return _Messages(first_s, last_s, gaps_s), tuple(faults)


def _amounts(column: pa.ChunkedArray, faults: Faults) -> Floats:
    """Numbers of one column; NaN where there is none."""
    there = column.is_valid().to_numpy().astype(np.bool_)
    judged = check_amounts(column.filter(pa.array(there)), faults.column, faults.rows[there])
    values = np.full(len(there), np.nan)
    values[there] = judged.values
    faults.bad[there] |= judged.bad
    faults.problems += judged.problems
    faults.add(values > BEYOND_ANY_CLOCK, "{} is beyond any clock", "times of a clock", values=values)
    return np.where(faults.bad, 0.0, values)


def _lists(column: pa.ChunkedArray, faults: Faults) -> list[npt.NDArray[Any]]:
    """Lists of numbers; no list is an empty one."""
    nothing = [np.zeros(0)] * len(column)
    if pa.types.is_null(column.type):
        return nothing
    inner = column.type.value_type if is_list(column.type) else None
    if inner is None or not (pa.types.is_integer(inner) or pa.types.is_floating(inner) or pa.types.is_null(inner)):
        faults.add(np.ones(len(column), np.bool_), f"values of type {column.type}", "lists of numbers")
        return nothing
    lists = column.combine_chunks()
    num_items = pc.list_value_length(lists).fill_null(0).to_numpy().astype(np.int64)
    values = pc.list_flatten(lists).cast(inner if pa.types.is_integer(inner) else pa.float64())
    values = values.to_numpy(zero_copy_only=False)
    wrong = ~(np.abs(values) <= BEYOND_ANY_CLOCK)
    rows = np.repeat(np.arange(len(num_items)), num_items)[wrong]
    faults.add(np.bincount(rows, minlength=len(num_items)) > 0, "a value that is no time", "lists of numbers")
    values = np.where(wrong, 0, values)
    return np.split(values, np.cumsum(num_items)[:-1])


def _measured(
    checked: CheckedRequests, messages: _Messages, keep: Mask, dropped: tuple[Dropped, ...]
) -> MeasuredRequests:
    """Put the requests of `keep` together; tokens that shared a message are 0 apart."""
    assert checked.columns.tokens is not None
    num_outputs = checked.output_tokens[keep]
    gaps: list[Floats] = []
    worst_gap_s = np.full(len(num_outputs), np.nan)
    notices = ["the file has the times of the first and the last token only: no gaps between tokens"]
    if messages.gaps_s is not None:
        some = [gaps_s for gaps_s, kept in zip(messages.gaps_s, keep, strict=True) if kept]
        num_missing = num_outputs - 1 - np.array([len(one) for one in some])
        for i in np.flatnonzero((num_missing >= 0) & (num_outputs > 1)):
            gaps.append(np.concatenate([some[i], np.zeros(num_missing[i])]))
            worst_gap_s[i] = gaps[-1].max()
        notices = _gap_notices(num_missing, num_outputs)
    return MeasuredRequests(
        arrival_s=checked.arrival_ns[keep] / 1e9,
        first_token_s=messages.first_s[keep],
        last_token_s=messages.last_s[keep],
        num_outputs=num_outputs,
        gap_s=np.concatenate([*gaps, np.zeros(0)]),
        worst_gap_s=worst_gap_s,
        prompt_tokens=None if checked.prompt_tokens is None else checked.prompt_tokens[keep],
        source_row=checked.rows[keep],
        clock=checked.columns.tokens.clock,
        receipt=replace(
            checked.receipt,
            num_kept=int(keep.sum()),
            columns=checked.receipt.columns + tuple(("tokens", name) for name in checked.columns.tokens.all),
            dropped=checked.receipt.dropped + dropped,
            notices=(*checked.receipt.notices, *notices),
        ),
    )


def _gap_notices(num_missing: Ints, num_outputs: Ints) -> list[str]:
    """Say where messages and tokens are not one to one."""
    notices = []
    if (num_missing > 0).any():
        num_tokens = int(num_missing[num_missing > 0].sum())
        notices.append(
            f"{num_tokens:,} of {int(num_outputs.sum()):,} tokens came in one message with a neighbour: 0 apart"
        )
    if (num_missing < 0).any():
        notices.append(
            f"{int((num_missing < 0).sum()):,} requests came in more messages than they have tokens: their gaps are "
            "left out"
        )
    return notices
