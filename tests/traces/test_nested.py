"""Nested documents of other tools: which requests they hold, under which names, and what is left out."""

import gzip
import json
from typing import Any

import pyarrow as pa
import pytest

from traces.answers import ReadAnswers
from traces.errors import BadData, InputError, NeedsAnswer, UnreadableFile
from traces.nested import MAX_DEPTH, RowPath, flat, rows_of
from traces.read import read_trace
from traces.requests import RequestTrace


def test_fields_come_under_their_paths() -> None:
    assert flat({"a": {"b": {"c": 1}}, "d.e": 2, "f": [3, 4]}) == {
        "a": {"b": {"c": 1}},
        "a.b": {"c": 1},
        "a.b.c": 1,
        "d.e": 2,
        "f": [3, 4],
    }


def test_attributes_and_quantities_are_undone() -> None:
    pairs = [{"key": "n", "value": {"intValue": "-7"}}, {"key": "x.y", "value": {"doubleValue": 0.5}}]
    assert flat({"attributes": pairs})["attributes.n"] == -7
    assert flat({"attributes": pairs})["attributes.x.y"] == 0.5
    # A key that occurs twice has no value that can be taken.
    assert set(flat({"attributes": pairs + pairs})) == {"attributes"}
    assert flat({"latency": {"value": 3, "unit": "ms"}}) == {"latency (ms)": 3}


@pytest.mark.parametrize("record", [{"a.b": 1, "a": {"b": 2}}, [1], 5, None])
def test_what_is_no_record_has_no_fields(record: Any) -> None:
    assert flat(record) is None


def test_fields_that_are_too_deep_or_have_endless_names_are_no_columns() -> None:
    deep: Any = 1
    for _ in range(500):
        deep = {"k": deep}
    assert max(name.count(".") for name in flat(deep)) == MAX_DEPTH - 1
    assert set(flat({"k" * 1000: {"a": 1}, "b": 2})) == {"b"}


PATH = RowPath(marks=("runs",), steps=("runs", "[run]", "by", "{how}", "[]"))


def test_the_way_down_keeps_places_and_keys() -> None:
    document = {"runs": [{"by": {"ok": [{"t": 1}], "bad": None}}, {"by": None}, {}, {"by": {"bad": [{"t": 2}]}}]}
    assert list(rows_of(document, PATH, 4)) == [
        {"document": 4, "run": 0, "how": "ok", "t": 1},
        {"document": 4, "run": 3, "how": "bad", "t": 2},
    ]


@pytest.mark.parametrize(
    "document",
    [5, {}, {"runs": 5}, {"runs": [5]}, {"runs": [None]}, {"runs": [{"by": [1]}]}, {"runs": [{"by": {"ok": [None]}}]}],
)
def test_whatever_is_not_what_the_path_says_is_not_passed_over(document: Any) -> None:
    assert list(rows_of(document, PATH, 0)) == [None]


def test_lists_side_by_side() -> None:
    path = RowPath(marks=("a",), lists=("a", "b", "c"))
    assert list(rows_of({"a": [1, 2], "b": [3, 4], "d": 5}, path, 0)) == [
        {"a": 1, "b": 3, "document": 0},
        {"a": 2, "b": 4, "document": 0},
    ]
    assert list(rows_of({"a": [1, 2], "b": [3]}, path, 0)) == [None]
    assert list(rows_of({"a": [1, 2], "b": 3}, path, 0)) == [None]


def test_json_in_text() -> None:
    path = RowPath(marks=("request",), texts=("request",))
    assert next(rows_of({"request": '{"max_tokens": 9}'}, path, 0))["request.max_tokens"] == 9
    assert next(rows_of({"request": '{"max_tokens": 9'}, path, 0))["request"] == '{"max_tokens": 9'


def guidellm_request(start: float | None, prompt: int, output: int | None) -> dict[str, Any]:
    return {"info": {"timings": {"request_start": start}}, "prompt_tokens": prompt, "output_tokens": output}


def guidellm(*benchmarks: dict[str, Any], **spread: Any) -> bytes:
    return json.dumps({"metadata": {}, "benchmarks": [{"requests": one} for one in benchmarks]}, **spread).encode()


ONE = {
    "successful": [guidellm_request(5.5, 7, 3), guidellm_request(5.0, 8, 4)],
    "errored": [guidellm_request(None, 9, None)],
    "incomplete": [guidellm_request(6.0, 9, 1)],
    "total": None,
}
OTHER = {"successful": [guidellm_request(50.0, 1, 1)], "errored": [], "incomplete": []}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("wrap", [bytes, gzip.compress, lambda data: pa.compress(data, "zstd", asbytes=True)])
def test_a_document_is_read_in_any_wrapping(indent: int | None, wrap: Any) -> None:
    trace = read_trace(wrap(guidellm(ONE, indent=indent)), "f")
    assert trace.arrival_s.tolist() == [0.0, 0.5]
    assert trace.prompt_tokens.tolist() == [8, 7]
    assert receipt_of(trace).num_rows == 4
    assert receipt_of(trace).layout.startswith("GuideLLM benchmarks, ")
    assert [dropped.rows for dropped in receipt_of(trace).dropped] == [(2, 3)]
    assert "cut off at the end (status: errored, incomplete)" in receipt_of(trace).notices[0]


def receipt_of(trace: RequestTrace) -> Any:
    assert trace.receipt is not None
    return trace.receipt


