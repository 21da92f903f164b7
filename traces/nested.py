"""Nested JSON as flat rows: where the requests stand in a document, and its fields under the names of their paths.

A field is called by its path, as in `info.timings.request_start`; a container stands under its own path too, so that
it can be seen to be there. Two encodings are undone wherever they occur: OTLP's attributes (a list of `key` and
`value`, numbers as text) and AIPerf's quantities (`value` and `unit`, whose name then ends in the unit in brackets).
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

MAX_DEPTH = 8
"""Fields deeper than this are no columns."""

MAX_NAME_LENGTH = 200
"""Nor are those with a longer name: many fields under one long key would multiply its length."""


@dataclass(frozen=True, slots=True)
class RowPath:
    """Where the requests stand in the documents of one tool."""

    marks: tuple[str, ...]
    """Keys that every such document has at its top."""
    steps: tuple[str, ...] = ()
    """The way down: a key; "[]" for every item of a list; "{}" for every value of an object. A name inside the brackets
    makes a column of the item's place, or of the value's key. What is null or absent holds no requests."""
    lists: tuple[str, ...] = ()
    """Lists at the top with one item per request each; those that are there make up the rows."""
    texts: tuple[str, ...] = ()
    """Fields of a request that hold JSON as text."""


def load(text: str | bytes) -> Any:
    """Parse JSON.

    Raises
    ------
    ValueError
        No JSON, or an object that gives a key twice: nobody can say which value is meant.
    RecursionError
        Nested too deeply.
    """
    return json.loads(text, object_pairs_hook=_no_twins)


def has_marks(document: Any, path: RowPath) -> bool:
    """Whether this is such a document."""
    return isinstance(document, dict) and all(mark in document for mark in path.marks)


def rows_of(
    document: Any, path: RowPath | None, number: int, names: frozenset[str] | None = None
) -> Iterator[dict[str, Any] | None]:
    """Give the flat requests of one document.

    Parameters
    ----------
    document : object
        What a JSON parser returned.
    path : RowPath or None
        None = the document is one request.
    number : int
        Place of the document in its file, for the column `document`.
    names : frozenset of str, optional
        From `with_containers`: no other fields are looked at.

    Yields
    ------
    dict or None
        Column name to value; None stands for something that is not what the path says.
    """
    if path is None:
        yield flat(document, names)
    elif not has_marks(document, path):
        yield None
    elif path.lists:
        yield from _side_by_side(document, path.lists, number)
    else:
        for context, record in _walk(document, path.steps, {"document": number}):
            if isinstance(record, dict):
                record = {name: _parsed(value) if name in path.texts else value for name, value in record.items()}
            fields = flat(record, names)
            yield None if fields is None or context.keys() & fields.keys() else context | fields


def with_containers(names: Iterable[str]) -> frozenset[str]:
    """Add the names of everything that the fields of these names stand in."""
    return frozenset(name[:end] for name in names for end in (*(m.start() for m in re.finditer(r"[. ]", name)), None))


def flat(record: Any, names: frozenset[str] | None = None) -> dict[str, Any] | None:
    """Give every field, or those of `names`, under its path; None when two come under one, or this is no object."""
    fields: dict[str, Any] = {}
    return fields if isinstance(record, dict) and _add(record, "", 1, names, fields) else None


def _add(record: dict[str, Any], prefix: str, depth: int, names: frozenset[str] | None, fields: dict[str, Any]) -> bool:
    """Add the fields of an object; False when a name occurs twice."""
    for key, value in record.items():
        name = prefix + key
        if names is not None and name not in names:
            continue
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            value = _attributes(value)
        elif isinstance(value, dict) and value.keys() == {"value", "unit"}:
            name, value = f"{name} ({value['unit']})", value["value"]
        if name in fields:
            return False
        if len(name) > MAX_NAME_LENGTH:
            continue
        fields[name] = value
        if isinstance(value, dict) and depth < MAX_DEPTH and not _add(value, f"{name}.", depth + 1, names, fields):
            return False
    return True


def _attributes(items: list[dict[str, Any]]) -> Any:
    """Undo OTLP's form of a mapping; other lists, and those that name a key twice, stay as they are."""
    if any(item.keys() != {"key", "value"} or not isinstance(item["key"], str) for item in items):
        return items
    mapping = {item["key"]: _attribute(item["value"]) for item in items}
    return mapping if len(mapping) == len(items) else items


def _attribute(value: Any) -> Any:
    """Return what stands in one of OTLP's typed values; 64-bit integers are text there."""
    if not isinstance(value, dict) or len(value) != 1:
        return value
    ((kind, inner),) = value.items()
    if kind == "intValue" and isinstance(inner, str) and len(inner) <= 20 and inner.removeprefix("-").isdecimal():
        return int(inner)
    return inner


def _side_by_side(document: dict[str, Any], names: tuple[str, ...], number: int) -> Iterator[dict[str, Any] | None]:
    """Give row i from item i of each list; lists of different lengths are one fault."""
    lists = {name: document[name] for name in names if document.get(name) is not None}
    if not all(isinstance(items, list) for items in lists.values()) or len(set(map(len, lists.values()))) != 1:
        yield None
        return
    for items in zip(*lists.values(), strict=True):
        yield dict(zip(lists, items, strict=True), document=number)


def _walk(value: Any, steps: tuple[str, ...], context: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Any]]:
    """Follow the steps down; what does not have the stated form is given as it is found."""
    if not steps:
        yield context, value
        return
    step, rest = steps[0], steps[1:]
    name = step.strip("[]{}")
    if step.startswith("[") and isinstance(value, list):
        for place, item in enumerate(value):
            yield from _walk(item, rest, context | {name: place} if name else context)
    elif step.startswith("[") or not isinstance(value, dict):
        yield context, None
    elif step.startswith("{"):
        for key, item in value.items():
            if item is not None:
                yield from _walk(item, rest, context | {name: key})
    elif value.get(step) is not None:
        yield from _walk(value[step], rest, context)


def _parsed(text: Any) -> Any:
    """Return the object that stands in a text, or the text."""
    if not isinstance(text, str) or not text.startswith("{"):
        return text
    try:
        return load(text)
    except (ValueError, RecursionError):
        return text


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its fields, none of which may come twice."""
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError("a key occurs twice")
    return record
