"""Calibration against logs whose truth is known, the odd files, and whatever real logs are at hand."""

import base64
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom
from shared import Case, cases, files, measured_runs

from planner.calibrate import fit_step_time
from planner.errors import BadPlan, UnfitStepLog
from planner.noise import NOISE_STEPS
from planner.step_time import TERMS, StepTime, StepTimeFit, read_model, write_model
from traces.errors import InputError
from traces.read import read_steps
from traces.receipt import Receipt
from traces.steps import ServerFacts, StepLog

TRUTH = StepTime(base_ns=8_000_000, per_seq_ns=60_000, per_prefill_token_ns=20_000)
WITH_KV = TRUTH._replace(per_kv_token_ns=40.0, per_kv_token_mixed_ns=90.0)


def synthetic_log(
    truth: StepTime = TRUTH,
    *,
    seed: int = 0,
    num_steps: int = 600,
    noise: float = 0.1,
    memory: float = 0.0,
    share_prefill: float = 0.2,
) -> StepLog:
    """Steps with a drifting batch and random chunks; right-skewed noise of mean 1, each step remembering the last."""
    rng = np.random.default_rng(seed)
    decodes = np.clip(24 + np.cumsum(rng.integers(-2, 3, num_steps)), 1, 64)
    has_prefill = rng.random(num_steps) < share_prefill
    tokens = np.where(has_prefill, np.clip(rng.lognormal(5.5, 1.0, num_steps), 1, 2048).astype(np.int64), 0)
    context = decodes * np.clip(rng.normal(800.0, 250.0, num_steps), 50.0, None)
    attention = tokens * (rng.integers(0, 8000, num_steps) + tokens / 2)
    mean_s = 1e-9 * (
        truth.base_ns
        + truth.per_seq_ns * (decodes + has_prefill)
        + truth.per_prefill_token_ns * tokens
        + truth.any_prefill_ns * has_prefill
        + np.where(has_prefill, truth.per_kv_token_mixed_ns, truth.per_kv_token_ns) * context
        + truth.per_prefill_attention_ns * attention
    )
    shocks = rng.standard_normal(num_steps)
    for i in range(1, num_steps):
        shocks[i] = memory * shocks[i - 1] + np.sqrt(1 - memory**2) * shocks[i]
    sigma = np.sqrt(np.log1p(noise**2))
    return StepLog(
        step_s=mean_s * np.exp(sigma * shocks - sigma**2 / 2),
        num_prefill_reqs=has_prefill.astype(np.int64),
        prefill_tokens=tokens,
        num_decode_reqs=decodes,
        source_row=np.arange(num_steps),
        kv_decode_tokens=context,
        prefill_attention=attention,
    )


def values(fit: StepTimeFit) -> dict[str, float]:
    """Coefficients by name, seconds per unit."""
    return {coefficient.name: coefficient.value for coefficient in fit.coefficients}


def refused(log: StepLog) -> UnfitStepLog:
    """Return the refusal that fitting this log must end in."""
    with pytest.raises(UnfitStepLog) as refusal:
        fit_step_time(log)
    return refusal.value


# Truth is recovered


def test_recovers_the_three_terms():
    fit = fit_step_time(synthetic_log(noise=0.02))

    assert values(fit) == pytest.approx({"base": 8e-3, "per_seq": 60e-6, "per_prefill_token": 20e-6}, rel=0.03)
    assert fit.step_time[:3] == pytest.approx(TRUTH[:3], rel=0.03)
    assert fit.held_out_mape == pytest.approx(0.016, abs=0.003)
    assert fit.typical_decode_s == pytest.approx(8e-3 + 60e-6 * fit.typical_num_seqs, rel=0.01)
    assert fit.kept.all()
    assert fit.left_out == ()


def test_recovers_both_kv_slopes_and_attention():
    truth = WITH_KV._replace(per_prefill_attention_ns=2.0)

    fit = fit_step_time(synthetic_log(truth, num_steps=3000, noise=0.02))

    assert values(fit) == pytest.approx(
        {
            "base": 8e-3,
            "per_seq": 60e-6,
            "per_prefill_token": 20e-6,
            "per_kv_token": 40e-9,
            "per_kv_token_mixed": 90e-9,
            "per_prefill_attention": 2e-9,
        },
        rel=0.05,
    )


