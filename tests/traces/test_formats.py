"""Columns are found by name, never by position; near names are proposed, not taken."""

import pyarrow as pa
import pytest

from traces.answers import NO_ANSWERS
from traces.errors import BadData, NeedsAnswer, UnreadableFile
from traces.formats import NO_TRACES, TRACE_LAYOUTS, NoTrace, TraceLayout, recognise_steps, recognise_trace


def schema(*names: str) -> pa.Schema:
    return pa.schema([(name, pa.int64()) for name in names])


@pytest.mark.parametrize("layout", TRACE_LAYOUTS, ids=lambda layout: layout.name)
def test_every_layout_is_recognised_in_any_order(layout: TraceLayout) -> None:
    names = ["id", layout.output, "Total tokens", layout.prompt, layout.arrival]
    for some in (names, names[::-1]):
        found = recognise_trace(schema(*some), "CSV", NO_ANSWERS, "f")
        assert (found.arrival, found.prompt, found.output) == (layout.arrival, layout.prompt, layout.output)
        assert found.layout == layout.name


@pytest.mark.parametrize("kind", NO_TRACES, ids=lambda kind: kind.columns[0])
def test_what_cannot_be_a_trace_is_refused_with_its_reason(kind: NoTrace) -> None:
    with pytest.raises(UnreadableFile) as refusal:
        recognise_trace(schema("id", *kind.columns), "CSV", NO_ANSWERS, "f")
    assert refusal.value.message == kind.reason
    # Such columns beside those of a trace do no harm.
    planner = ("arrival_s", "prompt_tokens", "output_tokens")
    assert recognise_trace(schema(*kind.columns, *planner), "CSV", NO_ANSWERS, "f").layout == "planner trace"


def test_other_spelling_is_recognised_and_leaves_the_unit_open() -> None:
    found = recognise_trace(schema("Arrival Time", "Prompt-Tokens", "OUTPUT_TOKENS"), "CSV", NO_ANSWERS, "f")
    assert found.arrival == "Arrival Time"
    assert found.stated.fraction_unit is None
    assert "'Prompt-Tokens'" in found.notices[0]


def test_a_count_is_no_time_in_seconds() -> None:
    with pytest.raises(BadData):
        recognise_trace(schema("arrivals", "promt", "prompt_tokens"), "CSV", NO_ANSWERS, "f")
    with pytest.raises(UnreadableFile):
        recognise_steps(schema("steps", "tokens"), "CSV", NO_ANSWERS, "f")


def test_columns_of_different_layouts_mix() -> None:
    found = recognise_trace(schema("arrival_ms", "ContextTokens", "completion_tokens"), "CSV", NO_ANSWERS, "f")
    assert found.stated.unit == "ms"
    assert found.layout == "columns by name"


def test_misspelt_columns_are_proposed() -> None:
    with pytest.raises(BadData, match="nearest: 'promt_tokens'") as refusal:
        recognise_trace(schema("arrival_s", "promt_tokens", "output_tokens"), "CSV", NO_ANSWERS, "f")
    assert refusal.value.problems[0].column == "prompt_tokens"
    assert "--prompt-column" in str(refusal.value)


def test_two_candidates_are_asked() -> None:
    names = ("arrival_time", "timestamp", "prompt_tokens", "output_tokens", "completion_tokens")
    with pytest.raises(NeedsAnswer) as question:
        recognise_trace(schema(*names), "CSV", NO_ANSWERS, "f")
    assert [one.field for one in question.value.questions] == ["arrival_column", "output_column"]


def test_a_name_that_occurs_twice_is_refused_where_it_matters() -> None:
    twice = schema("arrival_s", "prompt_tokens", "output_tokens", "note", "note")
    assert recognise_trace(twice, "CSV", NO_ANSWERS, "f").output == "output_tokens"
    with pytest.raises(BadData, match="duplicate"):
        recognise_trace(schema("arrival_s", "prompt_tokens", "output_tokens", "arrival_s"), "CSV", NO_ANSWERS, "f")


def test_columns_that_mean_something_are_not_ignored_silently() -> None:
    found = recognise_trace(schema("arrival_s", "prompt_tokens", "output_tokens", "hash_ids"), "CSV", NO_ANSWERS, "f")
    assert "upper bound" in found.notices[0]
    assert found.hashes is None
    found = recognise_trace(schema("arrival_s", "prompt_tokens", "output_tokens", "Priority"), "CSV", NO_ANSWERS, "f")
    assert found.priority == "Priority"


def test_a_step_table_without_a_step_time_is_refused() -> None:
    with pytest.raises(BadData, match="--step-time-column") as refusal:
        recognise_steps(schema("ctx_tokens", "gen_reqs", "ttft_ms"), "CSV", NO_ANSWERS, "f")
    assert refusal.value.problems[0].column == "step_ms"
