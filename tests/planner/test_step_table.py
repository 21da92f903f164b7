"""Who ran in the steps around a moment."""

from dataclasses import replace

from hypothesis import given, settings
from inside_runs import SYNC, TEN_MS_PLUS_ONE_PER_TOKEN, replays
from traces_by_hand import trace_of

from planner.inside.recording import HeldBy, Share
from planner.inside.step_table import step_table
from planner.replay import replay


def test_a_preemption_step_by_step():
    """Two requests on four blocks: when both need a third one, the second loses its two blocks."""
    trace = trace_of((0.0, 16, 30), (0.0, 16, 30))
    run = replay(trace, replace(SYNC, num_gpu_blocks=5), TEN_MS_PLUS_ONE_PER_TOKEN)
    rows = step_table(trace, run, 0.0, num_steps=1000)
    assert rows[0].admitted == (Share(0, 0), Share(1, 0))
    assert rows[0].prefilled == (Share(0, 16), Share(1, 16))
    assert rows[0].head is None
    (lost,) = [row for row in rows if row.preempted]
    assert lost.preempted == (Share(1, 32),)
    assert (lost.head, lost.held_by) == (1, HeldBy.PREEMPTION)
    assert lost.decoded == (Share(0, 1),)
    (back,) = [row for row in rows if row.resumed]
    assert back.prefilled == (Share(1, 33),)
    assert rows[-1].finished == (1,)


def test_the_moment_stands_in_the_middle():
    trace = trace_of((0.0, 10, 100))
    run = replay(trace, SYNC, TEN_MS_PLUS_ONE_PER_TOKEN)
    rows = step_table(trace, run, 0.5, num_steps=5)
    assert rows[2].start_s <= 0.5 < rows[2].end_s
    assert [row.step for row in rows] == list(range(rows[0].step, rows[0].step + 5))
    assert [row.step for row in step_table(trace, run, 0.0, num_steps=3)] == [0, 1, 2]
    assert step_table(trace, run, 99.0, num_steps=3)[-1].step == len(run.steps) - 1
    never = trace_of((0.0, 10**7, 1))
    assert step_table(never, replay(never, SYNC, TEN_MS_PLUS_ONE_PER_TOKEN), 0.0) == ()


@settings(max_examples=100)
@given(replays())
def test_rows_add_up_to_the_step(trace_and_run):
    trace, run = trace_and_run
    for row in step_table(trace, run, 0.03, num_steps=30):
        step = run.steps[row.step]
        assert sum(share.num_tokens for share in row.prefilled) == step["prefill_tokens"]
        assert len(row.decoded) == step["num_decodes"]
        assert len(row.preempted) == step["num_preempted"]
        assert (row.head is not None) == (step["num_waiting"] > 0) == (row.held_by is not None)
