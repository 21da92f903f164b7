"""vLLM's own log lines, as text and JSON, of old and new versions."""

import json
from collections.abc import Callable

import numpy as np
import pytest
from shared import shared_path

from traces.errors import UnreadableFile
from traces.read import read_steps
from traces.server_log import is_server_log, parse_server_log

PREFIX = "(APIServer pid=1) INFO 03-02 09:15:00 [loggers.py:199] Engine 000: "


def line(iteration: int, prefill: int = 0, decodes: int = 4, tokens: int | None = None, kv: str = "1.5") -> str:
    return (
        f"Iteration({iteration}): {int(prefill > 0)} context requests, {prefill} context tokens, "
        f"{decodes} generation requests, {decodes if tokens is None else tokens} generation tokens, "
        f"iteration elapsed time: 10.25 ms, GPU KV cache usage: {kv}%"
    )


def test_text_and_json_lines_say_the_same() -> None:
    text = "".join(f"{PREFIX}{line(step, step * 8)}\n" for step in range(5))
    as_json = "".join(
        json.dumps({"asctime": "2026-03-02 09:15:00,123", "message": f"Engine 000: {line(step, step * 8)}"}) + "\n"
        for step in range(5)
    )
    from_text, from_json = read_steps(text.encode(), "a"), read_steps(as_json.encode(), "b")
    np.testing.assert_array_equal(from_text.prefill_tokens, from_json.prefill_tokens)
    assert from_text.prefill_tokens.tolist() == [0, 8, 16, 24, 32]
    assert from_text.kv_usage is not None
    np.testing.assert_allclose(from_text.kv_usage, 0.015)
    np.testing.assert_allclose(from_text.step_s, 0.01025)


def test_lines_of_an_old_version_have_no_kv_usage() -> None:
    old = (
        "(EngineCore_DP0 pid=2) INFO 12-22 21:44:40 [core.py:349] Iteration(515): 0 context requests, "
        "0 context tokens, 20 generation requests, 20 generation tokens, iteration elapsed time: 10.99 ms\n"
    )
    steps = read_steps(old.encode(), "old.log")
    assert steps.kv_usage is None
    assert steps.num_decode_reqs.tolist() == [20]
    assert steps.facts.max_num_seqs is None


def test_facts() -> None:
    log = parse_server_log(
        "INFO [api_utils.py] version 0.32.0\n"
        "INFO [api_utils.py] non-default args: {'model': 'm', 'max_model_len': 8192, 'max_num_batched_tokens': 2048, "
        "'max_num_seqs': 64, 'async_scheduling': False, 'long_prefill_token_threshold': 256}\n"
        "INFO [kv_cache_utils.py] GPU KV cache size: 640,016 tokens, Maximum concurrency\n"
        f"{PREFIX}{line(0)}\n"
    )
    facts = log.facts
    assert facts.vllm_version == "0.32.0"
    assert (facts.max_num_batched_tokens, facts.max_num_seqs, facts.long_prefill_token_threshold) == (2048, 64, 256)
    assert facts.async_scheduling is False
    assert facts.enable_prefix_caching is None
    assert facts.block_size is None
    assert facts.num_gpu_blocks == 40_001
    assert any("default of 16" in notice for notice in log.notices)


def test_the_last_of_two_starts_counts() -> None:
    start = "INFO non-default args: {{'max_num_seqs': {}, 'block_size': 32, 'num_gpu_blocks_override': {}}}\n"
    later = PREFIX.replace("09:15:00", "09:17:30") + line(0)
    text = start.format(8, 100) + f"{PREFIX}{line(0)}\n{PREFIX}{line(1)}\n" + start.format(16, 200) + later
    log = parse_server_log(text)
    assert (log.facts.max_num_seqs, log.facts.num_gpu_blocks) == (16, 200)
    assert any("restarted" in notice for notice in log.notices)
    assert log.line.tolist() == [1, 2, 4]


def test_engines_are_pooled_and_said() -> None:
    text = f"Engine 000: {line(0)}\nEngine 001: {line(0)}\nEngine 000: {line(1)}\n"
    log = parse_server_log(text)
    assert len(log.line) == 3
    assert "engine 000: 2 steps, engine 001: 1 steps" in log.notices[0]


