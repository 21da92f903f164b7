"""The first look at a stretch: what its parts say one by one, for one replay."""

from unittest.mock import patch

import pytest
from traces_by_hand import chat_trace

from planner.engine_config import EngineConfig
from planner.inside import recording
from planner.inside.step_table import step_table
from planner.inside.window import look_at
from planner.inside.worst_gaps import worst_gaps
from planner.replay import replay
from planner.step_time import StepTime


def test_one_more_replay_explains_the_gaps_and_the_steps_around_each():
    trace = chat_trace()
    run = replay(trace, EngineConfig(), StepTime(8_000_000, 60_000, 20_000))
    window_s = (run.end_s / 4, run.end_s / 2)
    with patch.object(recording, "replay", wraps=replay) as again:
        view = look_at(trace, run, window_s, num_buckets=50, num_gaps=7, num_steps=9)
    assert again.call_count == 1
    assert len(view.gaps) == len(view.moments_s) == len(view.steps) == 7
    assert view.gaps == worst_gaps(trace, run, 7, *window_s)
    for gap, moment_s, steps in zip(view.gaps, view.moments_s, view.steps, strict=True):
        assert steps == step_table(trace, run, moment_s, 9)
        assert steps[4].step == gap.step
    assert view.timeline.start_s[0] == pytest.approx(window_s[0])
    assert len(view.timeline.end_s) == 50
