"""How the steps of a log scatter about the fit, and how a replay scatters its own."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
NOISE_STEPS = 1 << 16
"""Steps before the factors repeat."""
MOST_FACTORS = 4096
"""Of each kind."""
PACE_WINDOW_S = 5
"""The pace of a second is that of as many around it: longer than a step or a short queue, shorter than a spell."""
MIN_DRIFT = 0.1
"""Between the 5th and the 95th percentile of the pace, from which on it is told."""
BEYOND_CHANCE = 1.3
"""Times what the same steps in any order would show."""
MOST_PACE_S = 86_400
"""Of a longer log the pace is not kept."""
MOST_REST_STEPS = 16_384
REST_BLOCK = 256
"""A longer log's rest is kept in as many blocks of consecutive steps as fit."""


@dataclass(frozen=True, slots=True, eq=False)
class StepNoise:
    """How single steps of a log scattered about the fit; every factor is measured ÷ predicted."""

    decode: Floats
    """(k,) of decode-only steps, mean 1."""
    prefill: Floats
    """(m,) of steps with prefill, mean 1."""

    def draw(self, seed: int) -> Floats:
        """Factors for one replay, the same for the same seed: each step's own, drawn anew from its kind.

        Slow spells that last for many steps are not kept together: they would have to meet the same traffic again.

        Returns
        -------
        (3, NOISE_STEPS) float64
            For decode-only steps, for steps with prefill, and by second (1: no spell is known).
        """
        rng = np.random.default_rng(seed)
        kinds = [rng.choice(factor, NOISE_STEPS) for factor in (self.decode, self.prefill)]
        return np.stack([*kinds, np.ones(NOISE_STEPS)])


@dataclass(frozen=True, slots=True, eq=False)
class Pace:
    """How fast a server was, second by second, while it served one trace; every factor is measured ÷ predicted.

    A machine has slow spells, of which no model of the work can know when they come. Where the very run is replayed
    that a log is of, they come when they came.
    """

    by_second: Floats
    """(b,) of the seconds since the first request was sent; 1 where nothing ran."""
    rest: Floats
    """(2, k) beside the pace, in the order of the steps, mean 1: of a decode-only step and of one with prefill there;
    each step has its own in the row of its kind, and its nearest neighbour's in the other."""
    spell: float
    """Steps that a rest lasts on average: the sum of its autocorrelation."""
    trace_digest: str
    """The trace that was served."""

    def draw(self, seed: int) -> Floats:
        """Factors for one replay of that trace, the same for the same seed.

        The rest is drawn anew in spells of neighbouring steps (stationary bootstrap, Politis & Romano 1994).

        Returns
        -------
        (3, m) float64
            For decode-only steps, for steps with prefill, and by second of the replay.
        """
        rng = np.random.default_rng(seed)
        num = max(NOISE_STEPS, len(self.by_second) + 1)
        begins = rng.random(num) < 1.0 / self.spell
        begins[0] = True
        first = np.flatnonzero(begins)[np.cumsum(begins) - 1]
        begun_at = rng.integers(self.rest.shape[1], size=num)[first]
        factors = np.ones((3, num))
        factors[:2] = self.rest[:, (begun_at + np.arange(num) - first) % self.rest.shape[1]]
        factors[2, : len(self.by_second)] = self.by_second
        return factors


def noise_of(factor: Floats, has_prefill: npt.NDArray[np.bool_]) -> StepNoise:
    """The scatter of n steps of both kinds.

    Parameters
    ----------
    factor : (n,) float64
        Measured ÷ predicted.
    has_prefill : (n,) bool
    """
    kinds = [_thinned(factor[kind]) for kind in (~has_prefill, has_prefill)]
    return StepNoise(*(kind / kind.mean() for kind in kinds))


