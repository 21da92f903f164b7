"""Long work that runs beside the pages: they look at it, and may cancel it."""

import logging
import threading
import time
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from app import compute
from app.compute import PlanInputs, Setting
from app.kept import Kept
from planner import kernel
from planner.candidates import Candidate
from planner.capacity import HOUR_S, Capacity, LoadPoint, find_capacity
from planner.engine_config import EngineConfig
from planner.errors import Cancelled
from planner.executors import executor_at
from planner.inside.phases import Life, life_of, life_pieces
from planner.inside.step_table import StepRow, step_table
from planner.inside.window import WindowView, look_at
from planner.plan_file import SavedPlan, save_plan
from planner.replay import Replay, replay
from planner.routing import Routing
from planner.scenario import Scenario, evaluate_scenario
from planner.search import Recommendation, recommend
from planner.slo import Slo
from planner.step_time import Model, StepTime
from planner.verdict import flags_in_words, seconds
from traces.answers import NO_ANSWERS, ReadAnswers
from traces.errors import InputError
from traces.requests import RequestTrace

NUM_SLICES = 600
"""Of a timeline: about as many as it has pixels on a small screen."""
NUM_GAPS = 10
"""Worst gaps that are explained."""
NUM_STEPS = 15
"""Steps listed around a moment."""
USUAL_REPLAYS = 30
"""Of a load question, about."""
WIDTHS_S = (1.0, 10.0, 60.0, 300.0, 900.0)
"""Widths of the windows in which a trace that is shorter than some hours is judged piece by piece, seconds."""
MOST_WINDOWS = 24
"""Of them."""


class Status(Enum):
    """Where a job stands."""

    COMPILING = "compiling"
    """Waiting for the scheduler to be compiled, once per machine."""
    RUNNING = "running"
    """Replaying."""
    DONE = "done"
    """`result` is there."""
    CANCELLED = "cancelled"
    """The user stopped it."""
    FAILED = "failed"
    """`fault` says why."""


class Job:
    """Something in a thread of its own; what it does and what comes of it, its kinds say."""

    def __init__(self) -> None:
        self.status, self.fault, self.newest = Status.COMPILING, "", ""
        self.num_done, self.num_planned = 0, 0
        self.started_s = self.running_s = time.monotonic()
        self.cancelled = np.zeros(1, np.uint8)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    @property
    def is_going(self) -> bool:
        """Whether there is more to come."""
        return self.status in (Status.COMPILING, Status.RUNNING)

    @property
    def part_done(self) -> float:
        """How much of the replay that is going on is done, 0–1; 0 where nobody knows."""
        return 0.0

    @property
    def left_s(self) -> float | None:
        """How long it will take still, if replays go on as they went, seconds; None while that is not known."""
        done = self.num_done + self.part_done
        if not done or self.num_planned <= done:
            return None
        return (time.monotonic() - self.running_s) / done * (self.num_planned - done)

    def cancel(self) -> None:
        """Stop soon: the compiled replay looks at this flag all the time, but not while memory is copied for it."""
        self.cancelled[0] = 1
        if self.is_going:
            self.status = Status.CANCELLED

    def wait(self, at_most_s: float) -> None:
        """Return when it is through or was cancelled, or after this time."""
        if self.is_going:
            self._thread.join(at_most_s)

    def run(self) -> None:
        """Do the work."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise where the user stopped it."""
        if self.cancelled[0]:
            raise Cancelled

    def _work(self) -> None:
        """Run to an end of any kind."""
        try:
            compute.compiler().wait(lambda: bool(self.cancelled[0]))
            self.check()
            self.status, self.running_s = Status.RUNNING, time.monotonic()
            self.run()
            self.status = Status.DONE
        except Cancelled:
            self.status = Status.CANCELLED
        except InputError as fault:
            self.fault, self.status = str(fault), Status.FAILED
        except Exception:
            logging.getLogger(__name__).exception("a job failed")
            self.fault = "It stopped on a fault of this program; the server's log has the details."
            self.status = Status.FAILED


