"""Which flags acted in a log: counted as the plain model of the scheduler says why somebody was held or cut."""

from dataclasses import replace

import numpy as np
import pytest
from golden_logs import config_of, logged, recordings, trace_of
from goldens import read_golden

from planner.acting import FlagUse, flags_sentence
from planner.align import align
from planner.engine_config import EngineConfig

pytestmark = [pytest.mark.golden, pytest.mark.usefixtures("outputs_have_content")]


SHORT = [one for one in recordings(has_drafts=False) if read_golden(one.values[0])["scenario"]["detail"] == "full"]


@pytest.mark.parametrize("path", SHORT)
def test_flags_acted_where_somebody_was_held_or_cut(path):
    golden = read_golden(path)
    truth, config = logged(golden), config_of(golden)
    exact = replace(truth.log, stamp_s=np.array([step["end_ns"] / 1e9 for step in truth.steps]))

    uses = {use.name: use.num_steps for use in align(exact, trace_of(golden), config).flag_uses}

    held = [{reason for _, reason in step["held"]} for step in truth.steps]
    num_no_seat = sum("no seat" in reasons for reasons in held)
    num_no_blocks = sum(
        bool(step["preempted"]) or "no blocks" in reasons for step, reasons in zip(truth.steps, held, strict=True)
    )
    num_held_by_budget = sum(bool(reasons & {"no budget", "not whole"}) for reasons in held)
    num_hits = sum(any(hit for _, hit, _ in step["admitted"]) for step in truth.steps)
    assert uses.get("max_num_active_seqs", uses["max_num_seqs"]) == num_no_seat
    if config.async_scheduling and config.scheduling_policy == "priority":
        # Who is sent while two steps are in flight may wait in either.
        assert uses["num_gpu_blocks"] == pytest.approx(num_no_blocks, rel=0.01)
    elif config.enable_prefix_caching:
        assert uses["num_gpu_blocks"] >= num_no_blocks
        assert uses["enable_prefix_caching"] == num_hits
    else:
        assert uses["num_gpu_blocks"] == num_no_blocks
    assert uses["max_num_batched_tokens"] + uses.get("max_num_scheduled_tokens", 0) >= num_held_by_budget
    if not golden["scenario"]["config"]["enable_chunked_prefill"] and not config.long_prefill_token_threshold:
        assert uses["max_num_batched_tokens"] == num_held_by_budget


@pytest.mark.parametrize("path", [one for one in recordings(has_drafts=False) if "threshold_fixed" in one.id])
def test_a_threshold_acts_where_a_prompt_is_cut_at_it(path):
    golden = read_golden(path)
    truth, config = logged(golden), config_of(golden)
    computed = [0] * len(golden["scenario"]["requests"])
    num_cut = 0
    for step in truth.steps:
        is_cut = False
        for index, tokens in step["batch"]:
            computed[index] += tokens
            prompt = golden["scenario"]["requests"][index]["prompt"]
            is_cut |= computed[index] < prompt and tokens == config.long_prefill_token_threshold
        num_cut += is_cut

    uses = {use.name: use for use in align(truth.log, trace_of(golden), config).flag_uses}

    assert uses["long_prefill_token_threshold"].num_steps == num_cut > 0


def test_flags_that_are_off_are_not_among_them():
    uses = align(*no_requests(), EngineConfig()).flag_uses
    assert {use.name for use in uses}.isdisjoint({"watermark", "long_prefill_token_threshold", "max_num_active_seqs"})
    assert all(use.num_steps == 0 for use in uses)


def no_requests():
    golden = read_golden(next(one.values[0] for one in recordings(has_drafts=False)))
    log = logged(golden).log
    none = replace(log, num_prefill_reqs=np.zeros(len(log), np.int64))
    return none, trace_of(golden)


def test_a_sentence_names_what_acted_and_what_the_log_does_not_test():
    said = flags_sentence(
        [
            FlagUse("max_num_batched_tokens", 2048, 1, 2048),
            FlagUse("max_num_seqs", 256, 0, 8),
            FlagUse("scheduler_reserve_full_isl", True, 0, None),
        ]
    )
    assert said == (
        "Flags that acted: max_num_batched_tokens in 1 step. Never acted, so this log does not test them: "
        "max_num_seqs 256 (at most 8 needed), scheduler_reserve_full_isl."
    )
