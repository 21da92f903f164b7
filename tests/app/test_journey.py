"""One operator, one browser: from a trace and a server log to a command in a file."""

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from app import compute
from traces.workload import CHAT_WITH_LONG_PROMPTS, make_trace
from traces.write import to_parquet

MAIN = Path(compute.__file__).parent / "main.py"
PLAN_MS = 120_000
"""A plan of the example takes seconds; the compiler may have to run first."""

pytestmark = pytest.mark.browser
expect.set_options(timeout=30_000)  # Playwright's five seconds are short on a busy machine


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The app, served on a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    where = ("--server.address", "127.0.0.1", "--server.port", str(port))
    server = subprocess.Popen(
        [sys.executable, "-m", "streamlit", "run", str(MAIN), "--server.headless", "true", *where],
        cwd=MAIN.parents[1],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}/_stcore/health")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=20)


def wait_until_healthy(url: str) -> None:
    """Return when the server answers."""
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except (urllib.error.URLError, OSError):
            assert time.monotonic() < deadline, "the app did not start"
            time.sleep(0.1)


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """A page of a session of its own that may ask nobody but the app's own server."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, accept_downloads=True)
    page = context.new_page()
    servers: set[str] = set()
    page.on("request", lambda request: servers.add(urlsplit(request.url).netloc))
    page.on("websocket", lambda socket: servers.add(urlsplit(socket.url).netloc))
    yield page
    context.close()
    assert servers - {""} == {urlsplit(address).netloc}


def go(page: Page, name: str) -> None:
    """Follow the link in the bar at the top."""
    page.get_by_role("link", name=name, exact=True).first.click()


def give(page: Page, label: str, file: Path) -> None:
    """Hand a file to the uploader of that label."""
    page.get_by_test_id("stFileUploader").filter(has_text=label).locator("input[type=file]").set_input_files(file)


def test_from_trace_and_log_to_the_command(page: Page, address: str) -> None:
    page.goto(address)
    give(page, "Request trace", compute.SAMPLES / compute.EXAMPLE_TRACE)
    expect(page.get_by_text("What was understood")).to_be_visible()
    expect(page.get_by_text("1,514 read, 1,514 used, 0 left out")).to_be_visible()

    go(page, "Calibration")
    give(page, "Step log", compute.SAMPLES / compute.EXAMPLE_LOG)
    expect(page.get_by_text("Per prefill token (p)")).to_be_visible()
    expect(page.get_by_text("59.9 to 60.3")).to_be_visible()

    go(page, "Plan")
    seats = page.get_by_label("max_num_seqs", exact=True)
    seats.fill("200")
    seats.press("Enter")
    expect(page.locator(".st-key-strip").get_by_text("200 seqs")).to_be_visible()
    target = page.get_by_label("Token gap (ITL) target, ms", exact=True)
    target.fill("80.5")
    target.press("Enter")
    page.get_by_role("button", name="Plan", exact=True).click()
    verdict = page.get_by_text("Met: p99 token gap")
    expect(verdict).to_be_visible(timeout=PLAN_MS)
    expect(verdict).to_contain_text("against 80.5 ms")
    expect(verdict).to_contain_text("today's flags miss it")
    advised = page.get_by_test_id("stCode").first.inner_text()

    page.reload()
    expect(verdict).to_be_visible()
    expect(target).to_have_value("80.5")
    go(page, "Export")
    page.get_by_label("Model to write into the command", exact=True).fill("org/model-7b")
    page.get_by_label("Model to write into the command", exact=True).press("Enter")
    expect(page.get_by_text("vllm serve org/model-7b").first).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download vllm_serve.sh").click()
    text = Path(download.value.path()).read_text(encoding="utf-8")
    comments = [line for line in text.splitlines() if line.startswith("#")]
    command = " ".join(text.replace("\\\n", " ").split("\nvllm serve ")[1].split())
    assert command.startswith("org/model-7b --max-num-batched-tokens ")
    for flag in advised.replace("\\\n", " ").split("--")[1:]:
        assert f"--{' '.join(flag.split())}" in command
    assert any("chat_long_prompts.parquet (digest " in line for line in comments)
    assert any("at most 80.5 ms" in line for line in comments)
    assert any("vLLM 0.32" in line for line in comments)


def test_a_plan_can_be_stopped_and_run_again(page: Page, address: str, tmp_path: Path) -> None:
    """On a trace that is long enough for the click to come before the end."""
    long = tmp_path / "long.parquet"
    long.write_bytes(to_parquet(make_trace(replace(CHAT_WITH_LONG_PROMPTS, duration_s=80_000.0))))
    page.goto(f"{address}/plan")
    page.get_by_role("button", name="Run the example").click()
    expect(page.get_by_text("Met: p99 token gap")).to_be_visible(timeout=PLAN_MS)
    go(page, "Trace")
    give(page, "request trace", long)
    expect(page.get_by_text("long.parquet (").first).to_be_visible(timeout=PLAN_MS)
    go(page, "Plan")
    expect(page.get_by_text("These results belong to other inputs")).to_be_visible(timeout=PLAN_MS)
    for _ in range(2):
        page.get_by_role("button", name="Plan", exact=True).click()
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_text("Cancelled.")).to_be_visible(timeout=PLAN_MS)
        expect(page.get_by_text("Met: p99 token gap")).to_be_visible()


def test_the_worst_gap_is_explained_and_its_steps_go_into_a_file(page: Page, address: str) -> None:
    page.goto(f"{address}/plan")
    page.get_by_role("button", name="Run the example").click()
    expect(page.get_by_text("Met: p99 token gap")).to_be_visible(timeout=PLAN_MS)
    # The last line of the page: a click while it is still drawn may meet the run that replaces it.
    expect(page.get_by_text("settings tried in")).to_be_visible(timeout=PLAN_MS)
    page.get_by_role("button", name="Inspect: Today").click()
    sentence = page.get_by_text("had no token for")
    expect(sentence).to_contain_text("prefill tokens of request")
    expect(page.get_by_text("What did the engine do over time?")).to_be_visible()
    page.get_by_label("From, s", exact=True).fill("220")
    page.get_by_label("From, s", exact=True).press("Enter")
    page.get_by_label("Until, s", exact=True).fill("240")
    page.get_by_label("Until, s", exact=True).press("Enter")
    expect(page.get_by_text("The file holds the whole window, 220.000 s to 240.000 s")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download the trace as JSON").click()
    assert download.value.suggested_filename == "inspect_220s_to_240s.json"
    document = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))
    steps = [event for event in document["traceEvents"] if event["ph"] == "X" and event["pid"] == 1]
    assert 220.0 < (steps[0]["ts"] + steps[0]["dur"]) / 1e6 < 221.0
    assert 239.0 < steps[-1]["ts"] / 1e6 < 240.0
    assert max(step["dur"] for step in steps) > 400_000  # microseconds: the frozen stream of the screen is in the file
    assert document["otherData"]["source"].startswith("simulated")


def test_a_click_in_the_trade_off_leads_inside_that_setting(page: Page, address: str) -> None:
    page.goto(f"{address}/plan")
    page.get_by_role("button", name="Run the example").click()
    expect(page.get_by_text("Met: p99 token gap")).to_be_visible(timeout=PLAN_MS)
    point = page.locator(".st-key-tradeoff .scatterlayer .trace").nth(1).locator(".point").last
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.get_by_role("button", name="Inspect: budget").click()
    expect(page.get_by_role("radio", name="Picked")).to_be_checked()
    expect(page.get_by_text("had no token for")).to_be_visible()


def test_a_bad_file_is_explained_and_replaced(page: Page, address: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("arrival_ms,prompt_tokens,output_tokens\n0,10,2\n250,-20,3\n12500,30,4\n", encoding="utf-8")
    page.goto(address)
    give(page, "Request trace", bad)
    expect(page.get_by_text("bad.csv cannot be used as it is")).to_be_visible()
    page.get_by_role("button", name="Leave these rows out and read the rest").click()
    expect(page.get_by_text("3 read, 2 used, 1 left out")).to_be_visible()
    give(page, "Another request trace", compute.SAMPLES / compute.EXAMPLE_TRACE)
    expect(page.get_by_text("1,514 read, 1,514 used, 0 left out")).to_be_visible()


def test_a_plan_goes_out_as_a_file_and_comes_back_beside_another(page: Page, address: str) -> None:
    page.goto(f"{address}/plan")
    page.get_by_role("button", name="Run the example").click()
    expect(page.get_by_text("Met: p99 token gap")).to_be_visible(timeout=PLAN_MS)
    go(page, "Export")
    page.get_by_role("tab", name="Plan file").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download plan.json").click()
    plan_file = Path(download.value.path()).read_bytes()
    page.get_by_role("tab", name="Report").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download report.html").click()
    report = Path(download.value.path()).read_text(encoding="utf-8")
    assert "How long are token gaps?" in report
    assert json.loads(plan_file)["sentence"].split(";")[0] in report

    page = page.context.new_page()  # a new tab: only the file is left
    page.goto(f"{address}/export")
    expect(page.get_by_text("an export needs a plan, or a plan file")).to_be_visible()
    uploader = page.get_by_test_id("stFileUploader").locator("input[type=file]")
    uploader.set_input_files({"name": "monday.json", "mimeType": "application/json", "buffer": plan_file})
    expect(page.get_by_text("Read from the file monday.json")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("tab", name="Plan file").click()
        page.get_by_role("button", name="Download plan.json").click()
    assert Path(download.value.path()).read_bytes() == plan_file

    page.get_by_text("Open plan files, and compare them").click()
    uploader = page.get_by_test_id("stFileUploader").locator("input[type=file]")
    uploader.set_input_files({"name": "tuesday.json", "mimeType": "application/json", "buffer": plan_file})
    expect(page.get_by_text("Both plans stand on the same inputs.")).to_be_visible()


def test_a_duplicated_tab_has_a_session_of_its_own(page: Page, address: str) -> None:
    page.goto(address)
    rows = "arrival_s,prompt_tokens,output_tokens\n0,10,2\n1,20,3\n"
    uploader = page.get_by_test_id("stFileUploader").filter(has_text="Request trace").locator("input[type=file]")
    uploader.set_input_files({"name": "first.csv", "mimeType": "text/csv", "buffer": rows.encode()})
    expect(page.get_by_text("2 read, 2 used, 0 left out")).to_be_visible()
    secret = page.evaluate("sessionStorage.planner_tab")
    with page.expect_popup() as opened:
        page.evaluate("void window.open(location.href)")  # as duplicating does: with a copy of sessionStorage
    second = opened.value
    expect(second.get_by_text("2 read, 2 used, 0 left out")).to_be_visible()
    assert second.evaluate("sessionStorage.planner_tab") != secret
    give(second, "Another request trace", compute.SAMPLES / compute.EXAMPLE_TRACE)
    expect(second.get_by_text("1,514 read, 1,514 used, 0 left out")).to_be_visible()
    for tab, words in ((page, "2 read, 2 used"), (second, "1,514 read, 1,514 used")):
        before = tab.evaluate("sessionStorage.planner_tab")
        tab.reload()
        expect(tab.get_by_text(words)).to_be_visible()
        assert tab.evaluate("sessionStorage.planner_tab") == before
    assert page.evaluate("sessionStorage.planner_tab") == secret


def test_every_page_comes_from_its_own_server_alone(page: Page, address: str) -> None:
    page.goto(address)
    page.get_by_role("button", name="Run the example").click()
    expect(page.get_by_text("Met: p99 token gap")).to_be_visible(timeout=PLAN_MS)
    for name, words in (
        ("Trace", "Which part do you plan for?"),
        ("Calibration", "Does a replay give what was measured?"),
        ("Inspect", "Take it into a trace viewer"),
        ("Export", "Only the flags that change"),
        ("Method", "What is not simulated?"),
    ):
        go(page, name)
        expect(page.get_by_text(words).first).to_be_visible()
        page.wait_for_load_state("networkidle")
    # The fixture has noted whom all these pages asked.


def test_five_at_once_do_not_disturb_each_other(browser: Browser, address: str) -> None:
    contexts = [browser.new_context(viewport={"width": 1440, "height": 900}) for _ in range(5)]
    pages = [context.new_page() for context in contexts]
    for page in pages:
        page.goto(f"{address}/calibration")
        page.get_by_role("radio", name="By hand").click()
        page.get_by_role("button", name="Use these coefficients").click()
        expect(page.get_by_text("Plans use these coefficients.")).to_be_visible()
    arrivals = "arrival_ms,prompt_tokens,output_tokens\n"
    for k, page in enumerate(pages):
        rows = "".join(f"{40 * row},{500 + 100 * (row % 9)},20\n" for row in range(300 + k))
        go(page, "Trace")
        uploader = page.get_by_test_id("stFileUploader").locator("input[type=file]").first
        uploader.set_input_files({"name": f"own{k}.csv", "mimeType": "text/csv", "buffer": (arrivals + rows).encode()})
    for k, page in enumerate(pages):
        expect(page.get_by_text(f"{300 + k} read, {300 + k} used, 0 left out")).to_be_visible()
        go(page, "Plan")
        target = page.get_by_label("Token gap (ITL) target, ms", exact=True)
        target.fill(f"{61 + k}")
        target.press("Enter")
        expect(page.locator(".st-key-strip").get_by_text(f"{61 + k} ms")).to_be_visible()
        page.get_by_role("button", name="Plan", exact=True).click()
    for k, page in enumerate(pages):
        expect(page.get_by_text(f"against {61 + k} ms").first).to_be_visible(timeout=PLAN_MS)
        assert page.get_by_test_id("stException").count() == 0
        strip = page.locator(".st-key-strip").inner_text()
        assert f"own{k}.csv" in strip
        assert f"{300 + k} requests" in strip
        text = page.locator("body").inner_text()
        assert not any(f"own{other}.csv" in text for other in range(5) if other != k)
    for context in contexts:
        context.close()
