"""Everything slow: reading, cached results, and the work that runs beside the pages.

Results are cached by digest and small frozen settings, shared by all sessions, bounded, and never changed.
"""

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from app import frames
from app.figures import requests
from app.kept import Kept
from planner import align, calibrate
from planner.align import Alignment
from planner.engine_config import EngineConfig
from planner.inside.chrome_trace import chrome_trace
from planner.inside.lesson import Turn, lesson
from planner.inside.recording import steps_between
from planner.inside.step_table import steps_around
from planner.measured import Comparison, compare, served
from planner.metrics import Distribution, distribution, itl, ttft_s
from planner.plan_file import SavedPlan, read_plan
from planner.replay import Replay, replay, warm_up
from planner.search import NO_MORE, More, Objective
from planner.slo import Slo
from planner.step_time import Model, SavedModel, StepTime, StepTimeFit, read_model
from traces import read
from traces.answers import NO_ANSWERS, ReadAnswers
from traces.errors import InputError
from traces.measured import MeasuredRequests, read_measured
from traces.prefixes import reuse_share
from traces.requests import RequestTrace
from traces.selection import stamp_step_s
from traces.steps import ServerFacts, StepLog
from traces.tables import OpenedFile, Source
from traces.workload import Workload, make_trace

T = TypeVar("T")

SAMPLES = Path(read.__file__).parent / "samples"
"""The example that ships with the product."""
EXAMPLE_TRACE, EXAMPLE_LOG = "chat_long_prompts.parquet", "server.log"
WAIT_S = 0.1
"""How long a job sleeps between looks whether it was cancelled while the scheduler compiles."""
MAX_FILE_STEPS = 2000
"""Most steps in one file for a trace viewer: some megabytes."""
MOST_REPLAY_BYTES = 2.5e9
"""Of the replays kept to look into: a million requests with a row for each of their steps take half of it."""
HEAD_START_S = 3.0
"""How long the first page has the processor to itself."""


def understand_upload(data: Source, file_name: str) -> tuple[RequestTrace | InputError, MeasuredRequests | InputError]:
    """The trace in a new file, and what the file says was measured; opened once, as parsing JSON takes longest."""
    opened = _outcome(lambda: read.open_requests(data, file_name))
    if isinstance(opened, InputError):
        return opened, opened
    return understand_trace(opened, file_name, NO_ANSWERS), understand_measured(opened, file_name, NO_ANSWERS)


def understand_trace(data: Source | OpenedFile, file_name: str, answers: ReadAnswers) -> RequestTrace | InputError:
    """The trace, or what stands against it."""
    return _outcome(lambda: read.read_trace(data, file_name, answers))


def understand_steps(data: Source, file_name: str, answers: ReadAnswers) -> StepLog | InputError:
    """The step log, or what stands against it."""
    return _outcome(lambda: read.read_steps(data, file_name, answers))


def understand_plan(data: bytes, file_name: str) -> SavedPlan | InputError:
    """The plan in a file, or what stands against it."""
    return _outcome(lambda: read_plan(data.decode("utf-8", "replace"), file_name))


@st.cache_resource(max_entries=4, show_spinner=False, scope="session")
def traffic_figures(trace_digest: str, _trace: RequestTrace) -> tuple[go.Figure, go.Figure, go.Figure]:
    """Lengths, lengths together, burstiness: a second's work for millions of requests."""
    return requests.token_lengths(_trace), requests.joint_lengths(_trace), requests.burstiness(_trace)


@st.cache_resource(max_entries=4, show_spinner=False, scope="session")
def clock_step_s(trace_digest: str, _trace: RequestTrace) -> float | None:
    """How coarse the clock of a trace is."""
    return stamp_step_s(_trace.arrival_s)


@st.cache_resource(max_entries=4, show_spinner=False, scope="session")
def seen_share(trace_digest: str, _trace: RequestTrace) -> float | None:
    """Share of the prompt tokens that begin like an earlier prompt; None where a trace does not say."""
    return None if _trace.prefix_hashes is None else reuse_share(_trace.prefix_hashes, _trace.prompt_tokens)


