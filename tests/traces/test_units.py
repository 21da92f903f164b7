"""Times of every type and spelling give the same nanoseconds; what is open is asked."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from traces.errors import Problem, Question
from traces.units import Arrivals, Stated, Times, decide_arrivals, read_times, unit_in_name

NOTHING_STATED = Stated("t", None, None, "the column name")


def times(values: list[object], kind: pa.DataType | None = None) -> Times:
    return read_times(pa.chunked_array([pa.array(values, kind)]), "t", np.arange(len(values)))


def arrivals(
    values: list[object],
    kind: pa.DataType | None = None,
    stated: Stated = NOTHING_STATED,
    unit: str | None = None,
    same_day: str | None = None,
) -> Arrivals | Question | Problem:
    column = times(values, kind)
    assert not column.problems
    return decide_arrivals(column, stated, unit, same_day)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "America/New_York"])
def test_timestamps_of_every_unit(unit: str, zone: str | None) -> None:
    second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    found = arrivals([1_772_442_900 * second, 1_772_442_905 * second], pa.timestamp(unit, zone))
    assert isinstance(found, Arrivals)
    assert found.ns.tolist() == [0, 5_000_000_000]
    assert found.naive == (zone is None)
    assert found.unit == f"timestamp[{unit}{', ' + zone if zone else ''}]"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("2026-03-02 09:15:00", "2026-03-02 09:15:00.0000001"),
        ("2026-03-02T09:15", "2026-03-02T09:15:00.000000100"),
        ("2026-03-02 09:15:00", " 2026-03-02 09:15:00,0000001 "),
        ("2026-03-02T09:15:00Z", "2026-03-02 09:15:00.0000001 UTC"),
        ("2026-03-02T09:15:00Z", "2026-03-02 10:15:00.0000001 +01:00"),
        ("2026-03-02 09:15:00+00", "2026-03-02T04:15:00.000000100-0500"),
    ],
)
def test_text_keeps_every_digit(first: str, second: str) -> None:
    found = arrivals([first, second])
    assert isinstance(found, Arrivals)
    assert found.ns.tolist() == [0, 100]
    assert found.unit == "text datetime"


def test_offsets_may_differ_from_row_to_row() -> None:
    found = arrivals(["2026-03-02T10:15:00+01:00", "2026-03-02T09:15:00.250Z", "2026-03-02T04:15:00.5-05:00"])
    assert isinstance(found, Arrivals)
    assert found.ns.tolist() == [0, 250_000_000, 500_000_000]


def test_rows_without_a_zone_among_zoned_rows_are_faults() -> None:
    found = times(["2026-03-02T10:15:00+01:00", "2026-03-02T09:15:01"])
    assert found.bad.tolist() == [False, True]
    assert "no time zone" in found.problems[0].found


def test_impossible_dates_are_named() -> None:
    found = times(["2026-03-02T10:15:00", "2026-13-02T10:15:00", "2026-02-30T10:15:00", "yesterday"])
    assert found.bad.tolist() == [False, True, True, True]
    assert {row for problem in found.problems for row in problem.rows} == {1, 2, 3}


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([dt.date(2026, 3, 2)], pa.date32()),
        ([dt.date(2026, 3, 2)], pa.date64()),
        (["2026-03-02", "2026-03-03"], pa.string()),
    ],
)
def test_dates_without_time_of_day_are_refused(values: list[object], kind: pa.DataType) -> None:
    found = times(values, kind)
    assert found.bad.all()
    assert "time of day" in found.problems[0].found


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([dt.time(23, 59, 59), dt.time(0, 0, 1)], pa.time32("s")),
        ([dt.time(23, 59, 59), dt.time(0, 0, 1)], pa.time64("ns")),
        (["23:59:59", "00:00:01.000"], pa.string()),
    ],
)
def test_times_of_day_need_a_word(values: list[object], kind: pa.DataType) -> None:
    question = arrivals(values, kind)
    assert isinstance(question, Question)
    assert question.field == "same_day"
    one_day = arrivals(values, kind, same_day="yes")
    over_midnight = arrivals(values, kind, same_day="no")
    assert isinstance(one_day, Arrivals)
    assert isinstance(over_midnight, Arrivals)
    assert one_day.ns.tolist() == [86_398_000_000_000, 0]
    assert over_midnight.ns.tolist() == [0, 2_000_000_000]


@pytest.mark.parametrize(("unit", "per_s"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_epoch_units_show_in_the_size(unit: str, per_s: int) -> None:
    found = arrivals([1_772_442_900 * per_s, 1_772_442_901 * per_s])
    assert isinstance(found, Arrivals)
    assert found.unit == unit
    assert "2026" in found.reason
    assert found.ns.tolist() == [0, 1_000_000_000]


def test_relative_integers_are_asked_with_what_each_unit_means() -> None:
    question = arrivals([0, 250, 12_500])
    assert isinstance(question, Question)
    assert [choice.value for choice in question.choices] == ["s", "ms", "us", "ns"]
    assert "12.5 s" in question.choices[1].label
    answered = arrivals([0, 250, 12_500], unit="ms")
    assert isinstance(answered, Arrivals)
    assert answered.ns.tolist() == [0, 250_000_000, 12_500_000_000]


def test_a_name_that_contradicts_the_size_is_asked() -> None:
    stated = Stated("arrival_s", "s", "s", "the column name 'arrival_s'")
    assert isinstance(arrivals([1_772_442_900_000, 1_772_442_900_250], stated=stated), Question)
    assert isinstance(arrivals([0, 10**12], stated=stated), Question)


def test_decimals_are_seconds_only_where_the_layout_says_so() -> None:
    stated = Stated("arrival_time", None, "s", "the layout")
    found = arrivals([0.0, 0.25, 12.5], stated=stated)
    assert isinstance(found, Arrivals)
    assert found.unit == "s"
    assert isinstance(arrivals([0.0, 0.25, 12.5]), Question)
    # Integers that a null turned into floats are as open as integers.
    assert isinstance(arrivals([250.0 * row for row in range(10)], stated=stated), Question)


def test_numbers_come_as_text_and_decimals_too() -> None:
    stated = Stated("t_s", "s", "s", "the column name")
    for values in (["0", "0.5", " 2 "], ["0", "+5e-1", "2.0"], [Decimal("0.0"), Decimal("0.5"), Decimal("2.0")]):
        found = arrivals(values, stated=stated)
        assert isinstance(found, Arrivals)
        assert found.ns.tolist() == [0, 500_000_000, 2_000_000_000]


def test_faults_of_numbers() -> None:
    found = times([0.0, float("nan"), float("inf"), -1.0, None, 5.0])
    assert found.bad.tolist() == [False, True, True, True, True, False]
    assert len(found.problems) == 4


def test_a_span_of_centuries_is_no_trace() -> None:
    values = [0, 4_000_000_000_000_000]
    assert isinstance(arrivals(values, pa.timestamp("us")), Problem)
    assert isinstance(arrivals([-(2**62), 2**62], pa.timestamp("s")), Problem)


@pytest.mark.parametrize(
    ("name", "unit"),
    [("arrival_ms", "ms"), ("step.duration_us", "us"), ("elapsed s", "s"), ("t_seconds", "s"), ("rooms", None)],
)
def test_units_in_names(name: str, unit: str | None) -> None:
    assert unit_in_name(name) == unit
