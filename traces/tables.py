"""Bytes to columns: which form a file has, and its columns as Arrow arrays. Nothing is judged here.

The form is decided by content, never by the file's name. Only the columns that are asked for are decoded.
"""

import csv
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq

from traces.checks import MEND, NUM_ROWS_NAMED
from traces.errors import Problem, UnreadableFile

Source = bytes | memoryview | str | os.PathLike[str]
"""An uploaded file's bytes, or the path of a file."""

MAX_DECODED_BYTES = 1 << 30
"""Most bytes that a file may have once decompressed (of Parquet: the columns used), a guard against bombs."""

MAX_ROWS = 20_000_000
"""Most rows of a table."""

ACCEPTED = "Parquet, CSV or JSON lines, each also gzip- or zstd-compressed, or a vLLM server log"

MAGICS = (
    (b"PK\x03\x04", "a zip archive (or a spreadsheet)"),
    (b"BZh", "a bzip2 file"),
    (b"\xfd7zXZ", "an xz file"),
    (b"ARROW1", "an Arrow or Feather file"),
    (b"PARE", "an encrypted Parquet file"),
    (b"ORC", "an ORC file"),
    (b"\x93NUMPY", "a NumPy file"),
    (b"SQLite format 3", "an SQLite database"),
    (b"%PDF", "a PDF"),
    (b"\x89HDF", "an HDF5 file"),
)
"""First bytes of forms that are not read, so that the refusal can name them."""

BINARY = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
"""Control bytes that no text has; escape is left out, since logs have colours."""

NUM_LINES_LOOKED_AT = 100
"""JSON lines whose keys make up the columns."""

# Rows with a long prompt in them must fit one block of Arrow's text readers.
BLOCK_BYTES = 1 << 26


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """Some columns of a file."""

    table: pa.Table
    """n rows, the columns in the order asked for."""
    rows: npt.NDArray[np.int64]
    """(n,) data row of the file, counted from 0."""
    problems: tuple[Problem, ...]
    """Rows that could not be split into columns; they are not in `table`."""
    num_rows: int
    """Data rows of the file, the broken ones included."""


@dataclass(frozen=True, slots=True, eq=False)
class OpenedFile:
    """A file whose form is known."""

    form: str
    """In words ("Parquet")."""
    digest: str
    """SHA-256 of the bytes as given, hexadecimal."""
    text: bytes | None
    """The decompressed text; None for Parquet."""
    buffer: pa.Buffer
    """The decompressed bytes."""


def open_file(file: Source, file_name: str) -> OpenedFile:
    """Decompress a file and find out its form.

    Parameters
    ----------
    file : bytes, memoryview or path
        The file.
    file_name : str
        As the user named it; for messages only.

    Returns
    -------
    OpenedFile

    Raises
    ------
    UnreadableFile
        Empty, cut off, too large, or of a form that is not read.
    """
    with readable(file_name, "a file that cannot be opened"):
        given = _bytes_of(file)
    digest = hashlib.sha256(given).hexdigest()
    buffer, wrapping = _decompressed(given, file_name)
    head = buffer.slice(0, min(4096, buffer.size)).to_pybytes()
    if head.startswith(b"PAR1"):
        return OpenedFile("Parquet" + wrapping, digest, None, buffer)
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        with readable(file_name, "UTF-16 text"):
            buffer = pa.py_buffer(buffer.to_pybytes().decode("utf-16").encode())
    elif BINARY.search(head) or any(head.startswith(magic) for magic, _ in MAGICS):
        found = next((name for magic, name in MAGICS if head.startswith(magic)), "binary data of an unknown form")
        raise UnreadableFile(file_name, f"this is {found}; accepted: {ACCEPTED}.")
    text = _utf8(buffer)
    if not text.strip():
        raise UnreadableFile(file_name, f"the file is empty; accepted: {ACCEPTED}.")
    form = {b"{": "JSON lines", b"[": "a JSON array"}.get(text.lstrip()[:1], "CSV")
    return OpenedFile(form + wrapping, digest, text, pa.py_buffer(text))


def columns_of(opened: OpenedFile, file_name: str) -> pa.Schema:
    """Return names and types of the file's columns; of CSV, every type is text."""
    with readable(file_name, opened.form):
        if opened.text is None:
            return pq.read_schema(pa.BufferReader(opened.buffer))
        if opened.form.startswith("CSV"):
            return pa.schema([(name, pa.string()) for name in _header(opened.text)[0]])
        records = _array(opened.text) if opened.form.startswith("a JSON array") else _first_records(opened.text)
        return _schema_of(records)


