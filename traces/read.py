"""The door: bytes of any accepted form become a checked `RequestTrace` or `StepLog`."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from traces.answers import NO_ANSWERS, ReadAnswers
from traces.checks import (
    MAX_TOKENS,
    NUM_ROWS_NAMED,
    Faults,
    Judged,
    Mask,
    arrival_notices,
    check_amounts,
    check_counts,
    in_time_order,
    is_list,
    row_names,
)
from traces.errors import BadData, Choice, NeedsAnswer, Problem, Question, UnreadableFile
from traces.formats import ROW_PATHS, STEP_ROLES_NEEDED, StepColumns, TraceColumns, recognise_steps, recognise_trace
from traces.prefixes import output_limits, prefix_hashes, priorities, words_of
from traces.receipt import Dropped, Receipt
from traces.requests import RequestTrace
from traces.server_log import ENCODER, LogSteps, is_server_log, parse_server_log
from traces.steps import StepLog, facts_of_table
from traces.tables import Decoded, OpenedFile, Source, columns_of, decode, open_file
from traces.units import NS_PER_UNIT, Arrivals, Times, decide_arrivals, read_times, unit_in_name, unit_question


@dataclass(frozen=True, slots=True, eq=False)
class CheckedRequests:
    """n requests of a file that can be used, ordered by arrival."""

    columns: TraceColumns
    """Which column plays which part."""
    table: pa.Table
    """n rows as the file has them."""
    rows: npt.NDArray[np.int64]
    """(n,) data row of the file, counted from 0."""
    arrival_ns: npt.NDArray[np.int64]
    """(n,) nanoseconds since the first arrival, never decreasing; ties keep the order of the file."""
    origin: float
    """The first arrival as the file has it."""
    prompt_tokens: npt.NDArray[np.int64] | None
    """(n,) tokens in the prompt; None where a measurement does not say."""
    output_tokens: npt.NDArray[np.int64]
    """(n,) tokens generated, at least 1."""
    receipt: Receipt
    """How the file was read."""


FASTEST, SLOW_STEP_S = 0.05, 1.0
"""Where even this share of the steps takes longer than so many seconds, the unit in a column's name is doubted."""
SPECULATION = "the steps decode several tokens per request: speculation is not modelled"


def open_requests(file: Source, file_name: str) -> OpenedFile:
    """Open a file of requests, for whoever reads it both as a trace and as a measurement; as `open_file`."""
    return open_file(file, file_name, ROW_PATHS)


def read_trace(file: Source | OpenedFile, file_name: str, answers: ReadAnswers = NO_ANSWERS) -> RequestTrace:
    """Read a request trace.

    Parameters
    ----------
    file : bytes, memoryview, path or OpenedFile
        Parquet, CSV or JSON, each also gzip- or zstd-compressed; told apart by content. Or from `open_requests`.
    file_name : str
        As the user named it; for messages and the receipt.
    answers : ReadAnswers
        What the user said about the file.

    Returns
    -------
    RequestTrace
        At least one request, with a receipt.

    Raises
    ------
    UnreadableFile
        Not a file we can open, or no column is known.
    BadData
        Columns or rows are wrong; lists every fault.
    NeedsAnswer
        The file alone does not settle its meaning.
    """
    checked = check_requests(file, file_name, answers, recognise_trace)
    columns, table = checked.columns, checked.table
    assert checked.prompt_tokens is not None
    notices = checked.receipt.notices
    priority = limits = hashes = None
    if columns.priority is not None:
        priority, notice = priorities(table[columns.priority], columns.priority)
        notices += (notice,)
    if columns.limit is not None:
        limits, notice = output_limits(table[columns.limit], columns.limit, checked.output_tokens)
        notices += (notice,)
    if columns.hashes is not None:
        block = None if columns.hash_block is None else table[columns.hash_block]
        hashes, notice = prefix_hashes(table[columns.hashes], columns.hashes, checked.prompt_tokens, block)
        notices += (notice,)
    return RequestTrace(
        arrival_s=checked.arrival_ns / 1e9,
        prompt_tokens=checked.prompt_tokens,
        output_tokens=checked.output_tokens,
        source_row=checked.rows,
        priority=priority,
        max_tokens=limits,
        prefix_hashes=hashes,
        labels=tuple(words_of(table[name], name) for name in columns.labels),
        receipt=replace(checked.receipt, notices=notices),
    )


