import numpy as np
import pytest

from app.figures import distributions, theme
from app.figures.distributions import Latencies
from planner.metrics import Distribution, distribution
from planner.slo import Slo

GAPS = distribution(np.array([0.01] * 98 + [0.05, 0.2]))
NOTHING = Distribution(np.array([]), np.array([], np.int64))


def test_the_line_is_the_share_that_is_longer() -> None:
    value_s, share = distributions.share_longer(GAPS)
    assert value_s.tolist() == [0.01, 0.05, 0.2]
    assert share == pytest.approx([0.02, 0.01, 0.01])


def test_a_long_line_is_thinned_and_keeps_its_tail() -> None:
    values = distribution(np.random.default_rng(1).exponential(0.01, 500_000))
    value_s, share = distributions.share_longer(values)
    assert len(value_s) <= theme.MAX_POINTS
    assert value_s[-1] == values.value_s[-1]
    assert share[-1] == pytest.approx(1 / 500_000)
    at = np.searchsorted(value_s, values.percentile(0.99))
    assert share[at] == pytest.approx(0.01, rel=0.02)


def test_gaps_are_shown_in_milliseconds_with_target_and_count() -> None:
    canvas = distributions.gap_tail((Latencies("Today", theme.TODAY, GAPS, NOTHING),), Slo(itl_s=0.08))
    (line,) = canvas.data
    assert line.name == "Today (100 gaps)"
    assert list(line.x) == pytest.approx([10.0, 50.0, 200.0])
    assert list(line.y) == pytest.approx([2.0, 1.0, 1.0])
    assert canvas.layout.xaxis.title.text == "Token gap (ITL), pooled over requests [ms]"
    assert canvas.layout.yaxis.title.text == "Share that is longer [%]"
    assert [a.text for a in canvas.layout.annotations] == ["target 80 ms", "p99"]


def test_ttft_has_a_target_line_only_where_there_is_a_target() -> None:
    settings = (Latencies("Today", theme.TODAY, NOTHING, GAPS),)
    assert not distributions.ttft_tail(settings, Slo(itl_s=0.08)).layout.annotations
    with_target = distributions.ttft_tail(settings, Slo(itl_s=0.08, ttft_s=2.0, ttft_percentile=0.9))
    assert [a.text for a in with_target.layout.annotations] == ["target 2 s", "p90"]
    assert with_target.data[0].name == "Today (100 requests)"


def test_without_values_the_figure_says_so() -> None:
    canvas = distributions.gap_tail((Latencies("Today", theme.TODAY, NOTHING, NOTHING),), Slo(itl_s=0.08))
    assert len(canvas.data) == 0
    assert canvas.layout.annotations[0].text == "The replay gave no value to draw."