def test_recovers_a_kink_and_the_context_of_prefill():
    log = synthetic_log(num_steps=3000, noise=0.02)
    context = np.where(log.prefill_tokens > 0, 4000.0 * np.random.default_rng(3).random(len(log)), 0.0)
    tokens = np.where(log.prefill_tokens > 0, log.prefill_tokens + log.num_prefill_reqs + log.num_decode_reqs, 0)
    step_s = log.step_s + 1e-9 * (300.0 * context + 15_000 * np.maximum(tokens - 256, 0))

    fit = fit_step_time(replace(log, step_s=step_s, kv_prefill_tokens=context))

    assert values(fit)["per_kv_prefill_token"] == pytest.approx(300e-9, rel=0.1)
    assert values(fit)["per_token_beyond_256"] == pytest.approx(15e-6, rel=0.1)
    assert values(fit)["per_prefill_token"] == pytest.approx(20e-6, rel=0.05)


def test_recovers_the_padding_of_captured_graphs():
    log = synthetic_log(num_steps=3000, noise=0.02)
    empty = np.where(log.prefill_tokens > 0, 0, -log.num_decode_reqs % 8)
    assert log.num_decode_reqs.min() > 4

    fit = fit_step_time(replace(log, step_s=log.step_s + 150e-6 * empty))

    assert values(fit)["per_padding_seq"] == pytest.approx(150e-6, rel=0.05)
    assert values(fit)["per_seq"] == pytest.approx(60e-6, rel=0.05)


def test_recovers_a_kink_in_the_batch():
    log = synthetic_log(num_steps=3000, noise=0.02)
    decodes = 4 * log.num_decode_reqs
    more_s = 60e-6 * (decodes - log.num_decode_reqs)
    beyond = np.where(log.prefill_tokens > 0, 0, np.maximum(decodes - 128, 0))

    fit = fit_step_time(replace(log, num_decode_reqs=decodes, step_s=log.step_s + more_s + 40e-6 * beyond))

    assert values(fit)["per_seq_beyond_128"] == pytest.approx(40e-6, rel=0.1)
    assert values(fit)["per_seq"] == pytest.approx(60e-6, rel=0.05)


def test_recovers_an_offset_of_any_prefill():
    fit = fit_step_time(synthetic_log(TRUTH._replace(any_prefill_ns=5e6), num_steps=2000, noise=0.02))

    assert values(fit)["any_prefill"] == pytest.approx(5e-3, rel=0.05)
    assert values(fit)["per_prefill_token"] == pytest.approx(20e-6, rel=0.05)


@pytest.mark.parametrize("memory", [0.0, 0.8])
@pytest.mark.parametrize("seed", range(5))
def test_adds_no_term_that_is_not_there(seed, memory):
    fit = fit_step_time(synthetic_log(seed=seed, memory=memory))

    assert list(values(fit)) == ["base", "per_seq", "per_prefill_token"]


def test_kv_usage_stands_in_for_kv_tokens():
    log = synthetic_log(WITH_KV, num_steps=2000, noise=0.02)
    assert log.kv_decode_tokens is not None
    usage = replace(log, kv_decode_tokens=None, kv_usage=log.kv_decode_tokens / 160_000)
    sized = replace(usage, facts=ServerFacts(num_gpu_blocks=10_001, block_size=16))

    for fit in (fit_step_time(usage, num_kv_tokens=160_000), fit_step_time(sized)):
        assert values(fit)["per_kv_token"] == pytest.approx(40e-9, rel=0.05)
        assert any("approximated by KV cache usage × 160,000 tokens" in notice for notice in fit.notices)
    unsized = fit_step_time(usage)
    assert "per_kv_token" not in values(unsized)
    assert any("Give the size in tokens" in notice for notice in unsized.notices)
    assert np.isnan(unsized.covered.max_kv_decode_tokens)


def test_a_weighted_row_counts_as_that_many_steps():
    log = synthetic_log(num_steps=200)
    twice = np.repeat(np.arange(200), 2)
    repeated = StepLog(
        log.step_s[twice], log.num_prefill_reqs[twice], log.prefill_tokens[twice], log.num_decode_reqs[twice], twice
    )
    weighted = replace(log, kv_decode_tokens=None, prefill_attention=None, weight=np.full(200, 2.0))

    assert fit_step_time(weighted).step_time == fit_step_time(repeated).step_time


