"""The engine over time: no bucket hides a peak."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from inside_runs import SYNC, TEN_MS_PLUS_ONE_PER_TOKEN, replays
from traces_by_hand import trace_of

from planner.inside.timeline import timeline
from planner.replay import replay


def test_three_steps_and_a_pause_by_hand():
    """a runs from 0 to 30 ms and decodes until 40; b from 60 to 90."""
    run = replay(trace_of((0.0, 20, 2), (0.06, 20, 1)), SYNC, TEN_MS_PLUS_ONE_PER_TOKEN)
    view = timeline(run, num_buckets=9)
    assert view.start_s.tolist() == [0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08]
    assert view.running.high.tolist() == view.running.low.tolist() == [1, 1, 1, 1, 0, 0, 1, 1, 1]
    assert view.prefill_tokens.high.tolist() == [20, 20, 20, 0, 0, 0, 20, 20, 20]
    assert view.step_s.high.tolist() == [0.03, 0.03, 0.03, 0.01, 0.0, 0.0, 0.03, 0.03, 0.03]
    coarse = timeline(run, num_buckets=1)
    assert (coarse.prefill_tokens.low.tolist(), coarse.prefill_tokens.high.tolist()) == ([0], [20])


def test_nothing_to_show():
    run = replay(trace_of((0.0, 20, 2)), SYNC, TEN_MS_PLUS_ONE_PER_TOKEN)
    assert len(timeline(run, 10, from_s=1.0, until_s=1.0).start_s) == 0
    after = timeline(run, 10, from_s=5.0, until_s=6.0)
    assert after.running.high.tolist() == [0] * 10


@settings(max_examples=150)
@given(replays(), st.integers(1, 40))
def test_every_step_lies_within_the_band_of_its_buckets(trace_and_run, num_buckets):
    _, run = trace_and_run
    steps = run.steps
    view = timeline(run, num_buckets)
    if len(steps) == 0:
        assert len(view.start_s) == 0
        return
    assert len(view.start_s) == num_buckets
    used = 1.0 - steps["num_free_blocks"] / (run.engine_config.num_gpu_blocks - 1)
    columns = {"running": steps["num_running"], "waiting": steps["num_waiting"], "kv_usage": used}
    columns["prefill_tokens"] = steps["prefill_tokens"]
    for name, values in columns.items():
        band = getattr(view, name)
        assert (band.low <= band.high).all()
        assert band.high.max() <= values.max()
        for start_ns, end_ns, value in zip(steps["start_ns"], steps["end_ns"], values, strict=True):
            seen = (view.start_s < end_ns / 1e9 - 1e-9) & (view.end_s > start_ns / 1e9 + 1e-9)
            assert (band.low[seen] <= value).all()
            assert (band.high[seen] >= value).all()
    assert view.num_preemptions.sum() == steps["num_preempted"].sum()
    assert np.all(np.diff(view.start_s) > 0)