def test_what_is_left_out_is_said() -> None:
    lines = [line(0), line(1, decodes=0), line(2, decodes=3, tokens=400), line(3), line(4), line(5)[:40]]
    steps = read_steps("\n".join(PREFIX + one for one in lines).encode(), "server.log")
    assert steps.receipt is not None
    assert steps.source_row.tolist() == [0, 2, 3, 4]
    assert steps.recomputes.tolist() == [False, True, False, False]
    assert {dropped.rows for dropped in steps.receipt.dropped} == {(1,), (5,)}


def test_speculative_decoding_is_said() -> None:
    text = "\n".join(PREFIX + line(step, tokens=9) for step in range(4))
    steps = read_steps(text.encode(), "server.log")
    assert len(steps) == 4
    assert steps.receipt is not None
    assert "speculation" in steps.receipt.notices[0]


def test_a_log_without_iteration_lines_says_how_to_get_them() -> None:
    text = b"INFO non-default args: {'max_num_seqs': 4}\nINFO Avg prompt throughput: 410.1 tokens/s\n"
    assert is_server_log(text)
    with pytest.raises(UnreadableFile, match="--enable-logging-iteration-details"):
        read_steps(text, "server.log")


def stamped(iteration: int, second: float, engine: int = 0, **work: int) -> str:
    """A line of the JSON form, which has milliseconds."""
    clock = f"2026-03-02 09:{int(second // 60):02d}:{int(second % 60):02d},{round(second % 1 * 1000):03d}"
    message = f"Engine {engine:03d}: {line(iteration, **work)}"
    return json.dumps({"asctime": clock, "levelname": "INFO", "message": message}) + "\n"


def left_out(text: str) -> dict[str, tuple[int, ...]]:
    """Reason to lines."""
    return dict(parse_server_log(text).left_out)


def reason_of(text: str, number: int) -> str:
    """Why one line is left out."""
    return next(reason for reason, lines in left_out(text).items() if number in lines)


def test_a_step_with_encoder_inputs_is_no_step_of_the_decoder() -> None:
    encoder = line(1, prefill=800) + ", encoder inputs: 2, encoder output embeddings: 1152"
    text = "".join(f"{PREFIX}{one}\n" for one in (line(0), encoder, line(2)))
    steps = read_steps(text.encode(), "server.log")
    assert steps.source_row.tolist() == [0, 2]
    assert steps.kv_usage is not None
    assert "encoder" in reason_of(text, 1)


def test_a_dummy_step_is_listed_and_does_not_cost_the_kv_usage() -> None:
    dummy = (
        "Iteration(1): 0 context requests, 0 context tokens, 0 generation requests, 0 generation tokens, "
        "iteration elapsed time: 7.02 ms (dummy), GPU KV cache usage: 0.0%"
    )
    text = "".join(f"{PREFIX}{one}\n" for one in (line(0), dummy, line(2)))
    steps = read_steps(text.encode(), "server.log")
    assert steps.source_row.tolist() == [0, 2]
    assert steps.kv_usage is not None
    assert steps.receipt is not None
    assert steps.receipt.num_rows == 3
    assert "dummy" in steps.receipt.dropped[0].reason


@pytest.mark.parametrize("num_characters", range(1, 190))
def test_a_line_cut_anywhere_is_counted_and_spoils_no_other(num_characters: int) -> None:
    last = PREFIX + line(3) + ", encoder inputs: 2, encoder output embeddings: 1152"
    text = "".join(f"{PREFIX}{line(step)}\n" for step in range(3)) + last[:num_characters]
    steps = read_steps(text.encode(), "server.log")
    assert steps.kv_usage is not None
    assert steps.receipt is not None
    kept = PREFIX + line(3)
    names_it = len(PREFIX + "Iteration(3):") <= num_characters
    whole = num_characters == len(kept)
    assert len(steps) == 3 + whole
    assert sum(dropped.num_rows for dropped in steps.receipt.dropped) == (names_it and not whole)


