"""What a log leaves open comes with the lines that would record it."""

from dataclasses import replace

import numpy as np
import pytest
from test_calibrate import WITH_KV, refused, synthetic_log

from planner.calibrate import fit_step_time
from planner.errors import Gap, UnfitProblem
from planner.remedies import what_to_record
from traces.steps import ServerFacts, StepLog


def without(log: StepLog, kind: str) -> StepLog:
    """The log without its decode-only steps, or with one size of prefill, and so on."""
    n = len(log)
    waits = np.where(np.arange(n) % 5, 3e-5, log.step_s)
    changed = {
        "steps": {"num_prefill_reqs": np.zeros(n, np.int64), "num_decode_reqs": (np.arange(n) < 20).astype(np.int64)},
        "decode-only steps": {"prefill_tokens": log.prefill_tokens + 1},
        "prefill": {"prefill_tokens": np.zeros(n, np.int64)},
        "sizes": {"prefill_tokens": np.full(n, 512)},
        "times": {"step_s": waits},
        "unit": {"step_s": log.step_s * 1e5},
        "one regime": {"step_s": log.step_s * np.where(np.arange(n) < n // 2, 1.0, 1.6)},
    }
    return replace(log, **changed[kind])


@pytest.mark.parametrize(
    ("kind", "gap"),
    [
        ("steps", Gap.TOO_FEW_STEPS),
        ("decode-only steps", Gap.NO_DECODE_ONLY_STEPS),
        ("prefill", Gap.NO_PREFILL),
        ("sizes", Gap.PREFILL_SIZES),
        ("times", Gap.HIDDEN_TIMES),
        ("unit", Gap.UNIT),
        ("one regime", Gap.MIXED_REGIMES),
    ],
)
def test_every_refusal_says_what_to_record(kind, gap):
    refusal = refused(without(synthetic_log(), kind))

    remedies = what_to_record(refusal)

    assert all(isinstance(problem, UnfitProblem) for problem in refusal.problems)
    assert gap in [remedy.gap for remedy in remedies]
    for remedy in remedies:
        assert remedy.sentence.endswith(".")
        if remedy.gap is not Gap.UNIT:
            assert "--enable-logging-iteration-details" in remedy.serve
            assert "STEP_RECORDER_DIR=" in remedy.plug_in
            assert remedy.bench.startswith("vllm bench serve --model MODEL ")


def test_a_fit_that_covers_its_server_needs_nothing():
    facts = ServerFacts(max_num_batched_tokens=2048, max_num_seqs=48)
    fit = fit_step_time(replace(synthetic_log(WITH_KV, num_steps=2000, noise=0.02), facts=facts))
    assert what_to_record(fit) == ()


def test_a_fit_says_what_its_log_did_not_cover():
    facts = ServerFacts(max_num_batched_tokens=16_384, max_num_seqs=512, async_scheduling=True, max_model_len=8192)
    log = replace(synthetic_log(num_steps=2000, noise=0.02), facts=facts, kv_decode_tokens=None)
    alike = replace(log, num_decode_reqs=np.full(len(log), 16), weight=np.full(len(log), 9.0))

    by_gap = {remedy.gap: remedy for remedy in what_to_record(fit_step_time(alike))}

    assert list(by_gap) == [
        Gap.HIDDEN_TIMES,
        Gap.SAME_BATCH,
        Gap.LARGER_BATCHES,
        Gap.LARGER_PREFILLS,
        Gap.CONTEXT,
        Gap.SINGLE_STEPS,
    ]
    assert "--no-async-scheduling" in by_gap[Gap.HIDDEN_TIMES].serve
    assert "--max-concurrency 512 " in by_gap[Gap.LARGER_BATCHES].bench
    assert "up to 16,384 prefill tokens" in by_gap[Gap.LARGER_PREFILLS].sentence
    assert "--random-input-len 8128 --random-output-len 16 " in by_gap[Gap.LARGER_PREFILLS].bench, "fits the context"


def test_a_roughly_known_p_asks_for_more_sizes():
    log = synthetic_log(num_steps=60, noise=0.5)
    assert Gap.PREFILL_SIZES in [remedy.gap for remedy in what_to_record(fit_step_time(log))]
