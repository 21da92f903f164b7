"""Files on the server: only those of the named folder, and none without a name."""

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from app import compute
from app.shelf import FOLDER_VARIABLE, shelf

ROWS = b"arrival_s,prompt_tokens,output_tokens\n0.0,10,2\n1.5,20,3\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two traces, a hidden file and a link that leads out of it."""
    inside = tmp_path / "traces"
    (inside / "may").mkdir(parents=True)
    (inside / "a.csv").write_bytes(ROWS)
    (inside / "may" / "b.csv").write_bytes(ROWS)
    (inside / ".secret.csv").write_bytes(ROWS)
    (tmp_path / "outside.csv").write_bytes(ROWS)
    (inside / "link.csv").symlink_to(tmp_path / "outside.csv")
    monkeypatch.setenv(FOLDER_VARIABLE, str(inside))
    return inside


def test_without_a_folder_there_is_no_shelf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    assert shelf() is None


def test_only_files_inside_are_listed_and_opened(folder: Path) -> None:
    found = shelf()
    assert found is not None
    assert found.names() == ("a.csv", "may/b.csv")
    assert found.open("may/b.csv") == folder / "may" / "b.csv"
    for name in ("../outside.csv", "link.csv", ".secret.csv", "/etc/passwd", "none.csv"):
        with pytest.raises(FileNotFoundError):
            found.open(name)


def test_the_trace_page_offers_it(folder: Path) -> None:
    test = AppTest.from_file(Path(compute.__file__).parent / "main.py", default_timeout=60).run()
    box = next(box for box in test.selectbox if box.label == "Or a file on the server")
    assert box.options == ["a.csv", "may/b.csv"]
    box.set_value("may/b.csv").run()
    assert not test.exception
    assert {metric.label: metric.value for metric in test.metric}["Prompt tokens"] == "30"
