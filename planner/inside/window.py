"""The first look at a stretch of a replay: the engine over time, and the worst gaps with the steps around each."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.inside.recording import window_of, with_events
from planner.inside.step_table import StepRow, step_table, steps_around
from planner.inside.timeline import Timeline, timeline
from planner.inside.worst_gaps import WorstGap, longest_pauses, worst_gaps
from planner.replay import Replay
from traces.requests import RequestTrace


@dataclass(frozen=True, slots=True)
class WindowView:
    """A stretch of a replay."""

    timeline: Timeline
    """The engine over it."""
    gaps: tuple[WorstGap, ...]
    """The longest gaps that end in it, the longest first."""
    moments_s: tuple[float, ...]
    """The middle of the step that ends each of them, seconds."""
    steps: tuple[tuple[StepRow, ...], ...]
    """The steps around each of these moments."""


def look_at(
    trace: RequestTrace,
    run: Replay,
    window_s: tuple[float, float],
    *,
    num_buckets: int,
    num_gaps: int,
    num_steps: int,
    cancel: npt.NDArray[np.uint8] | None = None,
) -> WindowView:
    """Look at a stretch of a replay, for one more replay at most.

    Parameters
    ----------
    trace : RequestTrace
        The trace of `run`.
    run : Replay
        Without events.
    window_s : (float, float)
        From when until when, seconds.
    num_buckets : int
        Of the timeline.
    num_gaps, num_steps : int
        Most gaps, and most steps around each.
    cancel : (1,) uint8, optional
        As for `replay`.
    """
    pauses = longest_pauses(run, num_gaps, *window_s)
    rows = [run.steps[pause.steps[-1]] for pause in pauses]
    moments_s = tuple((int(row["start_ns"]) + int(row["end_ns"])) / 2e9 for row in rows)
    stretches = [*(pause.steps for pause in pauses), *(steps_around(run, at_s, num_steps) for at_s in moments_s)]
    recorded = with_events(trace, run, [window_of(run, steps) for steps in stretches], cancel)
    return WindowView(
        timeline=timeline(run, num_buckets, *window_s),
        gaps=worst_gaps(trace, recorded, num_gaps, *window_s),
        moments_s=moments_s,
        steps=tuple(step_table(trace, recorded, at_s, num_steps) for at_s in moments_s),
    )
