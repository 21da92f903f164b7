"""How long steps really took: from the time stamps of the lines, not from the time that vLLM prints in them.

vLLM's "iteration elapsed time" is the wait for the result. From step to step more passes: the scheduler, the output
processing, the queue between processes; and under asynchronous scheduling the wait may be far shorter than the step.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from traces.steps import StepLog

MIN_FOLLOWING = 100
"""With fewer steps that follow each other, stamps to the second say too little."""
MAX_COARSE = 0.5
"""More than this share of the logged time between steps means that stamps to the second do not belong to the steps."""
SMOOTHED = 65
MAX_ERROR = 0.02
"""Largest standard error of the time between steps, as a share of the mean step, that still helps."""


def with_periods(log: StepLog, follows: npt.NDArray[np.bool_] | None = None) -> tuple[StepLog, float, tuple[str, ...]]:
    """Replace the logged times by the time from step to step, where the stamps tell it.

    With stamps to the millisecond each step gets its own; the few steps after an idle engine, which have no step
    before them, keep the logged time and the mean difference. With stamps to the second, the mean difference is the
    slope of (stamp − sum of the logged times) over the number of steps, within stretches without idling.

    Parameters
    ----------
    log : StepLog
        k steps.
    follows : (k,) bool, optional
        Steps that follow the one before without the engine falling idle. Default: those that decode, since
        something ran before them.

    Returns
    -------
    log : StepLog
        With `step_s` from step to step, or as it was.
    overhead_s : float
        Mean time between steps that the logged times leave out, seconds; NaN when the stamps do not tell.
    notices : tuple of str
        What was done.
    """
    if log.stamp_s is None or len(log) < 2:
        return log, float("nan"), ()
    follows = (log.num_decode_reqs > 0) if follows is None else follows.copy()
    period_s = np.diff(log.stamp_s, prepend=log.stamp_s[0])
    follows[0] = False
    follows &= period_s >= 0
    is_fine = bool(np.any(log.stamp_s % 1.0))
    if follows.sum() < MIN_FOLLOWING or not is_fine and not _is_well_known(log, follows):
        return log, float("nan"), ()
    overhead_s = float(np.mean((period_s - log.step_s)[follows])) if is_fine else _slope(log, follows)[0]
    if not is_fine and overhead_s > MAX_COARSE * float(np.mean(log.step_s)):
        return log, float("nan"), ()
    overhead_s = max(overhead_s, 0.0)
    if not is_fine and overhead_s == 0.0:
        return log, 0.0, ()
    step_s = np.where(follows, period_s, log.step_s + overhead_s) if is_fine else log.step_s + overhead_s
    said = "each step's time is the one from line to line" if is_fine else "it is added to every step"
    notice = (
        f"From step to step {overhead_s * 1e3:.2g} ms more pass than vLLM prints, by the time stamps of the log: "
        f"{said}."
    )
    return replace(log, step_s=step_s), overhead_s, (notice,)


def starts_s(
    log: StepLog,
    follows: npt.NDArray[np.bool_],
    admitted_in: npt.NDArray[np.int64],
    sent_s: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64] | None:
    """When each of k steps began, by the clock of the r requests that it served; None without time stamps.

    The clocks are shifted until one request in a hundred waits for nothing. Stamps to the second are smoothed over
    `SMOOTHED` steps of a stretch in which the engine was not idle, to a tenth of a second or so.

    Parameters
    ----------
    log : StepLog
        With `step_s` from step to step.
    follows : (k,) bool
        Steps that follow the one before without the engine falling idle.
    admitted_in : (r,) int64
        The step in which each request was admitted.
    sent_s : (r,) float64
        When it was sent.

    Returns
    -------
    (k,) float64
        Seconds.
    """
    if log.stamp_s is None or len(admitted_in) == 0:
        return None
    elapsed_s = np.cumsum(log.step_s)
    late_s = log.stamp_s - elapsed_s
    if not np.any(log.stamp_s % 1.0):
        late_s = _smoothed(late_s, follows)
    start_s = late_s + elapsed_s - log.step_s
    shifted: npt.NDArray[np.float64] = start_s - np.percentile(start_s[admitted_in] - sent_s, 1)
    return shifted


def _smoothed(values: npt.NDArray[np.float64], follows: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """The mean of `SMOOTHED` values around each, none of them beyond the stretch it lies in."""
    place, stretch = np.arange(len(values)), np.cumsum(~follows)
    first = np.maximum(place - SMOOTHED // 2, np.searchsorted(stretch, stretch, "left"))
    until = np.minimum(place + SMOOTHED // 2 + 1, np.searchsorted(stretch, stretch, "right"))
    sums = np.concatenate([[0.0], np.cumsum(values - values[0])])
    means: npt.NDArray[np.float64] = values[0] + (sums[until] - sums[first]) / (until - first)
    return means


def _is_well_known(log: StepLog, follows: npt.NDArray[np.bool_]) -> bool:
    """Whether stamps to the second determine the mean time between steps."""
    overhead_s, error_s = _slope(log, follows)
    return error_s < MAX_ERROR * float(np.mean(log.step_s)) and overhead_s > -2 * error_s


def _slope(log: StepLog, follows: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Seconds per step that the logged times leave out, and the standard error."""
    assert log.stamp_s is not None
    stretch = np.cumsum(~follows).astype(np.int64)
    unexplained = _centred(log.stamp_s - np.cumsum(log.step_s), stretch)
    number = _centred(np.arange(len(log), dtype=np.float64), stretch)
    spread = float(number @ number)
    if spread == 0.0:
        return 0.0, np.inf
    slope = float(number @ unexplained) / spread
    noise = float(np.std(unexplained - slope * number))
    return slope, noise / np.sqrt(spread)


def _centred(values: npt.NDArray[np.float64], group: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Values less the mean of their group."""
    count = np.maximum(np.bincount(group), 1)
    return values - (np.bincount(group, values) / count)[group]
