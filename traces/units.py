"""Decide what the values of a time column mean; never without saying so."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from traces.answers import TIME_UNITS
from traces.checks import NUMBER, Faults, Mask, Rows, is_text, numbers, plain
from traces.errors import Choice, Problem, Question

NS_PER_UNIT = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
"""Nanoseconds in one of each unit."""

EPOCH_START_S, EPOCH_END_S = 946_684_800, 4_102_444_800
"""2000 and 2100 in Unix seconds: the four units' ranges between them do not touch each other."""

LONGEST_S = 10 * 366 * 86_400
"""A trace that spans more than ten years was read in a wrong unit."""

DAY_NS = 86_400 * 1_000_000_000

SUFFIXES = {
    **{"_" + unit: unit for unit in TIME_UNITS},
    **{"_sec": "s", "_secs": "s", "_seconds": "s", "_msec": "ms", "_millis": "ms", "_milliseconds": "ms"},
    **{"_usec": "us", "_micros": "us", "_microseconds": "us", "_nanos": "ns", "_nanoseconds": "ns"},
}
"""Endings of column names that say the unit."""

TIMES_ALLOWED = "numbers of at least 0, timestamps, durations, or text like 2026-03-02T09:15:00.250Z"
DATE = r"^\d{4}-\d{2}-\d{2}$"
CLOCK = r"^\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?$"
ZONE = r"(Z|[+-]\d{2}(:?\d{2})?)$"
DATETIME = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}(:?\d{2})?)?$"


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """A time column of n rows as numbers, before a unit is decided."""

    values: npt.NDArray[Any]
    """(n,) int64 or float64; meaningless where `bad`."""
    bad: Mask
    """(n,) rows that cannot be used."""
    problems: tuple[Problem, ...]
    """Every kind of fault found."""
    kind: str
    """"instant", "duration", "time of day" or "number"."""
    unit: str | None
    """Unit of `values`; None for kind "number"."""
    label: str
    """The type in words, for the receipt."""
    naive: bool = False
    """Wall-clock times without a zone."""

    def kept(self, keep: Mask) -> "Times":
        """Return the rows of `keep` alone, which has no bad ones."""
        return replace(self, values=self.values[keep], bad=self.bad[keep])


@dataclass(frozen=True, slots=True)
class Stated:
    """What the name or the documentation of a column says about its unit; None = nothing."""

    column: str
    """Name of the column as the file spells it."""
    unit: str | None
    """Unit of whole and fractional numbers."""
    fraction_unit: str | None
    """Unit of numbers that have a fractional part, where whole ones are open."""
    source: str
    """Who says so, in words."""


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """When the requests of n rows arrived."""

    ns: npt.NDArray[np.int64]
    """(n,) nanoseconds since the earliest arrival, in file order."""
    unit: str
    """The unit that was used, for the receipt."""
    reason: str
    """Why that unit."""
    naive: bool
    """Wall-clock times without a zone."""


def unit_in_name(name: str) -> str | None:
    """Return the unit that a column name ends in, or None."""
    spelled = name.lower().replace(" ", "_").replace("-", "_").replace(".", "_")
    return next((unit for suffix, unit in SUFFIXES.items() if spelled.endswith(suffix)), None)


def read_times(column: pa.ChunkedArray, name: str, rows: Rows) -> Times:
    """Turn a time column of any type into numbers, and list what is wrong with it.

    Parameters
    ----------
    column : pa.ChunkedArray
        (n,) timestamps, durations, times of day, numbers or text.
    name : str
        As the file spells it.
    rows : (n,) int64
        Data row of the file behind each value.

    Returns
    -------
    Times
        Integers stay integers; text keeps every digit of up to nine decimals.
    """
    column = plain(column)
    kind = column.type
    faults = Faults(name, rows)
    if is_text(kind):
        return _times_in_text(pc.utf8_trim_whitespace(column.cast(pa.string())), faults)
    if pa.types.is_date(kind):
        everything = np.ones(len(column), dtype=np.bool_)
        faults.add(everything, f"dates without time of day (type {kind})", TIMES_ALLOWED, "Export the time too.")
        return _times(np.zeros(len(column), dtype=np.int64), faults, "instant", "s", str(kind))
    if pa.types.is_timestamp(kind):
        label = f"timestamp[{kind.unit}{', ' + kind.tz if kind.tz else ''}]"
        return _typed(column, faults, "instant", kind.unit, label, kind.tz is None)
    if pa.types.is_duration(kind):
        return _typed(column, faults, "duration", kind.unit, str(kind))
    if pa.types.is_time(kind):
        integer = pa.int32() if pa.types.is_time32(kind) else pa.int64()
        return _typed(column.cast(integer), faults, "time of day", kind.unit, f"time of day ({kind})")
    return _numeric(numbers(column, faults, TIMES_ALLOWED), faults)