@st.cache_resource(max_entries=4, show_spinner=False, scope="session")
def token_sums(trace_digest: str, _trace: RequestTrace) -> pd.DataFrame:
    """Sums and percentiles of a trace."""
    return frames.token_sums(_trace)


def make_up(workload: Workload) -> RequestTrace | str:
    """Made-up traffic, or what stands against it."""
    try:
        return make_trace(workload)
    except ValueError as fault:
        return str(fault)


@st.cache_resource(show_spinner=False)
def example() -> tuple[RequestTrace, StepLog]:
    """The trace and the step log of the example."""
    trace, log = SAMPLES / EXAMPLE_TRACE, SAMPLES / EXAMPLE_LOG
    return read.read_trace(trace, EXAMPLE_TRACE), read.read_steps(log, EXAMPLE_LOG)


LogKey = tuple[str, str, ServerFacts]
"""What a fit says of its log: the digest of its steps, the file and its digest, and what it states of the server."""


def log_key(log: StepLog) -> LogKey:
    """Two logs of equal steps may come from two servers, in two sessions."""
    file = "" if log.receipt is None else f"{log.receipt.file_name} {log.receipt.file_digest}"
    return log.digest, file, log.facts


@st.cache_resource(max_entries=32, show_spinner="Fitting step times …")
def fit_step_time(log_key: LogKey, num_kv_tokens: int | None, _log: StepLog) -> StepTimeFit | InputError:
    """The step-time model of a log, or why there is none."""
    return _outcome(lambda: calibrate.fit_step_time(_log, num_kv_tokens))


@st.cache_resource(max_entries=8, show_spinner="Explaining the log by the trace …")
def align_log(
    log_key: LogKey, behind_log: tuple[str, EngineConfig], _log: StepLog, _trace: RequestTrace
) -> Alignment | InputError:
    """The steps of a log explained by the requests and the flags behind it, or why not."""
    return _outcome(lambda: align.align_whole(_log, _trace, behind_log[1]))


@st.cache_resource(max_entries=8, show_spinner="Fitting step times …")
def fit_aligned(
    log_key: LogKey, behind_log: tuple[str, EngineConfig], _log: StepLog, _alignment: Alignment
) -> StepTimeFit | InputError:
    """The step-time model of the steps that the requests behind a log explain, or why there is none."""
    return _outcome(lambda: calibrate.fit_step_time(_log, alignment=_alignment))


def understand_model(data: Source, file_name: str, _: ReadAnswers) -> SavedModel | InputError:
    """The saved step-time model, or what stands against it."""
    assert isinstance(data, bytes)
    text = data.decode("utf-8-sig", errors="replace")
    return _outcome(lambda: read_model(text, file_name))


def understand_measured(
    data: Source | OpenedFile, file_name: str, answers: ReadAnswers
) -> MeasuredRequests | InputError:
    """What was measured, or what stands against it."""
    return _outcome(lambda: read_measured(data, file_name, answers))


@st.cache_resource(max_entries=4, show_spinner="Replaying what was measured …", scope="session")
def compare_with_measured(
    setting: "Setting",
    uploads: tuple[int, int, str, ReadAnswers],
    measured_digest: str,
    _trace: RequestTrace,
    _model: Model,
    _measured: MeasuredRequests,
) -> tuple[Comparison, ...]:
    """Today's flags replayed, beside what was measured; `uploads` names the model and the measurements."""
    compiler().wait(lambda: False)
    return compare(served(_trace, setting.engine_config, _model), _measured)


def _outcome(work: Callable[[], T]) -> T | InputError:
    """Return the fault instead of raising it: a page shows either."""
    try:
        return work()
    except InputError as fault:
        return fault


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """What a plan stands on; two plans are the same when these are equal."""

    trace_digest: str
    """Digest of the trace."""
    trace_name: str
    """File the trace came from."""
    step_time: StepTime
    """Coefficients charged."""
    model_source: str
    """File the model came from, or that it was given by hand."""
    model_knows: str
    """`what_is_known` of the model."""
    slo: Slo
    """Targets."""
    objective: Objective
    """What decides among the settings that meet them."""
    today: EngineConfig
    """Today's flags, and what is fixed."""
    default_flags: tuple[int, int]
    """vLLM's default budget and seats on this GPU."""
    more: More = NO_MORE
    """Further flags that are searched."""


