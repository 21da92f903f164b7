"""The door: any form of the same rows gives the same trace; what cannot be read is refused in words."""

import gzip
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces.answers import ReadAnswers
from traces.errors import BadData, InputError, NeedsAnswer, UnreadableFile
from traces.read import read_steps, read_trace
from traces.synthetic import LOG_SAMPLE, TRACE_SAMPLE, server_log

ROWS = {
    "arrival_s": [0.0, 0.25, 1.5, 1.5],
    "prompt_tokens": [120, 4096, 80, 7],
    "output_tokens": [200, 64, 150, 1],
}
TABLE = pa.table({"prompt": ["a\nb", 'say "hi", twice', "", "日本"], **ROWS})


def parquet(table: pa.Table = TABLE) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def csv(table: pa.Table = TABLE) -> bytes:
    sink = io.BytesIO()
    pa_csv.write_csv(table, sink)
    return sink.getvalue()


def json_lines(table: pa.Table = TABLE) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in table.to_pylist()).encode()


FORMS: dict[str, Callable[[], bytes]] = {
    "parquet": parquet,
    "csv": csv,
    "csv with byte order mark and CRLF": lambda: (
        b"\xef\xbb\xbf" + csv(TABLE.select(list(ROWS))).replace(b"\n", b"\r\n")
    ),
    "csv with semicolons": lambda: csv(TABLE.select(list(ROWS))).replace(b",", b";"),
    "csv in utf-16": lambda: csv(TABLE.select(list(ROWS))).decode().encode("utf-16"),
    "csv with latin-1 in a column nobody needs": lambda: csv().replace("日本".encode(), b"caf\xe9"),
    "json lines": json_lines,
    "json array": lambda: json.dumps(TABLE.to_pylist(), indent=1).encode(),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("wrap", [bytes, gzip.compress, lambda data: pa.compress(data, "zstd", asbytes=True)])
def test_every_form_gives_the_same_trace(form: str, wrap: Callable[[bytes], bytes]) -> None:
    trace = read_trace(wrap(FORMS[form]()), "trace")
    np.testing.assert_array_equal(trace.arrival_s, ROWS["arrival_s"])
    np.testing.assert_array_equal(trace.prompt_tokens, ROWS["prompt_tokens"])
    np.testing.assert_array_equal(trace.output_tokens, ROWS["output_tokens"])
    assert trace.receipt is not None
    assert trace.receipt.num_rows == trace.receipt.num_kept == 4


def test_a_path_and_its_bytes_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "no extension"
    path.write_bytes(parquet())
    from_path, from_bytes = read_trace(path, "a"), read_trace(memoryview(parquet()), "b")
    assert from_path.digest == from_bytes.digest
    assert from_path.receipt is not None
    assert from_bytes.receipt is not None
    assert from_path.receipt.file_digest == from_bytes.receipt.file_digest


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b" \n\n", "empty"),
        (b"PK\x03\x04rest", "zip"),
        (b"\x00\x01\x02\x03", "binary"),
        (b"PAR1 and nothing else", "Parquet"),
        (parquet()[:-20], "Parquet"),
        (gzip.compress(csv(), mtime=0)[:-30], "gzip"),
        (b"hello world", "columns found: 'hello world'"),
        (b"0.0,120,200\n0.5,80,10\n", "column names missing"),
        (b'{"metadata": {"a": 1}}\n', "'metadata'"),
        (b'{"broken\n', "JSON"),
        (b"[1, 2]", "JSON"),
    ],
)
def test_files_of_no_use_are_named(data: bytes, words: str) -> None:
    for read in (read_trace, read_steps):
        with pytest.raises(InputError, match=words):
            read(data, "upload")


def test_a_missing_file_is_no_stack_trace(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match=r"trace\.parquet"):
        read_trace(tmp_path / "trace.parquet", "trace.parquet")
    with pytest.raises(UnreadableFile):
        read_trace(tmp_path, "a folder")


