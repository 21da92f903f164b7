"""The engine over time: no bucket hides a peak."""

from dataclasses import replace

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


def test_after_the_end_nothing_runs_even_where_the_last_step_took_no_time():
    """A step that only preempts; a replay that goes round in circles ends on one."""
    run = replay(trace_of((0.0, 20, 2)), SYNC, TEN_MS_PLUS_ONE_PER_TOKEN)
    steps = np.append(run.steps, run.steps[-1:])
    steps["start_ns"][-1] = steps["end_ns"][-1]
    after = timeline(replace(run, steps=steps), 1, from_s=run.end_s, until_s=2 * run.end_s)
    assert after.running.high.tolist() == after.kv_usage.high.tolist() == [0.0]


@settings(max_examples=150)
@given(replays(), st.integers(1, 40), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_a_bucket_has_the_extremes_of_all_it_touches(trace_and_run, num_buckets, begin, end):
    """Against stretches in which nothing changes, one by one."""
    _, run = trace_and_run
    view = timeline(run, num_buckets, begin * run.end_s, end * run.end_s)
    usable, waiting, now_ns = run.engine_config.num_gpu_blocks - 1, 0, 0
    stretches = []
    for step in run.steps:
        if step["start_ns"] > now_ns:
            stretches.append((now_ns, step["start_ns"], 0, waiting, 0.0, 0, 0.0))
        now_ns, waiting = step["end_ns"], step["num_waiting"]
        used, took_s = 1.0 - step["num_free_blocks"] / usable, (step["end_ns"] - step["start_ns"]) / 1e9
        stretches.append((step["start_ns"], now_ns, step["num_running"], waiting, used, step["prefill_tokens"], took_s))
    names = ("running", "waiting", "kv_usage", "prefill_tokens", "step_s")
    for k, (start_s, end_s) in enumerate(zip(view.start_s.tolist(), view.end_s.tolist(), strict=True)):
        seen = [
            values
            for start_ns, end_ns, *values in stretches
            if start_ns < end_s * 1e9 - 1 and (end_ns > start_s * 1e9 + 1 or start_s * 1e9 <= start_ns)
        ]
        for name, values in zip(names, zip(*seen, strict=True), strict=False):
            band = getattr(view, name)
            assert (band.low[k], band.high[k]) == (min(values), max(values))


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