# Means are kept, and the uncertainty is honest


@pytest.mark.parametrize("noise", [0.2, 0.6])
def test_predicts_the_total_time_of_right_skewed_steps(noise):
    log = synthetic_log(WITH_KV, num_steps=1500, noise=noise)

    fit = fit_step_time(log)

    assert fit.total_time_ratio == pytest.approx(1.0, abs=1e-4)
    for kind in (log.prefill_tokens == 0, log.prefill_tokens > 0):
        total_s = np.sum(log.step_s[fit.kept & kind])
        assert np.sum(fit.predicted_s[fit.kept & kind]) == pytest.approx(total_s, rel=1e-4)


def with_stalls(log: StepLog, seed: int) -> StepLog:
    """Four steps, anywhere, took 6 to 30 times as long."""
    rng = np.random.default_rng(1000 + seed)
    step_s = log.step_s.copy()
    step_s[rng.choice(len(log), 4, replace=False)] *= rng.uniform(6.0, 30.0, 4)
    return replace(log, step_s=step_s)


def test_intervals_cover_the_truth_at_their_stated_rate():
    """200 logs: plain, very skewed, remembering, and with stalls; the counts lie where 95 % would put them."""
    truth = {"base": 8e-3, "per_seq": 60e-6, "per_prefill_token": 20e-6}
    covered = dict.fromkeys(truth, 0)
    for seed in range(50):
        logs = [
            synthetic_log(seed=seed, num_steps=300),
            synthetic_log(seed=seed, num_steps=300, noise=0.5),
            synthetic_log(seed=seed, num_steps=300, memory=0.6),
            with_stalls(synthetic_log(seed=seed, num_steps=300), seed),
        ]
        for log in logs:
            fit = fit_step_time(replace(log, kv_decode_tokens=None, prefill_attention=None))
            assert set(truth) <= values(fit).keys()
            for coefficient in fit.coefficients:
                low, high = coefficient.low, coefficient.high
                covered[coefficient.name] += low <= truth[coefficient.name] <= high

    least, most = binom.ppf([0.001, 0.999], 200, 0.95)
    assert min(covered.values()) >= least, covered
    assert max(covered.values()) <= most, covered


def test_draws_carry_the_intervals():
    fit = fit_step_time(synthetic_log())

    assert fit.draws.shape == (400, len(TERMS))
    spread = np.quantile(fit.draws, [0.025, 0.975], axis=0)
    for column, coefficient in enumerate(fit.coefficients):
        assert coefficient.low == pytest.approx(spread[0, column], rel=0.05)
        assert coefficient.high == pytest.approx(spread[1, column], rel=0.05)
    assert not fit.draws[:, 3:].any()


def test_same_log_same_bytes():
    first, second = (fit_step_time(synthetic_log(WITH_KV)) for _ in range(2))

    assert write_model(first) == write_model(second)
    assert first.draws.tobytes() == second.draws.tobytes()


def test_noise_is_drawn_from_the_residuals_by_kind():
    fit = fit_step_time(synthetic_log(num_steps=2000, noise=0.3))

    assert fit.noise is not None
    factors = fit.noise.draw(seed=1)[:2]
    assert fit.noise.draw(seed=1)[2].tolist() == [1.0] * NOISE_STEPS
    assert factors.tobytes() == fit.noise.draw(seed=1)[:2].tobytes()
    assert factors.tobytes() != fit.noise.draw(seed=2)[:2].tobytes()
    np.testing.assert_allclose(factors.mean(axis=1), 1.0, atol=0.01)
    np.testing.assert_allclose(factors.std(axis=1), 0.3, atol=0.05)


def test_the_noise_of_a_long_log_is_thinned():
    fit = fit_step_time(synthetic_log(num_steps=12_000, noise=0.3))

    assert fit.noise is not None
    assert len(fit.noise.decode) == 4096 > len(fit.noise.prefill)
    assert fit.noise.decode.mean() == pytest.approx(1.0)
    assert fit.noise.decode.std() == pytest.approx(0.3, abs=0.02)
    assert len(write_model(fit)) < 150_000


