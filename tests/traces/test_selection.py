from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared import files

from traces.answers import ReadAnswers
from traces.read import read_trace
from traces.requests import WHOLE, Labels, PrefixHashes, RequestTrace, Selection
from traces.selection import (
    EmptySelection,
    busiest_s,
    dispersion,
    select,
    selection_sentence,
    stamp_step_s,
)


def made(arrival_s: list[float] | np.ndarray) -> RequestTrace:
    """Requests whose lengths tell them apart, every second one sharing a first block."""
    num = len(arrival_s)
    return RequestTrace(
        arrival_s=np.array(arrival_s, np.float64),
        prompt_tokens=np.arange(num) + 100,
        output_tokens=np.arange(num) + 1,
        source_row=np.arange(num),
        priority=np.arange(num) % 3,
        max_tokens=np.arange(num) + 5,
        prefix_hashes=PrefixHashes(np.repeat(np.arange(num), 2), np.arange(num + 1) * 2, 16),
    )


def test_the_whole_trace_is_the_trace() -> None:
    trace = made([0.0, 1.0])
    assert select(trace, WHOLE) is trace
    assert selection_sentence(WHOLE) == "the whole trace"


def test_a_window_begins_at_its_first_arrival_and_excludes_its_end() -> None:
    part = select(made([0.0, 1.0, 2.5, 4.0]), Selection(window_s=(1.0, 4.0)))
    assert part.arrival_s.tolist() == [0.0, 1.5]
    assert part.prompt_tokens.tolist() == [101, 102]
    assert part.source_row.tolist() == [1, 2]
    assert part.priority is not None
    assert part.priority.tolist() == [1, 2]
    assert part.max_tokens is not None
    assert part.max_tokens.tolist() == [6, 7]
    assert part.prefix_hashes is not None
    assert part.prefix_hashes.ids.tolist() == [1, 1, 2, 2]
    assert part.prefix_hashes.offsets.tolist() == [0, 2, 4]


def test_an_open_window_runs_to_the_last_arrival() -> None:
    assert select(made([0.0, 1.0, 2.5]), Selection(window_s=(1.0, None))).prompt_tokens.tolist() == [101, 102]


def test_a_rate_brings_arrivals_closer() -> None:
    assert select(made([0.0, 1.0, 3.0]), Selection(rate=2.0)).arrival_s.tolist() == [0.0, 0.5, 1.5]


def test_a_sample_is_the_same_every_time() -> None:
    trace = made(np.arange(1000.0))
    part = select(trace, Selection(share=0.3, sample_seed=4))
    assert part.digest == select(trace, Selection(share=0.3, sample_seed=4)).digest
    assert part.digest != select(trace, Selection(share=0.3, sample_seed=5)).digest
    assert 230 < len(part) < 370


def labelled(num: int) -> RequestTrace:
    """Two models in turn; sessions of ten requests."""
    return replace(
        made(np.arange(float(num))),
        labels=(
            Labels("model", ("small", "large"), (np.arange(num) % 2).astype(np.int32)),
            Labels("session_id", tuple(f"s{k}" for k in range(num // 10)), (np.arange(num) // 10).astype(np.int32)),
        ),
    )


def test_requests_are_chosen_by_their_words() -> None:
    part = select(labelled(20), Selection(keep=(("model", ("large",)), ("session_id", ("s1",)))))
    assert part.source_row.tolist() == [11, 13, 15, 17, 19]
    assert part.labels[0].codes.tolist() == [1] * 5
    assert selection_sentence(part.selection) == "model large; session_id s1"
    with pytest.raises(EmptySelection, match="no column of words is called 'tenant'"):
        select(labelled(20), Selection(keep=(("tenant", ("a",)),)))


def test_a_session_is_sampled_whole() -> None:
    part = select(labelled(2000), Selection(share=0.4))
    _, count = np.unique(part.labels[1].codes, return_counts=True)
    assert set(count.tolist()) == {10}
    assert 60 < len(count) < 100


def test_an_empty_selection_is_refused_in_words() -> None:
    with pytest.raises(EmptySelection, match="from 8 s to 9 s after the first arrival"):
        select(made([0.0, 1.0]), Selection(window_s=(8.0, 9.0)))


def test_a_ticking_clock_is_seen_and_a_burst_is_not() -> None:
    rng = np.random.default_rng(0)
    true_s = np.sort(rng.uniform(0, 600, 3000))
    assert stamp_step_s(np.floor(true_s)) == 1.0
    assert stamp_step_s(true_s) is None
    bursts = np.repeat(np.sort(rng.uniform(0, 600, 100)), 30)
    assert stamp_step_s(bursts) is None
    assert stamp_step_s(np.floor(true_s * 100) / 100) is None
    assert stamp_step_s(np.zeros(5)) is None


def test_spreading_undoes_what_the_clock_did_to_the_dispersion() -> None:
    rng = np.random.default_rng(1)
    true_s = np.sort(rng.uniform(0, 3000, 10_000))
    coarse = made(np.floor(true_s / 3) * 3)
    assert dispersion(coarse.arrival_s, 1.0) > 3
    spread = select(coarse, Selection(spread_seed=1))
    assert dispersion(spread.arrival_s, 1.0) == pytest.approx(1.0, abs=0.15)
    assert spread.prompt_tokens.tolist() == coarse.prompt_tokens.tolist()


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=80),
    st.floats(0.05, 1.0),
    st.floats(0.1, 10.0),
    st.one_of(st.none(), st.integers(0, 9)),
)
def test_whatever_is_taken_is_a_part_in_order(ticks: list[int], share: float, rate: float, seed: int | None) -> None:
    trace = made(np.sort(np.array(ticks) - min(ticks)) * 3.0)
    try:
        part = select(trace, Selection(spread_seed=seed, share=share, rate=rate))
    except EmptySelection:
        return
    assert part.arrival_s[0] == 0.0
    assert np.all(np.diff(part.arrival_s) >= 0)
    assert np.all(np.diff(part.source_row) > 0)
    np.testing.assert_array_equal(part.prompt_tokens, trace.prompt_tokens[part.source_row])
    if seed is None:
        offset_s = trace.arrival_s[part.source_row] - trace.arrival_s[part.source_row[0]]
        np.testing.assert_allclose(part.arrival_s, offset_s / rate)


def test_the_busiest_window_holds_the_most() -> None:
    arrival_s = np.array([0.0, 5.0, 10.0, 11.0, 12.0, 20.0])
    assert busiest_s(arrival_s, 3.0) == (10.0, 13.0)
    assert busiest_s(arrival_s, 100.0) == (0.0, 100.0)


def test_poisson_arrivals_have_a_dispersion_of_one() -> None:
    arrival_s = np.sort(np.random.default_rng(2).uniform(0, 5000, 20_000))
    assert dispersion(arrival_s, 1.0) == pytest.approx(1.0, abs=0.1)
    assert np.isnan(dispersion(np.array([0.0, 1.0]), 1.0))


@pytest.mark.data
@pytest.mark.parametrize("path", files("data/traces/mooncake*"))
def test_a_real_trace_with_a_coarse_clock_is_seen(path) -> None:
    trace = read_trace(path, path.name, ReadAnswers(arrival_unit="ms"))
    assert stamp_step_s(trace.arrival_s) == pytest.approx(3.0, abs=0.01)
    spread = select(trace, Selection(spread_seed=0))
    assert dispersion(spread.arrival_s, 1.0) < dispersion(trace.arrival_s, 1.0) / 3