class PlanJob(Job):
    """One search."""

    def __init__(
        self,
        inputs: PlanInputs,
        trace: RequestTrace,
        model: Model,
        answers: ReadAnswers = NO_ANSWERS,
        scheduler: str = "",
    ) -> None:
        self.inputs, self.trace, self.model, self.answers = inputs, trace, model, answers
        self.scheduler = scheduler
        self.best: Candidate | None = None
        self.result: Recommendation | None = None
        self.saved: SavedPlan | None = None
        super().__init__()

    def run(self) -> None:
        """Search once per set of inputs, whoever asks."""
        result = compute.worked_out("plan").made_once(self.inputs, self.search, self.check)
        for candidate in (result.today, result.closest, result.vllm_default):
            compute.latencies(self.trace.digest, candidate.engine_config, result.step_time, _trace=self.trace)
        name = self.inputs.trace_name
        self.saved = save_plan(result, self.trace, self.model, trace_name=name, answers=self.answers)
        self.result = result

    def search(self) -> Recommendation:
        """Run the search itself."""
        with executor_at(self.scheduler) as executor:
            return recommend(
                self.trace,
                self.model,
                self.inputs.today,
                self.inputs.slo,
                default_flags=self.inputs.default_flags,
                more=self.inputs.more,
                objective=self.inputs.objective,
                executor=executor,
                on_progress=self.on_progress,
                cancel=self.cancelled,
            )

    def on_progress(self, num_done: int, num_planned: int, newest: Candidate | None) -> None:
        """Note how far it is; called from the search."""
        self.num_done, self.num_planned = num_done, num_planned
        if newest is None:
            return
        if newest.meets and (self.best is None or _waits(newest) < _waits(self.best)):
            self.best = newest
        self.newest = f"last: {flags_in_words(newest)}"
        if self.best is not None:
            gap_s, wait_s = self.best.summary.itl_at_percentile_s, self.best.summary.ttft_at_percentile_s
            self.newest += (
                f" · lowest TTFT so far among those that meet every target: {flags_in_words(self.best)} "
                f"(gap {seconds(gap_s)}, TTFT {seconds(wait_s)})"
            )


def _waits(candidate: Candidate) -> float:
    return candidate.summary.ttft_at_percentile_s


@dataclass(frozen=True, slots=True)
class LoadQuestion:
    """What the user wants to know about load."""

    growth: float
    """Multiple of the trace's rate to size replicas for."""
    routing: Routing
    """How requests are dealt to them."""


class LoadJob(Job):
    """How much load a setting carries; replayed on the cluster of that scheduler, "" for this machine."""

    def __init__(
        self, question: LoadQuestion, setting: Setting, slo: Slo, trace: RequestTrace, scheduler: str = ""
    ) -> None:
        self.question, self.setting, self.slo, self.trace = question, setting, slo, trace
        self.scheduler = scheduler
        self.result: Capacity | None = None
        super().__init__()

    def run(self) -> None:
        """Answer once per question, whoever asks."""
        stands_on = (self.question, self.setting, self.slo)
        self.result = compute.worked_out("load").made_once(stands_on, self.find, self.check)

    def find(self) -> Capacity:
        """Replay under more and less load."""
        with executor_at(self.scheduler) as executor:
            return find_capacity(
                self.trace,
                self.setting.engine_config,
                self.setting.step_time,
                self.slo,
                growth=self.question.growth,
                routing=self.question.routing,
                width_s=window_width_s(self.trace.span_s),
                executor=executor,
                on_point=self.on_point,
                cancel=self.cancelled,
            )

    def on_point(self, point: LoadPoint) -> None:
        """Note how far it is; called from the search."""
        self.num_done += 1
        self.num_planned = max(USUAL_REPLAYS, self.num_done + 1)
        met = "meets every target" if point.candidate.meets else "misses a target"
        self.newest = f"last: {point.load:.3g} times the load {met}"


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What the user wants to know about changed traffic and memory."""

    trace_digest: str
    """Digest of the trace."""
    configs: tuple[EngineConfig, ...]
    """The settings that stand side by side."""
    step_time: StepTime
    """Coefficients charged."""
    slo: Slo
    """Targets."""
    scenario: Scenario
    """The change."""


class WhatIfJob(Job):
    """Settings side by side under a change."""

    def __init__(self, question: WhatIf, trace: RequestTrace) -> None:
        self.question, self.trace = question, trace
        self.result: tuple[Candidate, ...] | None = None
        super().__init__()

    def run(self) -> None:
        """Answer once per question, whoever asks."""
        self.result = compute.worked_out("what if").made_once(self.question, self.find, self.check)

    def find(self) -> tuple[Candidate, ...]:
        """Replay under the change."""
        asked = self.question
        self.num_planned = len(asked.configs)
        with executor_at("") as executor:
            return evaluate_scenario(
                self.trace,
                asked.configs,
                asked.step_time,
                asked.slo,
                asked.scenario,
                executor,
                on_candidate=self.on_candidate,
                cancel=self.cancelled,
            )

    def on_candidate(self, candidate: Candidate) -> None:
        """Note how far it is; called from the replays."""
        self.num_done += 1
        self.newest = f"last: {flags_in_words(candidate)}"


@dataclass(frozen=True, slots=True)
class Opened:
    """The user wants to look into a setting."""

    setting: Setting
    """Which."""


@dataclass(frozen=True, slots=True)
class Window:
    """The user wants to know what the engine did in a stretch, and which gaps were worst in it."""

    setting: Setting
    """What is looked into."""
    window_s: tuple[float, float]
    """From when until when, seconds."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The user wants to know who ran around a moment."""

    setting: Setting
    """What is looked into."""
    moment_s: float
    """Seconds."""


