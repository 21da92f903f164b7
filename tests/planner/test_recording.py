"""Events that are missing are replayed once more, and nothing else is."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from inside_runs import SYNC, TEN_MS_PLUS_ONE_PER_TOKEN, replays
from traces_by_hand import trace_of

from planner.errors import Cancelled
from planner.inside import recording
from planner.inside.recording import steps_between, window_of, with_events
from planner.replay import WHOLE_REPLAY, replay


def test_steps_that_run_between_two_moments():
    """Steps of 30, 10 and 10 ms, one after the other."""
    run = replay(trace_of((0.0, 20, 3)), SYNC, TEN_MS_PLUS_ONE_PER_TOKEN)
    assert run.steps["end_ns"].tolist() == [30_000_000, 40_000_000, 50_000_000]
    assert steps_between(run, 0, 50_000_000) == range(3)
    assert steps_between(run, 29_999_999, 30_000_001) == range(2)
    assert steps_between(run, 30_000_000, 40_000_000) == range(1, 2), "neither the one before nor the one after"
    assert len(steps_between(run, 50_000_000, 60_000_000)) == 0


def test_the_rows_of_the_steps_are_not_kept_twice():
    trace = trace_of((0.0, 20, 3), (0.005, 30, 2))
    run = replay(trace, SYNC, TEN_MS_PLUS_ONE_PER_TOKEN)
    with patch.object(recording, "replay", wraps=replay) as again:
        found = with_events(trace, run, [window_of(run, range(1, 3))])
        assert with_events(trace, found, [window_of(run, range(1, 2))]) is found
    assert [call.kwargs["keeps_steps"] for call in again.call_args_list] == [False]
    assert found.steps is run.steps
    assert found.gaps is run.gaps


def test_a_replay_for_events_can_be_cancelled():
    trace = trace_of((0.0, 20, 3))
    run = replay(trace, SYNC, TEN_MS_PLUS_ONE_PER_TOKEN)
    with pytest.raises(Cancelled):
        with_events(trace, run, WHOLE_REPLAY, np.ones(1, np.uint8))


@settings(max_examples=100)
@given(replays())
def test_the_events_of_a_stretch_are_those_of_the_whole_replay(trace_and_run):
    trace, run = trace_and_run
    if len(run.steps) == 0:
        return
    whole = replay(trace, run.engine_config, run.step_time, windows_ns=WHOLE_REPLAY)
    assert whole.steps.tobytes() == run.steps.tobytes()
    middle = len(run.steps) // 2
    found = with_events(trace, run, [window_of(run, range(middle, len(run.steps)))])
    for step in range(middle, len(run.steps)):
        assert (
            found.events[found.events["step"] == step].tolist() == whole.events[whole.events["step"] == step].tolist()
        )