def test_averages_have_no_noise():
    log = synthetic_log()
    assert fit_step_time(replace(log, weight=np.full(len(log), 9.0))).noise is None


# What is left out


def test_leaves_out_warm_up_outliers_and_idle_steps_and_says_so():
    log = synthetic_log(num_steps=1000, noise=0.05)
    step_s, decodes = log.step_s.copy(), log.num_decode_reqs.copy()
    step_s[0] *= 20
    step_s[500] *= 3000
    idle = np.flatnonzero(log.prefill_tokens == 0)[-3:]
    decodes[idle] = 0

    fit = fit_step_time(replace(log, step_s=step_s, num_decode_reqs=decodes))

    assert [num_steps for _, num_steps in fit.left_out] == [3, 1, 1]
    assert np.flatnonzero(~fit.kept).tolist() == sorted([0, 500, *idle])
    assert any("outliers: 1 of 997 steps" in notice and "% of the logged time" in notice for notice in fit.notices)
    assert values(fit)["base"] == pytest.approx(8e-3, rel=0.05)


def test_many_slow_steps_are_no_outliers():
    log = synthetic_log(num_steps=1000, noise=0.05)
    step_s = log.step_s.copy()
    step_s[10::20] *= 6

    fit = fit_step_time(replace(log, step_s=step_s))

    assert fit.kept.all()
    assert any("they are kept" in notice for notice in fit.notices)
    assert fit.total_time_ratio == pytest.approx(1.0, abs=1e-4)


# What the log cannot tell


def test_a_batch_that_never_varies_leaves_per_seq_at_zero():
    log = synthetic_log()

    fit = fit_step_time(replace(log, num_decode_reqs=np.full(len(log), 16)))

    assert fit.step_time.per_seq_ns == 0
    assert any("Decode-only steps all have the same batch" in notice for notice in fit.notices)


def test_context_that_follows_the_batch_is_not_told_apart():
    log = synthetic_log(WITH_KV)
    fit = fit_step_time(replace(log, kv_decode_tokens=log.num_decode_reqs * 800.0))

    assert any("Context grows in step with the batch" in notice for notice in fit.notices)


def test_prefill_that_does_not_cost_in_proportion_is_pointed_out():
    log = synthetic_log(num_steps=3000, noise=0.02)
    flat = np.where((log.prefill_tokens > 64) & (log.prefill_tokens <= 128), 0.5, 1.0)

    fit = fit_step_time(replace(log, step_s=log.step_s * flat))

    assert any("steps of 65 to 128 are predicted" in notice for notice in fit.notices)


def test_elapsed_times_carry_a_caution():
    receipt = Receipt("s.log", "0" * 64, "log", 0, 0, (("step_time", "iteration elapsed time"),), "ms", "printed")
    log = replace(synthetic_log(), receipt=receipt)

    fit = fit_step_time(log)

    assert fit.source == "s.log (00000000)"
    assert any("wait for the result" in notice for notice in fit.notices)


# Refusals


def test_too_few_steps():
    assert "too few steps: 20" in str(refused(synthetic_log(num_steps=20)))


def test_every_problem_is_told_at_once():
    log = synthetic_log(num_steps=20)
    problems = refused(replace(log, prefill_tokens=np.zeros(20, np.int64))).problems

    assert [problem.column for problem in problems] == [None, "prefill_tokens"]


def test_no_decode_only_steps():
    log = synthetic_log()
    refusal = refused(replace(log, prefill_tokens=log.prefill_tokens + 1))
    assert "no decode-only steps" in str(refusal)
    assert "constant" not in str(refusal)


def test_constant_prefill():
    log = synthetic_log()
    assert "prefill tokens are constant (512" in str(refused(replace(log, prefill_tokens=np.full(len(log), 512))))


def test_no_prefill_still_shows_d():
    log = synthetic_log(share_prefill=0.0, noise=0.02)
    shown = re.search(r"d can be seen: ([\d.]+) ms at (\d+) running", str(refused(log)))
    assert shown is not None
    assert float(shown[1]) == pytest.approx(8 + 0.06 * int(shown[2]), rel=0.02)


