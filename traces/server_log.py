"""vLLM's own server log: iteration lines and what it says about itself at start-up, as text or JSON lines."""

import re
from collections import Counter
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from traces.steps import ServerFacts

LEAP_YEAR = 2000
"""Stands for the year that text lines leave out: every day exists in it."""

DEFAULT_BLOCK_SIZE = 16
"""vLLM's `block_size` on CUDA when the log names none."""

ITERATION = re.compile(
    r"Iteration\((?P<iteration>\d+)\): (?P<prefill_reqs>\d+) context requests, "
    r"(?P<prefill_tokens>\d+) context tokens, (?P<decode_reqs>\d+) generation requests, "
    r"(?P<decode_tokens>\d+) generation tokens, iteration elapsed time: (?P<elapsed_ms>\d+(?:\.\d+)?) ms"
    r"(?P<dummy> \(dummy\))?(?:, \w+ KV cache usage: (?P<kv_percent>\d+(?:\.\d+)?)%)?"
    r"(?P<encoder>, encoder inputs: \d+, encoder output embeddings: \d+)?"
)
"""One engine step. Source: vLLM 0.32, v1/metrics/loggers.py, LoggingStatLogger._log_iteration_details; before 0.15
v1/engine/core.py, without KV usage."""

FIELDS = ("prefill_reqs", "prefill_tokens", "decode_reqs", "decode_tokens", "elapsed_ms", "kv_percent")
"""Groups of `ITERATION` that are numbers of the step."""

STAMP = re.compile(r"(?:(\d{4})-)?(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
"""The date and time of a log line: month and day to the second as text, the year and milliseconds too as JSON."""

ENGINE = re.compile(r"Engine (\d+): $|\(EngineCore_DP(\d+) ")
"""What names the engine before an iteration line since 0.15, and in older lines. Apart, since a pattern that starts
with a word is found faster."""

ITERATION_START = re.compile(r"Iteration\(\d+\):")
"""What every iteration line has, also one that is cut off at its end."""

ITERATION_END = re.compile(r"iteration elapsed time:")
"""What every iteration line has, also one that is cut off at its start."""

COLOUR = re.compile(r"(?:\x1b|\\u001b)\[[\d;]*[A-Za-z]")
"""An ANSI escape, as it is and as JSON spells it. Source: vLLM 0.32, logging_utils/formatter.py, ColoredFormatter."""

CUT_OFF = "iteration lines that are cut off"
DUMMY = "dummy steps, in which this engine only kept up with the others (data parallelism)"
ENCODER = "steps that ran an encoder, whose time is not the decoder's alone"
REPEATED = "iteration lines that stand in the log twice"

MAX_PAUSE_S = 60.0
"""No engine stands still so long while requests decode: the clock was set, or the machine slept."""

SERVER_LINE = re.compile(rb"Iteration\(\d+\): \d+ context req|non-default args: \{|Initializing a V1 LLM engine")
"""What no other kind of file has."""

FACTS = {
    "max_num_batched_tokens": (
        r"'max_num_batched_tokens': (\d+)",
        r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)",
    ),
    "max_num_seqs": (r"'max_num_seqs': (\d+)",),
    "long_prefill_token_threshold": (r"'long_prefill_token_threshold': (\d+)",),
    "max_model_len": (r"'max_model_len': (\d+)", r"\bmax_seq_len=(\d+)", r"Using max model len (\d+)"),
    "block_size": (r"'block_size': (\d+)",),
    "num_gpu_blocks": (
        r"with num_gpu_blocks_override=(\d+)",
        r"'num_gpu_blocks_override': (\d+)",
        r"# (?:GPU|cuda) blocks: (\d+)",
    ),
    "async_scheduling": (r"'async_scheduling': (True|False)", r"Asynchronous scheduling is (enabled|disabled)"),
    "enable_prefix_caching": (r"'enable_prefix_caching': (True|False)", r"\benable_prefix_caching=(True|False)"),
}
"""Where each fact stands, most trusted place first."""

VERSION = (
    r"Initializing a V1 LLM engine \(v([^)\s]+)\)",
    r"vLLM (?:API )?server version (\d[^\s,]*)",
    r"\bversion (\d+\.\d+[^\s\"]*)",
)
KV_CACHE_SIZE = (r"KV cache size: ([\d,]+) tokens",)


@dataclass(frozen=True, slots=True, eq=False)
class LogSteps:
    """k iteration lines of a server log, engine by engine."""

    line: npt.NDArray[np.int64]
    """(k,) line of the file, counted from 0."""
    columns: npt.NDArray[np.float64]
    """(k, 6) prefill requests, prefill tokens, decoding requests, decoded tokens, milliseconds, KV % (or NaN)."""
    stamp_s: npt.NDArray[np.float64] | None
    """(k,) when the line was written, seconds on a clock that is set back where a row does not follow the row before
    (another engine, another start, lines lost or left out): no period spans such a place. None unless every line
    says."""
    left_out: tuple[tuple[str, tuple[int, ...]], ...]
    """(reason, lines of the file) for every other iteration line."""
    facts: ServerFacts
    """What the log says about the server."""
    notices: tuple[str, ...]
    """What else the user must know."""


