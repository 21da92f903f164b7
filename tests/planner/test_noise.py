"""Slow spells of a server: found in its log, kept in the model file, and laid where they were."""

import json
from dataclasses import replace

import numpy as np
import pytest
from test_align import PLAIN, log_of, shared_prefixes

from planner.align import align
from planner.calibrate import fit_step_time
from planner.errors import BadPlan
from planner.measured import served
from planner.noise import MOST_PACE_S, MOST_REST_STEPS, NOISE_STEPS, Pace, StepNoise, drift_notices, pace_of
from planner.replay import replay
from planner.step_time import StepTime, StepTimeFit, read_model, write_model
from traces.requests import RequestTrace

STEP_TIME = StepTime(8_000_000, 60_000, 20_000)
TRACE = shared_prefixes(num_requests=400)
SLOW = np.arange(NOISE_STEPS) % 20 >= 10
"""Seconds in which the server takes a third as long again: every other ten of them."""


def slow_server(stamp_resolution_s: float | None = 0.001) -> StepTimeFit:
    """Fit what a server logs that has slow spells while it serves `TRACE`."""
    by_second = np.where(SLOW, 4 / 3, 1.0)
    own = np.random.default_rng(0).normal(1.0, 0.05, (2, NOISE_STEPS))
    run = replay(TRACE, PLAIN, STEP_TIME, noise=np.vstack([own, by_second]))
    steps = run.steps[run.steps["num_scheduled"] > 0]
    end_s = steps["end_ns"] / 1e9
    log = replace(
        log_of(TRACE, PLAIN),
        step_s=(steps["end_ns"] - steps["start_ns"]) / 1e9,
        num_prefill_reqs=steps["num_scheduled"] - steps["num_decodes"],
        prefill_tokens=steps["prefill_tokens"].copy(),
        num_decode_reqs=steps["num_decodes"].copy(),
        num_decode_tokens=steps["num_decodes"].copy(),
        source_row=np.arange(len(steps)),
        stamp_s=None if stamp_resolution_s is None else 1e9 + np.floor(end_s / stamp_resolution_s) * stamp_resolution_s,
    )
    return fit_step_time(log, alignment=align(log, TRACE, PLAIN))


@pytest.mark.parametrize("stamp_resolution_s", [0.001, 1.0])
def test_slow_spells_are_found_where_they_were(stamp_resolution_s):
    fit = slow_server(stamp_resolution_s)
    pace = fit.pace

    assert pace is not None
    assert fit.noise is not None
    assert pace.trace_digest == TRACE.digest
    # The window reaches two seconds to either side, and a stamp to the second is not surer than that.
    inside, outside = (pace.by_second[np.arange(len(pace.by_second)) % 20 // 2 == part] for part in (7, 2))
    assert inside.mean() / outside.mean() == pytest.approx(4 / 3, abs=0.03)
    assert inside.min() > 1.2 * outside.max()
    assert any("equal work took 0." in notice for notice in fit.notices)
    # What is left is the scatter of single steps, and the edges of the spells.
    assert pace.rest.std() < 0.6 * fit.noise.decode.std()


def test_a_log_without_stamps_has_no_pace():
    assert slow_server(None).pace is None


def test_spells_come_again_for_their_own_trace_only():
    fit = slow_server()
    is_slow = SLOW[TRACE.arrival_s.astype(np.int64)]

    own = np.mean([run.worst_gap_s for run in served(TRACE, PLAIN, fit)], axis=0)
    shifted = RequestTrace(TRACE.arrival_s * 1.001, TRACE.prompt_tokens, TRACE.output_tokens, TRACE.source_row)
    other = np.mean([run.worst_gap_s for run in served(shifted, PLAIN, fit)], axis=0)

    def contrast(gap_s: np.ndarray) -> float:
        return float(np.nanmean(gap_s[is_slow]) / np.nanmean(gap_s[~is_slow]))

    assert contrast(own) > 1.1 * contrast(other)


def test_a_model_file_keeps_the_pace():
    fit = slow_server()
    saved = read_model(write_model(fit))
    assert fit.pace is not None
    assert saved.pace is not None
    assert saved.pace.trace_digest == TRACE.digest
    assert saved.pace.draw(7).tobytes() == fit.pace.draw(7).tobytes()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"spell": 0.5}, "a spell of 1 or more"),
        ({"spell": "long"}, "pace.spell: found 'long'"),
        ({"by_second": "?"}, "pace.by_second: damaged"),
        ({"rest_decode": ""}, "as many in rest_decode as in rest_prefill"),
    ],
)
def test_a_damaged_pace_is_refused(change, said):
    model = json.loads(write_model(slow_server()))
    model["pace"] |= change
    with pytest.raises(BadPlan, match="mine.json") as refusal:
        read_model(json.dumps(model), "mine.json")
    assert said in str(refusal.value)


