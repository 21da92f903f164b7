"""Lines that a server would have logged for the recordings of the real scheduler: all are explained, none by chance."""

from dataclasses import replace

import numpy as np
import pytest
from golden_logs import config_of, logged, order_of, recordings, trace_of
from goldens import read_golden, requests_of
from logged import FEATURES, Logged

from planner import stepper
from planner.align import MIN_SHARE_EXPLAINED, Alignment, _walked, align, align_whole
from planner.errors import BadPlan

pytestmark = [pytest.mark.golden, pytest.mark.usefixtures("outputs_have_content")]


@pytest.mark.parametrize("path", recordings(has_drafts=False))
def test_every_line_is_explained_with_its_hidden_features(path):
    golden = read_golden(path)
    truth = logged(golden)

    alignment = align(truth.log, trace_of(golden), config_of(golden))

    assert_reconstructed(alignment, truth)


@pytest.mark.parametrize("path", recordings(has_drafts=False, where_waiting_matters=True))
def test_where_waiting_matters_a_clock_that_runs_slow_is_enough(path):
    golden = read_golden(path)
    truth = logged(golden)
    slow = replace(truth.log, stamp_s=None, step_s=truth.log.step_s * 0.93)

    alignment = align(slow, trace_of(golden), config_of(golden))

    assert_reconstructed(alignment, truth)


def assert_reconstructed(alignment: Alignment, truth: Logged) -> None:
    assert alignment.differences == ()
    assert alignment.is_explained.all()
    for name, column in zip(FEATURES, truth.features.T, strict=True):
        np.testing.assert_array_equal(alignment.steps[name], column, name)


def known_acceptance(golden: dict) -> stepper.Engine:
    """An engine that accepts the drafts that the recording accepts."""
    engine = stepper.Engine(trace_of(golden), config_of(golden))
    engine.accept = np.array(golden["scenario"]["config"]["spec"]["accept"], np.int64)
    engine.fresh["identity"] = np.array(order_of(golden))[engine.index]
    engine.requests[:] = engine.fresh
    return engine


@pytest.mark.parametrize("path", recordings(has_drafts=True))
def test_with_the_accepted_drafts_known_the_rules_explain_every_line(path):
    golden = read_golden(path)
    truth = logged(golden)
    walk = _walked(truth.log, known_acceptance(golden))

    assert walk.is_explained.all()
    for name, column in zip(FEATURES, truth.features.T, strict=True):
        np.testing.assert_array_equal(walk.steps[name], column, name)


def depends_on_lengths(golden: dict) -> bool:
    """Whether a schedule depends on how far requests are: KV blocks, `max_model_len` or the budget run out."""
    flags, steps = golden["scenario"]["config"], golden["result"]["steps"]
    longest = max(request["prompt"] + request["out"] for request in requests_of(golden))
    has_starved = not flags["async_scheduling"] and any(
        len(batch) < num_running for batch, num_running in zip(steps["batch"], steps["running"], strict=True)
    )
    return any(steps["preempted"]) or longest >= flags["max_model_len"] or has_starved


def drafting(depends: bool) -> list:
    return [one for one in recordings(has_drafts=True) if depends_on_lengths(read_golden(one.values[0])) == depends]


@pytest.mark.parametrize("path", drafting(depends=True))
def test_where_it_depends_on_lengths_what_is_explained_is_said_and_why_not_more(path):
    golden = read_golden(path)
    truth = logged(golden)

    alignment = align(truth.log, trace_of(golden), config_of(golden))

    assert alignment.num_explained > 0
    if alignment.share_explained < MIN_SHARE_EXPLAINED:
        with pytest.raises(BadPlan, match="does not say how many drafts were accepted"):
            align_whole(truth.log, trace_of(golden), config_of(golden))


@pytest.mark.parametrize("path", drafting(depends=False))
def test_without_them_every_line_is_explained_where_the_schedule_does_not_depend_on_lengths(path):
    golden = read_golden(path)
    truth = logged(golden)

    alignment = align(truth.log, trace_of(golden), config_of(golden))

    assert alignment.differences == ()
    assert alignment.is_explained.all()
    told = [name for name in FEATURES if name not in ("kv_decode_tokens", "kv_prefill_tokens", "prefill_attention")]
    for name in told:
        np.testing.assert_array_equal(alignment.steps[name], truth.features[:, FEATURES.index(name)], name)
    read = truth.features[:, FEATURES.index("kv_decode_tokens")]
    assert alignment.steps["kv_decode_tokens"].sum() == pytest.approx(read.sum(), rel=0.07)
