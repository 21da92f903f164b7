"""What was understood of an uploaded file, for the user to check."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dropped:
    """Rows that were left out, and why."""

    reason: str
    """In words, for people."""
    num_rows: int
    """How many."""
    rows: tuple[int, ...]
    """The first of them, counted from 0."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """How one file was read."""

    file_name: str
    """As the user named it."""
    file_digest: str
    """SHA-256 of the bytes, hexadecimal."""
    layout: str
    """The layout that was recognised, in words ("Azure LLM inference trace")."""
    num_rows: int
    """Data rows in the file."""
    num_kept: int
    """Rows that are used."""
    columns: tuple[tuple[str, str], ...]
    """(role, column name of the file) for every column used."""
    time_unit: str
    """Unit of the time column ("s", "ms", "us", "ns", "text datetime", "timestamp[ns]", …)."""
    time_unit_reason: str
    """Why that unit: from the column's name, its type, the size of the numbers, or the user's answer."""
    dropped: tuple[Dropped, ...] = ()
    """Rows left out, by reason."""
    notices: tuple[str, ...] = ()
    """What else the user must know although the file was accepted."""