def test_a_log_that_begins_within_a_line_says_so() -> None:
    text = line(0)[20:] + f"\n{PREFIX}{line(1)}\n"
    assert len(parse_server_log(text).line) == 1
    assert left_out(text) == {"iteration lines that are cut off": (0,)}


def test_two_writers_in_one_line_are_one_broken_and_one_whole_step() -> None:
    text = f"{PREFIX}{line(0)[:60]}{PREFIX}{line(1)}\n{PREFIX}{line(2)}\n"
    log = parse_server_log(text)
    assert log.line.tolist() == [0, 1]
    assert dict(log.left_out) == {"iteration lines that are cut off": (0,)}


COLOURED = (
    "\x1b[0;36m(APIServer pid=1)\x1b[0;0m \x1b[32mINFO\x1b[0m \x1b[90m03-02 09:15:{:02d}\x1b[0m "
    "\x1b[90m[loggers.py:199]\x1b[0m Engine 000: {}\n"
)
PREFIXES: dict[str, Callable[[int, str], str]] = {
    "text": lambda second, message: f"(APIServer pid=1) INFO 03-02 09:15:{second:02d} [loggers.py:199] {message}\n",
    "colours": lambda second, message: COLOURED.format(second, message.removeprefix("Engine 000: ")),
    "windows": lambda second, message: (
        f"(APIServer pid=1) INFO 03-02 09:15:{second:02d} [loggers.py:199] {message}\r\n"
    ),
    "compose": lambda second, message: (
        f"vllm-1  | (APIServer pid=1) INFO 03-02 09:15:{second:02d} [a.py:1] {message}\n"
    ),
    "docker json": lambda second, message: (
        json.dumps(
            {
                "log": COLOURED.format(second, message.removeprefix("Engine 000: ")),
                "stream": "stderr",
                "time": f"2026-03-02T09:15:{second:02d}.123456789Z",
            }
        )
        + "\n"
    ),
    "kubernetes": lambda second, message: (
        f"2026-03-02T09:15:{second:02d}.123456789Z stderr F (APIServer pid=1) INFO 03-02 10:15:{second:02d} "
        f"[loggers.py:199] {message}\n"
    ),
    "kubectl --prefix": lambda second, message: (
        f"[pod/vllm-7d9f-x2/vllm] (APIServer pid=1) INFO 03-02 09:15:{second:02d} [loggers.py:199] {message}\n"
    ),
    "journal": lambda second, message: (
        f"Mar 02 09:15:{second:02d} gpu-node-3 vllm[812]: (APIServer pid=812) INFO 03-02 09:15:{second:02d} "
        f"[loggers.py:199] {message}\n"
    ),
}


@pytest.mark.parametrize("name", PREFIXES)
def test_whatever_stands_before_the_message(name: str) -> None:
    messages = [f"Engine 000: {line(step, prefill=step * 8)}" for step in range(6)]
    text = "".join(PREFIXES[name](2 * second, message) for second, message in enumerate(messages))
    steps = read_steps(text.encode(), "server.log")
    assert steps.prefill_tokens.tolist() == [0, 8, 16, 24, 32, 40]
    assert steps.kv_usage is not None
    assert steps.stamp_s is not None
    np.testing.assert_allclose(np.diff(steps.stamp_s), 2.0, atol=1e-6)
    assert steps.receipt is not None
    assert not steps.receipt.dropped
    assert not steps.receipt.notices


def test_an_overlap_of_rotated_logs_counts_once() -> None:
    rows = [stamped(step, 1.0 + step / 8) for step in range(8)]
    once = parse_server_log("".join(rows))
    text = "".join(rows[:5] + rows[2:])
    joined = parse_server_log(text)
    np.testing.assert_array_equal(joined.columns, once.columns)
    np.testing.assert_array_equal(joined.stamp_s, once.stamp_s)
    assert left_out(text) == {"iteration lines that stand in the log twice": (5, 6, 7)}
    assert not joined.notices


def test_a_line_that_two_handlers_wrote_counts_once() -> None:
    text = "".join(f"{PREFIX}{line(step)}\nINFO:vllm:Engine 000: {line(step)}\n" for step in range(4))
    assert parse_server_log(text).line.tolist() == [0, 2, 4, 6]


