"""Two plans side by side: which inputs differ, and what the answers are."""

from dataclasses import replace

import pytest
from test_plan_file import saved_plan
from traces_by_hand import chat_trace

from planner.plan_comparison import compare_plans, inputs_sentence, value_in_words
from planner.plan_file import read_plan, write_plan


def test_a_plan_and_its_file_do_not_differ():
    made = saved_plan()
    compared = compare_plans(made, read_plan(write_plan(made)))
    assert not any(row.differs for row in (*compared.inputs, *compared.answers))
    rows = {row.name: value_in_words(row.first, row.unit) for row in (*compared.inputs, *compared.answers)}
    assert rows["searched max_num_batched_tokens"] == "512, 1,024, 8,192"
    assert rows["searched long_prefill_token_threshold"] == "off, 200"
    assert rows["searched watermark"] == "–"
    assert rows["today: unstable"] == "no"
    together = made.recommendation.finalists[0].together
    assert rows["probability that targets are met"] == f"{100 * together:.3g} %"
    assert inputs_sentence(compared) == "Both plans stand on the same inputs."


def test_another_target_is_named_and_so_is_its_answer():
    compared = compare_plans(saved_plan(80), saved_plan(5))
    assert [row.name for row in compared.changed_inputs] == ["target"]
    assert inputs_sentence(compared) == "The plans stand on different inputs: target."
    answers = {row.name: row for row in compared.answers}
    assert (answers["verdict"].first, answers["verdict"].second) == ("met", "missed")
    assert answers["max_num_batched_tokens"].second is None
    assert answers["recommended: worst gap"].first > 0
    assert answers["recommended: worst gap"].second is None
    assert not answers["today: worst gap"].differs


def test_other_traffic_and_another_planner_are_named():
    first = saved_plan()
    second = replace(saved_plan(trace=chat_trace(120, seed=2)), product_version="0.2.0")
    assert {"planner", "trace digest"} <= {row.name for row in compare_plans(first, second).changed_inputs}


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (0.0715, "s", "71.5 ms"),
        (0.955, "share", "95.5 %"),
        (8192, "", "8,192"),
        (True, "", "on"),
        (False, "yes or no", "no"),
        (478.4749, "tokens/s", "478 tokens/s"),
        (0.3123, "× capacity", "0.312 × capacity"),
        (None, "s", "–"),
        (float("nan"), "", "–"),
        (1.23456, "", "1.23"),
        ("met", "", "met"),
    ],
)
def test_cells_in_words(value, unit, words):
    assert value_in_words(value, unit) == words
