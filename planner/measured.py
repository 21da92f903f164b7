"""Predicted against measured: the latencies of a replay beside those that a client saw."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
import numpy.typing as npt

from planner.engine_config import EngineConfig
from planner.metrics import Distribution, Spread, distribution, e2e_s, itl, pooled, spread, tpot_s, ttft_s
from planner.noise import Pace, StepNoise
from planner.replay import Replay, replay
from planner.step_time import Model, StepTime, step_time_of
from traces.measured import MeasuredRequests
from traces.requests import RequestTrace

Floats = npt.NDArray[np.float64]
SHARES = ("mean", "p50", "p90", "p95", "p99", "max")
"""The numbers of a `Spread`."""
TRUSTED = ("mean", "p50", "p90", "p99")
"""Those by which a replay is trusted."""
TITLES = {"itl": "token gaps", "worst_gap": "worst gap", "tpot": "TPOT", "ttft": "TTFT", "e2e": "E2E"}
"""Latencies in a sentence."""
CLOSE, FAR = 0.15, 0.5
"""Largest misses up to which the numbers, and the order of settings, are to be trusted."""
MOST_RUNS, LEAST_RUNS = 20, 5
"""Replays with scattered step times."""
MOST_REPLAYED = 200_000
"""Requests in all of them, beyond the least."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One latency, predicted and measured."""

    name: str
    """ "itl" (pooled gaps), "worst_gap" (per request), "tpot", "ttft" or "e2e"."""
    predicted_values: Distribution
    """From the replays, pooled."""
    measured_values: Distribution
    """From the client."""
    runs: tuple[Spread, ...]
    """The numbers of each replay."""

    @property
    def predicted(self) -> Spread:
        """The numbers of a typical run: each is the median over the replays.

        What was measured is one run as well. Pooled, a single run with a long queue would make the tail.
        """
        return Spread(*np.median([astuple(run) for run in self.runs], axis=0).tolist())

    @property
    def measured(self) -> Spread:
        """The numbers of the client."""
        return spread(self.measured_values)

    def reach_s(self, share: str) -> tuple[float, float]:
        """The least and the most of one of `SHARES` in any of the replays, seconds."""
        of_runs = [float(getattr(run, f"{share}_s")) for run in self.runs]
        return min(of_runs), max(of_runs)

    def relative_error(self, share: str) -> float:
        """Predicted ÷ measured − 1 at one of `SHARES`; NaN without values, or where clients saw 0."""
        measured_s = float(getattr(self.measured, f"{share}_s"))
        return float(getattr(self.predicted, f"{share}_s")) / measured_s - 1.0 if measured_s else float("nan")


def served(trace: RequestTrace, engine_config: EngineConfig, model: Model) -> tuple[Replay, ...]:
    """A setting as a server runs it, to be held against what was measured.

    Where the model knows how single steps of the log scattered, several replays with that scatter, each a run that
    might have been measured; elsewhere one plain replay. Where the log is of this very trace, the server's slow and
    fast spells come when they came.
    """
    step_time = step_time_of(model)
    if isinstance(model, StepTime) or model.noise is None:
        return (replay(trace, engine_config, step_time, keeps_steps=False),)
    noise: StepNoise | Pace = model.noise
    if model.pace is not None and model.pace.trace_digest == trace.digest:
        noise = model.pace
    num_runs = min(max(MOST_REPLAYED // max(len(trace), 1), LEAST_RUNS), MOST_RUNS)
    return tuple(
        replay(trace, engine_config, step_time, noise=noise.draw(seed), keeps_steps=False) for seed in range(num_runs)
    )


def compare(runs: Sequence[Replay], measured: MeasuredRequests) -> tuple[Comparison, ...]:
    """The same latencies, by the same definitions, from one or more replays and from a client.

    Latencies that were not measured are left out.

    A client's clock starts when it sends and stops when it has read: its times hold the way to the engine and back,
    which a replay does not know.
    """
    num_gaps = np.where(measured.num_outputs > 1, measured.num_outputs - 1, 1)
    tpot = np.where(measured.num_outputs > 1, (measured.last_token_s - measured.first_token_s) / num_gaps, np.nan)
    pairs = {
        "itl": ([itl(run) for run in runs], distribution(measured.gap_s)),
        "worst_gap": ([distribution(run.worst_gap_s) for run in runs], distribution(measured.worst_gap_s)),
        "tpot": ([distribution(tpot_s(run)) for run in runs], distribution(tpot)),
        "ttft": (
            [distribution(ttft_s(run)) for run in runs],
            distribution(measured.first_token_s - measured.arrival_s),
        ),
        "e2e": ([distribution(e2e_s(run)) for run in runs], distribution(measured.last_token_s - measured.arrival_s)),
    }
    return tuple(
        Comparison(name, pooled(of_runs), seen, tuple(map(spread, of_runs)))
        for name, (of_runs, seen) in pairs.items()
        if seen.num
    )


def mismatches(trace: RequestTrace, measured: MeasuredRequests) -> tuple[str, ...]:
    """Signs that the measurements are not of the requests of the trace."""
    said = []
    if len(measured.arrival_s) != len(trace):
        said.append(f"{len(measured.arrival_s):,} requests were measured; the trace has {len(trace):,}.")
    tokens, output = int(measured.num_outputs.sum()), int(trace.output_tokens.sum())
    if tokens != output:
        said.append(f"{tokens:,} output tokens were measured; the trace has {output:,}.")
    return tuple(said)


def signed_percent(error: float) -> str:
    """A relative error in whole percent, with its sign unless it is 0; "–" where there is none."""
    if np.isnan(error):
        return "–"
    percent = round(100 * error)
    return f"{percent:+d} %" if percent else "0 %"


def trust_sentence(comparisons: tuple[Comparison, ...]) -> str:
    """How far to trust a plan that stands on this replay, in one sentence."""
    by_name = {one.name: one for one in comparisons}
    said = ", ".join(
        f"{title} p50 {signed_percent(by_name[name].relative_error('p50'))}, "
        f"p99 {signed_percent(by_name[name].relative_error('p99'))}"
        for name, title in TITLES.items()
        if name in ("itl", "ttft") and name in by_name
    )
    errors = [
        (abs(one.relative_error(share)), f"{TITLES[one.name]} {share}") for one in comparisons for share in TRUSTED
    ]
    known = [error for error in errors if not np.isnan(error[0])]
    if not known:
        return "What was measured is 0 throughout: a replay cannot be held against it."
    worst, where = max(known)
    if worst <= CLOSE:
        advice = "trust its numbers to that extent."
    elif worst <= FAR:
        advice = "trust the order of the settings, and leave that much room in the targets."
    else:
        advice = "do not plan on this model; are trace, flags and measurements of one run?"
    miss = f"the largest miss of {', '.join(TRUSTED[:-1])} and {TRUSTED[-1]} is {round(100 * worst):,} % ({where})"
    return f"Against what was measured the replay is off by: {said}; {miss}: {advice}"