def test_no_period_spans_a_restart_or_lost_lines() -> None:
    first = [stamped(step, step / 8) for step in range(4)]
    later = [stamped(step, 100 + step / 8) for step in range(40, 44)]
    again = [stamped(step, 200 + step / 8) for step in range(3)]
    log = parse_server_log("".join(first + later + again))
    assert log.stamp_s is not None
    gaps = np.diff(log.stamp_s)
    assert np.flatnonzero(gaps < 0).tolist() == [3, 7]
    np.testing.assert_allclose(gaps[gaps >= 0], 0.125)
    assert "starts again 1 times" in log.notices[0]


def test_a_left_out_step_is_in_no_period() -> None:
    rows = [stamped(step, step / 8) for step in range(5)]
    rows[2] = rows[2].replace('%"', '%, encoder inputs: 1, encoder output embeddings: 576"')
    log = parse_server_log("".join(rows))
    assert log.stamp_s is not None
    assert (np.diff(log.stamp_s) < 0).tolist() == [False, True, False]


@pytest.mark.parametrize("shift_s", [-600, 3000])
def test_a_clock_that_jumps_is_said_and_its_period_not_used(shift_s: int) -> None:
    rows = [stamped(step, 600 + step / 8 + (shift_s if step > 4 else 0)) for step in range(10)]
    log = parse_server_log("".join(rows))
    assert log.stamp_s is not None
    gaps = np.diff(log.stamp_s)
    assert np.flatnonzero(gaps < 0).tolist() == [4]
    np.testing.assert_allclose(np.delete(gaps, 4), 0.125)
    assert "the clock of the log jumps 1 times" in log.notices[0]
    assert "line 6 " in log.notices[0]


def test_an_idle_engine_is_no_jump_of_the_clock() -> None:
    rows = [stamped(0, 0.0), stamped(1, 3000.0, prefill=8, decodes=0), stamped(2, 3000.125)]
    log = parse_server_log("".join(rows))
    assert log.stamp_s is not None
    np.testing.assert_allclose(np.diff(log.stamp_s), [3000.0, 0.125])
    assert not log.notices


def test_each_of_several_engines_keeps_its_own_periods() -> None:
    rows = [stamped(step, step / 8 + engine / 20, engine=engine) for step in range(4) for engine in (0, 1)]
    log = parse_server_log("".join(rows))
    assert log.line.tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert log.stamp_s is not None
    gaps = np.diff(log.stamp_s)
    assert np.flatnonzero(gaps < 0).tolist() == [3]
    np.testing.assert_allclose(gaps[gaps >= 0], 0.125)


def test_engines_of_an_old_version_are_told_apart() -> None:
    rows = [
        f"(EngineCore_DP{engine} pid={engine}) INFO 12-22 21:44:40 [core.py:349] {line(step).rsplit(',', 1)[0]}\n"
        for step in range(3)
        for engine in (0, 1)
    ]
    log = parse_server_log("".join(rows))
    assert len(log.notices) == 1
    assert "engine 000: 3 steps, engine 001: 3 steps" in log.notices[0]


def test_lines_without_kv_usage_among_others_are_said() -> None:
    rows = [line(0), line(1).rsplit(",", 1)[0], line(2)]
    log = parse_server_log("".join(f"{PREFIX}{row}\n" for row in rows))
    assert len(log.line) == 3
    assert "1 of 3 lines have no KV cache usage" in log.notices[0]


@pytest.mark.data
def test_the_lines_of_two_engines_are_each_engines_own() -> None:
    text = shared_path("data", "formats", "vllm_0.32_iteration_log_text_dp2_excerpt.log").read_text()
    log = parse_server_log(text)
    assert not log.left_out
    whole = text.splitlines()
    order = [whole[number] for number in log.line]
    ours = [[row for row in order if f"Engine {engine}" in row] for engine in ("000", "001")]
    theirs = [[row for row in whole if f"Engine {engine}" in row] for engine in ("000", "001")]
    assert ours == theirs
    assert order == ours[0] + ours[1]
    assert log.stamp_s is not None
    assert (np.diff(log.stamp_s) < 0).sum() == 1
