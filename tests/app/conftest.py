"""One small road for all tests of the app: the example's first minute, its fit, and a plan over few settings."""

import shutil
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from playwright.sync_api import Browser, sync_playwright

from app import compute
from planner.calibrate import fit_step_time
from planner.engine_config import flags_from_facts
from planner.search import Recommendation, SearchSpace, recommend
from planner.slo import Slo
from planner.step_time import StepTimeFit
from traces.requests import RequestTrace
from traces.steps import StepLog

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = ["--no-sandbox", "--headless", "--disable-gpu", "--disable-background-networking"]
SPACE = SearchSpace((1024, 2048), (64, 256), (0, 512))


@pytest.fixture(scope="module", autouse=True)
def _main_stays() -> Iterator[None]:
    """A page under test takes the place of the program; processes that are started later would run it."""
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main


@pytest.fixture(scope="session")
def log() -> StepLog:
    return compute.example()[1]


@pytest.fixture(scope="session")
def fit(log: StepLog) -> StepTimeFit:
    return fit_step_time(log)


@pytest.fixture(scope="session")
def trace() -> RequestTrace:
    whole = compute.example()[0]
    first = whole.arrival_s < 60.0
    return RequestTrace(
        whole.arrival_s[first].copy(),
        whole.prompt_tokens[first].copy(),
        whole.output_tokens[first].copy(),
        np.flatnonzero(first),
        receipt=whole.receipt,
    )


@pytest.fixture(scope="session")
def plan(trace: RequestTrace, fit: StepTimeFit, log: StepLog) -> Recommendation:
    today = flags_from_facts(log.facts)
    return recommend(
        trace, fit, today, Slo(itl_s=0.08, worst_gap_s=0.2, ttft_s=4.0), default_flags=(8192, 1024), space=SPACE
    )


@pytest.fixture(scope="session")
def missed_plan(trace: RequestTrace, fit: StepTimeFit, log: StepLog) -> Recommendation:
    today = flags_from_facts(log.facts)
    return recommend(trace, fit, today, Slo(itl_s=0.001), default_flags=(8192, 1024), space=SPACE)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A system Chromium."""
    found = next((path for name in CHROMIUMS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(CHROMIUMS)} is installed")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=OPTIONS)
        yield chromium
        chromium.close()