def decode(opened: OpenedFile, schema: pa.Schema, names: Sequence[str], file_name: str) -> Decoded:
    """Decode the columns `names` and no others; text stays text.

    Parameters
    ----------
    opened : OpenedFile
        From `open_file`.
    schema : pa.Schema
        From `columns_of`.
    names : sequence of str
        Columns of `schema`, each there once.
    file_name : str
        For messages.

    Returns
    -------
    Decoded
    """
    names = list(dict.fromkeys(names))
    with readable(file_name, opened.form):
        if opened.text is None:
            decoded = _decode_parquet(opened.buffer, names, file_name)
        elif opened.form.startswith("CSV"):
            decoded = _decode_csv(opened.text, names)
        elif opened.form.startswith("a JSON array"):
            decoded = _from_records(enumerate(_array(opened.text)), names)
        else:
            decoded = _decode_json_lines(opened.text, schema, names)
    if decoded.num_rows > MAX_ROWS:
        raise _too_large(file_name)
    return decoded


@contextmanager
def readable(file_name: str, form: str) -> Iterator[None]:
    """Turn whatever a decoder raises on broken bytes into `UnreadableFile`."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, EOFError, MemoryError, RecursionError, csv.Error) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        message = f"read as {form}, and broken or cut off ({reason}); accepted: {ACCEPTED}."
        raise UnreadableFile(file_name, message) from error


def _bytes_of(file: Source) -> pa.Buffer:
    """Return the bytes of a file without copying them."""
    if isinstance(file, bytes | memoryview):
        return pa.py_buffer(file)
    if os.path.getsize(file) == 0:
        return pa.py_buffer(b"")
    return pa.memory_map(os.fspath(file)).read_buffer()


def _utf8(buffer: pa.Buffer) -> bytes:
    """Text without byte order mark, in which every byte is valid; numbers and known names are ASCII anyhow."""
    text: bytes = buffer.to_pybytes().removeprefix(b"\xef\xbb\xbf")
    try:
        text.decode()
    except UnicodeDecodeError:
        return text.decode(errors="replace").encode()
    return text


def _decompressed(buffer: pa.Buffer, file_name: str) -> tuple[pa.Buffer, str]:
    """Undo gzip or zstd within the limit; also returns how that is called."""
    head = buffer.slice(0, min(4, buffer.size)).to_pybytes()
    codec = {b"\x1f\x8b": "gzip", b"\x28\xb5": "zstd"}.get(head[:2])
    if codec is None or (codec == "zstd" and head != b"\x28\xb5\x2f\xfd"):
        if buffer.size > MAX_DECODED_BYTES and not head.startswith(b"PAR1"):
            raise _too_large(file_name)
        return buffer, ""
    pieces, size = pa.BufferOutputStream(), 0
    with readable(file_name, codec), pa.CompressedInputStream(pa.BufferReader(buffer), codec) as stream:
        while piece := stream.read(1 << 24):
            size += len(piece)
            if size > MAX_DECODED_BYTES:
                raise _too_large(file_name)
            pieces.write(piece)
    return pieces.getvalue(), f" ({codec})"


def _too_large(file_name: str) -> UnreadableFile:
    """Say the limit and the way round it."""
    return UnreadableFile(
        file_name,
        f"more than {MAX_DECODED_BYTES >> 20:,} MiB once decompressed or {MAX_ROWS:,} rows, which is the limit. "
        "Keep only the columns with arrival, prompt tokens and output tokens, as Parquet, or cut a time window.",
    )


def _decode_parquet(buffer: pa.Buffer, names: list[str], file_name: str) -> Decoded:
    """Decode some columns of Parquet, batch by batch, so that the limits hold whatever the metadata say."""
    file = pq.ParquetFile(pa.BufferReader(buffer))
    batches, num_rows, size = [], 0, 0
    for batch in file.iter_batches(batch_size=65_536, columns=names):
        num_rows, size = num_rows + batch.num_rows, size + batch.nbytes
        if size > MAX_DECODED_BYTES or num_rows > MAX_ROWS:
            raise _too_large(file_name)
        batches.append(batch)
    schema = pa.schema([file.schema_arrow.field(name) for name in names])
    table = pa.Table.from_batches([batch.select(names) for batch in batches], None if batches else schema)
    table.validate(full=True)
    return Decoded(table, np.arange(num_rows), (), num_rows)


def _header(text: bytes) -> tuple[list[str], str]:
    """Return column names and delimiter of CSV, from its first line."""
    first = text.lstrip(b"\r\n").split(b"\n", 1)[0].decode()
    delimiter = max(",;\t|", key=first.count)
    return next(csv.reader([first.rstrip("\r")], delimiter=delimiter)), delimiter


def _decode_csv(text: bytes, names: list[str]) -> Decoded:
    """Decode some columns of CSV, all as text; rows with too few or too many fields are listed."""
    broken: list[Any] = []

    def note(row: Any) -> str:
        broken.append(row)
        return "skip"

    header, delimiter = _header(text)
    if b"\n" not in text.strip(b"\r\n"):
        table = pa.table({name: pa.array([], pa.string()) for name in names})
        return Decoded(table, np.zeros(0, dtype=np.int64), (), 0)
    table = pa_csv.read_csv(
        pa.BufferReader(text),
        # One thread: only then does a broken row know its number.
        read_options=pa_csv.ReadOptions(use_threads=False, block_size=min(len(text) + 1, BLOCK_BYTES)),
        parse_options=pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=note),
        convert_options=pa_csv.ConvertOptions(
            include_columns=names, column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True
        ),
    )
    # Arrow counts the header as row 1.
    bad = np.array([row.number - 2 for row in broken], dtype=np.int64)
    num_rows = table.num_rows + len(broken)
    problems: tuple[Problem, ...] = ()
    if broken:
        found = f"{broken[0].actual_columns} fields where the header has {len(header)}"
        problems = (_broken_rows(found, "as many fields as the header", bad),)
    return Decoded(table, np.setdiff1d(np.arange(num_rows), bad), problems, num_rows)


def _decode_json_lines(text: bytes, schema: pa.Schema, names: list[str]) -> Decoded:
    """Decode some fields of JSON lines; Arrow's fast reader first, a patient one where it gives up."""
    fields = [schema.field(name) for name in names]
    if not any(pa.types.is_nested(field.type) or pa.types.is_null(field.type) for field in fields):
        try:
            table = pa_json.read_json(
                pa.BufferReader(text),
                read_options=pa_json.ReadOptions(block_size=min(len(text) + 1, BLOCK_BYTES)),
                parse_options=pa_json.ParseOptions(
                    explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore"
                ),
            ).select(names)
        except (pa.ArrowException, KeyError):
            pass
        else:
            return Decoded(table, np.arange(table.num_rows), (), table.num_rows)
    lines = (line for line in text.split(b"\n") if line.strip())
    return _from_records(((row, _record(line)) for row, line in enumerate(lines)), names)


