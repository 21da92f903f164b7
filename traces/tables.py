"""Bytes to columns: which form a file has, and its columns as Arrow arrays. Nothing is judged here.

The form is decided by content, never by the file's name. Only the columns that are asked for are decoded.
"""

import csv
import hashlib
import io
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq

from traces.checks import MEND, NUM_ROWS_NAMED, is_text
from traces.errors import Problem, UnreadableFile
from traces.nested import RowPath, has_marks, load, rows_of, with_containers

Source = bytes | memoryview | str | os.PathLike[str]
"""An uploaded file's bytes, or the path of a file."""

MAX_DECODED_BYTES = 1 << 30
"""Most bytes that a file may have once decompressed (of Parquet: the columns used), a guard against bombs."""

MAX_ROWS = 20_000_000
"""Most rows of a table."""

MAX_PARSED_BYTES = 3 << 30
"""Most memory that one JSON document may need once parsed."""

MAX_ROW_GROUPS = 100_000
"""Most row groups of Parquet: each costs memory before a single row is read."""

ACCEPTED = "Parquet, CSV or JSON, each also gzip- or zstd-compressed, or a vLLM server log"

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

NUM_ROWS_LOOKED_AT = 100
"""Rows of JSON whose keys make up the columns."""

NUM_ROWS_AT_ONCE = 10_000
"""Rows of JSON that are Python objects at one time."""

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
    documents: tuple[Any, ...] | None = None
    """What JSON that is no JSON lines holds, parsed."""
    row_path: RowPath | None = None
    """Where the requests stand in each JSON document; None = each is one."""


JSON_START = re.compile(rb"\s*(\{|\[\s*([\[{\]]|-?[\d.]+\s*[,\]]))")
"""An object, or an array of rows or numbers; a log's lines may begin with a bracket as well."""


def open_file(file: Source, file_name: str, row_paths: Sequence[RowPath] = ()) -> OpenedFile:
    """Decompress a file and find out its form.

    Parameters
    ----------
    file : bytes, memoryview or path
        The file.
    file_name : str
        As the user named it; for messages only.
    row_paths : sequence of RowPath
        The documents of other tools that are looked into.

    Returns
    -------
    OpenedFile

    Raises
    ------
    UnreadableFile
        Empty, cut off, too large, or of a form that is not read.
    """
    try:
        given = _bytes_of(file)
    except OSError as fault:
        raise UnreadableFile(
            file_name, f"cannot be opened: {os.strerror(fault.errno) if fault.errno else fault}."
        ) from fault
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
    opened = OpenedFile("CSV" + wrapping, digest, text, pa.py_buffer(text))
    if JSON_START.match(text) is None:
        return opened
    with readable(file_name, "JSON"):
        form, documents = _json_form(text, file_name)
        opened = replace(opened, form=form + wrapping, documents=documents)
        first = next((one for one in islice(_documents(opened, file_name), NUM_ROWS_LOOKED_AT) if one), None)
    row_path = next((path for path in row_paths if has_marks(first, path)), None)
    return opened if row_path is None else replace(opened, form="JSON" + wrapping, row_path=row_path)


def columns_of(opened: OpenedFile, file_name: str) -> pa.Schema:
    """Return names and types of the file's columns; of CSV, every type is text; of JSON, what its first rows have."""
    with readable(file_name, opened.form):
        if opened.text is None:
            return pq.read_schema(pa.BufferReader(opened.buffer))
        if opened.form.startswith("CSV"):
            return pa.schema([(name, pa.string()) for name in _header(opened.text)[0]])
        return _schema_of(islice(_rows(opened, file_name), NUM_ROWS_LOOKED_AT))


def decode(opened: OpenedFile, schema: pa.Schema, names: Sequence[str], file_name: str) -> Decoded:
    """Decode the columns `names` and no others; text stays text.

    Parameters
    ----------
    opened : OpenedFile
        From `open_file`.
    schema : pa.Schema
        From `columns_of`.
    names : sequence of str
        Columns, each at most once in `schema`. Of those that are not there, JSON gives what later rows may have;
        Parquet and CSV leave them out.
    file_name : str
        For messages.

    Returns
    -------
    Decoded
    """
    names = list(dict.fromkeys(names))
    with readable(file_name, opened.form):
        if opened.text is None:
            decoded = _decode_parquet(opened.buffer, [name for name in names if name in schema.names], file_name)
        elif opened.form.startswith("CSV"):
            decoded = _decode_csv(opened.text, [name for name in names if name in schema.names])
        else:
            decoded = _flat_json_lines(opened, schema, names) or _from_rows(
                _rows(opened, file_name, with_containers(names)), names, file_name
            )
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
        f"more than {MAX_DECODED_BYTES >> 20:,} MiB once decompressed, {MAX_ROWS:,} rows or {MAX_ROW_GROUPS:,} row "
        "groups, which is the limit. Keep only the columns with arrival, prompt tokens and output tokens, as Parquet, "
        "or cut a time window.",
    )


