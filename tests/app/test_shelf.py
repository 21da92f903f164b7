"""Files on the server: only those of the named folder, and none without a name."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

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


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A bucket on this machine that speaks as much S3 as reading takes."""
    files = {"traces/a.csv": ROWS, "traces/may/b.csv": ROWS, "traces/.secret.csv": ROWS, "other/c.csv": ROWS}

    class Bucket(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            if "list-type" in query:
                found = [name for name in files if name.startswith(query.get("prefix", ""))]
                items = "".join(f"<Contents><Key>{n}</Key><Size>{len(files[n])}</Size></Contents>" for n in found)
                self.answer(
                    200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{items}</ListBucketResult>".encode()
                )
                return
            body = files.get(url.path.removeprefix("/bucket/"))
            if body is None:
                self.answer(404, b"")
            elif (wanted := self.headers.get("Range")) is not None and self.command == "GET":
                first, last = wanted.removeprefix("bytes=").split("-")
                self.answer(206, body[int(first) : int(last) + 1])
            else:
                self.answer(200, body)

        def do_HEAD(self) -> None:
            self.do_GET()

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Bucket) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        where = f"endpoint_override=127.0.0.1:{server.server_port}&scheme=http&region=here"
        monkeypatch.setenv(FOLDER_VARIABLE, f"s3://key:word@bucket/traces?{where}")
        yield
        server.shutdown()


def test_a_bucket_is_listed_and_read(bucket: None) -> None:
    found = shelf()
    assert found is not None
    assert found.names() == ("a.csv", "may/b.csv")
    assert found.open("may/b.csv") == ROWS
    for name in ("../other/c.csv", ".secret.csv", "none.csv"):
        with pytest.raises(FileNotFoundError):
            found.open(name)


def test_the_trace_page_offers_it(folder: Path) -> None:
    test = AppTest.from_file(Path(compute.__file__).parent / "main.py", default_timeout=60).run()
    box = next(box for box in test.selectbox if box.label == "Or a file on the server")
    assert box.options == ["a.csv", "may/b.csv"]
    box.set_value("may/b.csv").run()
    assert not test.exception
    assert {metric.label: metric.value for metric in test.metric}["Prompt tokens"] == "30"