def check_requests(
    file: Source | OpenedFile,
    file_name: str,
    answers: ReadAnswers,
    recognise: Callable[[pa.Schema, str, ReadAnswers, str], TraceColumns],
) -> CheckedRequests:
    """Read what traces and measurements have in common; parameters and errors as `read_trace`.

    `recognise` finds the columns.
    """
    opened = file if isinstance(file, OpenedFile) else open_requests(file, file_name)
    if opened.text is not None and is_server_log(opened.text):
        raise UnreadableFile(file_name, "this is a vLLM server log: it holds engine steps, give it as the step log.")
    schema = columns_of(opened, file_name)
    columns = recognise(schema, opened.form, answers, file_name)
    decoded = decode(opened, schema, columns.all, file_name)
    if not decoded.num_rows:
        raise _no_rows(file_name, "no requests")
    decoded, left_out = _left_out(*_one_benchmark(decoded, columns.benchmark, answers.benchmark, file_name), columns)
    times = read_times(decoded.table[columns.arrival], columns.arrival, decoded.rows)
    output = _output(decoded, columns)
    failed = ~output.bad & (output.values == 0)
    prompt = None
    if columns.prompt is not None:
        prompt = check_counts(decoded.table[columns.prompt], columns.prompt, decoded.rows, least=1, excused=failed)
    problems = (*decoded.problems, *times.problems, *(prompt.problems if prompt else ()), *output.problems)
    dropped = _dropped(problems, answers, file_name)
    good = ~(times.bad | output.bad | (prompt.bad if prompt else False))
    failed &= good
    keep = good & ~failed
    if not keep.any():
        raise _no_rows(file_name, "no requests with output tokens")
    times = times.kept(keep)
    arrivals = _decide(times, columns, answers, file_name)
    ordered = in_time_order(arrivals.ns, decoded.rows[keep], arrivals.naive, answers.clock_change)
    if isinstance(ordered, Question):
        raise NeedsAnswer(file_name, (ordered,))
    arrival_ns, order, order_notices = ordered
    table = decoded.table.filter(pa.array(keep))
    return CheckedRequests(
        columns=columns,
        table=table if (np.diff(order) == 1).all() else table.take(order),
        rows=decoded.rows[keep][order],
        arrival_ns=arrival_ns,
        origin=times.values.min(),
        prompt_tokens=None if prompt is None else prompt.values[keep][order],
        output_tokens=output.values[keep][order],
        receipt=Receipt(
            file_name=file_name,
            file_digest=opened.digest,
            layout=f"{columns.layout}, {opened.form}",
            num_rows=decoded.num_rows,
            num_kept=int(keep.sum()),
            columns=columns.parts,
            time_unit=arrivals.unit,
            time_unit_reason=arrivals.reason,
            dropped=left_out + dropped + _failed(decoded.rows[failed]),
            notices=columns.notices
            + tuple(f"left out, {one.num_rows:,} of the rows: {one.reason}" for one in left_out)
            + _failed_notice(decoded.rows[failed])
            + order_notices
            + arrival_notices(arrival_ns),
        ),
    )


