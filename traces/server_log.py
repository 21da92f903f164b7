"""vLLM's own server log: iteration lines and what it says about itself at start-up, as text or JSON lines."""

import re
from collections import Counter
from dataclasses import dataclass
from datetime import date

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
    r"(?:, \w+ KV cache usage: (?P<kv_percent>\d+(?:\.\d+)?)%)?"
)
"""One engine step. Source: vLLM 0.32, v1/metrics/loggers.py; before 0.15 v1/engine/core.py, without KV usage."""

STAMP = re.compile(r"(?:(\d{4})-)?(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
"""The date and time of a log line: month and day to the second as text, the year and milliseconds too as JSON."""

ENGINE = re.compile(r"Engine (\d+): $")
"""What stands before an iteration line since 0.15. Apart, since a pattern that starts with a word is found faster."""

ITERATION_START = re.compile(r"Iteration\(\d+\):")
"""What every iteration line has, also one that is cut off."""

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
    """k iteration lines of a server log."""

    line: npt.NDArray[np.int64]
    """(k,) line of the file, counted from 0."""
    columns: npt.NDArray[np.float64]
    """(k, 6) prefill requests, prefill tokens, decoding requests, decoded tokens, milliseconds, KV % (or NaN)."""
    stamp_s: npt.NDArray[np.float64] | None
    """(k,) when the line was written, seconds on the log's clock; None unless every line says."""
    cut_off: tuple[int, ...]
    """Lines that start like an iteration line and end too early."""
    facts: ServerFacts
    """What the log says about the server."""
    num_engines: int
    """Engines whose lines stand among each other."""
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
        The whole log. In JSON lines the message stands in the line as it is, so one pattern reads both forms.

    Returns
    -------
    LogSteps
    """
    matches = list(ITERATION.finditer(text))
    line_ends = np.array([match.start() for match in re.finditer("\n", text)], dtype=np.int64)
    starts = [match.start() for match in ITERATION_START.finditer(text)]
    whole = {match.start() for match in matches}
    cut_off = np.searchsorted(line_ends, [start for start in starts if start not in whole])
    fields = ("prefill_reqs", "prefill_tokens", "decode_reqs", "decode_tokens", "elapsed_ms", "kv_percent")
    rows = [[float(value) if value else np.nan for value in match.group(*fields)] for match in matches]
    facts, notices = _facts(text)
    line = np.searchsorted(line_ends, [match.start() for match in matches]).astype(np.int64)
    line_starts = np.concatenate([[0], line_ends + 1])[line].tolist()
    stamps = [_stamp_s(text, start, match.start()) for start, match in zip(line_starts, matches, strict=True)]
    engines = [_engine(text, match) for match in matches]
    return LogSteps(
        line,
        np.array(rows, dtype=np.float64).reshape(len(rows), len(fields)),
        None if None in stamps else np.array(stamps, dtype=np.float64),
        tuple(int(line) for line in cut_off),
        facts,
        len(set(engines)),
        (*_engine_notices(matches, engines), *notices),
    )


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


def _stamp_s(text: str, start: int, end: int) -> float | None:
    """Return when a line was written, from what stands in front of its message."""
    found = STAMP.search(text, start, end)
    if found is None:
        return None
    year, month, day, hours, minutes, seconds = (int(part or LEAP_YEAR) for part in found.groups()[:6])
    try:
        days = date(year, month, day).toordinal()
    except ValueError:
        return None
    return days * 86_400 + hours * 3600 + minutes * 60 + seconds + float(f"0.{found.group(7) or 0}")


def _engine(text: str, match: re.Match[str]) -> str:
    """Return the engine that a line names; old versions name none."""
    named = ENGINE.search(text, max(match.start() - 20, 0), match.start())
    return named.group(1) if named else "000"


def _engine_notices(matches: list[re.Match[str]], engines: list[str]) -> tuple[str, ...]:
    """Say when steps of several engines or several starts are pooled."""
    notices = []
    counts = Counter(engines)
    if len(counts) > 1:
        each = ", ".join(f"engine {engine}: {count:,} steps" for engine, count in sorted(counts.items()))
        notices.append(f"{each}: each is a replica of one model, so their steps are pooled")
    last: dict[str, int] = {}
    restarts = 0
    for match, engine in zip(matches, engines, strict=True):
        iteration = int(match.group("iteration"))
        restarts += iteration < last.get(engine, -1)
        last[engine] = iteration
    if restarts:
        notices.append(
            f"the iteration counter starts again {restarts:,} times (the server was restarted): the steps of all "
            "starts are pooled, the flags are those of the last start"
        )
    return tuple(notices)
