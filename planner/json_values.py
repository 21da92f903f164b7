"""Our frozen types as JSON and back, exactly: every float returns as it was, every fault of a file is listed."""

import math
import types
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from typing import Any, Union, get_args, get_origin, get_type_hints

INFINITY = "Infinity"
"""JSON has no infinities; NaN is null."""


def to_json(value: Any) -> Any:
    """A value of our types as JSON knows it: objects, lists, text, numbers, true and false, null."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: to_json(item) for name, item in value._asdict().items()}
    if isinstance(value, dict):
        return {name: to_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else INFINITY if value > 0 else f"-{INFINITY}"
    return value


def from_json(kind: Any, value: Any, where: str, faults: list[str]) -> Any:
    """Take a value of one of our types out of JSON; what is wrong goes into `faults`, and None comes back.

    Parameters
    ----------
    kind : type
        A frozen dataclass, a NamedTuple, an enum, a tuple of one kind or of several, str, bool, int, float, or a union
        of one of them with None.
    value : object
        What `json.loads` gave.
    where : str
        Place in the file, for the faults.
    faults : list of str
        Grows; names the place, what was found and what is allowed.
    """
    if get_origin(kind) in (Union, types.UnionType):
        if value is None:
            return None
        (kind,) = (one for one in get_args(kind) if one is not types.NoneType)
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        return _record(kind, value, where, faults)
    if get_origin(kind) is tuple:
        return _items(get_args(kind), value, where, faults)
    return _scalar(kind, value, where, faults)


def _record(kind: Any, value: Any, where: str, faults: list[str]) -> Any:
    """Take a dataclass or a NamedTuple; a field with a default may be absent, an unknown one may not be there."""
    if not isinstance(value, dict):
        faults.append(f"{where}: found {_short(value)}; allowed: an object")
        return None
    before = len(faults)
    hints = get_type_hints(kind)
    if is_dataclass(kind):
        with_default = {f.name for f in fields(kind) if f.default is not MISSING or f.default_factory is not MISSING}
    else:
        with_default = set(kind._field_defaults)
    faults.extend(f"{where}: unknown {name!r}; allowed: {', '.join(hints)}" for name in value if name not in hints)
    faults.extend(f"{where}: {n!r} is missing" for n in hints if n not in value and n not in with_default)
    taken = {n: from_json(hints[n], item, f"{where}.{n}", faults) for n, item in value.items() if n in hints}
    if len(faults) > before:
        return None
    try:
        return kind(**taken)
    except ValueError as fault:
        faults.append(f"{where}: {fault}")
        return None


def _items(kinds: tuple[Any, ...], value: Any, where: str, faults: list[str]) -> Any:
    """Take a tuple, of any length where its kind ends in an ellipsis."""
    if not isinstance(value, list):
        faults.append(f"{where}: found {_short(value)}; allowed: a list")
        return None
    if kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(value)
    if len(kinds) != len(value):
        faults.append(f"{where}: found {len(value)} items; allowed: {len(kinds)}")
        return None
    pairs = enumerate(zip(kinds, value, strict=True))
    return tuple(from_json(one, item, f"{where}[{i}]", faults) for i, (one, item) in pairs)


def _scalar(kind: Any, value: Any, where: str, faults: list[str]) -> Any:
    """Take text, a number, a switch or one of a few words."""
    if kind is float and (value is None or value in (INFINITY, f"-{INFINITY}")):
        return math.nan if value is None else float(value)
    if issubclass(kind, StrEnum):
        if value in list(kind):
            return kind(value)
        faults.append(f"{where}: found {_short(value)}; allowed: {', '.join(kind)}")
        return None
    allowed = (int, float) if kind is float else kind
    if isinstance(value, allowed) and (kind is bool or not isinstance(value, bool)):
        return value
    words = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}[kind]
    faults.append(f"{where}: found {_short(value)}; allowed: {words}")
    return None


def _short(value: Any) -> str:
    """A value as it is shown in a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
