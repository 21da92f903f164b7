"""Real-life odd files: each says in its sidecar what must come out."""

from typing import Any

import numpy as np
import pytest
from shared import Case, cases

from traces.answers import ReadAnswers
from traces.errors import BadData, InputError, NeedsAnswer
from traces.read import read_steps, read_trace
from traces.requests import RequestTrace

pytestmark = pytest.mark.cases

OUR_ANSWERS = {
    # The sidecars name these answers in words; the fields are ours.
    "day": ReadAnswers(same_day="yes"),
    "order": ReadAnswers(clock_change="yes"),
}


@pytest.mark.parametrize("case", cases("trace"))
def test_case_of_a_trace(case: Case) -> None:
    must = case.sidecar["must"]
    if must == "accept":
        expected = case.sidecar.get("accept_any_of") or [case.sidecar["accept"]]
        trace = read_trace(case.path, case.path.name)
        assert any(says(trace, one, case.sidecar.get("tolerance_s", 1e-9)) for one in expected)
        assert trace.receipt is not None
        assert trace.receipt.num_kept == len(trace)
    elif must == "refuse":
        with pytest.raises(InputError) as refusal:
            read_trace(case.path, case.path.name)
        assert_refused(refusal.value, case.sidecar["refuse"])
    else:
        with pytest.raises(NeedsAnswer) as question:
            read_trace(case.path, case.path.name)
        assert all(len(one.choices) >= 1 for one in question.value.questions)
        trace = read_trace(case.path, case.path.name, given(case.sidecar["given"]))
        assert says(trace, case.sidecar["accept"], 1e-9)


@pytest.mark.parametrize("case", cases("trace"))
def test_what_must_be_told(case: Case) -> None:
    words = {
        "C12_priority_column.parquet": "priority",
        "C13_mooncake_shared_prefix.jsonl": "one per 512 prompt tokens",
        "C28f_epoch_s_int.parquet": "resolution",
        "C30a_burst_ties_and_failures.csv": "rows 5, 7, 10",
        "C31d_timestamp_s.parquet": "1 s",
        "C33n_all_at_once.parquet": "rate cannot be given",
    }
    if case.path.name not in words:
        return
    trace = read_trace(case.path, case.path.name, given(case.sidecar.get("given", {})))
    assert trace.receipt is not None
    assert any(words[case.path.name] in notice for notice in trace.receipt.notices)


@pytest.mark.parametrize("case", cases("trace", stating="prefix"))
def test_reusable_prompt_tokens_are_those_stated(case: Case) -> None:
    """A warm cache without a limit would save every full block that an earlier prompt had."""
    trace = read_trace(case.path, case.path.name, given(case.sidecar.get("given", {})))
    hashes, stated = trace.prefix_hashes, case.sidecar["prefix"]
    assert hashes is not None
    assert hashes.block_tokens == stated["block_tokens"]
    seen: set[tuple[int, ...]] = set()
    reusable = 0
    for i, prompt in enumerate(trace.prompt_tokens):
        ids = tuple(hashes.ids[hashes.offsets[i] : hashes.offsets[i + 1]].tolist())
        prefixes = [ids[: j + 1] for j in range(int(prompt) // hashes.block_tokens)]
        reusable += sum(prefix in seen for prefix in prefixes) * hashes.block_tokens
        seen.update(prefixes)
    assert reusable == stated["max_reusable_prompt_tokens"]


@pytest.mark.parametrize("case", cases("steplog"))
def test_case_of_a_step_log_is_readable(case: Case) -> None:
    # Whether a log supports a fit is judged by the calibration; here every row must come through.
    steps = read_steps(case.path, case.path.name)
    assert steps.receipt is not None
    assert len(steps) == steps.receipt.num_rows == case.sidecar.get("rows", len(steps))
    assert np.all(steps.step_s > 0)
    assert np.median(steps.step_s) < 1


def says(trace: RequestTrace, expected: dict[str, Any], tolerance_s: float) -> bool:
    first_gap_s = trace.arrival_s[1] - trace.arrival_s[0] if len(trace) > 1 else None
    return (
        len(trace) == expected["requests"]
        and int(trace.prompt_tokens.sum()) == expected["prompt_tokens_sum"]
        and int(trace.output_tokens.sum()) == expected["output_tokens_sum"]
        and abs(trace.span_s - expected["span_s"]) <= tolerance_s
        and (expected["first_gap_s"] is None or abs(first_gap_s - expected["first_gap_s"]) <= tolerance_s)
    )


def assert_refused(error: InputError, expected: dict[str, Any]) -> None:
    text = str(error)
    assert any(word.lower() in text.lower() for word in expected["say_any"])
    if expected["column"] is None:
        return
    assert isinstance(error, BadData)
    assert expected["column"] in [problem.column for problem in error.problems]
    assert expected["column"] in text
    if expected["row0"] is not None:
        assert expected["row0"] in [row for problem in error.problems for row in problem.rows]
        assert f"row {expected['row0'] + 1} (index {expected['row0']})" in text


def given(answers: dict[str, str]) -> ReadAnswers:
    for name, ours in OUR_ANSWERS.items():
        if name in answers:
            return ours
    return ReadAnswers(**answers)