@dataclass(frozen=True, slots=True)
class Late:
    """The user wants to know why a request was late."""

    setting: Setting
    """What is looked into."""
    request: int
    """Row of the trace."""


Look = Opened | Window | Moment | Late
"""What the user wants to see inside a setting."""


class InsideJob(Job):
    """One look inside one setting; what comes of it is kept for all sessions, and not here: it may be a gigabyte."""

    def __init__(self, question: Look, trace: RequestTrace) -> None:
        self.question, self.trace = question, trace
        self.engine = np.zeros(1, kernel.ENGINE)
        super().__init__()

    @property
    def part_done(self) -> float:
        """Of the whole replay, by the requests that were admitted."""
        return min(0.99, int(self.engine["num_seated"][0]) / len(self.trace))

    @property
    def result(self) -> Any:
        """A `Replay`, a `WindowView`, steps, or a `Life`; None while there is none, or no longer one."""
        return None if self.is_going else self._kept.get(self.question)

    @property
    def _kept(self) -> Kept[Any]:
        kind = type(self.question)
        return compute.replays() if kind is Opened else compute.worked_out(kind.__name__)

    def run(self) -> None:
        """Answer once per question, whoever asks."""
        self._kept.made_once(self.question, self.replay if isinstance(self.question, Opened) else self.look, self.check)

    def replay(self) -> Replay:
        """Replay with a row for every step, without events: to replay again for those of a window is cheap."""
        self.num_planned += 1
        self.newest = f"{len(self.trace):,} requests, and a row for every step"
        setting = self.question.setting
        run = replay(self.trace, setting.engine_config, setting.step_time, cancel=self.cancelled, engine=self.engine)
        for values in (run.steps, run.gaps):
            values.flags.writeable = False
        self.on_replay()
        return run

    def look(self) -> WindowView | tuple[StepRow, ...] | Life:
        """Look into the replay, which is made once more where it was forgotten."""
        asked, trace = self.question, self.trace
        run = compute.replays().made_once(Opened(asked.setting), self.replay, self.check)
        self.newest = "who ran in the steps asked for"
        if isinstance(asked, Late):
            self.num_planned += len(life_pieces(run, asked.request))
            return life_of(trace, run, asked.request, self.cancelled, self.on_replay)
        self.num_planned += 1
        found: WindowView | tuple[StepRow, ...]
        if isinstance(asked, Window):
            sizes = {"num_buckets": NUM_SLICES, "num_gaps": NUM_GAPS, "num_steps": NUM_STEPS}
            found = look_at(trace, run, asked.window_s, **sizes, cancel=self.cancelled)
        else:
            assert isinstance(asked, Moment)
            found = step_table(trace, run, asked.moment_s, NUM_STEPS, self.cancelled)
        self.on_replay()
        return found

    def on_replay(self) -> None:
        """Note how far it is."""
        self.engine[:] = 0
        self.num_done += 1


def window_width_s(span_s: float) -> float:
    """An hour for traces of several hours; a round share of shorter ones."""
    return next((width_s for width_s in WIDTHS_S if width_s * MOST_WINDOWS >= span_s), HOUR_S)
