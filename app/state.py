"""What a session knows; the only room that touches `st.session_state`."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic, TypeVar

import streamlit as st

from app import compute
from app.compute import PlanInputs, Setting
from app.jobs import InsideJob, LoadJob, Look, PlanJob, Status, WhatIf, WhatIfJob
from app.kept import is_secret
from app.tab import Told
from planner.align import Alignment
from planner.engine_config import EngineConfig, flags_from_facts
from planner.measured import Comparison
from planner.plan_file import SavedPlan
from planner.step_time import Model, SavedModel, StepTime, StepTimeFit, step_time_of
from traces.answers import NO_ANSWERS, ReadAnswers
from traces.errors import BadData, InputError, NeedsAnswer, Question, Unmapped
from traces.measured import MeasuredRequests
from traces.requests import WHOLE, RequestTrace, Selection
from traces.selection import select
from traces.steps import StepLog
from traces.tables import Source

T = TypeVar("T")

MOST_PINNED = 4
"""Settings that stand side by side."""


@dataclass(slots=True)
class Reading(Generic[T]):
    """One uploaded file on its way to being understood."""

    value: T | None = None
    """What it says; None until it is understood."""
    fault: InputError | None = None
    """What stands against that."""
    questions: tuple[Question, ...] = ()
    """Everything asked about this file so far, answered or not."""
    unmapped: Unmapped | None = None
    """What the user can name by hand in this file, where its columns are not known."""
    answers: ReadAnswers = NO_ANSWERS
    """What the user said."""
    file_name: str = ""
    """As the user named it."""
    data: Source | None = None
    """The bytes or the path, kept only while an answer can change what they mean."""
    num_uploads: int = 0
    """Names the uploader: a new name empties it, so that its copy of the bytes goes."""

    def upload(self, data: Source, file_name: str, read: Callable[[Source, str, ReadAnswers], T | InputError]) -> None:
        """Take a new file; whatever was known of the one before is gone."""
        # Read first: whoever looks meanwhile, or takes it up in a tab that is loaded anew, finds the one before, whole.
        outcome = read(data, file_name, NO_ANSWERS)
        self.file_name, self.questions, self.unmapped = file_name, (), None
        self.num_uploads += 1
        self._keep(data, NO_ANSWERS, outcome)

    def answer(self, answers: ReadAnswers, read: Callable[[Source, str, ReadAnswers], T | InputError]) -> None:
        """Read the same file again with more known about it."""
        assert self.data is not None
        self._keep(self.data, answers, read(self.data, self.file_name, answers))

    def give(self, value: T, file_name: str) -> None:
        """Take something that is understood already."""
        self.value, self.fault, self.questions, self.answers = value, None, (), NO_ANSWERS
        self.file_name, self.data, self.unmapped = file_name, None, None

    def _keep(self, data: Source, answers: ReadAnswers, outcome: T | InputError) -> None:
        """Keep what came of reading."""
        self.answers = answers
        if isinstance(outcome, InputError):
            self.value, self.fault = None, outcome
            self.unmapped = outcome.unmapped or self.unmapped
            asked = outcome.questions if isinstance(outcome, NeedsAnswer) else ()
            again = {question.field for question in asked}
            self.questions = (*(q for q in self.questions if q.field not in again), *asked)
        else:
            self.value, self.fault = outcome, None
        is_open = isinstance(self.fault, NeedsAnswer | BadData) or bool(self.questions or self.unmapped)
        self.data = data if is_open else None


@dataclass(slots=True)
class Session:
    """Facts of one browser session."""

    answers: dict[str, Any] = field(default_factory=dict)
    """What was said in the fields of its pages, by their keys."""
    trace: Reading[RequestTrace] = field(default_factory=Reading)
    """The request trace."""
    selection: Selection = WHOLE
    """Which part of the trace is planned for."""
    part: tuple[RequestTrace, RequestTrace] | None = None
    """The whole trace, and that part of it."""
    num_windows: int = 0
    """Names the question for the window: a new name makes it take what was drawn or clicked."""
    steps: Reading[StepLog] = field(default_factory=Reading)
    """The step log."""
    num_kv_tokens: int | None = None
    """Size of the KV cache of the logged server, where the user gave it; None = as the log says."""
    saved: Reading[SavedModel] = field(default_factory=Reading)
    """The model file."""
    given: SavedModel | StepTime | None = None
    """The model in force instead of the log's: from a file, or by hand."""
    behind_log: tuple[str, str] | None = None
    """Digests of the log and of the trace that the user said caused it."""
    measured: Reading[MeasuredRequests] = field(default_factory=Reading)
    """What clients measured."""
    inputs: PlanInputs | None = None
    """What the Plan page asked for last."""
    inputs_for: str = ""
    """`flags_name` when it asked."""
    job: PlanJob | None = None
    """The newest plan, running or ended in any way."""
    previous: PlanJob | None = None
    """The last plan before it that came to a result."""
    wants_plan: bool = False
    """Whether the Plan page is to start by itself, after the example was asked for."""
    load_job: LoadJob | None = None
    """What was asked last about load, for the newest plan with a result."""
    asked: dict[type, WhatIfJob | InsideJob] = field(default_factory=dict)
    """What was asked last of each kind, about settings side by side or inside one."""
    look: str = ""
    """Name of the setting that the Inspect page was asked to open; "" = none."""
    picked: EngineConfig | None = None
    """The setting picked among all that a plan tried."""
    pinned: tuple[tuple[str, EngineConfig], ...] | None = None
    """Settings to stand side by side, with their names; None = those that the plan has."""
    opened: dict[str, SavedPlan] = field(default_factory=dict)
    """Plan files that were opened, by their names."""
    refused: InputError | None = None
    """What stands against the last plan file, where it could not be opened."""
    num_opened: int = 0
    """Names the uploader of plan files: a new name empties it."""
    num_looks: int = 0
    """Names the question for the setting: a new name makes it forget what was chosen before."""

    def copy(self) -> "Session":
        """One that knows the same, and changes by itself; what runs beside the pages goes on for both."""
        own = copy(self)
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, Reading | dict):
                setattr(own, one.name, copy(value))
        return own

    def without_work(self) -> "Session":
        """One for another tab: it knows the same, but what runs beside the pages is not its own to cancel."""
        own = self.copy()
        for name in ("job", "load_job"):
            work = getattr(own, name)
            if work is not None and work.is_going:
                setattr(own, name, None)
        own.asked = {kind: job for kind, job in own.asked.items() if not job.is_going}
        return own

    @property
    def traffic(self) -> RequestTrace | None:
        """The part of the trace that is planned for; None while there is no trace."""
        trace = self.trace.value
        if trace is None:
            return None
        if self.part is None or self.part[0] is not trace or self.part[1].selection != self.selection:
            self.part = trace, select(trace, self.selection)
        return self.part[1]

    def choose_window(self, window_s: tuple[float, float] | None) -> None:
        """Plan for a window that was drawn or clicked."""
        self.selection = replace(self.selection, window_s=window_s)
        self.num_windows += 1

    @property
    def fit(self) -> StepTimeFit | InputError | None:
        """What came of fitting the step log; None without one."""
        log, alignment = self.steps.value, self.alignment
        if log is None:
            return None
        if not isinstance(alignment, Alignment):
            return compute.fit_step_time(compute.log_key(log), self.num_kv_tokens, _log=log)
        return compute.fit_aligned(compute.log_key(log), self._behind_log, _log=log, _alignment=alignment)

    @property
    def alignment(self) -> Alignment | InputError | None:
        """The log's steps explained by the trace, or why not; None while it is not asked for."""
        log, trace = self.steps.value, self.trace.value
        if log is None or trace is None or self.behind_log != (log.digest, trace.digest):
            return None
        return compute.align_log(compute.log_key(log), self._behind_log, _log=log, _trace=trace)

    @property
    def hand_start(self) -> StepTime:
        """Where coefficients set by hand begin: at the fit, at the model file, or at something usual."""
        fit, saved = self.fit, self.saved.value
        if isinstance(fit, StepTimeFit):
            return fit.step_time
        return StepTime(8_000_000, 60_000, 20_000) if saved is None else saved.step_time

    @property
    def _behind_log(self) -> tuple[str, EngineConfig]:
        """Name and digest of the trace and the flags of the server that served it."""
        assert self.trace.value is not None
        return f"{self.trace.file_name} {self.trace.value.digest}", self.logged_config

    @property
    def model(self) -> Model | None:
        """The step-time model in force; None while there is none."""
        if self.given is not None:
            return self.given
        fit = self.fit
        return fit if isinstance(fit, StepTimeFit) else None

    @property
    def compared(self) -> tuple[Comparison, ...] | None:
        """Today's flags replayed beside what was measured; None while there is nothing to compare."""
        trace, model, measured = self.trace.value, self.model, self.measured.value
        if trace is None or model is None or measured is None or measured.receipt is None:
            return None
        setting = Setting(trace.digest, self.today, step_time_of(model))
        source = "" if isinstance(model, StepTime) else model.source
        uploads = self.saved.num_uploads, self.measured.num_uploads, source, self.measured.answers
        return compute.compare_with_measured(
            setting, uploads, measured.receipt.file_digest, _trace=trace, _model=model, _measured=measured
        )

    @property
    def _flags_source(self) -> SavedModel | StepLog | None:
        """What states today's flags."""
        return self.given if isinstance(self.given, SavedModel) else self.steps.value

    @property
    def flags_name(self) -> str:
        """Names the questions for flags: those of another server are other widgets."""
        source = self._flags_source
        if source is None or source.digest is None:
            return "no_log"
        return f"{source.digest[:8]}_{hash(source.facts)}"

    @property
    def logged_config(self) -> EngineConfig:
        """Today's settings as far as the model's log or the user states them; vLLM's defaults elsewhere."""
        source = self._flags_source
        config = EngineConfig() if source is None else flags_from_facts(source.facts)
        if self.num_kv_tokens is None or isinstance(source, SavedModel):
            return config
        return replace(config, num_gpu_blocks=self.num_kv_tokens // config.block_size + 1)

    @property
    def finished(self) -> PlanJob | None:
        """The newest plan with a result."""
        return self.job if self.job is not None and self.job.status is Status.DONE else self.previous

    def start_plan(self, inputs: PlanInputs, trace: RequestTrace, model: Model, scheduler: str = "") -> None:
        """Start to plan beside the pages; the last result stays until there is another.

        Parameters
        ----------
        inputs : PlanInputs
        trace : RequestTrace
        model : Model
        scheduler : str
            Address of the Dask cluster that is to replay; "" for this machine.
        """
        self.previous, self.wants_plan = self.finished, False
        self.picked, self.load_job, self.pinned = None, None, None
        self.job = PlanJob(inputs, trace, model, self.trace.answers, scheduler)

    @property
    def today(self) -> EngineConfig:
        """Today's settings: as the Plan page has them, or as the log has them before that page was opened."""
        is_asked = self.inputs is not None and self.inputs_for == self.flags_name
        return self.inputs.today if self.inputs is not None and is_asked else self.logged_config

    def ask_for(self, inputs: PlanInputs) -> None:
        """Note what the Plan page asks for, and whose flags it has."""
        self.inputs, self.inputs_for = inputs, self.flags_name

    def look_into(self, name: str, picked: EngineConfig | None = None) -> None:
        """Have the Inspect page open one setting.

        Parameters
        ----------
        name : str
            As that page calls it.
        picked : EngineConfig, optional
            The setting itself, if it is none of a plan's three columns.
        """
        self.look, self.num_looks = name, self.num_looks + 1
        self.picked = self.picked if picked is None else picked

    def ask(self, question: WhatIf | Look, trace: RequestTrace) -> WhatIfJob | InsideJob:
        """Have a question answered; the one before it of the same kind is not asked any more."""
        kind = type(question)
        job = self.asked.get(kind)
        # An answer that is done and gone was forgotten for others.
        is_gone = job is not None and job.status is Status.DONE and job.result is None
        if job is None or job.question != question or is_gone:
            if job is not None:
                job.cancel()
            job = WhatIfJob(question, trace) if isinstance(question, WhatIf) else InsideJob(question, trace)
            self.asked[kind] = job
        return job

    def ask_again(self, kind: type) -> None:
        """Forget what came of the last question of a kind."""
        del self.asked[kind]

    def pin(self, settings: tuple[tuple[str, EngineConfig], ...]) -> None:
        """Have these settings stand side by side."""
        self.pinned = settings

    def upload_trace(self, data: Source, file_name: str) -> None:
        """Take a new trace; a file that says when tokens came is a measurement as well."""
        trace, measured = compute.understand_upload(data, file_name)
        self.trace.upload(data, file_name, lambda *_: trace)
        self.selection, self.measured = WHOLE, Reading(num_uploads=self.measured.num_uploads + 1)
        if isinstance(measured, MeasuredRequests):
            self.measured.give(measured, file_name)

    def make_up(self, trace: RequestTrace, name: str) -> None:
        """Take made-up traffic."""
        self.trace.give(trace, name)
        self.measured, self.selection = Reading(), WHOLE

    def open_plan(self, data: bytes, file_name: str) -> None:
        """Open a plan file; one of the same name gives way."""
        self.num_opened += 1
        outcome = compute.understand_plan(data, file_name)
        self.refused = outcome if isinstance(outcome, InputError) else None
        if not isinstance(outcome, InputError):
            self.opened[file_name] = outcome

    def close_plans(self) -> None:
        """Forget every plan file."""
        self.opened, self.refused = {}, None

    def upload_steps(self, data: bytes, file_name: str) -> None:
        """Take a new step log; what was said about the one before does not hold for it."""
        self.steps.upload(data, file_name, compute.understand_steps)
        self.num_kv_tokens, self.given, self.behind_log = None, None, None

    def upload_model(self, data: bytes, file_name: str) -> None:
        """Take a model file; it is in force as soon as it is understood."""
        self.saved.upload(data, file_name, compute.understand_model)
        self.given = self.saved.value

    def take_example(self) -> None:
        """Load the example and ask for its plan."""
        trace, log = compute.example()
        self.make_up(trace, compute.EXAMPLE_TRACE)
        self.steps.give(log, compute.EXAMPLE_LOG)
        self.num_kv_tokens, self.given, self.behind_log, self.picked = None, None, None, None
        self.wants_plan = True


def session() -> Session:
    """The facts of this session."""
    if "session" not in st.session_state:
        st.session_state["session"] = Session()
    found = st.session_state["session"]
    assert isinstance(found, Session)
    return found


def is_followed() -> bool:
    """Whether the tab of this session has told its secret."""
    return "secret" in st.session_state


def follow(told: Told | None) -> bool:
    """Keep this session for its tab, or take up the one that the tab begins with.

    Parameters
    ----------
    told : Told or None
        What the tab says; anything that is no secret is ignored, and nothing is kept.

    Returns
    -------
    bool
        Whether there is another session now.
    """
    if told is None or not is_secret(told.secret):
        return False
    before = compute.kept().get(str(told.origin)) if is_secret(told.origin) and not is_followed() else None
    st.session_state["secret"] = told.secret
    if before is not None:
        # A copy: a script of the session before may still be running.
        st.session_state["session"] = before.copy() if told.origin == told.secret else before.without_work()
        st.session_state.update(session().answers)
    compute.kept().put(str(told.secret), session())
    return before is not None