def read_steps(file: Source, file_name: str, answers: ReadAnswers = NO_ANSWERS) -> StepLog:
    """Read a step log: vLLM's own server log, or a table with one row per engine step.

    Parameters
    ----------
    file : bytes, memoryview or path
        A server log (text or JSON lines) or a table in Parquet, CSV or JSON lines, each also compressed.
    file_name : str
        As the user named it; for messages and the receipt.
    answers : ReadAnswers
        What the user said about the file.

    Returns
    -------
    StepLog
        At least one step, with what the log says about the server and a receipt.

    Raises
    ------
    UnreadableFile
        Not a file we can open, or no column is known.
    BadData
        Columns or rows are wrong; lists every fault.
    NeedsAnswer
        The file alone does not settle its meaning.
    """
    opened = open_file(file, file_name)
    if opened.text is not None and is_server_log(opened.text):
        return _steps_of_log(opened, file_name)
    schema = columns_of(opened, file_name)
    columns = recognise_steps(schema, opened.form, answers, file_name)
    decoded = decode(opened, schema, [column for _, column in columns.by_role], file_name)
    if not decoded.num_rows:
        raise _no_rows(file_name, "no steps")
    try:
        facts = facts_of_table(schema.metadata)
    except ValueError as fault:
        raise UnreadableFile(file_name, f"the entry 'server_facts' of its metadata is broken: {fault}.") from None
    return replace(_steps_of_table(opened, columns, decoded, answers, file_name), facts=facts)


def _decide(times: Times, columns: TraceColumns, answers: ReadAnswers, file_name: str) -> Arrivals:
    """Decide the unit of the arrivals, or raise what stands against it."""
    decision = decide_arrivals(times, columns.stated, answers.arrival_unit, answers.same_day)
    if isinstance(decision, Question):
        taken = f"Columns taken: {columns.arrival!r}, {columns.prompt!r}, {columns.output!r}."
        raise NeedsAnswer(file_name, (replace(decision, text=f"{taken} {decision.text}"),))
    if isinstance(decision, Problem):
        raise BadData(file_name, (decision,))
    return decision


def _one_benchmark(
    decoded: Decoded, column: str | None, answer: str | None, file_name: str
) -> tuple[Decoded, tuple[Dropped, ...]]:
    """Keep the benchmark that the user chose, where a file has several."""
    if column is None:
        return decoded, ()
    places = decoded.table[column].cast(pa.string()).fill_null("")
    choices = tuple(
        Choice(one["values"], f"benchmark {one['values']}, {one['counts']:,} requests")
        for one in pc.value_counts(places).to_pylist()
    )
    if len(choices) < 2 or answer == "all":
        return decoded, ()
    if answer not in {choice.value for choice in choices}:
        everything = Choice("all", f"all {len(decoded.rows):,} requests, as they came one benchmark after the other")
        text = f"The file holds {len(choices):,} benchmarks. Which one is meant?"
        raise NeedsAnswer(file_name, (Question("benchmark", None, text, (*choices, everything)),))
    return _without(decoded, pc.not_equal(places, answer).to_numpy(), f"requests of other benchmarks than {answer}")


def _left_out(
    decoded: Decoded, dropped: tuple[Dropped, ...], columns: TraceColumns
) -> tuple[Decoded, tuple[Dropped, ...]]:
    """Leave out what is no request to replay, by the rules of the layout."""
    for rule in columns.left_out:
        if rule.column in decoded.table.column_names:
            column = decoded.table[rule.column]
            try:
                said = column.cast(pa.string()).fill_null("")
            except pa.ArrowException:
                # Lists and the like say nothing by their value; that they are there says something.
                said = pc.if_else(column.is_null(), "", "…")
            others = pc.invert(pc.is_in(said, pa.array(rule.keep))).to_numpy()
            words = ", ".join(word[:40] for word in said.filter(pa.array(others)).unique().to_pylist()[:3])
            decoded, more = _without(decoded, others, f"{rule.reason} ({rule.column}: {words})")
            dropped += more
    return decoded, dropped


def _without(decoded: Decoded, mask: Mask, reason: str) -> tuple[Decoded, tuple[Dropped, ...]]:
    """Leave out the rows of `mask`, and say so."""
    rows = decoded.rows[mask]
    if not len(rows):
        return decoded, ()
    rest = replace(decoded, table=decoded.table.filter(pa.array(~mask)), rows=decoded.rows[~mask])
    return rest, (Dropped(reason, len(rows), _first(rows)),)


