"""The features that are fitted are those that the kernel charges."""

import numpy as np
import pytest
from kernel_runs import CAPTURED_SIZES

from planner.kernel import step_ns
from planner.regression import as_steps
from planner.step_time import TERMS, StepTime, step_time_from_seconds
from traces.steps import StepLog

NOTHING = StepTime(0, 0, 0)


def every_kind_of_step(num_steps: int = 500) -> StepLog:
    """Batches around every kink, with prefill and without."""
    rng = np.random.default_rng(0)
    has_prefill = rng.random(num_steps) < 0.5
    return StepLog(
        step_s=np.ones(num_steps),
        num_prefill_reqs=has_prefill * rng.integers(1, 4, num_steps),
        prefill_tokens=has_prefill * rng.integers(1, 700, num_steps),
        num_decode_reqs=rng.integers(1, 600, num_steps),
        source_row=np.arange(num_steps),
        kv_decode_tokens=rng.integers(0, 100_000, num_steps).astype(np.float64),
        prefill_attention=has_prefill * rng.integers(0, 10_000, num_steps) / 2,
        kv_prefill_tokens=has_prefill * rng.integers(0, 10_000, num_steps).astype(np.float64),
    )


@pytest.mark.parametrize("term", TERMS)
def test_a_feature_is_what_the_equation_charges_for_its_term(term):
    log = every_kind_of_step()
    steps, _ = as_steps(log, None)
    ns = np.where(np.array(TERMS) == term, 1000.0, 0.0)

    charged = step_ns.py_func(
        step_time_from_seconds(ns / 1e9),
        log.num_prefill_reqs + log.num_decode_reqs,
        log.prefill_tokens,
        log.kv_decode_tokens,
        log.prefill_attention,
        kv_prefill_tokens=log.kv_prefill_tokens,
    )

    np.testing.assert_array_equal(charged, np.rint(steps.features @ ns))
    assert np.ptp(charged) > 0 or term == "base"


def test_a_decode_only_step_is_padded_to_the_next_captured_graph():
    step_time = NOTHING._replace(per_padding_seq_ns=1.0)
    for num_seqs in range(1, 530):
        captured = next((size for size in CAPTURED_SIZES if size >= num_seqs), num_seqs)
        assert step_ns(step_time, num_seqs, 0, 0.0, 0.0) == captured - num_seqs
        assert step_ns(step_time, num_seqs, 1, 0.0, 0.0) == 0


def test_tokens_of_a_step_with_prefill_count_its_requests():
    step_time = NOTHING._replace(per_token_beyond_128_ns=3.0, per_token_beyond_512_ns=5.0)
    assert step_ns(step_time, 8, 120, 0.0, 0.0) == 0
    assert step_ns(step_time, 9, 120, 0.0, 0.0) == 3
    assert step_ns(step_time, 13, 500, 0.0, 0.0) == 3 * 385 + 5
    assert step_ns(step_time, 513, 0, 0.0, 0.0) == 0


def test_a_large_decode_batch_costs_more_per_request():
    step_time = NOTHING._replace(per_seq_ns=10, per_seq_beyond_128_ns=4.0)
    assert step_ns(step_time, 130, 0, 0.0, 0.0) == 1308
    assert step_ns(step_time, 130, 1, 0.0, 0.0) == 1300
