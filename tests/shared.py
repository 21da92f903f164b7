"""The one place that finds the shared material: real files and cases that are no part of the repository.

`SHARED_DIR` names the folder; without it, `shared` beside the repository is used. Where it is absent, the tests
that need it are skipped and say so.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SHARED_DIR = Path(os.environ.get("SHARED_DIR") or Path(__file__).resolve().parents[2] / "shared")


@dataclass(frozen=True)
class Case:
    """One file of `cases/` with its sidecar."""

    path: Path
    sidecar: dict[str, Any]


def shared_path(*parts: str) -> Path:
    """Return a path under the shared folder, or skip the calling test when it is absent."""
    path = SHARED_DIR.joinpath(*parts)
    if not path.exists():
        pytest.skip(_absent(path))
    return path


def cases(kind: str, stating: str | None = None) -> list[Any]:
    """Return parameters, one `Case` each, for every case of a kind ("trace" or "steplog") whose sidecar has a field."""
    found = []
    for sidecar_path in sorted(SHARED_DIR.glob("cases/**/*.json")):
        sidecar = json.loads(sidecar_path.read_text(encoding="utf-8"))
        path = sidecar_path.with_suffix("")
        if sidecar.get("kind") == kind and path.exists() and (stating is None or stating in sidecar):
            name = path.relative_to(SHARED_DIR / "cases").as_posix()
            found.append(pytest.param(Case(path, sidecar), id=name))
    return found or _skipped("cases")


def files(pattern: str) -> list[Any]:
    """Return parameters, one path each, for every shared file that matches a pattern ("data/traces/*")."""
    found = [
        pytest.param(path, id=path.relative_to(SHARED_DIR).as_posix())
        for path in sorted(SHARED_DIR.glob(pattern))
        if path.is_file()
    ]
    return found or _skipped(pattern)


def measured_runs() -> list[Any]:
    """Return parameters, one folder each, for every run of a real server: one comes with the repository."""
    roots = (Path(__file__).parent / "measured", SHARED_DIR / "measured")
    folders = {path.parent.name: path.parent for root in roots for path in root.glob("*/meta.json")}
    return [pytest.param(folders[name], id=name) for name in sorted(folders)]


def _skipped(what: str) -> list[Any]:
    return [pytest.param(None, id="absent", marks=pytest.mark.skip(reason=_absent(SHARED_DIR / what)))]


def _absent(path: Path) -> str:
    return f"{path} is absent: set SHARED_DIR to the folder with the shared material"