def test_a_decompression_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traces.tables.MAX_DECODED_BYTES", 1 << 20)
    with pytest.raises(UnreadableFile, match="limit"):
        read_trace(gzip.compress(b"a" * (2 << 20)), "bomb.gz")
    many = pa.table({name: np.arange(400_000) for name in ROWS})
    with pytest.raises(UnreadableFile, match="limit"):
        read_trace(parquet(many), "bomb.parquet")


def test_parquet_that_says_or_hides_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    few = TABLE.select(list(ROWS))
    long = pa.array(["1" * 10_000]).dictionary_encode().take(pa.array([0] * 400))
    ids = pa.ListArray.from_arrays([0, 0, 0, 0, 400_000], np.zeros(400_000, np.int8))
    bombs = {
        "a text repeated": pa.table({**{name: np.ones(400) for name in ROWS}, "arrival_s": long}),
        "a run of ids": few.append_column("hash_ids", ids),
    }
    monkeypatch.setattr("traces.tables.MAX_DECODED_BYTES", 1 << 20)
    for name, bomb in bombs.items():
        data = parquet(bomb)
        assert len(data) < 1 << 17, name
        with pytest.raises(UnreadableFile, match="limit"):
            read_trace(data, name)
    monkeypatch.setattr("traces.tables.MAX_ROW_GROUPS", 3)
    sink = io.BytesIO()
    pq.write_table(few, sink, row_group_size=1)
    with pytest.raises(UnreadableFile, match="3 row groups"):
        read_trace(sink.getvalue(), "groups")


def test_broken_rows_of_text_are_listed_with_their_number() -> None:
    data = b"arrival_s,prompt_tokens,output_tokens\n0.5,1,1\n\n1.5,2\n2.5,x,3\n3.5,4,4,4\n4.5,5,5\n"
    with pytest.raises(BadData) as refusal:
        read_trace(data, "t.csv")
    assert [problem.rows for problem in refusal.value.problems] == [(1, 3), (2,)]
    trace = read_trace(data, "t.csv", ReadAnswers(drop_bad_rows=True))
    assert trace.source_row.tolist() == [0, 4]
    assert trace.receipt is not None
    assert [dropped.num_rows for dropped in trace.receipt.dropped] == [2, 1]


def test_nested_fields_that_nobody_needs_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{**row, "meta": {"a": {"b": row["arrival_s"]}}} for row in TABLE.select(list(ROWS)).to_pylist()]
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    # They are named by their paths where the user wants them, and else leave Arrow's fast reader at work.
    answers = ReadAnswers(arrival_column="meta.a.b", prompt_column="prompt_tokens", output_column="output_tokens")
    slow = read_trace(data, "t", replace(answers, arrival_unit="s"))
    monkeypatch.setattr("traces.tables._from_rows", None)
    assert read_trace(data, "t").digest == slow.digest


def test_a_cut_off_json_line_is_listed() -> None:
    data = json_lines(TABLE.select(list(ROWS)))[:-10]
    with pytest.raises(BadData, match="row 4"):
        read_trace(data, "t.jsonl")
    assert len(read_trace(data, "t.jsonl", ReadAnswers(drop_bad_rows=True))) == 3


def test_half_a_character_in_a_prompt_does_no_harm() -> None:
    data = json_lines(TABLE.select(list(ROWS))).replace(b"{", b'{"prompt": "cut \\ud83d", "list": ["\\ud83d"], ')
    assert read_trace(data, "t").digest == read_trace(parquet(), "t").digest


def test_a_json_field_that_changes_its_type_is_named() -> None:
    data = json_lines(TABLE.select(list(ROWS))).replace(b"4096", b'"many"')
    with pytest.raises(BadData, match="'many' is not a number"):
        read_trace(data, "t.jsonl")


def test_faults_of_all_columns_come_at_once() -> None:
    table = pa.table({"arrival_s": [0.0, -1.0], "prompt_tokens": [0, 5], "output_tokens": [1, None]})
    with pytest.raises(BadData) as refusal:
        read_trace(parquet(table), "t")
    assert [problem.column for problem in refusal.value.problems] == list(ROWS)


