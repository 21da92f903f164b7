"""Judge the values of a file: every fault of a column is listed, none is raised."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from traces.errors import Choice, Problem, Question

MAX_TOKENS = 10_000_000
"""More tokens than this in one request or step is a fault of the file; no model has such a context."""

NUM_ROWS_NAMED = 5
"""How many bad rows a message names."""

MEND = "Correct these rows, or leave bad rows out (on the command line: --drop-bad-rows)."

INTEGER = r"^-?\d{1,19}$"
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$|^[+-]?(?i:inf|infinity|nan)$"

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """The values of one column of n rows, and what is wrong with them."""

    values: npt.NDArray[Any]
    """(n,) int64 or float64; meaningless where `bad`."""
    bad: Mask
    """(n,) rows that cannot be used."""
    problems: tuple[Problem, ...]
    """Every kind of fault found, each with its first rows."""


class Faults:
    """Collects the faults of one column; a row counts for the first fault it has only."""

    def __init__(self, column: str, rows: Rows) -> None:
        self.column = column
        self.rows = rows
        self.bad = np.zeros(len(rows), dtype=np.bool_)
        self.problems: list[Problem] = []

    def add(self, mask: Mask, found: str, allowed: str, action: str = MEND, values: Any = None) -> None:
        """Note the rows of `mask`; `{}` in `found` takes the first bad one of `values`."""
        new = mask & ~self.bad
        where = np.flatnonzero(new)
        if not len(where):
            return
        if values is not None:
            found = found.format(_shown(values[where[0]]))
        self.bad |= new
        first = tuple(int(row) for row in self.rows[where[:NUM_ROWS_NAMED]])
        self.problems.append(Problem(self.column, found, allowed, action, first, len(where)))

    def judged(self, values: npt.NDArray[Any]) -> Judged:
        """Return the column's values with the faults noted so far."""
        return Judged(values, self.bad, tuple(self.problems))


def check_counts(column: pa.ChunkedArray, name: str, rows: Rows, least: int, excused: Mask | None = None) -> Judged:
    """Whole numbers from `least` to `MAX_TOKENS`.

    Parameters
    ----------
    column : pa.ChunkedArray
        (n,) of any type.
    name : str
        As the file spells it.
    rows : (n,) int64
        Data row of the file behind each value.
    least : int
        Smallest allowed value.
    excused : (n,) bool, optional
        Rows that may also be 0.

    Returns
    -------
    Judged
        Values int64.
    """
    allowed = f"whole numbers of at least {least}"
    faults = Faults(name, rows)
    values = numbers(column, faults, allowed)
    if values.dtype.kind == "f":
        _add_not_finite(values, faults, allowed)
        faults.add(values != np.floor(values), "{} is not a whole number", allowed, values=values)
    faults.add(values < 0, "negative value {}", allowed, values=values)
    too_small = values < least if excused is None else (values < least) & ~excused
    faults.add(too_small, f"{{}} is below {least}", allowed, values=values)
    faults.add(values > MAX_TOKENS, f"{{}} exceeds the limit of {MAX_TOKENS:,} tokens", allowed, values=values)
    return faults.judged(np.where(faults.bad, 0, values).astype(np.int64))


def check_amounts(column: pa.ChunkedArray, name: str, rows: Rows) -> Judged:
    """Finite numbers of at least 0, whole or not; values float64."""
    allowed = "numbers of at least 0"
    faults = Faults(name, rows)
    values = numbers(column, faults, allowed).astype(np.float64)
    _add_not_finite(values, faults, allowed)
    faults.add(values < 0, "negative value {}", allowed, values=values)
    return faults.judged(np.where(faults.bad, 0.0, values))