def _from_records(records: Iterator[tuple[int, Any]], names: list[str]) -> Decoded:
    """Columns from JSON objects, one by one; what is no object is listed."""
    values: dict[str, list[Any]] = {name: [] for name in names}
    rows, bad = [], []
    for row, record in records:
        if not isinstance(record, dict):
            bad.append(row)
            continue
        rows.append(row)
        for name in names:
            values[name].append(record.get(name))
    problems = (_broken_rows("not a JSON object", "one JSON object per line", np.array(bad)),) if bad else ()
    table = pa.table({name: _array_of(some) for name, some in values.items()})
    return Decoded(table, np.array(rows, dtype=np.int64), problems, len(rows) + len(bad))


def _array_of(values: list[Any]) -> pa.Array:
    """Numbers as numbers; a mixture as text, so that the odd ones can be named."""
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, ValueError):
        return pa.array([None if value is None else str(value) for value in values], pa.string())


def _record(line: bytes) -> Any:
    """Parse one line of JSON; None when it is broken or gives a key twice."""
    try:
        return json.loads(line, object_pairs_hook=_no_twins)
    except (ValueError, RecursionError):
        return None


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse an object that gives a key twice: nobody can say which value is meant."""
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError("a key occurs twice")
    return record


def _first_records(text: bytes) -> list[Any]:
    """Return the objects of the first lines; of a single document spread over lines, that document."""
    lines = re.split(rb"\r?\n", text.strip(), maxsplit=NUM_LINES_LOOKED_AT)
    records = [record for line in lines[:NUM_LINES_LOOKED_AT] if isinstance(record := _record(line), dict)]
    return records or [json.loads(text)]


def _array(text: bytes) -> list[Any]:
    """Return the items of a JSON array."""
    items = json.loads(text)
    if not isinstance(items, list):
        raise ValueError("not an array")
    return items


def _schema_of(records: list[Any]) -> pa.Schema:
    """Names and types of the fields of some JSON objects."""
    values: dict[str, list[Any]] = {}
    for record in records:
        if isinstance(record, dict):
            for name, value in record.items():
                values.setdefault(name, []).append(value)
    if not values:
        raise ValueError("no JSON objects with named fields")
    return pa.schema([(name, _array_of(some).type) for name, some in values.items()])


def _broken_rows(found: str, allowed: str, rows: npt.NDArray[np.int64]) -> Problem:
    """Rows that could not be split into columns."""
    first = tuple(int(row) for row in rows[:NUM_ROWS_NAMED])
    return Problem(None, found, allowed, MEND, first, len(rows))
