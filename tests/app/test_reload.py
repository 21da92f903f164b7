"""A tab that is loaded anew finds its work again, and nobody else does."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from streamlit.testing.v1 import AppTest

from app import compute, tab
from app.jobs import Opened, WhatIf
from app.kept import KEPT_S, MOST_KEPT, Kept, is_secret
from app.tab import Told

MAIN = Path(compute.__file__).parent / "main.py"
ROWS = b"arrival_s,prompt_tokens,output_tokens\n0,10,2\n1,20,3\n"
MINE, THEIRS = "0123456789abcdef" * 2, "fedcba9876543210" * 2


def loaded(monkeypatch: pytest.MonkeyPatch, secret: object, origin: object = None) -> AppTest:
    """The app in a tab that says this secret, and that its session begins with its own or with that of another."""
    monkeypatch.setattr(tab, "ask", lambda is_known: Told(secret, secret if origin is None else origin))
    test = AppTest.from_file(MAIN, default_timeout=60).run()
    assert not test.exception
    return test


def test_work_and_answers_come_back_to_the_tab_and_to_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    first = loaded(monkeypatch, MINE)
    first.file_uploader[0].set_value(("mine.csv", ROWS, "text/csv")).run()
    next(widget for widget in first.number_input if widget.label == "Rate, times").set_value(2.0).run()

    again = loaded(monkeypatch, MINE)
    assert {metric.label: metric.value for metric in again.metric}["Prompt tokens"] == "30"
    assert next(widget for widget in again.number_input if widget.label == "Rate, times").value == 2.0
    assert again.session_state["session"].traffic.selection.rate == 2.0
    again.file_uploader[0].set_value(("more.csv", ROWS + b"2,30,4\n", "text/csv")).run()
    monkeypatch.setattr(tab, "ask", lambda is_known: Told(MINE, MINE))
    assert first.run().session_state["session"].trace.file_name == "mine.csv", "a script that runs still is left alone"

    for secret in (THEIRS, None, "", "null", MINE.upper(), MINE[:-1], [MINE]):
        other = loaded(monkeypatch, secret)
        assert not other.metric
        assert other.session_state["session"].trace.value is None


def test_a_duplicated_tab_begins_with_the_same_and_shares_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    first = loaded(monkeypatch, MINE)
    first.file_uploader[0].set_value(("mine.csv", ROWS, "text/csv")).run()
    going, done = SimpleNamespace(is_going=True), SimpleNamespace(is_going=False)
    mine = first.session_state["session"]
    mine.job, mine.load_job, mine.asked = going, done, {WhatIf: going, Opened: done}
    second = loaded(monkeypatch, THEIRS, MINE)
    theirs = second.session_state["session"]
    assert theirs.trace.file_name == "mine.csv"
    assert (theirs.job, theirs.load_job, theirs.asked) == (None, done, {Opened: done})
    second.file_uploader[0].set_value(("theirs.csv", ROWS + b"2,30,4\n", "text/csv")).run()

    assert compute.kept().get(MINE).trace.file_name == "mine.csv"
    again = loaded(monkeypatch, THEIRS)
    assert again.session_state["session"].trace.file_name == "theirs.csv"
    assert (mine.job, mine.asked[WhatIf]) == (going, going)


def test_what_says_no_secret_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        test = loaded(monkeypatch, "")
        assert not test.metric
        test.file_uploader[0].set_value(("mine.csv", ROWS, "text/csv")).run()
    assert not is_secret("0" * 31 + "\n")


def test_what_is_large_makes_way_for_what_is_newer() -> None:
    kept = Kept[bytes](size_of=len, most_bytes=10)
    kept.put("a", b"1234")
    kept.put("b", b"1234")
    kept.put("c", b"1")
    assert kept.get("a") == b"1234"
    kept.put("d", b"12")
    assert [kept.get(key) for key in "abcd"] == [None, b"1234", b"1", b"12"]
    kept.put("e", b"larger than allowed")
    assert [kept.get(key) for key in "bcde"] == [None, None, None, b"larger than allowed"]


def test_only_some_are_kept_and_not_for_ever() -> None:
    now = [0.0]
    kept = Kept[int](lambda: now[0])
    for k in range(MOST_KEPT + 1):
        kept.put(f"{k}", k)
    assert kept.get("0") is None
    assert kept.get("1") == 1
    now[0] = KEPT_S / 2
    kept.put("1", 1)
    now[0] = KEPT_S + 1.0
    assert kept.get("2") is None
    assert kept.get("1") == 1