def decide_arrivals(
    times: Times, stated: Stated, arrival_unit: str | None, same_day: str | None
) -> Arrivals | Question | Problem:
    """Decide the unit of a faultless time column, or say what the user must answer.

    Parameters
    ----------
    times : Times
        n >= 1 rows, none of them bad.
    stated : Stated
        What the column's name or documentation says.
    arrival_unit, same_day : str or None
        The user's answers.

    Returns
    -------
    Arrivals or Question or Problem
        Problem when the unit is clear and the span is still absurd.
    """
    if times.kind == "time of day":
        return _times_of_day(times, stated.column, same_day)
    if times.unit is not None:
        reason = "from the text" if times.label == "text datetime" else "from the column's type"
        return _since_first(times, times.unit, times.label, reason, stated.column)
    unit, reason = _unit_of_numbers(times.values, stated, arrival_unit)
    if unit is None:
        return _unit_question(times.values, stated.column, reason, "arrival_unit", _span)
    return _since_first(times, unit, unit, reason, stated.column)


def unit_question(values: npt.NDArray[np.float64], column: str, doubt: str) -> Question:
    """Ask for the unit of the steps' times, with the typical duration that each answer gives."""

    def typical(some: npt.NDArray[Any], unit: str) -> str:
        return f"a typical step takes {_readable(float(np.median(some)) * NS_PER_UNIT[unit] / 1e6)} ms"

    return _unit_question(values, column, doubt, "step_time_unit", typical)


def _unit_of_numbers(values: npt.NDArray[Any], stated: Stated, arrival_unit: str | None) -> tuple[str | None, str]:
    """Return (unit, why), or (None, why it is open)."""
    if arrival_unit is not None:
        return arrival_unit, "your answer"
    by_size = _epoch_unit(values)
    if stated.unit is not None and by_size is not None and stated.unit != by_size:
        return None, f"{stated.source} says {stated.unit}, the size of the numbers says {by_size}"
    if stated.unit is not None:
        too_long = np.ptp(values) * (NS_PER_UNIT[stated.unit] / 1e9) > LONGEST_S
        if too_long:
            return None, f"{stated.source} says {stated.unit}, which gives a span of years"
        return stated.unit, f"{stated.source} says {stated.unit}"
    if by_size is not None:
        year = datetime.fromtimestamp(float(values.min()) * NS_PER_UNIT[by_size] / 1e9, UTC).year
        return by_size, f"from the size of the numbers (dates in {year})"
    # Integers that passed through a null become whole floats; a handful of whole seconds is no such column.
    whole = values.dtype.kind != "f" or (
        bool(np.all(values == np.floor(values))) and len(np.unique(values[:10_000])) >= 8
    )
    if stated.fraction_unit is not None and not whole:
        return stated.fraction_unit, f"{stated.source} says {stated.fraction_unit} for decimal numbers"
    return None, "the file does not say the unit"


def _epoch_unit(values: npt.NDArray[Any]) -> str | None:
    """Return the unit in which all values are dates between 2000 and 2100, or None."""
    low, high = float(values.min()), float(values.max())
    for unit, ns in NS_PER_UNIT.items():
        per_second = 1_000_000_000 // ns
        if EPOCH_START_S * per_second <= low and high < EPOCH_END_S * per_second:
            return unit
    return None


def _unit_question(
    values: npt.NDArray[Any],
    column: str,
    why: str,
    field: str,
    consequence: Callable[[npt.NDArray[Any], str], str],
) -> Question:
    """Ask for a unit; every choice says what the file would then mean."""
    choices = tuple(Choice(unit, consequence(values, unit)) for unit in TIME_UNITS)
    return Question(field, column, f"Which unit has column {column!r}? ({why})", choices)


