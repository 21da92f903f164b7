"""What a request file says, counted again in the plainest Python, to hold the reader to.

Nothing of the project is imported: each tool's form is written out once more, as its documentation has it. Only which
column plays which part, the unit and the layout are taken from the receipt: they are what the reader claims.
"""

import csv
import gzip
import io
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


@dataclass(frozen=True)
class Counted:
    """Totals over the requests that got output."""

    num_requests: int
    prompt_tokens: int
    output_tokens: int
    arrivals_ns: list[int]
    """Since the first, sorted."""


def recount(data: bytes, layout: str, columns: dict[str, str], unit: str, benchmark: str | None = None) -> Counted:
    """Count a file again; `layout`, `columns` (by part) and `unit` as the receipt has them."""
    kept = []
    for request in requests_in(unpacked(data), layout, benchmark):
        arrival, prompt, output = (at(request, columns[part]) for part in ("arrival", "prompt", "output"))
        if number(output) > 0:
            kept.append((arrival, number(prompt), number(output)))
    times = [time_of(arrival, unit) for arrival, _, _ in kept]
    first = min(times)
    return Counted(
        len(kept),
        int(sum(prompt for _, prompt, _ in kept)),
        int(sum(output for _, _, output in kept)),
        sorted(round((time - first) * NS.get(unit, 1)) for time in times),
    )


def requests_in(data: bytes, layout: str, benchmark: str | None) -> list[dict[str, Any]]:
    """Every request that the tool itself would count as done."""
    if data.startswith(b"PAR1"):
        return pq.read_table(io.BytesIO(data)).to_pylist()
    text = data.decode("utf-8-sig", errors="replace")
    if text.lstrip()[:1] not in ("{", "["):
        delimiter = max(",;\t|", key=text.lstrip("\r\n").split("\n")[0].count)
        return list(csv.DictReader(io.StringIO(text.lstrip("\r\n"), newline=""), delimiter=delimiter))
    documents = documents_in(text)
    if layout.startswith("GuideLLM"):
        runs = [run for document in documents for run in document["benchmarks"] or []]
        chosen = runs if benchmark in (None, "all") else [runs[int(benchmark)]]
        return [one for run in chosen for one in (run.get("requests") or {}).get("successful") or []]
    if layout.startswith("vllm bench serve"):
        chosen = documents if benchmark in (None, "all") else [documents[int(benchmark)]]
        return [
            dict(zip(("start_times", "input_lens", "output_lens"), (start, prompt, output), strict=True))
            for result in chosen
            for start, prompt, output, error in zip(
                result["start_times"],
                result["input_lens"],
                result["output_lens"],
                result.get("errors") or [None] * len(result["start_times"]),
                strict=True,
            )
            if error in (None, "")
        ]
    if layout.startswith("vLLM OTLP"):
        spans = [
            span
            for document in documents
            for resource in document["resourceSpans"] or []
            for scope in resource.get("scopeSpans") or []
            for span in scope.get("spans") or []
        ]
        return [
            {**span, "attributes": {one["key"]: next(iter(one["value"].values())) for one in span["attributes"]}}
            for span in spans
            if span.get("name") == "llm_request"
        ]
    if layout.startswith("AIPerf"):
        return [
            one
            for one in documents
            if one.get("error") in (None, "")
            and one["metadata"].get("was_cancelled") in (None, False, "", "false")
            and one["metadata"].get("benchmark_phase") in (None, "", "profiling")
        ]
    if layout.startswith("inference-perf"):
        return [one for one in documents if one.get("error") in (None, "")]
    if layout.startswith("Dynamo request trace"):
        return [one for one in documents if one.get("event_type") == "request_end"]
    if layout.startswith("LiteLLM"):
        return [one for one in documents if one.get("status") in (None, "", "success")]
    return documents


def documents_in(text: str) -> list[Any]:
    """All JSON values of a text, one after the other; the items of an array."""
    found, place, decoder = [], 0, json.JSONDecoder()
    while place < len(text):
        if text[place].isspace():
            place += 1
            continue
        value, place = decoder.raw_decode(text, place)
        found.append(value)
    return found[0] if len(found) == 1 and isinstance(found[0], list) else found


def at(request: dict[str, Any], name: str) -> Any:
    """Follow a path of dots; a key may have dots itself, and a quantity says its unit."""
    if name in request:
        return request[name]
    if name.endswith(")") and " (" in name:
        quantity = at(request, name.rpartition(" (")[0])
        assert quantity["unit"] == name.rpartition(" (")[2][:-1]
        return quantity["value"]
    for length in range(1, name.count(".") + 1):
        head, rest = ".".join(name.split(".")[:length]), ".".join(name.split(".")[length:])
        if isinstance(request.get(head), dict):
            return at(request[head], rest)
    raise KeyError(name)


def number(value: Any) -> float | int:
    """A count, also when it is written as text."""
    return value if isinstance(value, int | float) else int(value) if value.strip().isdecimal() else float(value)


def time_of(value: Any, unit: str) -> float | int:
    """An arrival: a number in its unit, or nanoseconds since 1970 of a date."""
    if unit in NS:
        return number(value)
    if isinstance(value, datetime):
        whole = value.replace(tzinfo=value.tzinfo or UTC, microsecond=0)
        return round(whole.timestamp()) * 10**9 + value.microsecond * 1000 + getattr(value, "nanosecond", 0)
    day, clock, fraction, zone = re.fullmatch(
        r"\s*(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d(?::\d\d)?)(?:[.,](\d+))?\s*(Z|UTC|GMT|[+-]\d\d:?(?:\d\d)?)?\s*", value
    ).groups()
    at_second = datetime.fromisoformat(f"{day}T{clock}").replace(tzinfo=UTC)
    offset_s = 0
    if zone and zone[0] in "+-":
        digits = zone[1:].replace(":", "").ljust(4, "0")
        offset_s = (1 if zone[0] == "+" else -1) * (int(digits[:2]) * 3600 + int(digits[2:]) * 60)
    return (round(at_second.timestamp()) - offset_s) * 10**9 + int((fraction or "0").ljust(9, "0")[:9])


def unpacked(data: bytes) -> bytes:
    """Undo gzip and zstd."""
    if data.startswith(b"\x1f\x8b"):
        return gzip.decompress(data)
    if data.startswith(b"\x28\xb5\x2f\xfd"):
        return pa.CompressedInputStream(pa.BufferReader(data), "zstd").read()
    return data