def test_failed_requests_are_left_out_and_named() -> None:
    table = pa.table({"arrival_s": [0.0, 1.0, 2.0], "prompt_tokens": [5, 0, 5], "output_tokens": [1, 0, 1]})
    trace = read_trace(parquet(table), "t")
    assert trace.source_row.tolist() == [0, 2]
    assert trace.receipt is not None
    assert "rows 2)" in trace.receipt.notices[0]
    with pytest.raises(BadData, match="no requests with output"):
        read_trace(parquet(table.slice(1, 1)), "t")


def test_a_question_names_an_answer_that_settles_it() -> None:
    table = TABLE.set_column(1, "arrival_time", pa.array([0, 250, 1500, 1500]))
    with pytest.raises(NeedsAnswer, match="--arrival-unit ms"):
        read_trace(parquet(table), "t")
    answered = read_trace(parquet(table), "t", ReadAnswers(arrival_unit="ms"))
    assert answered.digest == read_trace(parquet(), "t").digest


def test_answers_that_mean_nothing_are_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match="arrival_unit"):
        ReadAnswers(arrival_unit="minutes")


STEPS = {
    "ctx_reqs": [0, 1, 2, 0],
    "ctx_tokens": [0, 512, 100, 0],
    "gen_reqs": [4, 4, 0, 0],
    "kv_prefill_tokens": [0, 1000, 60, 0],
    "step_ms": [9.5, 40.0, 15.0, 0.1],
}


def test_step_table() -> None:
    steps = read_steps(parquet(pa.table(STEPS)), "s")
    np.testing.assert_allclose(steps.step_s, [0.0095, 0.04, 0.015])
    np.testing.assert_allclose(steps.prefill_attention, [0, 512 * 1256, 100 * (60 + 50) / 2])
    assert steps.num_prefill_reqs.tolist() == [0, 1, 2]
    assert steps.kv_usage is None
    assert steps.receipt is not None
    assert steps.receipt.time_unit == "ms"
    assert steps.receipt.dropped[0].rows == (3,)


def test_step_time_without_a_unit_is_asked() -> None:
    table = pa.table({**STEPS, "step_time": STEPS["step_ms"]}).drop_columns("step_ms")
    with pytest.raises(NeedsAnswer, match="--step-time-unit ms: a typical step takes 15 ms"):
        read_steps(parquet(table), "s")
    assert read_steps(parquet(table), "s", ReadAnswers(step_time_unit="us")).step_s[0] == pytest.approx(9.5e-6)


@pytest.mark.parametrize(("name", "times"), [("step_ms", [18_000.0, 21_500.0]), ("step_s", [18.0, 21.5])])
def test_a_unit_that_makes_every_step_slow_is_doubted(name: str, times: list[float]) -> None:
    """Microseconds under the name of milliseconds, milliseconds under that of seconds: 18 s a step either way."""
    table = pa.table({name: times * 20, "prefill_tokens": [0, 100] * 20, "decode_reqs": [4, 4] * 20})
    with pytest.raises(
        NeedsAnswer, match=r"says m?s, but then even fast steps take 18 s.* typical step takes 19\.8 ms"
    ):
        read_steps(parquet(table), "s")
    answered = read_steps(parquet(table), "s", ReadAnswers(step_time_unit=name.removeprefix("step_")))
    assert answered.step_s[0] == pytest.approx(18.0), "who says so is believed"


def test_the_true_period_is_preferred_to_the_elapsed_time() -> None:
    table = pa.table({**STEPS, "itl_ms": [10.0, None, 16.0, 1.0]}).rename_columns({"step_ms": "elapsed_ms"})
    steps = read_steps(parquet(table), "s")
    np.testing.assert_allclose(steps.step_s, [0.010, 0.016])
    assert steps.receipt is not None
    assert "'elapsed_ms' not used" in steps.receipt.notices[0]
    assert steps.receipt.dropped[0].rows == (1,)


def test_a_faulty_column_that_a_log_may_lack_is_left_out() -> None:
    table = pa.table({**STEPS, "kv_decode_tokens": [1, None, 3, 4], "kv_usage": [0.1, 99.0, 0.2, 0.3]})
    steps = read_steps(parquet(table), "s")
    assert steps.kv_decode_tokens is None
    assert steps.kv_usage is None
    assert steps.receipt is not None
    assert sum("is not used" in notice for notice in steps.receipt.notices) == 2