def _decode_parquet(buffer: pa.Buffer, names: list[str], file_name: str) -> Decoded:
    """Decode some columns of Parquet, batch by batch, so that the limits hold whatever the metadata say."""
    with pa.BufferReader(buffer) as reader:
        metadata = pq.read_metadata(reader)
    if metadata.num_row_groups > MAX_ROW_GROUPS or metadata.num_rows > MAX_ROWS or _unpacked(metadata, names):
        raise _too_large(file_name)
    # Texts come as dictionaries: a file of a few bytes may repeat one long text in every row.
    texts = [field.name for field in pq.read_schema(pa.BufferReader(buffer)) if is_text(field.type)]
    file = pq.ParquetFile(pa.BufferReader(buffer), metadata=metadata, read_dictionary=[n for n in texts if n in names])
    batches, num_rows, size = [], 0, 0
    for batch in file.iter_batches(batch_size=65_536, columns=names):
        num_rows, size = num_rows + batch.num_rows, size + sum(map(_num_bytes, batch.columns))
        if size > MAX_DECODED_BYTES or num_rows > MAX_ROWS:
            raise _too_large(file_name)
        batches.append(batch)
    schema = pa.schema([file.schema_arrow.field(name) for name in names])
    table = pa.Table.from_batches([batch.select(names) for batch in batches], None if batches else schema)
    table.validate(full=True)
    return Decoded(table, np.arange(num_rows), (), num_rows)


def _unpacked(metadata: pq.FileMetaData, names: list[str]) -> bool:
    """Whether the columns used hold more than the limit by what the file says itself, before anything is unpacked."""
    size = 0
    for group in range(metadata.num_row_groups):
        for place in range(metadata.num_columns):
            column = metadata.row_group(group).column(place)
            if column.path_in_schema.split(".list.")[0] in names:
                # Run lengths make many values of few bytes.
                size += max(column.total_uncompressed_size, 8 * column.num_values)
    return size > MAX_DECODED_BYTES


def _num_bytes(column: pa.Array) -> int:
    """Size of a column, of a dictionary once every row has its text."""
    if not pa.types.is_dictionary(column.type) or not is_text(column.type.value_type):
        return int(column.nbytes)
    lengths = pc.binary_length(column.dictionary).take(column.indices)
    return int(pc.sum(lengths.cast(pa.int64())).as_py() or 0)


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


def _json_form(text: bytes, file_name: str) -> tuple[str, tuple[Any, ...] | None]:
    """Tell JSON lines, read line by line, from an array and from one document, parsed at once."""
    if text.lstrip()[:1] == b"[":
        items = _parsed(text, file_name)
        return "a JSON array", tuple(items)
    line = io.BytesIO(text.lstrip()).readline()
    record = _record(line, file_name)
    if isinstance(record, dict):
        return ("JSON lines", None) if len(line.strip()) < len(text.strip()) else ("a JSON document", (record,))
    try:
        return "a JSON document", (_parsed(text, file_name),)
    except (ValueError, RecursionError):
        return "JSON lines", None


def _documents(opened: OpenedFile, file_name: str) -> Iterator[Any]:
    """Give every JSON document of the file; None for a broken line."""
    if opened.documents is not None:
        yield from opened.documents
        return
    assert opened.text is not None
    # Line by line: a list of all lines would be as large as the file again.
    for line in io.BytesIO(opened.text):
        if line.strip():
            yield _record(line, file_name)


def _rows(opened: OpenedFile, file_name: str, names: frozenset[str] | None = None) -> Iterator[dict[str, Any] | None]:
    """Give every row of a JSON file, flat; None for what is no row."""
    for number, document in enumerate(_documents(opened, file_name)):
        yield from rows_of(document, opened.row_path, number, names)


def _flat_json_lines(opened: OpenedFile, schema: pa.Schema, names: list[str]) -> Decoded | None:
    """Decode some fields of flat JSON lines by Arrow's fast reader; None where that is not possible."""
    containers = tuple(f"{field.name}." for field in schema if pa.types.is_struct(field.type))
    is_nested = any(name.startswith(containers) or name.endswith(")") for name in names)
    if opened.documents is not None or opened.row_path is not None or is_nested:
        return None
    fields = [schema.field(name) if name in schema.names else pa.field(name, pa.string()) for name in names]
    if any(pa.types.is_null(field.type) or pa.types.is_nested(field.type) for field in fields):
        return None
    assert opened.text is not None
    try:
        table = pa_json.read_json(
            pa.BufferReader(opened.text),
            read_options=pa_json.ReadOptions(block_size=min(len(opened.text) + 1, BLOCK_BYTES)),
            parse_options=pa_json.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore"),
        ).select(names)
    except (pa.ArrowException, KeyError):
        return None
    return Decoded(table, np.arange(table.num_rows), (), table.num_rows)


