"""Who ran in each step around a moment."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner import kernel
from planner.inside.recording import HeldBy, Recording, Share, window_of, with_events
from planner.replay import Replay
from traces.requests import RequestTrace


@dataclass(frozen=True, slots=True)
class StepRow:
    """One engine step. Requests are rows of the trace."""

    step: int
    """Its number, counted from 0."""
    sched_s: float
    """When it was decided, seconds."""
    start_s: float
    """When it began to run, seconds."""
    end_s: float
    """When its tokens appeared, seconds."""
    num_running: int
    """Requests that run after scheduling, whether they got tokens or not."""
    num_waiting: int
    """Requests that wait after scheduling."""
    num_free_blocks: int
    """KV blocks free after scheduling."""
    kv_usage: float
    """Share of the KV blocks in use after scheduling, 0–1."""
    prefilled: tuple[Share, ...]
    """Who got prompt (or recomputed) tokens, and how many, in the order of the batch."""
    decoded: tuple[Share, ...]
    """Who decoded: one token each, more with drafts."""
    admitted: tuple[Share, ...]
    """Who started, and the prompt tokens found in the prefix cache."""
    resumed: tuple[Share, ...]
    """Who returned after a preemption, and the tokens found in the prefix cache."""
    preempted: tuple[Share, ...]
    """Who lost its KV blocks, and how many computed tokens with them."""
    finished: tuple[int, ...]
    """Who got the last token from this step."""
    head: int | None
    """Who stands at the head of the waiting queue afterwards; None = nobody waits."""
    held_by: HeldBy | None
    """What keeps the head from starting."""


def step_table(
    trace: RequestTrace, run: Replay, at_s: float, num_steps: int = 21, cancel: npt.NDArray[np.uint8] | None = None
) -> tuple[StepRow, ...]:
    """The steps around a moment, in order; fewer at the ends of the replay.

    Parameters
    ----------
    trace : RequestTrace
        The trace of `run`.
    run : Replay
        With or without events; those that are missing cost one more replay.
    at_s : float
        Seconds; the step that runs then, or the last one before, stands in the middle.
    num_steps : int
        Most rows.
    cancel : (1,) uint8, optional
        As for `replay`.
    """
    steps = steps_around(run, at_s, num_steps)
    if not steps:
        return ()
    recording = Recording(with_events(trace, run, [window_of(run, steps)], cancel))
    return tuple(_row(recording, k) for k in steps)


def steps_around(run: Replay, at_s: float, num_steps: int) -> range:
    """As many steps before the one at a moment as after it; fewer at the ends of the replay."""
    middle = int(np.searchsorted(run.steps["start_ns"], round(at_s * 1e9), "right")) - 1
    last = min(len(run.steps), max(0, middle - num_steps // 2) + num_steps)
    return range(max(0, last - num_steps), last)


def _row(recording: Recording, k: int) -> StepRow:
    """Step k."""
    run = recording.run
    step = run.steps[k]
    events = [(kind, Share(request, num)) for _, kind, request, num in recording.of_step(k).tolist()]
    of_kind = {
        kind: tuple(share for other, share in events if other == kind)
        for kind in (
            kernel.PREFILLED,
            kernel.DECODED,
            kernel.ADMITTED,
            kernel.RESUMED,
            kernel.PREEMPTED,
            kernel.FINISHED,
        )
    }
    head, held_by = recording.held(k) or (None, None)
    return StepRow(
        step=k,
        sched_s=int(step["sched_ns"]) / 1e9,
        start_s=int(step["start_ns"]) / 1e9,
        end_s=int(step["end_ns"]) / 1e9,
        num_running=int(step["num_running"]),
        num_waiting=int(step["num_waiting"]),
        num_free_blocks=int(step["num_free_blocks"]),
        kv_usage=float(1.0 - step["num_free_blocks"] / (run.engine_config.num_gpu_blocks - 1)),
        prefilled=of_kind[kernel.PREFILLED],
        decoded=of_kind[kernel.DECODED],
        admitted=of_kind[kernel.ADMITTED],
        resumed=of_kind[kernel.RESUMED],
        preempted=of_kind[kernel.PREEMPTED],
        finished=tuple(share.request for share in of_kind[kernel.FINISHED]),
        head=head,
        held_by=held_by,
    )