def test_columns_named_by_hand() -> None:
    table = pa.table({"a_ms": [9.0], "b": [0], "c": [3], "t": [0.5], "p": [7], "o": [2]})
    answers = ReadAnswers(step_time_column="a_ms", prefill_tokens_column="b", decode_reqs_column="c")
    assert read_steps(parquet(table), "s", answers).step_s.tolist() == [0.009]
    answers = ReadAnswers(arrival_column="t", prompt_column="p", output_column="o", arrival_unit="s")
    assert read_trace(parquet(table), "t", answers).prompt_tokens.tolist() == [7]
    with pytest.raises(BadData, match="required column not found"):
        read_trace(parquet(table), "t", ReadAnswers(arrival_column="nowhere", prompt_column="p", output_column="o"))


def test_a_trace_given_as_steps_and_the_other_way_round() -> None:
    with pytest.raises(UnreadableFile, match="looks like a request trace"):
        read_steps(parquet(), "t")
    with pytest.raises(UnreadableFile, match="looks like a step log"):
        read_trace(parquet(pa.table(STEPS)), "s")
    with pytest.raises(UnreadableFile, match="server log"):
        read_trace(server_log(num_steps=3).encode(), "server.log")


def test_iteration_lines_with_absurd_numbers_are_left_out() -> None:
    lines = server_log(num_steps=5)
    first = next(line for line in lines.splitlines() if "Iteration(" in line)
    absurd = first.replace(" context tokens", "9" * 20 + " context tokens")
    steps = read_steps((lines + absurd + "\n").encode(), "server.log")
    assert steps.receipt is not None
    assert len(steps) == 5
    assert "counts above 10,000,000" in steps.receipt.dropped[-1].reason


def quiet(read: Callable[..., object], data: bytes) -> None:
    for answers in (ReadAnswers(), ReadAnswers(drop_bad_rows=True, arrival_unit="s", step_time_unit="ms")):
        try:
            read(data, "upload", answers)
        except InputError as refusal:
            message = str(refusal)
        else:
            message = "read"
        assert message


@given(st.binary(max_size=400))
@settings(max_examples=150)
def test_random_bytes_never_crash(data: bytes) -> None:
    quiet(read_trace, data)
    quiet(read_steps, data)


SAMPLES = {
    "parquet": parquet(),
    "csv": csv(),
    "json": json_lines(),
    "log": server_log(num_steps=5).encode(),
    "gzip": gzip.compress(csv(), mtime=0),
    "sample": TRACE_SAMPLE.read_bytes(),
    "sample log": LOG_SAMPLE.read_bytes()[:4000],
}


@given(st.sampled_from(sorted(SAMPLES)), st.floats(0, 1), st.binary(max_size=3))
@settings(max_examples=200)
def test_damaged_files_never_crash(name: str, where: float, patch: bytes) -> None:
    data = SAMPLES[name]
    cut = int(where * len(data))
    for damaged in (data[:cut], data[:cut] + patch + data[cut + len(patch) :], data[:cut] + patch):
        quiet(read_trace, damaged)
        quiet(read_steps, damaged)


def test_columns_of_words_come_along_and_change_nothing_else() -> None:
    rows = "arrival_s,prompt_tokens,output_tokens,Model,tenant\n0.0,10,2,a,x\n1.0,20,3,b,\n2.0,30,0,a,y\n"
    trace = read_trace(rows.encode(), "words.csv")
    plain = read_trace("\n".join(",".join(line.split(",")[:3]) for line in rows.split()).encode(), "plain.csv")
    assert trace.digest != plain.digest, "a target may speak of them"
    assert replace(trace, labels=()).digest == plain.digest
    model, tenant = trace.labels
    assert [model.words[code] for code in model.codes] == ["a", "b"]
    assert [tenant.words[code] for code in tenant.codes] == ["x", ""]
