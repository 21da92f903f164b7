import json

import numpy as np
import pytest

from app import compute
from app.state import Reading, Session
from planner.engine_config import EngineConfig
from planner.step_time import StepTime, StepTimeFit
from traces import nested, tables
from traces.answers import ReadAnswers
from traces.errors import BadData, InputError, NeedsAnswer
from traces.requests import RequestTrace
from traces.steps import StepLog

NO_UNIT = b"arrival_time,prompt_tokens,output_tokens\n0,10,2\n250,20,3\n12500,30,4\n"
NAMED_UNIT = NO_UNIT.replace(b"arrival_time", b"arrival_ms")
BAD_ROW = NAMED_UNIT.replace(b"20,3", b"-20,3")


def uploaded(data: bytes) -> Reading[RequestTrace]:
    reading: Reading[RequestTrace] = Reading()
    reading.upload(data, "trace.csv", compute.understand_trace)
    return reading


def test_the_bytes_of_an_understood_file_are_not_kept() -> None:
    reading = uploaded(NAMED_UNIT)
    assert reading.value is not None
    assert reading.value.arrival_s.tolist() == [0.0, 0.25, 12.5]
    assert reading.data is None
    assert reading.num_uploads == 1


def test_an_answer_is_asked_for_and_can_be_changed() -> None:
    reading = uploaded(NO_UNIT)
    assert isinstance(reading.fault, NeedsAnswer)
    assert [choice.label for choice in reading.questions[0].choices] == [
        "the trace spans 12,500 s (3.47 h), 0.00024 requests per second",
        "the trace spans 12.5 s, 0.24 requests per second",
        "the trace spans 12.5 ms, 240 requests per second",
        "the trace spans 12.5 µs, 240,000 requests per second",
    ]
    assert reading.value is None
    reading.answer(ReadAnswers(arrival_unit="ms"), compute.understand_trace)
    assert reading.fault is None
    assert reading.value is not None
    assert reading.value.span_s == 12.5
    reading.answer(ReadAnswers(arrival_unit="s"), compute.understand_trace)
    assert reading.value.span_s == 12_500.0
    assert [question.field for question in reading.questions] == ["arrival_unit"]


def test_bad_rows_can_be_left_out() -> None:
    reading = uploaded(BAD_ROW)
    assert isinstance(reading.fault, BadData)
    reading.answer(ReadAnswers(drop_bad_rows=True), compute.understand_trace)
    assert reading.value is not None
    assert len(reading.value) == 2
    assert reading.value.receipt is not None
    assert reading.value.receipt.dropped[0].rows == (1,)


def test_a_new_upload_forgets_the_one_before() -> None:
    reading = uploaded(NO_UNIT)
    reading.answer(ReadAnswers(arrival_unit="s"), compute.understand_trace)
    reading.upload(b"no trace at all", "other.txt", compute.understand_trace)
    assert reading.value is None
    assert isinstance(reading.fault, InputError)
    assert reading.questions == ()
    assert reading.answers == ReadAnswers()


def test_the_example_brings_trace_and_model() -> None:
    session = Session()
    assert session.model is None
    session.take_example()
    assert session.trace.value is not None
    assert isinstance(session.model, StepTimeFit)
    assert session.wants_plan
    assert session.logged_config.max_num_batched_tokens == 8192


def test_coefficients_by_hand_go_before_the_log() -> None:
    session = Session()
    session.take_example()
    session.given = StepTime(8_000_000, 60_000, 20_000)
    assert session.model == session.given


def test_the_users_kv_cache_goes_before_the_logs() -> None:
    session = Session()
    session.take_example()
    session.num_kv_tokens = 320_000
    assert session.logged_config.num_gpu_blocks == 20_001
    assert session.logged_config.num_kv_tokens == 320_000


def test_a_new_log_forgets_what_was_said_about_the_old_one() -> None:
    session = Session(num_kv_tokens=1000, given=StepTime(1, 1, 1))
    session.upload_steps(b"nothing", "empty.log")
    assert (session.num_kv_tokens, session.given) == (None, None)
    assert session.model is None


@pytest.mark.parametrize("column", ["step_s", "prefill_tokens"])
def test_what_is_cached_cannot_be_changed(column: str) -> None:
    log: StepLog = compute.example()[1]
    values: np.ndarray = getattr(log, column)
    with pytest.raises(ValueError, match="read-only"):
        values[0] = 1


def test_a_picked_setting_stays_until_another_plan() -> None:
    session = Session()
    session.look_into("Picked", EngineConfig(max_num_seqs=7))
    session.look_into("Today")
    assert (session.look, session.num_looks) == ("Today", 2)
    assert session.picked == EngineConfig(max_num_seqs=7)
    session.take_example()
    assert session.picked is None


def test_a_trace_that_is_a_measurement_too_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []
    load = nested.load
    monkeypatch.setattr(tables, "load", lambda text: parsed.append(len(text)) or load(text))
    result = {
        "start_times": [0.0, 0.25],
        "input_lens": [10, 20],
        "output_lens": [2, 3],
        "ttfts": [0.1, 0.2],
        "itls": [[0.01], [0.02, 0.03]],
    }
    data = json.dumps(result, indent=1).encode()
    session = Session()
    session.upload_trace(data, "bench.json")
    assert session.trace.value is not None
    assert session.trace.value.prompt_tokens.tolist() == [10, 20]
    assert session.measured.value is not None
    assert session.measured.value.gap_s.tolist() == [0.01, 0.02, 0.03]
    assert parsed.count(len(data)) == 1
