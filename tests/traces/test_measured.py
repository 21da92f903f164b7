"""What load generators and engines write, read into one form, and paired with the trace in the same file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shared import files, shared_path

from traces.answers import ReadAnswers
from traces.errors import BadData, InputError, UnreadableFile
from traces.formats import TRACE_LAYOUTS
from traces.measured import read_measured
from traces.read import read_trace


def test_receipt_times(tmp_path: Path) -> None:
    path = tmp_path / "requests.parquet"
    pq.write_table(pa.table({"arrival_s": [0.0, 1.0, 2.0], "token_s": [[0.5, 0.6, 0.9], [1.25], []]}), path)

    measured = read_measured(path)

    assert measured.arrival_s.tolist() == [0.0, 1.0]
    assert measured.num_outputs.tolist() == [3, 1]
    assert measured.last_token_s.tolist() == [0.9, 1.25]
    np.testing.assert_allclose(measured.gap_s, [0.1, 0.3])
    np.testing.assert_allclose(measured.worst_gap_s, [0.3, np.nan])
    assert measured.prompt_tokens is None
    assert measured.receipt is not None
    assert "rows 3" in measured.receipt.notices[0]


BENCH = {
    "start_times": [10.0, 12.0, 11.0],
    "input_lens": [7, 8, 9],
    "output_lens": [3, 5, 0],
    "ttfts": [0.5, 0.25, 0.0],
    "itls": [[0.1, 0.2], [0.4, 0.3], []],
    "errors": ["", "", "refused"],
}


def bench(**changes: list[Any]) -> bytes:
    return json.dumps(BENCH | changes).encode()


def test_bench_serve() -> None:
    measured = read_measured(bench())

    assert measured.arrival_s.tolist() == [0.0, 2.0]
    assert measured.first_token_s.tolist() == [0.5, 2.25]
    np.testing.assert_allclose(measured.last_token_s, [0.8, 2.95])
    assert measured.prompt_tokens is not None
    assert measured.prompt_tokens.tolist() == [7, 8]
    # Five tokens in three messages: two gaps are what the client waited, two tokens came with a neighbour.
    np.testing.assert_allclose(measured.gap_s, [0.1, 0.2, 0.4, 0.3, 0.0, 0.0])
    np.testing.assert_allclose(measured.worst_gap_s, [0.2, 0.4])
    assert measured.receipt is not None
    assert measured.receipt.dropped[0].rows == (2,)
    assert "2 of 8 tokens came in one message with a neighbour" in measured.receipt.notices[-1]


def test_more_messages_than_tokens_are_no_gaps_between_tokens() -> None:
    measured = read_measured(bench(output_lens=[2, 3, 0]))
    np.testing.assert_allclose(measured.gap_s, [0.4, 0.3])
    np.testing.assert_allclose(measured.worst_gap_s, [np.nan, 0.4])
    assert measured.receipt is not None
    assert "1 requests came in more messages than they have tokens" in measured.receipt.notices[-1]


def test_results_of_several_benchmarks_are_asked() -> None:
    two = bench() + b"\n" + bench(start_times=[100.0, 100.5, 101.0])
    with pytest.raises(InputError, match="--benchmark 1: benchmark 1, 3 requests; --benchmark all"):
        read_measured(two)
    assert read_measured(two, answers=ReadAnswers(benchmark="1")).arrival_s.tolist() == [0.0, 0.5]
    assert read_trace(two, "f", ReadAnswers(benchmark="all")).arrival_s.tolist() == [0.0, 2.0, 90.0, 90.5]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ttfts": [0.5, -0.25, 0.0]}, "column 'ttfts', row 2"),
        ({"itls": [[0.1, -0.2], [0.4], []]}, "column 'itls', row 1 .*time goes back"),
        ({"itls": [[0.1, None], [0.4], []]}, "column 'itls', row 1 .*no time"),
        ({"itls": [[1e308, 1e308], [0.4], []]}, "column 'itls', row 1 .*no time"),
        ({"ttfts": [0.5, 1e300, 0.0]}, "column 'ttfts', row 2 .*beyond any clock"),
        ({"itls": [["x"], ["y"], []]}, "column 'itls', .*lists of numbers"),
        ({"output_lens": [3, None, 0]}, "column 'output_lens', row 2"),
    ],
)
def test_faults_are_named(changes: dict[str, list[Any]], words: str) -> None:
    with pytest.raises(BadData, match=words):
        read_measured(bench(**changes))


def test_clocks_that_differ_are_no_measurement() -> None:
    with pytest.raises(BadData, match="a token before the request was sent"):
        read_measured(b'{"arrival_s": 1777142984.5, "token_s": [27536.0, 27536.5]}\n')


def test_a_token_at_the_very_arrival_is_no_fault() -> None:
    at = [1_795_989_384.1280138, 1_795_989_384.4607563, 1_795_989_385.1290001]
    lines = [json.dumps({"arrival_s": time, "token_s": [time, time]}) for time in at]
    measured = read_measured("\n".join(lines).encode())
    assert measured.first_token_s.tolist() == measured.arrival_s.tolist() == measured.last_token_s.tolist()


@pytest.mark.parametrize("text", ["{}", "no json", '{"start_times": [], "ttfts": [], "itls": []}', '{"a": 1}'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"result\.json"):
        read_measured(path)


def test_a_request_that_never_says_when_its_tokens_came() -> None:
    with pytest.raises(UnreadableFile, match="no request says"):
        read_measured(b'{"arrival_s": 1, "prompt_tokens": 3, "output_tokens": 2, "token_s": []}\n')


@pytest.mark.data
@pytest.mark.parametrize("path", files("data/formats/vllm_*_bench_serve_save_detailed.json"))
def test_a_real_benchmark_says_what_it_says_itself(path: Path) -> None:
    own = json.loads(path.read_bytes())
    measured = read_measured(path)
    assert 1e3 * np.mean(measured.first_token_s - measured.arrival_s) == pytest.approx(own["mean_ttft_ms"])
    tpot_s = (measured.last_token_s - measured.first_token_s) / (measured.num_outputs - 1)
    assert 1e3 * np.mean(tpot_s) == pytest.approx(own["mean_tpot_ms"])
    assert measured.gap_s.tolist() == [gap for gaps in own["itls"] for gap in gaps]


@pytest.mark.data
def test_aiperf_says_what_it_says_itself() -> None:
    path = shared_path("data", "formats", "aiperf_0.13_profile_export.jsonl")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    measured = read_measured(path)
    assert measured.source_row is not None
    for i, row in enumerate(measured.source_row):
        said = records[row]["metrics"]
        assert measured.num_outputs[i] == said["usage_completion_tokens"]["value"]
        ttft_ms = 1e3 * (measured.first_token_s[i] - measured.arrival_s[i])
        assert ttft_ms == pytest.approx(said["time_to_first_token"]["value"])
        e2e_ms = 1e3 * (measured.last_token_s[i] - measured.arrival_s[i])
        assert e2e_ms == pytest.approx(said["request_latency"]["value"])
        assert 1e3 * measured.worst_gap_s[i] == pytest.approx(max(said["inter_chunk_latency"]["value"]))


@pytest.mark.data
def test_guidellm_says_what_it_says_itself() -> None:
    path = shared_path("data", "formats", "guidellm_0.8_benchmarks.json")
    records = json.loads(path.read_text())["benchmarks"][0]["requests"]["successful"]
    measured = read_measured(path)
    assert measured.source_row is not None
    for i, row in enumerate(measured.source_row):
        said = records[row]
        ttft_ms = 1e3 * (measured.first_token_s[i] - measured.arrival_s[i])
        assert ttft_ms == pytest.approx(said["time_to_first_token_ms"], abs=1e-3)
        tpot_s = (measured.last_token_s[i] - measured.first_token_s[i]) / (measured.num_outputs[i] - 1)
        assert 1e3 * tpot_s == pytest.approx(said["inter_token_latency_ms"], abs=1e-3)
    assert len(measured.gap_s) == 0
    assert np.isnan(measured.worst_gap_s).all()


@pytest.mark.data
def test_inference_perf_says_what_it_says_itself() -> None:
    path = shared_path("data", "formats", "inference_perf_0.7_per_request_lifecycle_metrics.json")
    records = sorted(json.loads(path.read_text()), key=lambda record: record["start_time"])
    measured = read_measured(path)
    chunks = [record["info"]["response_metrics"]["chunk_times"] for record in records]
    sent = [record["start_time"] for record in records]
    np.testing.assert_allclose(
        measured.first_token_s - measured.arrival_s, [c[0] - s for c, s in zip(chunks, sent, strict=True)], atol=1e-9
    )
    np.testing.assert_allclose(
        measured.last_token_s - measured.arrival_s, [c[-1] - s for c, s in zip(chunks, sent, strict=True)], atol=1e-9
    )
    np.testing.assert_allclose(measured.worst_gap_s, [np.diff(c).max() for c in chunks], atol=1e-9)


@pytest.mark.data
def test_spans_are_exact_to_the_nanosecond_on_the_engine_s_clock() -> None:
    path = shared_path("data", "formats", "vllm_0.32_otlp_llm_request_spans.jsonl")
    spans = [
        span
        for line in path.read_text().splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
    spans.sort(key=lambda span: int(span["startTimeUnixNano"]))
    start_ns = [int(span["startTimeUnixNano"]) for span in spans]
    said = [{one["key"]: one["value"] for one in span["attributes"]} for span in spans]
    measured = read_measured(path)
    assert measured.clock == "engine"
    assert measured.arrival_s.tolist() == [(ns - start_ns[0]) / 1e9 for ns in start_ns]
    ttft_s = [one["gen_ai.latency.time_to_first_token"]["doubleValue"] for one in said]
    np.testing.assert_allclose(measured.first_token_s - measured.arrival_s, ttft_s, rtol=0, atol=1e-9)
    e2e_s = [one["gen_ai.latency.e2e"]["doubleValue"] for one in said]
    np.testing.assert_allclose(measured.last_token_s - measured.arrival_s, e2e_s, rtol=0, atol=1e-9)


@pytest.mark.data
@pytest.mark.parametrize("path", [*files("data/formats/*"), *files("measured/*/requests.parquet")])
def test_measurement_and_trace_of_one_file_are_paired(path: Path) -> None:
    try:
        measured = read_measured(path)
    except InputError:
        # That refusals are in words is tested for all files at once.
        return
    trace = read_trace(path, path.name)
    assert measured.source_row is not None
    assert measured.prompt_tokens is not None
    at = np.flatnonzero(np.isin(trace.source_row, measured.source_row))
    assert trace.source_row[at].tolist() == measured.source_row.tolist()
    assert trace.arrival_s[at].tolist() == measured.arrival_s.tolist()
    assert trace.prompt_tokens[at].tolist() == measured.prompt_tokens.tolist()
    assert trace.output_tokens[at].tolist() == measured.num_outputs.tolist()
    has_gaps = np.isfinite(measured.worst_gap_s)
    stream_s = (measured.last_token_s - measured.first_token_s)[has_gaps].sum()
    assert measured.gap_s.sum() == pytest.approx(stream_s)
    assert len(measured.gap_s) == (measured.num_outputs - 1)[has_gaps].sum()


@pytest.mark.data
def test_every_layout_with_times_of_tokens_has_a_file_that_shows_it() -> None:
    shown = set()
    for pattern in ("data/formats/*", "measured/*/requests.parquet"):
        for path in shared_path().glob(pattern):
            try:
                receipt = read_measured(path).receipt
            except InputError:
                continue
            assert receipt is not None
            shown.add(receipt.layout.partition(",")[0])
    assert shown == {layout.name for layout in TRACE_LAYOUTS if layout.tokens is not None}