@pytest.mark.parametrize("factor", [1e5, 1e-5])
def test_times_that_no_engine_has(factor):
    log = synthetic_log()
    assert "Check the unit" in str(refused(replace(log, step_s=log.step_s * factor)))


def test_times_that_asynchronous_scheduling_hid():
    log = synthetic_log()
    step_s = np.where(np.arange(len(log)) % 5, 3e-5, log.step_s)

    refusal = refused(replace(log, step_s=step_s))

    (problem,) = refusal.problems
    assert "asynchronous scheduling" in problem.found
    assert problem.rows[:2] == (1, 2)
    assert problem.num_rows >= 0.75 * len(log)


def test_a_few_waits_are_outliers():
    log = synthetic_log(num_steps=1000)
    step_s = log.step_s.copy()
    step_s[200:210] = 3e-5

    assert (~fit_step_time(replace(log, step_s=step_s)).kept).sum() == 10


def test_falling_times_are_refused_not_clamped():
    log = synthetic_log()
    refusal = refused(replace(log, step_s=0.03 - log.prefill_tokens * 5e-6 + log.num_decode_reqs * 1e-5))
    assert "a negative slope is not physical" in str(refusal)


def test_times_that_do_not_know_of_prefill():
    log = synthetic_log(noise=0.05)
    step_s = np.where(log.prefill_tokens > 0, 0.99, 1.0) * (8e-3 + 60e-6 * log.num_decode_reqs)
    assert "per token" in str(refused(replace(log, step_s=step_s)))


def after(first: StepLog, then: StepLog) -> StepLog:
    """One log behind the other, as in a file that was appended to."""
    names = ("step_s", "num_prefill_reqs", "prefill_tokens", "num_decode_reqs", "kv_decode_tokens", "prefill_attention")
    joined = {name: np.concatenate([getattr(first, name), getattr(then, name)]) for name in names}
    return replace(first, **joined, source_row=np.arange(len(first) + len(then)))


@pytest.mark.parametrize(
    "other",
    [
        StepTime(12_000_000, 90_000, 30_000),
        StepTime(5_000_000, 40_000, 12_000),
        TRUTH._replace(per_prefill_token_ns=60_000),
    ],
)
@pytest.mark.parametrize("num_steps", [150, 600])
def test_two_regimes_in_one_file(other, num_steps):
    """Another GPU, or eager execution, from some row on: no one model holds."""
    refusal = refused(after(synthetic_log(), synthetic_log(other, seed=1, num_steps=num_steps)))

    (problem,) = refusal.problems
    assert "two regimes in one file" in problem.found
    assert abs(problem.rows[0] - 600) <= 40  # where only p changes, one step in five shows it
    assert problem.num_rows == 600 + num_steps - problem.rows[0]


@pytest.mark.parametrize("seed", range(4))
def test_a_machine_that_drifts_is_one_regime(seed):
    log = synthetic_log(seed=seed, num_steps=1500, noise=0.3, memory=0.97)
    assert fit_step_time(log).kept.mean() > 0.97


def test_the_same_server_recorded_twice_is_one_regime():
    assert fit_step_time(after(synthetic_log(), synthetic_log(seed=1))).kept.all()


# The model file


def test_a_model_file_gives_back_what_the_plan_stands_on():
    facts = ServerFacts(vllm_version="0.32.0", max_num_seqs=48, async_scheduling=False)
    fit = fit_step_time(replace(synthetic_log(WITH_KV), facts=facts))

    saved = read_model(write_model(fit))

    assert saved.facts == facts
    assert fit.noise is not None
    assert saved.noise is not None
    assert saved.draws.tobytes() == fit.draws.tobytes()
    assert saved.noise.draw(seed=3).tobytes() == fit.noise.draw(seed=3).tobytes()
    assert saved.step_time == fit.step_time
    assert saved.covered == fit.covered
    assert saved.coefficients == fit.coefficients
    assert (saved.typical_num_seqs, saved.typical_decode_s) == (fit.typical_num_seqs, fit.typical_decode_s)
    assert (saved.source, saved.digest) == (fit.source, fit.digest)
    assert [type(value) for value in saved.step_time] == [type(value) for value in fit.step_time]


