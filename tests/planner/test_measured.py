"""Predicted against measured: definitions by hand, then real servers, each from its own log and from another."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from shared import SHARED_DIR, files, shared_path
from traces_by_hand import trace_of

from planner.align import align
from planner.calibrate import fit_step_time
from planner.engine_config import EngineConfig, flags_from_facts
from planner.measured import Comparison, compare, trust_sentence
from planner.metrics import Distribution, pooled
from planner.replay import replay
from planner.step_time import StepTime, StepTimeFit
from traces.measured import MeasuredRequests, read_measured
from traces.read import read_steps, read_trace

NUM_SEEDS = 20
TARGETS = {
    ("itl", "mean"): 0.04,
    ("itl", "p50"): 0.08,
    ("itl", "p90"): 0.10,
    ("itl", "p99"): 0.15,
    ("tpot", "mean"): 0.04,
    ("ttft", "p90"): 0.10,
    ("ttft", "p99"): 0.10,
}
MISSED = {
    "calib_sync": {("itl", "mean"): 0.17, ("itl", "p90"): 0.31, ("itl", "p99"): 0.38, ("tpot", "mean"): 0.19,
                   ("ttft", "p99"): 0.20},
    "async_b2048": {("ttft", "p99"): 0.22},
    "async_cache_kv400": {("ttft", "p90"): 0.32, ("ttft", "p99"): 0.41},
    "sync_b2048_kv300": {("itl", "p90"): 0.17, ("ttft", "p90"): 0.12, ("ttft", "p99"): 0.58},
    "sync_b2048_s8": {("ttft", "p90"): 0.40, ("ttft", "p99"): 0.23},
    "sync_b2048_t256": {("itl", "mean"): 0.06, ("tpot", "mean"): 0.10, ("ttft", "p90"): 0.18},
    "sync_b256": {("tpot", "mean"): 0.05, ("ttft", "p90"): 0.15, ("ttft", "p99"): 0.30},
    "sync_cache_kv400": {("ttft", "p99"): 0.25},
}  # fmt: skip
"""Where a target is missed, and by how much.

calib_sync: its busiest steps took longer than equal work elsewhere in the run (decode-only beside more than 8,000
tokens of context 1.23 × the fit; in sync_b2048 the same work took 1.01 ×): the machine drifts, and a model of the
work cannot know it. Gaps counted from the periods of the log itself have the measured mean within 4 % and the p99
within 1 %.
TTFT: near saturation a queue multiplies such spells. The replays of one run with different seeds have a standard
deviation of 3 to 26 % in TTFT p90 and 8 to 31 % in p99, and a run is a single draw; with 8 seats the bias is larger.
sync_b2048_t256 and sync_b256: mean gaps and TPOT are 4 to 8 % short for a reason not found yet.
"""


def test_a_client_and_a_replay_are_measured_alike():
    run = replay(
        trace_of((0.0, 10, 3), (1.0, 20, 1)),
        EngineConfig(async_scheduling=False),
        StepTime(10_000_000, 0, 1_000_000),
    )
    measured = MeasuredRequests(
        arrival_s=np.array([0.0, 1.0]),
        first_token_s=np.array([0.04, 1.03]),
        last_token_s=np.array([0.06, 1.03]),
        num_outputs=np.array([3, 1]),
        gap_s=np.array([0.01, 0.01]),
        worst_gap_s=np.array([0.01, np.nan]),
    )

    by_name = {one.name: one for one in compare([run], measured)}

    assert by_name["itl"].relative_error("p50") == pytest.approx(0.0)
    assert by_name["tpot"].relative_error("mean") == pytest.approx(0.0)
    assert by_name["worst_gap"].relative_error("max") == pytest.approx(0.0)
    assert by_name["ttft"].predicted.mean_s == pytest.approx(0.025)
    assert by_name["ttft"].measured.mean_s == pytest.approx(0.035)
    assert by_name["e2e"].relative_error("max") == pytest.approx(0.04 / 0.06 - 1)
    assert "the largest miss is 33%" in trust_sentence(tuple(by_name.values()))


def test_what_was_not_measured_is_left_out():
    run = replay(trace_of((0.0, 10, 3)), EngineConfig(async_scheduling=False), StepTime(10_000_000, 0, 1_000_000))
    measured = MeasuredRequests(
        arrival_s=np.array([0.0]),
        first_token_s=np.array([0.02]),
        last_token_s=np.array([0.04]),
        num_outputs=np.array([3]),
        gap_s=np.array([]),
        worst_gap_s=np.array([np.nan]),
    )
    comparisons = compare([run], measured)
    assert [one.name for one in comparisons] == ["tpot", "ttft", "e2e"]
    assert "token gaps" not in trust_sentence(comparisons)


def test_pooled_distributions_count_every_value():
    parts = [Distribution(np.array([1.0, 2.0]), np.array([1, 2])), Distribution(np.array([2.0, 3.0]), np.array([3, 1]))]
    both = pooled(parts)
    assert both.value_s.tolist() == [1.0, 2.0, 3.0]
    assert both.count.tolist() == [1, 5, 1]


def runs() -> list:
    """Folders of measured runs, one parameter each."""
    return [pytest.param(one.values[0].parent, id=one.id, marks=one.marks) if one.values[0] else one
            for one in files("measured/*/meta.json")]  # fmt: skip


@cache
def fitted(folder: Path) -> StepTimeFit:
    """The fit of a run's own log, aligned with its requests."""
    log = read_steps(folder / "server.log.gz", "server.log.gz")
    trace = read_trace(folder / "requests.parquet", "requests.parquet")
    return fit_step_time(log, alignment=align(log, trace, flags_from_facts(log.facts)))


def predicted(folder: Path, fit: StepTimeFit) -> dict[str, Comparison]:
    """The run replayed under its own flags with some fit's step times and noise."""
    trace = read_trace(folder / "requests.parquet", "requests.parquet")
    facts = read_steps(folder / "server.log.gz", "server.log.gz").facts
    assert fit.noise is not None
    replays = [
        replay(trace, flags_from_facts(facts), fit.step_time, noise=fit.noise.draw(seed)) for seed in range(NUM_SEEDS)
    ]
    return {one.name: one for one in compare(replays, read_measured(folder / "requests.parquet"))}


@pytest.mark.measured
@pytest.mark.parametrize("folder", runs())
def test_a_run_is_predicted_from_its_own_log(folder):
    comparisons = predicted(folder, fitted(folder))

    allowed = TARGETS | MISSED.get(folder.name, {})
    for (name, share), most in allowed.items():
        assert abs(comparisons[name].relative_error(share)) <= most, (name, share)


@pytest.mark.measured
def test_settings_are_ranked_from_another_log():
    shared_path("measured", "calib_sync", "meta.json")
    fit = fitted(SHARED_DIR / "measured" / "calib_sync")
    settings = ("sync_b2048", "sync_b256", "sync_b2048_s8", "sync_b2048_t256")
    comparisons = [predicted(SHARED_DIR / "measured" / name, fit) for name in settings]

    for name, share in (("itl", "p90_s"), ("itl", "p99_s"), ("ttft", "p50_s")):
        of_replay = [getattr(one[name].predicted, share) for one in comparisons]
        of_client = [getattr(one[name].measured, share) for one in comparisons]
        for first in range(len(settings)):
            for second in range(len(settings)):
                # A fifth apart: less is a tie on this machine.
                if of_client[first] < of_client[second] / 1.2:
                    assert of_replay[first] < of_replay[second], (settings[first], settings[second], name, share)
