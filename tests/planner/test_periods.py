"""The time from step to step, out of stamps to the millisecond and to the second."""

from dataclasses import replace

import numpy as np
import pytest

from planner.periods import starts_s, with_periods
from traces.steps import StepLog


def log_with_stamps(resolution_s: float, overhead_s: float = 0.003, num_steps: int = 3000) -> StepLog:
    """Steps of 10 to 30 ms whose lines leave some time out; the engine is idle now and then."""
    rng = np.random.default_rng(0)
    step_s = rng.uniform(0.01, 0.03, num_steps)
    is_first = np.arange(num_steps) % 500 == 0
    idle_s = np.where(is_first, rng.uniform(1.0, 5.0, num_steps), 0.0)
    stamp_s = np.cumsum(step_s + overhead_s + idle_s)
    prefill = is_first.astype(np.int64)
    return StepLog(
        step_s=step_s,
        num_prefill_reqs=prefill,
        prefill_tokens=100 * prefill,
        num_decode_reqs=4 * (1 - prefill),
        source_row=np.arange(num_steps),
        stamp_s=np.floor(stamp_s / resolution_s) * resolution_s,
    )


def test_stamps_to_the_millisecond_give_each_step_its_own_time():
    log = log_with_stamps(0.001)
    timed, overhead_s, (notice,) = with_periods(log)

    assert overhead_s == pytest.approx(0.003, abs=1e-4)
    assert np.abs(timed.step_s - log.step_s - 0.003).max() < 0.0011
    assert "3 ms more pass than vLLM prints" in notice


def test_stamps_to_the_second_give_the_mean():
    log = log_with_stamps(1.0)
    timed, overhead_s, _ = with_periods(log)

    assert overhead_s == pytest.approx(0.003, abs=3e-4)
    np.testing.assert_allclose(timed.step_s, log.step_s + overhead_s)


def test_nothing_is_said_where_nothing_passes_between_steps():
    log = log_with_stamps(1.0, overhead_s=-5e-5)
    timed, overhead_s, notices = with_periods(log)
    assert (timed is log, overhead_s, notices) == (True, 0.0, ())


def test_stamps_that_do_not_belong_to_the_steps_are_not_used():
    log = log_with_stamps(1.0, overhead_s=0.05)
    timed, overhead_s, notices = with_periods(log)
    assert timed is log
    assert np.isnan(overhead_s)
    assert notices == ()


@pytest.mark.parametrize("num_steps", [1, 60])
def test_too_few_steps_say_nothing(num_steps):
    log = log_with_stamps(0.001, num_steps=num_steps)
    assert with_periods(log)[0] is log


def test_no_stamps_no_periods():
    log = replace(log_with_stamps(0.001), stamp_s=None)
    assert with_periods(log)[0] is log


@pytest.mark.parametrize(("resolution_s", "error_s"), [(0.001, 0.002), (1.0, 0.35)])
def test_idling_does_not_shift_the_clock(resolution_s, error_s):
    """Two bursts, minutes apart, each begun by the request that wakes the engine."""
    num, step_s = 200, 0.05
    begins_s = np.concatenate([np.arange(num) * step_s, 120.0 + np.arange(num) * step_s])
    log = StepLog(
        step_s=np.full(2 * num, step_s),
        num_prefill_reqs=np.zeros(2 * num, np.int64),
        prefill_tokens=np.zeros(2 * num, np.int64),
        num_decode_reqs=np.ones(2 * num, np.int64),
        source_row=np.arange(2 * num),
        stamp_s=1e9 + np.floor((begins_s + step_s) / resolution_s) * resolution_s,
    )
    follows = np.arange(2 * num) % num > 0

    found_s = starts_s(log, follows, np.array([0, num]), np.array([0.0, 120.0]))

    assert found_s is not None
    assert np.abs(found_s - begins_s).max() < error_s


def test_a_log_without_stamps_or_sure_requests_has_no_clock():
    log = log_with_stamps(1.0)
    none = np.zeros(0, np.int64)
    assert starts_s(log, log.num_decode_reqs > 0, none, none.astype(float)) is None
    unstamped = replace(log, stamp_s=None)
    assert starts_s(unstamped, log.num_decode_reqs > 0, np.array([0]), np.array([0.0])) is None