def is_server_log(text: bytes) -> bool:
    """Whether a text is a vLLM server log."""
    return SERVER_LINE.search(text) is not None


def parse_server_log(text: str) -> LogSteps:
    """Read every iteration line and the start-up facts.

    Steps of several engines and of several starts are pooled: they are steps of one model under one set of
    flags, which is all a step-time fit asks for. Each such thing is said in a notice.

    Parameters
    ----------
    text : str
        The whole log, whatever stands before each message (container or journal prefixes, colours). In JSON lines
        the message stands in the line as it is, so one pattern reads both forms.

    Returns
    -------
    LogSteps
    """
    text = COLOUR.sub("", text)
    line_ends = np.array([match.start() for match in re.finditer("\n", text)], dtype=np.int64)
    lines, left_out = _lines(text, line_ends)
    kept = [line for line in lines if line.reason is None]
    for line in lines:
        if line.reason is not None:
            left_out.setdefault(line.reason, set()).add(line.number)
    facts, notices = _facts(text)
    stamps = [line.stamp_s for line in kept]
    engine_notices = _engine_notices(kept)
    clock_notices: tuple[str, ...] = ()
    stamp_s = None
    if None not in stamps:
        stamp_s, clock_notices = _clock(np.array(stamps, dtype=np.float64), kept)
    return LogSteps(
        np.array([line.number for line in kept], dtype=np.int64),
        np.array([line.values for line in kept], dtype=np.float64).reshape(len(kept), len(FIELDS)),
        stamp_s,
        tuple((reason, tuple(sorted(numbers))) for reason, numbers in left_out.items()),
        facts,
        (*engine_notices, *clock_notices, *notices),
    )


class _Line(NamedTuple):
    """One iteration line."""

    number: int
    engine: str
    iteration: int
    values: list[float]
    stamp_s: float | None
    reason: str | None


def _lines(text: str, line_ends: npt.NDArray[np.int64]) -> tuple[list[_Line], dict[str, set[int]]]:
    """Read the iteration lines, grouped by engine, and the lines that are broken beyond that."""
    matches = list(ITERATION.finditer(text))
    numbers = np.searchsorted(line_ends, [match.start() for match in matches]).tolist()
    starts = np.concatenate([[0], line_ends + 1])
    has_kv = any(match["kv_percent"] for match in matches)
    seen: set[tuple[str, float | None, str]] = set()
    last: dict[str, tuple[int, str]] = {}
    lines = []
    for match, number in zip(matches, numbers, strict=True):
        start = int(starts[number])
        engine, iteration, stamp_s = _engine(text, start, match), int(match["iteration"]), _stamp_s(text, start, match)
        reason = None
        if _is_cut_off(text, match, has_kv):
            reason = CUT_OFF
        elif (stamp_s is not None and (engine, stamp_s, match[0]) in seen) or last.get(engine) == (iteration, match[0]):
            reason = REPEATED
        elif match["dummy"]:
            reason = DUMMY
        elif match["encoder"]:
            reason = ENCODER
        seen.add((engine, stamp_s, match[0]))
        last[engine] = iteration, match[0]
        values = [float(value) if value else np.nan for value in match.group(*FIELDS)]
        lines.append(_Line(number, engine, iteration, values, stamp_s, reason))
    lines.sort(key=lambda line: line.engine)
    begun = {match.start() for match in ITERATION_START.finditer(text)} - {match.start() for match in matches}
    ended = [match.start() for match in ITERATION_END.finditer(text)]
    whole = np.searchsorted([match.start() for match in matches], ended, side="right") - 1
    begun.update(
        end for end, index in zip(ended, whole.tolist(), strict=True) if index < 0 or matches[index].end() < end
    )
    broken = set(np.searchsorted(line_ends, sorted(begun)).tolist())
    return lines, {CUT_OFF: broken} if broken else {}


def _is_cut_off(text: str, match: re.Match[str], has_kv: bool) -> bool:
    """Whether a line ends within what may follow the time: KV usage since 0.15, then encoder parts."""
    if match["kv_percent"]:
        return text.startswith(", e", match.end()) and not match["encoder"]
    return text.startswith((",", " ("), match.end()) or (has_kv and "\n" not in text[match.end() : match.end() + 40])