def _from_rows(found: Iterator[dict[str, Any] | None], names: list[str], file_name: str) -> Decoded:
    """Columns from flat rows, some thousands at a time; what is no row is listed."""
    pieces: dict[str, list[pa.Array]] = {name: [] for name in names}
    rows: list[int] = []
    bad: list[int] = []
    num_rows = 0
    while some := list(islice(found, NUM_ROWS_AT_ONCE)):
        bad += [num_rows + place for place, record in enumerate(some) if record is None]
        rows += [num_rows + place for place, record in enumerate(some) if record is not None]
        for name in names:
            pieces[name].append(_array_of([record.get(name) for record in some if record is not None]))
        num_rows += len(some)
        if num_rows > MAX_ROWS:
            raise _too_large(file_name)
    problems = (_broken_rows("no request as this layout has them", "JSON objects", np.array(bad)),) if bad else ()
    table = pa.table({name: _joined(arrays) for name, arrays in pieces.items()})
    return Decoded(table, np.array(rows, dtype=np.int64), problems, num_rows)


def _array_of(values: list[Any]) -> pa.Array:
    """Numbers as numbers; a mixture as text, so that the odd ones can be named; objects only as being there."""
    values = ["{…}" if _holds_objects(value) else value for value in values]
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, ValueError):
        if all(value is None or isinstance(value, list) for value in values):
            return pa.array([None if value is None else list(map(_text, value)) for value in values])
        return _text_of(values)


def _joined(arrays: list[pa.Array]) -> pa.ChunkedArray:
    """One column from its pieces, whose types may differ."""
    try:
        tables = [pa.table({"": array}) for array in arrays] or [pa.table({"": pa.nulls(0)})]
        return pa.concat_tables(tables, promote_options="permissive").column(0)
    except pa.ArrowException:
        return pa.chunked_array([_text_of(array.to_pylist()) for array in arrays], pa.string())


def _text_of(values: list[Any]) -> pa.Array:
    """Write any values as text."""
    return pa.array([None if value is None else _text(value) for value in values], pa.string())


def _text(value: Any) -> str:
    """Write a value as text; halves of characters, which JSON can hold, become question marks."""
    return str(value).encode(errors="replace").decode()


def _holds_objects(value: Any) -> bool:
    """Whether a value is an object, or a list of such or of lists."""
    if isinstance(value, list):
        value = next((item for item in value if item is not None), None)
        return isinstance(value, dict | list)
    return isinstance(value, dict)


def _record(line: bytes, file_name: str) -> Any:
    """Parse one line of JSON; None when it is broken or gives a key twice."""
    try:
        return _parsed(line, file_name)
    except (ValueError, RecursionError):
        return None


def _parsed(text: bytes, file_name: str) -> Any:
    """Parse a JSON document, if it fits the memory meant for it."""
    # Upper bounds in CPython: four bytes a character, an object or list, a number with its place in a list.
    size = 4 * len(text) + 150 * (text.count(b"{") + text.count(b"[")) + 32 * text.count(b",")
    if size > MAX_PARSED_BYTES:
        raise UnreadableFile(
            file_name,
            f"a JSON document of {len(text) >> 20:,} MiB would take about {size >> 20:,} MiB once parsed, more than "
            f"the limit of {MAX_PARSED_BYTES >> 20:,} MiB. Leave prompts and outputs out of the export, or give the "
            "requests as Parquet.",
        )
    return load(text)


def _schema_of(rows: Iterator[dict[str, Any] | None]) -> pa.Schema:
    """Names and types of the fields of some rows."""
    values: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in (row or {}).items():
            values.setdefault(name, []).append(value)
    if not values:
        raise ValueError("no JSON objects with named fields")
    return pa.schema([(name, _type_of(some)) for name, some in values.items()])


def _type_of(values: list[Any]) -> pa.DataType:
    """Type of a column; of objects, only that they are some."""
    return pa.struct([]) if any(map(_holds_objects, values)) else _array_of(values).type


def _broken_rows(found: str, allowed: str, rows: npt.NDArray[np.int64]) -> Problem:
    """Rows that could not be split into columns."""
    first = tuple(int(row) for row in rows[:NUM_ROWS_NAMED])
    return Problem(None, found, allowed, MEND, first, len(rows))
