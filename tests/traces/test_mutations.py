"""Real files, damaged: no reader crashes or lies. What is accepted equals an independent count."""

import gzip
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recount import recount, unpacked
from shared import SHARED_DIR

from traces.answers import NO_ANSWERS, ReadAnswers
from traces.errors import InputError, NeedsAnswer
from traces.measured import read_measured
from traces.read import read_steps, read_trace

pytestmark = pytest.mark.data

FILES = sorted(SHARED_DIR.glob("data/formats/*")) + sorted(SHARED_DIR.glob("data/traces/*.jsonl"))
if not FILES:
    pytest.skip(f"no files under {SHARED_DIR / 'data'}", allow_module_level=True)

TOKEN = re.compile(rb'"(?:[^"\\\n]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null|[A-Za-z_]+')
"""What a text consists of, JSON or not."""

ODD = [
    *(b"-1", b"0", b"1.5", b"1e400", b"1e-5", b"NaN", b"-Infinity", b"99999999999999999999", b"9223372036854775807"),
    *(b"null", b"true", b'""', b'"x"', b'"12"', b'"1e3"', b"[]", b"{}", b"[1, null]", b'{"value": 1, "unit": "s"}'),
    *(b'"2026-03-02T09:15:00.250Z"', b'"2026-03-02 09:15"', b"012", b"+7", b" ", b'"\\ud800"', b"\xff", b"1795988673"),
]
"""What may stand in the place of a token."""

WRAPPINGS = [bytes, gzip.compress, lambda data: pa.compress(data, "zstd", asbytes=True)]


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, bytes]:
    """One of the files, with a few things in it changed."""
    path = draw(st.sampled_from(FILES))
    data = _short(path)
    for _ in range(draw(st.integers(0, 3))):
        data = draw(st.sampled_from([_token, _bytes, _lines]))(draw, data)
    return path.name, draw(st.sampled_from(WRAPPINGS))(data)


def _short(path: Path) -> bytes:
    """The file; of one with a row a line, the first ones."""
    lines = path.read_bytes().splitlines(keepends=True)
    return b"".join(lines if path.suffix == ".json" else lines[:40])


def _token(draw: st.DrawFn, data: bytes) -> bytes:
    """Put something else for a token: an odd value, or a token of another place."""
    tokens = list(TOKEN.finditer(data))
    if not tokens:
        return data
    at = tokens[draw(st.integers(0, len(tokens) - 1))]
    other = tokens[draw(st.integers(0, len(tokens) - 1))].group()
    return data[: at.start()] + draw(st.sampled_from([*ODD, other])) + data[at.end() :]


def _bytes(draw: st.DrawFn, data: bytes) -> bytes:
    """Take bytes out, put some in, or cut the end off."""
    start = draw(st.integers(0, len(data)))
    end = min(len(data), start + draw(st.sampled_from([0, 1, 2, 50, len(data)])))
    return data[:start] + draw(st.binary(max_size=4)) + data[end:]


def _lines(draw: st.DrawFn, data: bytes) -> bytes:
    """Say a line twice, leave it out, or put it elsewhere."""
    lines = data.splitlines(keepends=True) or [b""]
    place, other = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
    changed = draw(
        st.sampled_from([[*lines, lines[place]], lines[:place] + lines[place + 1 :], [lines[other], *lines[other:]]])
    )
    return b"".join(changed)


@given(damaged())
@settings(max_examples=300, suppress_health_check=list(HealthCheck))
def test_no_damage_makes_a_reader_crash_or_lie(file: tuple[str, bytes]) -> None:
    name, data = file
    trace, answers = answered(read_trace, data, name)
    if trace is not None:
        same_times = answers.same_day is None and answers.clock_change is None
        hold_to_count(trace, unpacked(data), answers.benchmark, same_times)
    measured, answers = answered(read_measured, data, name)
    if measured is not None:
        hold_to_laws(measured)
    for read in (read_trace, read_measured, read_steps):
        found, _ = answered(read, data, name, ReadAnswers(drop_bad_rows=True))
        assert found is None or found.receipt.num_kept <= found.receipt.num_rows


def answered(read: Any, data: bytes, name: str, answers: ReadAnswers = NO_ANSWERS) -> tuple[Any, ReadAnswers]:
    """Read, answering every question with its last choice; None where the file is refused."""
    for _ in range(5):
        try:
            return read(data, name, answers), answers
        except NeedsAnswer as asked:
            answers = replace(answers, **{one.field: one.choices[-1].value for one in asked.questions})
        except InputError as refusal:
            return (None, answers) if name in str(refusal) else pytest.fail(str(refusal))
    return pytest.fail(f"{name} asks without end")


def hold_to_count(trace: Any, data: bytes, benchmark: str | None, same_times: bool) -> None:
    """An accepted trace is what the plainest Python counts."""
    receipt = trace.receipt
    counted = recount(data, receipt.layout, dict(receipt.columns), receipt.time_unit, benchmark)
    assert len(trace) == receipt.num_kept == counted.num_requests
    assert trace.prompt_tokens.sum() == counted.prompt_tokens
    assert trace.output_tokens.sum() == counted.output_tokens
    assert receipt.num_rows == receipt.num_kept + sum(dropped.num_rows for dropped in receipt.dropped)
    if same_times:
        assert trace.arrival_s.tolist() == [ns / 1e9 for ns in counted.arrivals_ns]


def hold_to_laws(measured: Any) -> None:
    """An accepted measurement is one that could have happened."""
    assert (np.diff(measured.arrival_s) >= 0).all()
    assert (measured.arrival_s <= measured.first_token_s).all()
    assert (measured.first_token_s <= measured.last_token_s).all()
    assert (measured.num_outputs >= 1).all()
    assert (measured.gap_s >= 0).all()
    has_gaps = np.isfinite(measured.worst_gap_s)
    assert len(measured.gap_s) == (measured.num_outputs - 1)[has_gaps].sum()
    assert measured.gap_s.max(initial=0.0) == np.max(measured.worst_gap_s[has_gaps], initial=0.0)
