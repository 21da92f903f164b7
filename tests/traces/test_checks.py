"""Every fault of a column is listed with its rows; nothing is raised."""

import numpy as np
import pyarrow as pa
import pytest

from traces.checks import MAX_TOKENS, arrival_notices, check_amounts, check_counts, in_time_order
from traces.errors import Question


def column(values: list[object], kind: pa.DataType | None = None) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(values, kind)])


def test_every_fault_is_listed() -> None:
    values = [1.0, None, float("nan"), float("inf"), 80.5, -3.0, 0.0, 1e12, 7.0]
    judged = check_counts(column(values), "prompt_tokens", np.arange(100, 109), least=1)
    assert [problem.rows for problem in judged.problems] == [(101,), (102,), (103,), (104,), (105,), (106,), (107,)]
    assert judged.values[~judged.bad].tolist() == [1, 7]
    words = ["missing", "NaN", "infinite", "80.5 is not a whole", "negative value -3", "0 is below 1", "exceeds"]
    assert all(word in problem.found for word, problem in zip(words, judged.problems, strict=True))


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.uint16(), pa.uint64(), pa.float32(), pa.decimal128(24, 2), pa.string(), pa.large_string()]
)
def test_whole_numbers_of_every_type(kind: pa.DataType) -> None:
    values = ["1", "2", "100"] if kind in (pa.string(), pa.large_string()) else [1, 2, 100]
    judged = check_counts(column(values).cast(kind), "n", np.arange(3), least=1)
    assert not judged.problems
    assert judged.values.tolist() == [1, 2, 100]
    assert judged.values.dtype == np.int64


def test_encoded_columns_count_too() -> None:
    encoded = column([5, 5, 6]).cast(pa.int64()).dictionary_encode()
    assert check_counts(encoded, "n", np.arange(3), least=1).values.tolist() == [5, 5, 6]


def test_types_that_hold_no_numbers_are_refused() -> None:
    judged = check_counts(column([[1], [2]]), "n", np.arange(2), least=1)
    assert judged.bad.all()
    assert "list" in judged.problems[0].found


def test_text_that_is_no_number_is_shown() -> None:
    judged = check_counts(column(["12", "1,234", "", "x" * 99, "0x10"]), "n", np.arange(5), least=1)
    assert judged.bad.tolist() == [False, True, True, True, True]
    assert "'1,234'" in str(judged.problems[1])
    assert len(str(judged.problems[1])) < 200


def test_unsigned_beyond_int64_is_too_large() -> None:
    judged = check_counts(column([2**64 - 1, MAX_TOKENS], pa.uint64()), "n", np.arange(2), least=1)
    assert judged.bad.tolist() == [True, False]


def test_excused_rows_may_be_zero() -> None:
    judged = check_counts(column([0, 0]), "n", np.arange(2), least=1, excused=np.array([True, False]))
    assert judged.bad.tolist() == [False, True]


def test_amounts() -> None:
    judged = check_amounts(column([0.5, -1.0, None, float("nan")]), "t_ms", np.arange(4))
    assert judged.bad.tolist() == [False, True, True, True]


def test_sorting_is_stable_and_said() -> None:
    ns = np.array([5, 1, 1, 9]) * 10**9
    ordered = in_time_order(ns, np.arange(4), naive=False, clock_change=None)
    assert not isinstance(ordered, Question)
    sorted_ns, order, notices = ordered
    assert order.tolist() == [1, 2, 0, 3]
    assert sorted_ns.tolist() == [10**9, 10**9, 5 * 10**9, 9 * 10**9]
    assert "goes back by 4 s at row 2 (index 1)" in notices[0]


def test_a_step_back_of_an_hour_is_asked() -> None:
    ns = np.array([3590, 3595, 5, 10]) * 10**9
    question = in_time_order(ns, np.arange(4), naive=True, clock_change=None)
    assert isinstance(question, Question)
    assert question.field == "clock_change"
    changed = in_time_order(ns, np.arange(4), naive=True, clock_change="yes")
    unsorted = in_time_order(ns, np.arange(4), naive=True, clock_change="no")
    assert not isinstance(changed, Question)
    assert not isinstance(unsorted, Question)
    assert (changed[0] / 1e9).tolist() == [0, 5, 15, 20]
    assert (unsorted[0] / 1e9).tolist() == [5, 10, 3590, 3595]
    # Times with a zone do not repeat an hour.
    assert not isinstance(in_time_order(ns, np.arange(4), naive=False, clock_change=None), Question)


def test_notices_about_the_clock() -> None:
    second = 10**9
    assert "rate cannot be given" in arrival_notices(np.zeros(3, dtype=np.int64))[0]
    assert "1 s" in arrival_notices(np.array([0, 0, 0, 1, 4]) * second)[0]
    assert "at most 3 at once" in arrival_notices(np.array([0, 0, 0, 1, 4]) * second)[0]
    assert arrival_notices(np.array([0, 1, 4]) * second) == ()
    assert arrival_notices(np.zeros(1, dtype=np.int64)) == ()