def test_the_kernel_takes_the_pace_of_the_second_in_which_a_step_starts():
    noise = np.ones((3, 4))
    noise[2] = [1.0, 3.0, 2.0, 1.0]
    trace = RequestTrace(np.array([0.0]), np.array([10]), np.array([8]), np.array([0]))
    run = replay(trace, PLAIN, StepTime(500_000_000, 0, 0), noise=noise)
    took_s = (run.steps["end_ns"] - run.steps["start_ns"]) / 1e9
    # Starts: 0, 0.5, 1.0, 2.5, 3.5, then all as the last second.
    assert took_s.tolist() == [0.5, 0.5, 1.5, 1.0, 0.5, 0.5, 0.5, 0.5]


def test_spells_are_as_long_as_they_were():
    rng = np.random.default_rng(0)
    num, memory = 40_000, 0.9
    shocks = rng.standard_normal(num) * np.sqrt(1 - memory**2)
    for i in range(1, num):
        shocks[i] += memory * shocks[i - 1]
    # Steps of ten seconds: no pace is left between them that the window could take away.
    start_s, has_prefill = np.arange(num) * 2.0, rng.random(num) < 0.3
    pace = pace_of(start_s, np.exp(0.1 * shocks), np.ones(num), has_prefill, "")
    assert pace is not None
    assert pace.rest.shape == (2, MOST_REST_STEPS)

    memory_1 = Pace(np.ones(3), np.exp(0.1 * shocks[None, :]).repeat(2, axis=0), 10.0, "").draw(3)[0]
    centred = memory_1 - memory_1.mean()
    # A spell of mean length 10 goes on with chance 0.9.
    assert np.mean(centred[1:] * centred[:-1]) / np.mean(centred**2) == pytest.approx(0.9 * memory, abs=0.03)


def test_a_draw_is_of_its_seed_and_of_mean_one():
    pace = slow_server().pace
    noise = StepNoise(np.array([0.9, 1.1]), np.array([0.5, 1.5]))
    assert pace is not None
    for one in (pace, noise):
        assert one.draw(1).tobytes() == one.draw(1).tobytes() != one.draw(2).tobytes()
        np.testing.assert_allclose(one.draw(1)[:2].mean(axis=1), 1.0, atol=0.02)


def test_the_pace_of_a_very_long_log_is_not_kept():
    three = np.ones(3)
    assert pace_of(np.array([0.0, 1.0, MOST_PACE_S]), three, three, np.array([True, False, True]), "") is None


def test_the_scatter_of_few_steps_is_no_drift():
    rng = np.random.default_rng(0)
    start_s = np.sort(np.repeat(np.arange(400) * 6.0, 12) + rng.uniform(0, 1, 4800))
    time_s, predicted_s, has_prefill = np.exp(0.3 * rng.standard_normal(4800)), np.ones(4800), rng.random(4800) < 0.2
    steps = start_s, time_s, predicted_s
    pace = pace_of(*steps, has_prefill, "")
    assert pace is not None
    assert np.ptp(np.percentile(pace.by_second, [5, 95])) > 0.1
    assert drift_notices(pace, *steps) == []
    slow = start_s, time_s * np.where(start_s % 600 < 300, 1.0, 1.5), predicted_s
    drifting = pace_of(*slow, has_prefill, "")
    assert drifting is not None
    assert len(drift_notices(drifting, *slow)) == 1
