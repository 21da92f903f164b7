"""What must be the same on every machine for results to be the same."""

import hashlib
import platform
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

import numba
import numpy as np

SOURCES = ("planner", "traces")
"""Packages that decide a result."""


@dataclass(frozen=True, slots=True)
class Versions:
    """What a process computes with."""

    python: str
    """Version of Python."""
    numba: str
    """Version of numba."""
    numpy: str
    """Version of NumPy."""
    planner: str
    """Digest of the planner's own sources: two checkouts of one version may differ."""


@cache
def versions() -> Versions:
    """What this process computes with."""
    state = hashlib.sha256()
    root = Path(__file__).parents[1]
    for path in sorted(path for name in SOURCES for path in (root / name).rglob("*.py")):
        state.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return Versions(platform.python_version(), numba.__version__, np.__version__, state.hexdigest()[:12])


def differences(here: Versions, there: Versions) -> str:
    """What differs, in words; "" when nothing does."""
    names = [field.name for field in fields(Versions) if getattr(here, field.name) != getattr(there, field.name)]
    return ", ".join(f"{name} {getattr(there, name)} there, {getattr(here, name)} here" for name in names)
