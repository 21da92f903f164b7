import numpy as np
import pytest

from app.figures import requests
from traces.requests import RequestTrace


def trace_of(arrival_s: list[float], prompt_tokens: list[int], output_tokens: list[int]) -> RequestTrace:
    rows = np.arange(len(arrival_s))
    return RequestTrace(np.array(arrival_s), np.array(prompt_tokens), np.array(output_tokens), rows)


def test_the_rate_counts_every_request_once() -> None:
    trace = trace_of([0.0, 1.0, 1.5, 30.0], [10] * 4, [1] * 4)
    canvas = requests.arrival_rate(trace)
    (line,) = canvas.data
    width_s = line.x[1] - line.x[0]
    assert sum(line.y[:-1]) * width_s == pytest.approx(4)
    assert line.name == "4 requests, counted per 1 s"
    assert canvas.layout.title.text == "When did requests arrive?"
    assert canvas.layout.xaxis.title.text == "Time since the first arrival [s]"
    assert canvas.layout.yaxis.title.text == "Arrivals [requests/s]"


def test_a_long_trace_gets_wider_bins(trace: RequestTrace) -> None:
    week = trace_of([0.0, 7 * 86_400.0], [10, 10], [1, 1])
    (line,) = requests.arrival_rate(week).data
    assert len(line.x) <= requests.MAX_BINS + 2


def test_requests_at_one_moment_have_no_rate() -> None:
    canvas = requests.arrival_rate(trace_of([0.0, 0.0], [10, 10], [1, 1]))
    assert len(canvas.data) == 0
    assert canvas.layout.annotations[0].text == "All 2 requests arrive at once."


def test_lengths_are_shares_of_all_requests() -> None:
    trace = trace_of([0.0, 1.0, 2.0, 3.0], [100, 100, 100, 6000], [1, 2, 4, 8])
    canvas = requests.token_lengths(trace)
    prompt, output = canvas.data
    assert prompt.name == "prompt tokens, p50 100 (4 requests)"
    assert output.name == "output tokens, p50 4 (4 requests)"
    assert max(prompt.y) == 75.0
    assert sum(output.y[:-1]) == pytest.approx(100.0)
    assert canvas.layout.xaxis.title.text == "Tokens per request [tokens]"
    assert canvas.layout.yaxis.title.text == "Share of requests [%]"


def test_lengths_are_counted_together() -> None:
    canvas = requests.joint_lengths(trace_of([0.0, 1.0, 2.0], [100, 100, 4000], [10, 10, 1]))
    (heat,) = canvas.data
    assert np.sum(heat.customdata) == 3
    assert np.max(heat.customdata) == 2
    assert np.nanmax(heat.z) == pytest.approx(np.log10(2))


def test_burstiness_of_a_regular_clock_is_none() -> None:
    regular = trace_of([float(at) for at in range(2000)], [1] * 2000, [1] * 2000)
    line = requests.burstiness(regular).data[0]
    assert max(y for x, y in zip(line.x, line.y, strict=True) if x >= 1.0) == pytest.approx(0.0)
    assert "Too few" in requests.burstiness(trace_of([0.0], [1], [1])).layout.annotations[0].text


def test_a_drawn_window_is_in_seconds() -> None:
    assert requests.drawn_window_s([], 100.0) is None
    assert requests.drawn_window_s([{"x": [12.4, 3.6], "y": [0, 1]}], 100.0) == (3.0, 13.0)
    assert requests.drawn_window_s([{"x": [-1.0, 0.5], "y": [0, 1]}], 7 * 86_400.0) == (0.0, 1800.0)