def _output(decoded: Decoded, columns: TraceColumns) -> Judged:
    """Judge the output tokens; where only their times are known, count those."""
    if columns.output is not None:
        return check_counts(decoded.table[columns.output], columns.output, decoded.rows, least=0)
    assert columns.tokens is not None
    assert columns.tokens.every is not None
    faults = Faults(columns.tokens.every, decoded.rows)
    lists = decoded.table[columns.tokens.every]
    if pa.types.is_null(lists.type) or is_list(lists.type):
        lengths = pc.list_value_length(lists.cast(lists.type if is_list(lists.type) else pa.list_(pa.float64())))
        return faults.judged(lengths.fill_null(0).to_numpy().astype(np.int64))
    faults.add(np.ones(len(lists), np.bool_), f"values of type {lists.type}", "lists of times")
    return faults.judged(np.zeros(len(lists), np.int64))


def _steps_of_log(opened: OpenedFile, file_name: str) -> StepLog:
    """Steps from a server log."""
    assert opened.text is not None
    log = parse_server_log(opened.text.decode("utf-8", errors="replace"))
    if not len(log.line):
        raise UnreadableFile(
            file_name,
            "a vLLM server log without iteration lines. Start the server with --enable-logging-iteration-details, "
            "let it serve some minutes of traffic, and give the new log.",
        )
    keep, dropped, speculates = _steps_to_keep(log)
    if not keep.any():
        raise _no_rows(file_name, "no steps with work")
    prefill_reqs, prefill_tokens, decode_reqs, decode_tokens, elapsed_ms, kv_percent = log.columns[keep].T
    receipt = Receipt(
        file_name=file_name,
        file_digest=opened.digest,
        layout="vLLM server log" + (", JSON lines" if b'"message": "' in opened.text else ", text"),
        num_rows=len(log.line) + sum(len(lines) for _, lines in log.left_out),
        num_kept=int(keep.sum()),
        columns=(("step_time", "iteration elapsed time"),),
        time_unit="ms",
        time_unit_reason="printed in the line",
        dropped=dropped,
        notices=log.notices + ((SPECULATION,) if speculates else ()),
    )
    return StepLog(
        step_s=elapsed_ms / 1e3,
        num_prefill_reqs=prefill_reqs.astype(np.int64),
        prefill_tokens=prefill_tokens.astype(np.int64),
        num_decode_reqs=decode_reqs.astype(np.int64),
        source_row=log.line[keep],
        kv_usage=None if np.isnan(kv_percent).any() else kv_percent / 100,
        num_decode_tokens=None if speculates else decode_tokens.astype(np.int64),
        stamp_s=None if log.stamp_s is None else log.stamp_s[keep],
        facts=log.facts,
        receipt=receipt,
    )


def _steps_of_table(
    opened: OpenedFile, columns: StepColumns, decoded: Decoded, answers: ReadAnswers, file_name: str
) -> StepLog:
    """Steps from a table."""
    time_column = columns.column("step_time")
    decoded, unmeasured = _measured(decoded, time_column)
    decoded, encoded = _decoder_only(decoded, columns)
    needed = {role: _judge(role, columns.column(role), decoded) for role in STEP_ROLES_NEEDED}
    problems = (*decoded.problems, *(problem for judged in needed.values() for problem in judged.problems))
    dropped = _dropped(problems, answers, file_name)
    good = ~np.logical_or.reduce([judged.bad for judged in needed.values()])
    prefill_tokens, decode_reqs = needed["prefill_tokens"].values, needed["decode_reqs"].values
    keep = good & (prefill_tokens + decode_reqs > 0)
    if not keep.any():
        raise _no_rows(file_name, "no steps with work and a time")
    unit, reason = _step_unit(needed["step_time"].values[keep], time_column, answers, file_name)
    extra, notices = _extra_columns(columns, decoded, keep)
    if "prefill_reqs" not in extra:
        notices += ("no column says how many requests prefilled; one is assumed in every step with prefill tokens",)
    decode_tokens, speculates = _decode_tokens(extra, decode_reqs[keep])
    prefill_reqs = extra.get("prefill_reqs", (prefill_tokens[keep] > 0).astype(np.float64))
    return StepLog(
        step_s=needed["step_time"].values[keep] / (1e9 / NS_PER_UNIT[unit]),
        num_prefill_reqs=prefill_reqs.astype(np.int64),
        prefill_tokens=prefill_tokens[keep],
        num_decode_reqs=decode_reqs[keep],
        source_row=decoded.rows[keep],
        kv_decode_tokens=extra.get("kv_decode_tokens"),
        kv_usage=extra.get("kv_usage"),
        prefill_attention=_prefill_attention(extra, prefill_tokens[keep], prefill_reqs),
        kv_prefill_tokens=extra.get("kv_prefill_tokens"),
        weight=extra.get("weight"),
        num_decode_tokens=decode_tokens,
        receipt=Receipt(
            file_name=file_name,
            file_digest=opened.digest,
            layout=f"{columns.layout}, {opened.form}",
            num_rows=decoded.num_rows,
            num_kept=int(keep.sum()),
            columns=tuple((role, name) for role, name in columns.by_role if role in needed or role in extra),
            time_unit=unit,
            time_unit_reason=reason,
            dropped=dropped + unmeasured + encoded + _idle(decoded.rows[good & ~keep]),
            notices=columns.notices + notices + ((SPECULATION,) if speculates else ()),
        ),
    )