def test_several_benchmarks_of_one_file_are_asked() -> None:
    with pytest.raises(NeedsAnswer, match="2 benchmarks") as question:
        read_trace(guidellm(ONE, OTHER), "f")
    assert [choice.value for choice in question.value.questions[0].choices] == ["0", "1", "all"]
    assert read_trace(guidellm(ONE, OTHER), "f", ReadAnswers(benchmark="all")).arrival_s.tolist() == [0.0, 0.5, 45.0]
    one = read_trace(guidellm(ONE, OTHER), "f", ReadAnswers(benchmark="1"))
    assert one.source_row.tolist() == [4]
    assert "requests of other benchmarks" in receipt_of(one).dropped[0].reason
    with pytest.raises(NeedsAnswer):
        read_trace(guidellm(ONE, OTHER), "f", ReadAnswers(benchmark="2"))


def test_a_request_without_its_counts_is_a_fault() -> None:
    bad = {"successful": [guidellm_request(1.0, 7, None), guidellm_request(2.0, 7, 1)]}
    with pytest.raises(BadData, match="column 'output_tokens', row 1"):
        read_trace(guidellm(bad), "f")
    assert len(read_trace(guidellm(bad), "f", ReadAnswers(drop_bad_rows=True))) == 1


def aiperf(start_ns: int, phase: str = "profiling", cancelled: bool = False, **more: Any) -> bytes:
    metadata = {"request_start_ns": start_ns, "benchmark_phase": phase, "was_cancelled": cancelled}
    counts = {"input_sequence_length": 70, "output_sequence_length": 30}
    metrics = {name: {"value": value, "unit": "tokens"} for name, value in counts.items()}
    return json.dumps({"metadata": metadata, "metrics": metrics} | more).encode() + b"\n"


def test_warm_up_cancelled_and_failed_requests_are_left_out_in_words() -> None:
    data = aiperf(10**18, "warmup") + aiperf(10**18 + 5, cancelled=True) + aiperf(10**18 + 7, error={"type": "x"})
    # An error far down the file is found although the first rows have no such field.
    trace = read_trace(aiperf(10**18) * 200 + data, "f")
    assert len(trace) == 200
    assert [dropped.rows for dropped in receipt_of(trace).dropped] == [(200,), (201,), (202,)]
    assert [notice for notice in receipt_of(trace).notices if "left out" in notice] == [
        "left out, 1 of the rows: requests of the warm-up (metadata.benchmark_phase: warmup)",
        "left out, 1 of the rows: requests that were cancelled (metadata.was_cancelled: true)",
        "left out, 1 of the rows: requests that failed (error: {…})",
    ]
    assert any("tokenizes the texts again" in notice for notice in receipt_of(trace).notices)


def test_the_server_s_own_counts_go_first() -> None:
    own = {"value": 11, "unit": "tokens"}
    record = json.loads(aiperf(10**18))
    record["metrics"] |= {"usage_prompt_tokens": own, "usage_completion_tokens": own}
    trace = read_trace(json.dumps(record).encode(), "f")
    assert trace.output_tokens.tolist() == [11]
    assert not any("again" in notice for notice in receipt_of(trace).notices)


def span(start_ns: int, name: str = "llm_request", **attributes: dict[str, Any]) -> dict[str, Any]:
    pairs = [{"key": f"gen_ai.{key}".replace("__", "."), "value": value} for key, value in attributes.items()]
    return {"name": name, "startTimeUnixNano": str(start_ns), "attributes": pairs}


def export(*spans: dict[str, Any]) -> bytes:
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}, {"resource": {}}]}).encode() + b"\n"


@pytest.mark.parametrize(("prompt", "output"), [("prompt", "completion"), ("input", "output")])
def test_spans_under_old_and_new_names_to_the_nanosecond(prompt: str, output: str) -> None:
    counts = {f"usage__{prompt}_tokens": {"intValue": "7"}, f"usage__{output}_tokens": {"intValue": 3}}
    start_ns = 1_795_988_673_345_850_113
    data = export(span(start_ns, **counts), span(start_ns + 1, "POST /v1/completions")) + export(
        span(start_ns + 9_000_000_001, request__max_tokens={"intValue": "5"}, **counts)
    )
    trace = read_trace(data, "f")
    assert trace.arrival_s.tolist() == [0.0, 9.000000001]
    assert trace.prompt_tokens.tolist() == [7, 7]
    assert receipt_of(trace).num_rows == 3
    assert "spans that are no llm_request (name: POST /v1/completions)" in receipt_of(trace).notices[0]


def test_a_document_of_another_kind_among_them_is_a_fault() -> None:
    data = export(span(5, usage__prompt_tokens={"intValue": 7}, usage__completion_tokens={"intValue": 3}))
    with pytest.raises(BadData, match="row 2"):
        read_trace(data + b'{"resourceMetrics": []}\n', "f")


def test_turns_of_a_session_are_told() -> None:
    row = b'{"session_id": "a", "timestamp": 0.5, "input_length": 7, "output_length": 3, "delay": 5}\n'
    notices = receipt_of(read_trace(row, "f")).notices
    assert any("whole prompt of each turn" in notice for notice in notices)
    assert any("'delay' is not used" in notice for notice in notices)


def test_bombs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="JSON"):
        read_trace(b"[" * 1_000_000, "deep")
    with pytest.raises(InputError, match="JSON"):
        read_trace(b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "deep")
    monkeypatch.setattr("traces.tables.MAX_PARSED_BYTES", 1 << 20)
    for data in (b"[" + b"{}," * 50_000 + b"{}]", b'{"benchmarks": [' + b"[]," * 50_000 + b"[]]}"):
        with pytest.raises(UnreadableFile, match="once parsed, more than the limit"):
            read_trace(data, "many")
    monkeypatch.setattr("traces.tables.MAX_ROWS", 1000)
    with pytest.raises(UnreadableFile, match="limit"):
        read_trace(aiperf(10**18) * 20_000, "rows")
