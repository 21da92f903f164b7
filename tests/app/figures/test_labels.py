import math

import numpy as np
import pytest

from app.figures import labels
from planner.step_time import StepTime


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (2.5312, "2.53"), (478.47, "478"), (12_345.6, "12,300"), (math.nan, "–")],
)
def test_numbers_have_three_digits_at_most(value: float, text: str) -> None:
    assert labels.three_digits(value) == text


@pytest.mark.parametrize(("share", "text"), [(0.9846, "98.5 %"), (1.0, "100 %"), (0.0, "0 %"), (math.nan, "–")])
def test_shares_are_percents(share: float, text: str) -> None:
    assert labels.percent(share) == text


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (287_342, "287,342"), (2_615_698, "2.62 M")])
def test_large_counts_fit_a_narrow_page(value: int, text: str) -> None:
    assert labels.compact(value) == text


def test_percentiles_keep_their_fraction() -> None:
    assert [labels.percentile(share) for share in (0.5, 0.99, 0.999)] == ["p50", "p99", "p99.9"]


def test_every_coefficient_of_the_equation_has_words_and_a_unit() -> None:
    assert {f"{name}_ns" for name in labels.TERMS} == set(StepTime._fields)


def test_a_coefficient_is_shown_in_the_unit_of_its_term() -> None:
    assert labels.term_value("per_prefill_token", 60.08e-6) == "60.1"
    assert labels.term_value("base", 9.007e-3) == "9.01"


@pytest.mark.parametrize(("span_s", "unit", "shown"), [(60.0, "s", 120.0), (3600.0, "min", 2.0), (1e6, "h", 1 / 30)])
def test_the_time_axis_suits_the_span(span_s: float, unit: str, shown: float) -> None:
    time = labels.since_first_arrival(span_s)
    assert time.unit == unit
    assert time.shown(np.array([120.0])) == pytest.approx([shown])