def what_is_known(model: Model) -> str:
    """Digest of what a plan takes from a model beside its coefficients: how sure they are, and what the log covered."""
    if isinstance(model, StepTime):
        return ""
    return hashlib.sha256(model.draws.tobytes() + repr(model.covered).encode()).hexdigest()


@st.cache_resource(max_entries=64, show_spinner=False)
def latencies(
    trace_digest: str, engine_config: EngineConfig, step_time: StepTime, _trace: RequestTrace
) -> tuple[Distribution, Distribution]:
    """All token gaps, pooled, and all TTFT of one setting."""
    run = replay(_trace, engine_config, step_time, keeps_steps=False)
    return itl(run), distribution(ttft_s(run))


@dataclass(frozen=True, slots=True)
class Setting:
    """What one replay stands on."""

    trace_digest: str
    """Digest of the trace."""
    engine_config: EngineConfig
    """Flags and what is fixed."""
    step_time: StepTime
    """Coefficients charged."""


@st.cache_resource(max_entries=64, show_spinner="Replaying …")
def lesson_of(config: EngineConfig) -> tuple[Turn, ...]:
    """The toy replay of the method page."""
    compiler().wait(lambda: False)
    return lesson(config)


def file_window(run: Replay, window_s: tuple[float, float], moment_s: float) -> tuple[tuple[float, float], int]:
    """The part of a window that goes into a file, and how many steps it leaves out: those far from a moment.

    Parameters
    ----------
    run : Replay
    window_s : (float, float)
        From when until when, seconds.
    moment_s : float
        Seconds.
    """
    steps = steps_between(run, *(round(1e9 * at_s) for at_s in window_s))
    num_left_out = max(0, len(steps) - MAX_FILE_STEPS)
    if num_left_out == 0:
        return window_s, 0
    # Around the moment, but not beyond the window.
    first = steps_around(run, moment_s, MAX_FILE_STEPS).start
    first = min(max(first, steps.start), steps.stop - MAX_FILE_STEPS)
    last = first + MAX_FILE_STEPS - 1
    return (int(run.steps["start_ns"][first]) / 1e9, int(run.steps["end_ns"][last]) / 1e9), num_left_out


def viewer_file(run: Replay, window_s: tuple[float, float], trace: RequestTrace) -> str:
    """A window as JSON for a trace viewer; only made when somebody asks for it, and not kept."""
    return chrome_trace(trace, run, *window_s, max_steps=MAX_FILE_STEPS)


class Compiler(threading.Thread):
    """Compiles the scheduler beside the pages; alive until it is ready."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._is_wanted = threading.Event()
        self.start()

    def run(self) -> None:
        """Replay the smallest trace: numba compiles, or loads what an earlier process compiled."""
        # Compiling keeps Python busy: started at once, it held the first page up by two seconds.
        self._is_wanted.wait(HEAD_START_S)
        warm_up()

    def wait(self, is_cancelled: Callable[[], bool]) -> None:
        """Return when compiled code is there; compiling cannot be stopped, waiting for it can."""
        self._is_wanted.set()
        while self.is_alive() and not is_cancelled():
            self.join(WAIT_S)


@st.cache_resource(show_spinner=False)
def kept() -> Kept[Any]:
    """Sessions of this process, by the secrets of their tabs."""
    return Kept()


@st.cache_resource(show_spinner=False)
def worked_out(kind: str) -> Kept[Any]:
    """Results of one kind of job, by what they stand on."""
    return Kept()


@st.cache_resource(show_spinner=False)
def replays() -> Kept[Replay]:
    """Replays to look into, by their settings."""
    return Kept(size_of=_bytes_of, most_bytes=MOST_REPLAY_BYTES)


def _bytes_of(run: Replay) -> int:
    """How large its arrays are."""
    values = (getattr(run, field.name) for field in fields(run))
    return sum(value.nbytes for value in values if isinstance(value, np.ndarray))


@st.cache_resource(show_spinner=False)
def compiler() -> Compiler:
    """The one of this process."""
    return Compiler()