def _measured(decoded: Decoded, time_column: str) -> tuple[Decoded, tuple[Dropped, ...]]:
    """Leave out the rows without a period between outputs: a step that emitted nothing has none."""
    missing = decoded.table[time_column].is_null().to_numpy()
    if not time_column.startswith("itl") or not missing.any():
        return decoded, ()
    return _without(decoded, missing, f"no value in column {time_column!r}")


def _decoder_only(decoded: Decoded, columns: StepColumns) -> tuple[Decoded, tuple[Dropped, ...]]:
    """Leave out the rows whose step ran an encoder too."""
    name = dict(columns.by_role).get("encoder_inputs")
    ran = None if name is None else check_amounts(decoded.table[name], name, decoded.rows).values > 0
    if ran is None or not ran.any():
        return decoded, ()
    return _without(decoded, ran, ENCODER)


def _judge(role: str, column: str, decoded: Decoded) -> Judged:
    """Judge one column of a step table by its part."""
    if role in ("prefill_tokens", "decode_reqs", "prefill_reqs", "decode_tokens"):
        return check_counts(decoded.table[column], column, decoded.rows, least=0)
    return check_amounts(decoded.table[column], column, decoded.rows)


def _step_unit(values: npt.NDArray[np.float64], column: str, answers: ReadAnswers, file_name: str) -> tuple[str, str]:
    """Return the unit of a step log's time column and why, or ask."""
    if answers.step_time_unit is not None:
        return answers.step_time_unit, "your answer"
    unit = unit_in_name(column)
    if unit is None:
        raise NeedsAnswer(file_name, (unit_question(values, column, "no unit in its name"),))
    fastest_s = float(np.quantile(values, FASTEST)) * NS_PER_UNIT[unit] / 1e9
    if fastest_s > SLOW_STEP_S:
        doubt = f"its name says {unit}, but then even fast steps take {fastest_s:.3g} s"
        raise NeedsAnswer(file_name, (unit_question(values, column, doubt),))
    return unit, f"the column name {column!r} says {unit}"


def _extra_columns(
    columns: StepColumns, decoded: Decoded, keep: Mask
) -> tuple[dict[str, npt.NDArray[np.float64]], tuple[str, ...]]:
    """Columns that a step log may lack: a faulty one is left out, with a notice."""
    extra, notices = {}, []
    for role, column in columns.by_role:
        if role in STEP_ROLES_NEEDED:
            continue
        judged = _judge(role, column, decoded)
        if (judged.bad & keep).any():
            notices.append(f"column {column!r} is not used: {judged.problems[0]}")
        elif role == "kv_usage" and judged.values[keep].max() > 1:
            notices.append(f"column {column!r} is not used: shares above 1 found")
        else:
            extra[role] = judged.values[keep].astype(np.float64)
    return extra, tuple(notices)


