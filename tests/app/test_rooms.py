"""Who may touch what: memory has three owners, and figures and tables know nothing of the screen."""

import ast
from pathlib import Path

import pytest

from app import compute, look
from planner.replay import OUTCOMES

APP = Path(compute.__file__).parent
FILES = sorted(APP.rglob("*.py"))


def names_of(path: Path) -> set[str]:
    """Every name and attribute in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return names | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def imports_of(path: Path) -> set[str]:
    """First part of every imported module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    plain = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return {name.split(".")[0] for name in plain} | {
        (node.module or "").split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
    }


def test_only_state_remembers() -> None:
    assert [path.name for path in FILES if "session_state" in names_of(path)] == ["state.py"]


def test_only_compute_caches() -> None:
    caching = [path.name for path in FILES if {"cache_data", "cache_resource"} & names_of(path)]
    assert caching == ["compute.py"]


@pytest.mark.parametrize("path", [*APP.glob("figures/*.py"), APP / "frames.py"], ids=lambda path: path.stem)
def test_figures_and_tables_know_nothing_of_the_screen(path: Path) -> None:
    assert "streamlit" not in imports_of(path)


def test_nothing_imports_a_page() -> None:
    for path in FILES:
        assert "app.views" not in path.read_text(encoding="utf-8"), path


def test_every_way_a_replay_can_end_has_words() -> None:
    # Only the search stops a replay at a missed target; a look inside goes to the end.
    assert {"done", "stopped", *look.ENDED_EARLY} == set(OUTCOMES.values())
