"""Which part of a trace is used and how it is changed: small enough to stand in a plan file, the same every time."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from traces.errors import InputError
from traces.formats import SESSION_NAMES
from traces.requests import WHOLE, Labels, RequestTrace, Selection

Floats = npt.NDArray[np.float64]

COARSE_SHARE = 0.5
"""Stamps are coarse when more requests than this share theirs with another,"""
COARSE_STEP_S = 0.1
"""when neighbouring stamps are at least so far apart,"""
COARSE_SPREAD = 1.5
"""and when the median distance is at most so many times the smallest: a clock that ticks, not a burst."""


LONGEST_S = 366 * 86_400.0
"""Arrivals of a part that is slowed down span no more."""


class EmptySelection(InputError):
    """Nothing of the trace is left, or a column to choose by is not there."""


def select(trace: RequestTrace, selection: Selection) -> RequestTrace:
    """Take a part of a whole trace; same trace and selection, same bytes.

    Raises
    ------
    EmptySelection
        No request is left.
    """
    if selection == WHOLE:
        return trace
    arrival_s = trace.arrival_s
    if selection.spread_seed is not None and (step_s := stamp_step_s(arrival_s)) is not None:
        arrival_s = _spread(arrival_s, step_s, selection.spread_seed)
    which = np.ones(len(trace), np.bool_)
    if selection.window_s is not None:
        from_s, until_s = selection.window_s
        which &= (arrival_s >= from_s) & (arrival_s < (np.inf if until_s is None else until_s))
    for name, words in selection.keep:
        labels = _labels_of(trace, name)
        which &= np.isin(labels.codes, [code for code, word in enumerate(labels.words) if word in words])
    if selection.share < 1.0:
        which &= _sampled(trace, selection)
    if not which.any():
        raise EmptySelection(_name(trace), f"no request is left: {selection_sentence(selection)}. Widen the selection.")
    if (arrival_s[which][-1] - arrival_s[which][0]) / selection.rate > LONGEST_S:
        raise EmptySelection(_name(trace), f"at {selection.rate:g} × the rate it would last for over a year.")
    return replace(
        trace.at(np.flatnonzero(which)),
        # Whole nanoseconds, as the readers and the kernel have them.
        arrival_s=np.rint((arrival_s[which] - arrival_s[which][0]) / selection.rate * 1e9) / 1e9,
        selection=selection,
    )


def selection_sentence(selection: Selection) -> str:
    """What is done to a trace, in one sentence without its full stop."""
    said = []
    if selection.spread_seed is not None:
        said.append(f"arrivals with one stamp are spread until the next stamp (seed {selection.spread_seed})")
    if selection.window_s is not None:
        from_s, until_s = selection.window_s
        end = "the end" if until_s is None else f"{until_s:,g} s after the first arrival"
        said.append(f"from {from_s:,g} s to {end}")
    said += [f"{name} {' or '.join(words)}" for name, words in selection.keep]
    if selection.share < 1.0:
        said.append(f"a sample of {100 * selection.share:g} % (seed {selection.sample_seed})")
    if selection.rate != 1.0:
        said.append(f"{selection.rate:g} × the rate")
    return "; ".join(said) or "the whole trace"


def sessions_of(trace: RequestTrace) -> Labels | None:
    """The column that tells sessions apart; None when the trace has none."""
    return next((labels for labels in trace.labels if labels.name.lower() in SESSION_NAMES), None)


def stamp_step_s(arrival_s: Floats) -> float | None:
    """Distance of neighbouring stamps, seconds, where a coarse clock makes bursts that never were; else None.

    Parameters
    ----------
    arrival_s : (n,) float64
        Never decreasing.
    """
    stamps, count = np.unique(arrival_s, return_counts=True)
    if len(stamps) < 3 or count[count > 1].sum() <= COARSE_SHARE * len(arrival_s):
        return None
    distances = np.diff(stamps)
    step_s = float(np.median(distances))
    return step_s if COARSE_STEP_S <= step_s <= COARSE_SPREAD * distances.min() else None


def busiest_s(arrival_s: Floats, length_s: float) -> tuple[float, float]:
    """The window of this length with the most arrivals, the earliest of them; it begins at an arrival."""
    ends = np.searchsorted(arrival_s, arrival_s + length_s, "left")
    start_s = float(arrival_s[np.argmax(ends - np.arange(len(arrival_s)))])
    return start_s, start_s + length_s


def dispersion(arrival_s: Floats, bin_s: float) -> float:
    """Index of dispersion of the counts in bins: variance ÷ mean, 1 for Poisson arrivals; NaN below two bins.

    Source
    ------
    Cox and Lewis 1966, The Statistical Analysis of Series of Events: the index of dispersion for counts.
    """
    num_bins = int(arrival_s[-1] // bin_s)
    if num_bins < 2:
        return float("nan")
    count = np.bincount((arrival_s[arrival_s < num_bins * bin_s] // bin_s).astype(np.int64), minlength=num_bins)
    return float(count.var(ddof=1) / count.mean())


def _name(trace: RequestTrace) -> str:
    """The trace in a message."""
    return "trace" if trace.receipt is None else trace.receipt.file_name


def _labels_of(trace: RequestTrace, name: str) -> Labels:
    """A column of words by its name."""
    found = next((labels for labels in trace.labels if labels.name == name), None)
    if found is None:
        known = ", ".join(repr(labels.name) for labels in trace.labels) or "none"
        raise EmptySelection(_name(trace), f"no column of words is called {name!r}; there are: {known}.")
    return found


def _sampled(trace: RequestTrace, selection: Selection) -> npt.NDArray[np.bool_]:
    """Which requests a sample keeps: all of a session or none, where sessions are known."""
    rng = np.random.default_rng([selection.sample_seed, 1])
    sessions = sessions_of(trace)
    if sessions is None:
        return rng.random(len(trace)) < selection.share
    is_kept: npt.NDArray[np.bool_] = (rng.random(len(sessions.words)) < selection.share)[sessions.codes]
    return is_kept


def _spread(arrival_s: Floats, step_s: float, seed: int) -> Floats:
    """Arrivals somewhere between their stamp and the next, requests of one stamp in the order of the file."""
    offset_s = np.random.default_rng([seed, 0]).random(len(arrival_s)) * step_s
    spread_s = arrival_s + offset_s
    order = np.lexsort((spread_s, arrival_s))
    # Within a stamp the offsets go out in the order of the file; where stamps jitter, the next may begin too early.
    return np.maximum.accumulate(spread_s[order])