def test_a_model_without_context_reads_back():
    log = replace(synthetic_log(), kv_decode_tokens=None)
    saved = read_model(write_model(fit_step_time(log)))
    assert saved.covered is not None
    assert np.isnan(saved.covered.max_kv_decode_tokens)


def test_the_least_model_by_hand():
    text = '{"version": 2, "step_time": {"base_ns": 8000000, "per_seq_ns": 60000, "per_prefill_token_ns": 20000}}'
    saved = read_model(text, "mine.json")
    assert saved.step_time == TRUTH
    assert saved.covered is None
    assert saved.draws.shape == (0, len(TERMS))
    assert saved.facts == ServerFacts()
    assert saved.noise is None
    assert saved.source == "mine.json, written by hand"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("step_s\n0.1", "not JSON"),
        ("[1]", 'without "step_time"'),
        ('{"version": 1, "step_time": {}}', "version: found 1; allowed: 2. Calibrate again"),
        ('{"step_time": {}}', "version: found None; allowed: 2"),
        ('{"version": 2, "step_time": 8}', "step_time: found 8; allowed: an object"),
        ('{"version": 2, "step_time": {"base_ns": -1}}', "step_time.base_ns: found -1"),
        ('{"version": 2, "step_time": {"base_ns": 1.5}}', "step_time.base_ns: found 1.5; allowed: a whole number"),
        ('{"version": 2, "step_time": {"base_ns": true}}', "step_time.base_ns: found True"),
        ('{"version": 2, "step_time": {"base_ns": Infinity}}', "step_time.base_ns: found inf"),
        ('{"version": 2, "step_time": {"base_ns": 1}}', "step_time.per_seq_ns: found nothing"),
        ('{"version": 2, "step_time": {"base_ms": 8}}', "unknown 'base_ms'"),
        ('{"version": 2, "step_time": {"base_ns": 0, "per_seq_ns": 0}}', "both 0"),
        ('{"version": 2, "step_time": {}, "covered": {}}', "covered.max_num_seqs: found nothing"),
        ('{"version": 2, "step_time": {}, "coefficients_s": 3}', "coefficients_s: allowed: a list"),
        ('{"version": 2, "step_time": {}, "coefficients_s": [{"name": "base"}]}', "coefficients_s[0].low"),
        (
            '{"version": 2, "step_time": {}, "coefficients_s": [{"name": "bass"}]}',
            "coefficients_s[0].name: found 'bass'",
        ),
        ('{"version": 2, "step_time": {}, "draws_s": "%"}', "draws_s: damaged"),
        (
            '{"version": 2, "step_time": {}, "draws_s": "AAAAAAAA8D8="}',
            "draws_s: found 1 numbers; allowed: as many for",
        ),
        (
            '{"version": 2, "step_time": {}, "noise": {"decode": ""}}',
            "noise: allowed: an object with decode and prefill",
        ),
        (
            '{"version": 2, "step_time": {}, "noise": {"decode": "", "prefill": ""}}',
            "noise: allowed: one number or more",
        ),
        (
            '{"version": 2, "step_time": {}, "facts": {"flags": 1}}',
            "facts: allowed: an object with some of vllm_version",
        ),
        (
            '{"version": 2, "step_time": {}, "facts": {"max_num_seqs": true}}',
            "facts.max_num_seqs: found True; allowed: int",
        ),
    ],
)
def test_a_bad_model_file_is_refused(text, said):
    with pytest.raises(BadPlan) as refusal:
        read_model(text, "mine.json")
    assert said in str(refusal.value)
    assert str(refusal.value).startswith("mine.json: ")


# Files


@pytest.mark.cases
@pytest.mark.parametrize("case", cases("steplog"))
def test_case(case: Case):
    if case.sidecar["must"] == "refuse":
        with pytest.raises(InputError) as refusal:
            fit_step_time(read_steps(case.path, case.path.name))
        assert_refused(refusal.value, case.sidecar)
        return
    fit = fit_step_time(read_steps(case.path, case.path.name))
    expected = case.sidecar["fit"]
    assert fit.typical_decode_s * 1e3 == pytest.approx(expected["d_ms"], rel=expected["d_rel_tol"])
    if "p_ms_per_token" in expected:
        p_ms = values(fit)["per_prefill_token"] * 1e3
        assert p_ms == pytest.approx(expected["p_ms_per_token"], rel=expected["p_rel_tol"])
    if any("show its interval" in notice for notice in case.sidecar.get("notices", ())):
        p = fit.coefficients[-1]
        assert (p.high - p.low) / (2 * p.value) > 0.3
        assert any(notice.startswith("p is not well determined") for notice in fit.notices)