def pace_of(
    start_s: Floats, time_s: Floats, predicted_s: Floats, has_prefill: npt.NDArray[np.bool_], trace_digest: str
) -> Pace | None:
    """The pace of a server over n steps of both kinds, in order; None where the log is too long to keep it.

    Parameters
    ----------
    start_s : (n,) float64
        When each step began, seconds since the first request was sent.
    time_s, predicted_s : (n,) float64
        What each step took, and what the equation says.
    has_prefill : (n,) bool
    trace_digest : str
        Of the requests that were served.
    """
    if start_s.max() >= MOST_PACE_S:
        return None
    second = np.maximum(start_s, 0.0).astype(np.int64)
    by_second = _by_second(second, time_s, predicted_s)
    rest = time_s / (predicted_s * by_second[second])
    spread = rest - rest.mean()
    correlation = np.array([np.mean(spread[lag:] * spread[:-lag]) for lag in range(1, min(len(rest), REST_BLOCK))])
    correlation /= max(np.mean(spread**2), 1e-300)
    remembered = int(np.argmax(np.append(correlation, 0.0) < 0.1))
    return Pace(
        by_second,
        _in_blocks(_of_both_kinds(rest, has_prefill)),
        1.0 + float(correlation[:remembered].sum()),
        trace_digest,
    )


def _by_second(second: npt.NDArray[np.int64], time_s: Floats, predicted_s: Floats) -> Floats:
    """Measured ÷ predicted over `PACE_WINDOW_S` around each second, (b,); 1 where nothing ran."""
    window = np.ones(PACE_WINDOW_S)
    took_s, said_s = (
        np.convolve(np.bincount(second, values), window)[PACE_WINDOW_S // 2 :][: second.max() + 1]
        for values in (time_s, predicted_s)
    )
    pace: Floats = np.divide(took_s, said_s, out=np.ones_like(took_s), where=said_s > 1e-9)
    return pace


def drift_notices(pace: Pace, start_s: Floats, time_s: Floats, predicted_s: Floats) -> list[str]:
    """What the user must know of a server whose pace drifted by more than single steps scatter; arguments as above."""
    slow, fast = np.percentile(pace.by_second, [95, 5])
    second = np.maximum(start_s, 0.0).astype(np.int64)
    mixed = np.random.default_rng(0).permutation(time_s / predicted_s)
    by_chance = np.ptp(np.percentile(_by_second(second, predicted_s * mixed, predicted_s), [95, 5]))
    if slow - fast < max(MIN_DRIFT, BEYOND_CHANCE * by_chance):
        return []
    return [
        f"The server's pace drifted while it served this trace: equal work took {fast:.2f} to {slow:.2f} × the mean, "
        f"over {PACE_WINDOW_S} seconds at a time. A replay that is held against measurements of this trace has these "
        "spells where they were; a plan stands on the mean."
    ]


def _thinned(values: Floats) -> Floats:
    """At most `MOST_FACTORS` of the values, evenly over their ranks, so that a model file stays small."""
    if len(values) <= MOST_FACTORS:
        return values
    return np.sort(values)[((np.arange(MOST_FACTORS) + 0.5) * len(values) / MOST_FACTORS).astype(np.int64)]


def _of_both_kinds(rest: Floats, has_prefill: npt.NDArray[np.bool_]) -> Floats:
    """Each step's factor in the row of its kind, the nearest one of the other kind in the other row; (2, n)."""
    place = np.arange(len(rest))
    rows = []
    for kind in (False, True):
        own = np.flatnonzero(has_prefill == kind)
        after = np.clip(np.searchsorted(own, place), 0, len(own) - 1)
        before = np.maximum(after - 1, 0)
        is_nearer = np.abs(place - own[before]) < np.abs(own[after] - place)
        rows.append(rest[np.where(is_nearer, own[before], own[after])] / rest[own].mean())
    return np.stack(rows)


def _in_blocks(rest: Floats) -> Floats:
    """At most `MOST_REST_STEPS` of the steps, in blocks evenly over the log."""
    num = rest.shape[1]
    if num <= MOST_REST_STEPS:
        return rest
    first = np.linspace(0, num - REST_BLOCK, MOST_REST_STEPS // REST_BLOCK).astype(np.int64)
    return rest[:, (first[:, None] + np.arange(REST_BLOCK)).ravel()]