def _span(values: npt.NDArray[Any], unit: str) -> str:
    """Say what span and rate a unit gives."""
    span_s = float(values.max() - values.min()) * NS_PER_UNIT[unit] / 1e9
    rate = f", {_readable(len(values) / span_s)} requests per second" if span_s else ""
    length = _length(span_s) if span_s < 600 else f"{span_s:,.0f} s ({span_s / 3600:,.3g} h)"
    return f"the trace spans {length}{rate}"


def _length(span_s: float) -> str:
    """Write a span in the unit in which it is no small fraction."""
    for unit, per_s in (("s", 1.0), ("ms", 1e3)):
        if span_s == 0 or span_s * per_s >= 1:
            return f"{span_s * per_s:.6g} {unit}"
    return f"{span_s * 1e6:.6g} µs"


def _readable(number: float) -> str:
    """Write three significant digits, and large numbers without an exponent."""
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"


def _since_first(times: Times, unit: str, label: str, reason: str, column: str) -> Arrivals | Problem:
    """Nanoseconds since the earliest value, exact for integers of any unit."""
    ns_per_unit = NS_PER_UNIT[unit]
    # In floats first: the difference of two absurd integers may not fit one.
    span_s = (float(times.values.max()) - float(times.values.min())) * ns_per_unit / 1e9
    if span_s > LONGEST_S:
        years = span_s / (365.25 * 86_400)
        found = f"arrivals spread over {years:,.0f} years (read as {label}, {reason})"
        return Problem(column, found, "at most 10 years", "Correct the times, or say the unit (--arrival-unit).")
    since = times.values - times.values.min()
    whole = since.dtype.kind != "f"
    ns = since.astype(np.int64) * ns_per_unit if whole else np.rint(since * ns_per_unit).astype(np.int64)
    return Arrivals(ns, label, reason, times.naive)


def _times_of_day(times: Times, column: str, same_day: str | None) -> Arrivals | Question:
    """Times of day need a word about the day."""
    ns = times.values.astype(np.int64) * NS_PER_UNIT[times.unit or "ns"]
    midnights = np.concatenate([[0], np.cumsum(np.diff(ns) < 0)])
    over_days = ns + midnights * DAY_NS
    if same_day is None:
        text = f"Column {column!r} has times of day without a date: are they all on one day?"
        yes, no = float(np.ptp(ns)) / 1e9, float(np.ptp(over_days)) / 1e9
        return Question(
            "same_day",
            column,
            text,
            (
                Choice("yes", f"one day; the trace spans {yes:,.6g} s"),
                Choice("no", f"every step back in file order is a midnight; the trace spans {no:,.6g} s"),
            ),
        )
    ns = ns if same_day == "yes" else over_days
    return Arrivals(ns - ns.min(), times.label, "one day, as you said" if same_day == "yes" else "your answer", False)


def _typed(column: pa.ChunkedArray, faults: Faults, kind: str, unit: str, label: str, naive: bool = False) -> Times:
    """Times whose Arrow type says the unit."""
    faults.add(column.is_null().to_numpy(), "missing value (null)", TIMES_ALLOWED)
    values = column.cast(pa.int64()).fill_null(0).to_numpy()
    if kind == "duration":
        faults.add(values < 0, "negative value {}", TIMES_ALLOWED, values=values)
    return _times(values, faults, kind, unit, label, naive)


def _numeric(values: npt.NDArray[Any], faults: Faults) -> Times:
    """Times that are numbers of an unknown unit."""
    if values.dtype.kind == "f":
        values = values.astype(np.float64)
        faults.add(np.isnan(values), "not a number (NaN)", TIMES_ALLOWED)
        faults.add(np.isinf(values), "infinite value", TIMES_ALLOWED)
        largest: float = 2.0**63
    else:
        largest = 2**63 - 1
    faults.add(values < 0, "negative time {}", TIMES_ALLOWED, values=values)
    faults.add(values > largest, "{} is beyond any clock", TIMES_ALLOWED, values=values)
    values = np.where(faults.bad, 0, values)
    return _times(values if values.dtype.kind == "f" else values.astype(np.int64), faults, "number", None, "number")