def _decode_tokens(
    extra: dict[str, npt.NDArray[np.float64]], decode_reqs: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64] | None, bool]:
    """Tokens that decodes computed, unless they speculate, and whether they do."""
    if "decode_tokens" not in extra:
        return None, False
    if _speculates(extra["decode_tokens"], decode_reqs):
        return None, True
    return extra["decode_tokens"].astype(np.int64), False


def _prefill_attention(
    extra: dict[str, npt.NDArray[np.float64]],
    prefill_tokens: npt.NDArray[np.int64],
    prefill_reqs: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64] | None:
    """Sum of chunk·(context + chunk/2); several prefilling requests are taken as equal chunks."""
    if "prefill_attention" in extra or "kv_prefill_tokens" not in extra:
        return extra.get("prefill_attention")
    # With r chunks of T/r and contexts that sum to K: r·(T/r)·(K/r + T/2r) = T·(K + T/2)/r.
    return prefill_tokens * (extra["kv_prefill_tokens"] + prefill_tokens / 2) / np.maximum(prefill_reqs, 1)


def _dropped(problems: tuple[Problem, ...], answers: ReadAnswers, file_name: str) -> tuple[Dropped, ...]:
    """Raise the problems, or leave their rows out where the user said so."""
    if problems and not answers.drop_bad_rows:
        raise BadData(file_name, problems)
    return tuple(
        Dropped(f"{f'column {p.column!r}: ' if p.column else ''}{p.found}", p.num_rows, p.rows) for p in problems
    )


def _failed(rows: npt.NDArray[np.int64]) -> tuple[Dropped, ...]:
    """Requests without output."""
    return (Dropped("0 output tokens: failed requests", len(rows), _first(rows)),) if len(rows) else ()


def _failed_notice(rows: npt.NDArray[np.int64]) -> tuple[str, ...]:
    """Say that requests without output are excluded."""
    if not len(rows):
        return ()
    more = ", …" if len(rows) > NUM_ROWS_NAMED else ""
    return (
        f"{len(rows):,} rows with 0 output tokens are excluded as failed requests "
        f"(rows {row_names(_first(rows))}{more}): vLLM takes no max_tokens below 1",
    )


def _idle(rows: npt.NDArray[np.int64]) -> tuple[Dropped, ...]:
    """Steps without any work."""
    return (Dropped("steps without scheduled work", len(rows), _first(rows)),) if len(rows) else ()


def _steps_to_keep(log: LogSteps) -> tuple[Mask, tuple[Dropped, ...], bool]:
    """Choose the steps with work, and say whether they decode several tokens per request as a rule."""
    _, _, decode_reqs, decode_tokens = log.columns[:, :4].T
    absurd = (log.columns[:, :4] > MAX_TOKENS).any(axis=1) | ~np.isfinite(log.columns[:, 4])
    keep = (log.columns[:, :3].sum(axis=1) > 0) & ~absurd
    dropped = _idle(log.line[~keep & ~absurd])
    if absurd.any():
        lines = log.line[absurd]
        dropped += (Dropped(f"iteration lines with counts above {MAX_TOKENS:,}", len(lines), _first(lines)),)
    dropped += tuple(Dropped(reason, len(lines), lines[:NUM_ROWS_NAMED]) for reason, lines in log.left_out)
    return keep, dropped, _speculates(decode_tokens, decode_reqs)


def _speculates(decode_tokens: npt.NDArray[np.float64], decode_reqs: npt.NDArray[Any]) -> bool:
    """Whether steps decode several tokens per request; now and then one recomputes after a preemption."""
    return bool((decode_tokens > decode_reqs).sum() > (decode_reqs > 0).sum() / 2)


def _no_rows(file_name: str, what: str) -> BadData:
    """Nothing is left to work on."""
    problem = Problem(None, f"the file is empty of rows: {what}", "at least one row", "Export a window with traffic.")
    return BadData(file_name, (problem,))


def _first(rows: npt.NDArray[np.int64]) -> tuple[int, ...]:
    """Return the first rows, for a receipt."""
    return tuple(int(row) for row in rows[:NUM_ROWS_NAMED])