def assert_refused(refusal: InputError, sidecar: dict) -> None:
    expected = sidecar["refuse"]
    assert isinstance(refusal, UnfitStepLog)
    assert any(word in str(refusal) for word in expected["say_any"])
    assert expected["column"] in [problem.column for problem in refusal.problems]
    if expected["row0"] is not None:
        assert expected["row0"] in refusal.problems[0].rows
    if "fit_partial" in sidecar:
        assert f"d can be seen: {sidecar['fit_partial']['d_ms']} ms" in str(refusal)


@pytest.mark.data
@pytest.mark.parametrize("path", files("data/step_logs/*") + files("data/formats/*iteration_log*"))
def test_public_log_is_fitted_or_refused(path: Path):
    fitted_or_refused(path)


@pytest.mark.data
@pytest.mark.parametrize("path", files("data/step_logs/BAD_*"))
def test_async_spans_are_refused(path: Path):
    assert "asynchronous scheduling" in str(refused(read_steps(path, path.name)))


@pytest.mark.data
@pytest.mark.parametrize("path", files("data/step_logs/opsum_*"))
def test_measured_kernels_are_fitted_well(path: Path):
    log = read_steps(path, path.name)

    fit = fit_step_time(log)

    decode = log.prefill_tokens == 0
    miss = np.abs(fit.predicted_s / log.step_s - 1)
    assert {"per_kv_token", "per_kv_token_mixed", "per_prefill_attention"} <= values(fit).keys()
    assert miss[decode].mean() < 0.04
    assert fit.held_out_median < 0.04
    assert fit.held_out_mape < 0.05


@pytest.mark.measured
@pytest.mark.parametrize("folder", measured_runs())
def test_log_of_a_real_server_is_fitted(folder: Path):
    fit = fitted_or_refused(folder / "server.log.gz")
    assert fit is not None
    assert fit.kept.mean() > 0.99
    assert 8e-3 < fit.typical_decode_s < 25e-3
    slopes = sum(value for name, value in values(fit).items() if name.startswith(("per_prefill_token", "per_token_")))
    assert 150e-6 < slopes < 300e-6
    assert any("more pass than vLLM prints" in notice for notice in fit.notices)
    assert 1e-3 < fit.overhead_s < 5e-3


def fitted_or_refused(path: Path) -> StepTimeFit | None:
    try:
        fit = fit_step_time(read_steps(path, path.name))
    except InputError:
        return None
    assert fit.total_time_ratio == pytest.approx(1.0, abs=1e-3)
    assert min(fit.step_time) >= 0
    assert fit.step_time.per_prefill_token_ns > 0
    for coefficient in fit.coefficients:
        assert coefficient.low <= coefficient.value <= coefficient.high
    return fit


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda model: model["step_time"].update(base_ns=10**400), "step_time.base_ns"),
        (lambda model: model["facts"].update(max_num_seqs=-5), "facts: max_num_seqs"),
        (lambda model: model["noise"].update(decode=packed(1e300)), "noise.decode: damaged"),
        (
            lambda model: model["noise"].update(prefill=packed(0.0, 0.0)),
            "noise: allowed: one number or more, of mean 1",
        ),
        (lambda model: model.update(draws_s=packed(*[1e300] * len(model["coefficients_s"]))), "draws_s: damaged"),
    ],
)
def test_an_absurd_model_file_is_refused(change, said):
    model = json.loads(write_model(fit_step_time(synthetic_log())))
    change(model)
    with pytest.raises(BadPlan, match=said):
        read_model(json.dumps(model), "mine.json")
    with pytest.raises(BadPlan, match="not JSON"):
        read_model("[" * 100_000, "deep.json")


def packed(*values: float) -> str:
    """Floats as a model file has them."""
    return base64.b64encode(np.array(values, "<f8").tobytes()).decode()