def _times_in_text(text: pa.ChunkedArray, faults: Faults) -> Times:
    """Times written as text: datetimes, times of day or numbers, whichever most rows are."""
    empty = pc.or_kleene(text.is_null(), pc.equal(text, "")).fill_null(True).to_numpy()
    faults.add(empty, "missing value (null or empty)", TIMES_ALLOWED)
    text = text.fill_null("")
    shapes = {
        "number": _matching(text, NUMBER),
        "date": _matching(text, DATE),
        "clock": _matching(text, CLOCK),
    }
    most = max(shapes, key=lambda shape: int(shapes[shape].sum()))
    num_datetimes = len(text) - int(empty.sum()) - sum(int(mask.sum()) for mask in shapes.values())
    if num_datetimes >= shapes[most].sum():
        return _datetimes(text, faults)
    if most == "number":
        return _numeric(numbers(text, faults, TIMES_ALLOWED), faults)
    if most == "date":
        faults.add(shapes["date"], "dates without time of day", TIMES_ALLOWED, "Export the time too.")
        return _times(np.zeros(len(text), dtype=np.int64), faults, "instant", "ns", "text date")
    faults.add(~shapes["clock"], "{!r} is not a time of day", "times of day in every row", values=text.to_numpy())
    on_first_day = pc.binary_join_element_wise("1970-01-01", text, " ")
    ns = _parse(on_first_day, faults, pa.timestamp("ns"))
    return _times(ns, faults, "time of day", "ns", "time of day (text)")


def _datetimes(text: pa.ChunkedArray, faults: Faults) -> Times:
    """Text datetimes, exact to the nanosecond; offsets may differ from row to row."""
    text = pc.replace_substring_regex(text, r"\s*(UTC|GMT)$", "Z")
    text = pc.replace_substring_regex(text, r"\s+([+-]\d{2}(:?\d{2})?)$", r"\1")
    text = pc.replace_substring_regex(text, r"(:\d{2}),(\d+)", r"\1.\2")
    faults.add(~_matching(text, DATETIME), "{!r} is not a date and time", TIMES_ALLOWED, values=text.to_numpy())
    zoned = _matching(text, ZONE) & ~faults.bad
    naive = not zoned.any()
    if not naive:
        faults.add(~zoned, "{!r} has no time zone while other rows have one", TIMES_ALLOWED, values=text.to_numpy())
    ns = _parse(text, faults, pa.timestamp("ns", None if naive else "UTC"))
    return _times(ns, faults, "instant", "ns", "text datetime", naive)


def _parse(text: pa.ChunkedArray, faults: Faults, kind: pa.DataType) -> npt.NDArray[np.int64]:
    """Cast text to timestamps; the rows that are no dates (month 13, year 1600) go to `faults`."""
    zero = "1970-01-01T00:00:00" + ("Z" if kind.tz else "")
    text = pc.if_else(pa.array(faults.bad), zero, text)
    try:
        return text.cast(kind).cast(pa.int64()).to_numpy()  # type: ignore[no-any-return]
    except pa.ArrowInvalid:
        impossible = np.array([not _casts(one, kind) for one in text], dtype=np.bool_)
    faults.add(impossible, "{!r} is no date of the calendar", TIMES_ALLOWED, values=text.to_numpy())
    text = pc.if_else(pa.array(impossible), zero, text)
    return text.cast(kind).cast(pa.int64()).to_numpy()  # type: ignore[no-any-return]


def _casts(one: pa.Scalar, kind: pa.DataType) -> bool:
    """Whether one text is a date."""
    try:
        one.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _matching(text: pa.ChunkedArray, pattern: str) -> Mask:
    """Rows whose text matches."""
    return pc.match_substring_regex(text, pattern).to_numpy().astype(np.bool_)  # type: ignore[no-any-return]


def _times(
    values: npt.NDArray[Any], faults: Faults, kind: str, unit: str | None, label: str, naive: bool = False
) -> Times:
    """Bundle values with the faults noted."""
    return Times(values, faults.bad, tuple(faults.problems), kind, unit, label, naive)
