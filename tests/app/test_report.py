"""The report: one page with everything, that asks nobody for anything."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from shared import files

from app import command, frames
from app.figures import theme
from app.figures.distributions import Latencies
from app.figures.labels import TERMS
from app.report import calibration_report, plan_report
from planner.align import align_whole, alignment_sentence
from planner.calibrate import fit_step_time
from planner.engine_config import flags_from_facts
from planner.measured import compare, served, trust_sentence
from planner.metrics import distribution, itl, ttft_s
from planner.plan_file import SavedPlan, save_plan, write_plan
from planner.replay import replay
from planner.search import Recommendation
from planner.step_time import StepTimeFit
from traces.measured import read_measured
from traces.read import read_steps, read_trace
from traces.requests import RequestTrace


@pytest.fixture(scope="module")
def saved(plan: Recommendation, trace: RequestTrace, fit: StepTimeFit) -> SavedPlan:
    return save_plan(plan, trace, fit)


def words_of(page: str) -> str:
    """The text of a page, without the script that draws."""
    body = page[page.index("<body>") :]
    return re.sub(r"\s+", " ", re.sub(r"<script.*?</script>|<[^>]+>", " ", body, flags=re.DOTALL))


def test_it_says_everything_the_answer_stands_on(saved: SavedPlan) -> None:
    text = words_of(plan_report(saved))
    for part in (
        *(saved.words.sentence.split(";")[0], saved.trace.digest, saved.model.source, "vllm bench serve"),
        *(
            "Per prefill token (p)",
            "num_gpu_blocks",
            "KV connectors",
            "vLLM 0.32 V1 scheduler",
            "no part of a plan file",
        ),
    ):
        assert part in text, part
    assert saved.trace.receipt is not None
    assert saved.trace.receipt.time_unit_reason.split(".")[0] in text
    assert ":blue[" not in text
    for candidate, _ in saved.recommendation.losers:
        assert f"{candidate.engine_config.max_num_batched_tokens}" in text
    assert "later_tokens" not in text


def test_names_of_files_are_text_not_markup(saved: SavedPlan) -> None:
    odd = replace(saved, trace=replace(saved.trace, name="<img src=x onerror=alert(1)>.csv"))
    assert "<img src=x" not in plan_report(odd)


def test_a_plan_without_an_answer_has_a_report(
    missed_plan: Recommendation, trace: RequestTrace, fit: StepTimeFit
) -> None:
    text = words_of(plan_report(save_plan(missed_plan, trace, fit)))
    assert "there is no command to give" in text
    assert "Missed by every setting" in text


def test_the_command_line_draws_it_too(saved: SavedPlan, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.json").write_text(write_plan(saved), encoding="utf-8")
    out = tmp_path / "report.html"
    assert command.main(["export", str(tmp_path / "plan.json"), "--as", "html", "-o", str(out)]) == 0
    assert out.read_text(encoding="utf-8") == plan_report(saved)
    assert capsys.readouterr().out == ""


def test_a_calibration_has_every_number_of_its_page(fit: StepTimeFit) -> None:
    text = words_of(calibration_report(fit))
    for label, value, _ in frames.fit_numbers(fit):
        assert label in text
        assert value in text
    for term in fit.coefficients:
        assert TERMS[term.name].label in text
    assert fit.digest in text
    assert "vLLM 0.32" in text


@pytest.mark.measured
@pytest.mark.parametrize("log", files("measured/sync_b256/server.log.gz"))
def test_a_calibration_says_what_was_explained_and_measured(log: Path) -> None:
    steps = read_steps(log, log.name)
    trace = read_trace(log.with_name("requests.parquet"), "requests.parquet")
    config = flags_from_facts(steps.facts)
    alignment = align_whole(steps, trace, config)
    fit = fit_step_time(steps, alignment=alignment)
    compared = compare(served(trace, config, fit), read_measured(log.with_name("requests.parquet")))
    text = words_of(calibration_report(fit, alignment, compared))
    assert alignment_sentence(alignment, len(fit.log)) in text
    assert trust_sentence(compared) in text
    assert "TTFT, queueing included" in text


@pytest.mark.browser
def test_a_browser_draws_it_without_a_single_request(
    browser: Browser, saved: SavedPlan, trace: RequestTrace, fit: StepTimeFit, tmp_path: Path
) -> None:
    run = replay(trace, saved.recommendation.closest.engine_config, fit.step_time)
    settings = (Latencies("Recommended", theme.RECOMMENDED, itl(run), distribution(ttft_s(run))),)
    drawn = {
        plan_report(saved, settings): ("tradeoff", "gap_tail", "ttft_tail"),
        calibration_report(fit): ("measured", "prefill", "decode", "residuals_TIME"),
    }
    path = tmp_path / "report.html"
    asked: list[str] = []
    faults: list[str] = []
    page = browser.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda fault: faults.append(str(fault)))
    for report, names in drawn.items():
        path.write_text(report, encoding="utf-8")
        page.goto(path.as_uri())
        for name in names:
            page.locator(f"#{name} .scatterlayer .trace").first.wait_for(state="attached")
    page.close()
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert faults == []