def numbers(column: pa.ChunkedArray, faults: Faults, allowed: str) -> npt.NDArray[Any]:
    """Return the column as numpy integers or float64; what is no number goes to `faults`."""
    column = plain(column)
    kind = column.type
    faults.add(column.is_null().to_numpy(), "missing value (null or empty)", allowed)
    if pa.types.is_integer(kind):
        return column.fill_null(0).to_numpy()  # type: ignore[no-any-return]
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return column.cast(pa.float64()).fill_null(0.0).to_numpy()  # type: ignore[no-any-return]
    if is_text(kind):
        return _numbers_in_text(column, faults, allowed)
    everything = np.ones(len(column), dtype=np.bool_)
    faults.add(everything, f"values of type {kind}, not numbers", allowed, "Give a column of numbers.")
    return np.zeros(len(column))


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Undo dictionary and run-end encoding, which say nothing about meaning."""
    kind = column.type
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return column.cast(kind.value_type)
    return column


def is_text(kind: pa.DataType) -> bool:
    """Whether the type holds text, in any of its layouts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_list(kind: pa.DataType) -> bool:
    """Whether the type holds lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def in_time_order(
    arrival_ns: npt.NDArray[np.int64], rows: Rows, naive: bool, clock_change: str | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.intp], tuple[str, ...]] | Question:
    """Sort arrivals stably, unless the clocks went back once.

    Parameters
    ----------
    arrival_ns : (n,) int64
        Nanoseconds since the earliest arrival, in file order.
    rows : (n,) int64
        Data row of the file behind each value.
    naive : bool
        Whether these are wall-clock times without a zone, which repeat an hour in autumn.
    clock_change : str or None
        The user's answer.

    Returns
    -------
    tuple or Question
        Sorted times since the first arrival; the order that sorts; notices. Or what the user must say first.
    """
    steps = np.diff(arrival_ns)
    back = np.flatnonzero(steps < 0)
    if not len(back):
        return arrival_ns, np.arange(len(arrival_ns)), ()
    first, jump_s = int(back[0]) + 1, float(-steps[back[0]]) / 1e9
    what = f"time goes back by {jump_s:,.6g} s at {row_name(int(rows[first]))}"
    shifted = arrival_ns + np.where(np.arange(len(arrival_ns)) >= first, 3_600_000_000_000, 0)
    # Half an hour to an hour: the size of a change of clocks, less the pause between the two requests.
    if naive and len(back) == 1 and 1800 <= jump_s <= 3600 and shifted[first] >= shifted[first - 1]:
        if clock_change is None:
            return _clock_question(what, arrival_ns, shifted)
        if clock_change == "yes":
            notice = f"{what}: a change of clocks, as you said; one hour was added from there on"
            return shifted - shifted[0], np.arange(len(shifted)), (notice,)
    order = np.argsort(arrival_ns, kind="stable")
    notice = f"the rows were out of order and were sorted by time: first, {what} ({len(back):,} such steps)"
    return arrival_ns[order], order, (notice,)


def arrival_notices(arrival_ns: npt.NDArray[np.int64]) -> tuple[str, ...]:
    """What a user must know about the clock behind these sorted arrivals."""
    gaps = np.diff(arrival_ns)
    if not len(gaps):
        return ()
    if not gaps.any():
        return ("all requests arrive at one instant: a rate cannot be given",)
    values, counts = np.unique(arrival_ns, return_counts=True)
    num_tied = len(arrival_ns) - len(values)
    resolution_ns = int(np.gcd.reduce(gaps))
    whole_seconds = resolution_ns % 1_000_000_000 == 0
    if (
        not num_tied
        or len(values) < 3
        or not (whole_seconds or (resolution_ns >= 1_000_000 and num_tied >= len(arrival_ns) / 10))
    ):
        return ()
    most = int(np.argmax(counts))
    resolution = "whole-second (1 s)" if whole_seconds else f"{resolution_ns / 1e6:,.6g} ms"
    return (
        f"arrivals have {resolution} resolution: {num_tied:,} requests share their instant with an earlier one "
        f"(at most {counts[most]:,} at once, {values[most] / 1e9:,.6g} s after the first); "
        "bursts may come from rounding",
    )


def row_name(row: int) -> str:
    """Name a data row as every message does."""
    return f"row {row + 1} (index {row})"


def row_names(rows: Iterable[int]) -> str:
    """Name several data rows, counted from 1."""
    return ", ".join(str(row + 1) for row in rows)


def _clock_question(what: str, as_is: npt.NDArray[np.int64], shifted: npt.NDArray[np.int64]) -> Question:
    """Ask whether a step back of about an hour is a change of clocks."""
    sorted_s, shifted_s = float(np.ptp(as_is)) / 1e9, float(np.ptp(shifted)) / 1e9
    return Question(
        "clock_change",
        None,
        f"{what}: did the clocks go back there, or are the rows unsorted?",
        (
            Choice("yes", f"the clocks went back; file order is right, the span is {shifted_s:,.6g} s"),
            Choice("no", f"the rows are unsorted; sorted by time the span is {sorted_s:,.6g} s"),
        ),
    )


def _add_not_finite(values: npt.NDArray[Any], faults: Faults, allowed: str) -> None:
    """Note NaN and infinities."""
    faults.add(np.isnan(values), "not a number (NaN)", allowed)
    faults.add(np.isinf(values), "infinite value", allowed)


def _numbers_in_text(column: pa.ChunkedArray, faults: Faults, allowed: str) -> npt.NDArray[Any]:
    """Numbers written as text: int64 when all are integers, else float64."""
    text = pc.utf8_trim_whitespace(column.cast(pa.string())).fill_null("0")
    faults.add(pc.equal(text, "").to_numpy(), "missing value (null or empty)", allowed)
    is_number = pc.match_substring_regex(text, NUMBER).to_numpy()
    faults.add(~is_number, "{!r} is not a number", allowed, values=text.to_numpy())
    text = pc.if_else(pa.array(faults.bad), "0", text)
    if pc.all(pc.match_substring_regex(text, INTEGER)).as_py():
        # Nanoseconds since 1970 have 19 digits: some numbers of that length fit 64 bits, some do not.
        with suppress(pa.ArrowInvalid):
            return text.cast(pa.int64()).to_numpy()  # type: ignore[no-any-return]
    return pc.replace_substring_regex(text, r"^\+", "").cast(pa.float64()).to_numpy()  # type: ignore[no-any-return]


def _shown(value: Any) -> Any:
    """Shorten a value for a message."""
    if isinstance(value, str):
        return value if len(value) <= 40 else value[:40] + "…"
    return f"{value:,.15g}" if isinstance(value, np.floating) else f"{value:,}"