def _facts(text: str) -> tuple[ServerFacts, tuple[str, ...]]:
    """Read the start-up facts; of several starts the last one counts."""
    args = max(text.rfind("non-default args: {"), 0)
    first_step = ITERATION_START.search(text, args)
    start = text[args : first_step.start() if first_step else len(text)]
    found = {name: _first(patterns, start) for name, patterns in FACTS.items()}
    block_size = _number(found["block_size"])
    num_gpu_blocks = _number(found["num_gpu_blocks"])
    size = _first(KV_CACHE_SIZE, start)
    notices: tuple[str, ...] = ()
    if num_gpu_blocks is None and size is not None:
        num_gpu_blocks = int(size.replace(",", "")) // (block_size or DEFAULT_BLOCK_SIZE)
        if block_size is None:
            notices = (
                f"the log gives the KV cache as {size} tokens and no block size; "
                f"with vLLM's default of {DEFAULT_BLOCK_SIZE} that is {num_gpu_blocks:,} blocks",
            )
    facts = ServerFacts(
        # The banner with the version stands before the arguments.
        vllm_version=_first(VERSION, start) or _first(VERSION, text[max(args - 4_000, 0) : args]),
        max_num_batched_tokens=_number(found["max_num_batched_tokens"]),
        max_num_seqs=_number(found["max_num_seqs"]),
        long_prefill_token_threshold=_number(found["long_prefill_token_threshold"]),
        max_model_len=_number(found["max_model_len"]),
        block_size=block_size,
        num_gpu_blocks=num_gpu_blocks,
        async_scheduling=_switch(found["async_scheduling"]),
        enable_prefix_caching=_switch(found["enable_prefix_caching"]),
    )
    return facts, notices


def _number(value: str | None) -> int | None:
    """Turn a found flag into a number."""
    return None if value is None else int(value)


def _switch(value: str | None) -> bool | None:
    """Turn a found switch into a truth value."""
    return None if value is None else value in ("True", "enabled")


def _first(patterns: tuple[str, ...], text: str) -> str | None:
    """Return the first group of the first pattern that the text has."""
    for pattern in patterns:
        match = re.search(pattern, text)
        if match:
            return match.group(1)
    return None


def _stamp_s(text: str, start: int, match: re.Match[str]) -> float | None:
    """Return when a line was written, from what stands in front of its message."""
    found = STAMP.search(text, start, match.start())
    if found is None:
        return None
    year, month, day, hours, minutes, seconds = (int(part or LEAP_YEAR) for part in found.groups()[:6])
    try:
        days = date(year, month, day).toordinal()
    except ValueError:
        return None
    return days * 86_400 + hours * 3600 + minutes * 60 + seconds + float(f"0.{found.group(7) or 0}")


def _engine(text: str, start: int, match: re.Match[str]) -> str:
    """Return the engine that a line names; a server with one engine named none before 0.15."""
    named = ENGINE.search(text, start, match.start())
    return (named.group(1) or named.group(2)).zfill(3) if named else "000"


def _clock(stamp_s: npt.NDArray[np.float64], lines: list[_Line]) -> tuple[npt.NDArray[np.float64], tuple[str, ...]]:
    """Set the clock back wherever a row does not follow the row before, and say where the clock itself jumped."""
    follows = np.array(
        [
            not i or (line.engine, line.iteration) == (lines[i - 1].engine, lines[i - 1].iteration + 1)
            for i, line in enumerate(lines)
        ],
        dtype=np.bool_,
    )
    gap_s = np.diff(stamp_s, prepend=stamp_s[:1])
    elapsed_s = np.array([line.values[4] for line in lines]) / 1e3
    decodes = np.array([line.values[2] > 0 for line in lines], dtype=np.bool_)
    jumps = follows & ((gap_s < 0) | decodes & (gap_s > elapsed_s + MAX_PAUSE_S))
    notices: tuple[str, ...] = ()
    if jumps.any():
        notices = (
            f"the clock of the log jumps {jumps.sum():,} times between steps that follow each other, first at line "
            f"{lines[int(np.argmax(jumps))].number + 1:,} (set, or the machine slept): these periods are not used",
        )
    apart = (~follows | jumps) & (gap_s >= 0)
    return stamp_s - np.cumsum(np.where(apart, np.floor(gap_s) + 1.0, 0.0)), notices


def _engine_notices(lines: list[_Line]) -> tuple[str, ...]:
    """Say when steps of several engines or several starts are pooled, when lines are lost, and when KV usage is."""
    notices = []
    counts = Counter(line.engine for line in lines)
    if len(counts) > 1:
        each = ", ".join(f"engine {engine}: {count:,} steps" for engine, count in sorted(counts.items()))
        notices.append(f"{each}: each is a replica of one model, so their steps are pooled")
    restarts = sum(a.engine == b.engine and b.iteration <= a.iteration for a, b in pairwise(lines))
    if restarts:
        notices.append(
            f"the iteration counter starts again {restarts:,} times (the server was restarted, or logs are joined): "
            "the steps of all starts are pooled, the flags are those of the last start"
        )
    without_kv = sum(np.isnan(line.values[5]) for line in lines)
    if 0 < without_kv < len(lines):
        notices.append(f"{without_kv:,} of {len(lines):,} lines have no KV cache usage: it is used for none")
    return tuple(notices)
