"""A server's log walked line by line with the requests that caused it: what each step computed, and who was in it.

`align` is the only door. It drives the compiled scheduler of `planner.kernel`, the one that replays and plans, one
step a line, so the share of lines that it explains says how well that scheduler describes the user's own server.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from planner import kernel
from planner.acting import FLAGS, FlagUse, flag_uses, flags_acting
from planner.drafts import DraftingEngine
from planner.engine_config import EngineConfig, check_flags
from planner.errors import BadPlan
from planner.stepper import Clock, Engine, Work
from traces.requests import RequestTrace
from traces.steps import StepLog

MIN_SHARE_EXPLAINED = 0.9
"""With fewer steps explained, trace, flags and log do not belong together."""
SURE_LINES = 20
"""A start counts when it explains so many lines in a row, or all that are left."""
MAX_STARTS = 5_000
"""Starts that are tried in all; more would only take long to find that trace and log do not belong together."""
MAX_STARTED_BYTES = 1 << 30
"""A start of a large trace is dear: so many bytes of states are laid out for all starts, or for `MIN_STARTS`."""
MIN_STARTS = 40
LOST_LINES = 20
"""After so many lines in a row that nothing explains, the walk starts anew at an idle point."""
RETAKEN_PER_LINE = 20
"""Steps taken again to explain lines, per line of the log."""
MAX_RECONSIDERED = 64
"""So many lines behind which something else may have been are looked at again when a later line does not fit."""
MAX_BYTES = 256 << 20
"""Memory for their states."""
NUM_DIFFERENCES = 5


@dataclass(frozen=True, slots=True)
class Difference:
    """A line that the scheduler's rules do not explain."""

    source_row: int
    """Line of the file, counted from 0."""
    logged: Work
    """What it says."""
    simulated: Work
    """What the rules give."""


@dataclass(frozen=True, slots=True, eq=False)
class Alignment:
    """What the trace's requests did in each of the k steps of a log."""

    is_covered: npt.NDArray[np.bool_]
    """(k,) steps that the trace should explain: from the first that fits it to its last request's last."""
    is_explained: npt.NDArray[np.bool_]
    """(k,) steps whose requests and tokens the rules reproduce exactly."""
    steps: npt.NDArray[Any]
    """(k,) `kernel.STEP`: the hidden features of the explained steps; its times mean nothing."""
    follows: npt.NDArray[np.bool_]
    """(k,) explained steps that follow the one before without the engine falling idle."""
    admitted: npt.NDArray[np.int64]
    """(r,) rows of the trace in the order in which the engine admitted them."""
    admitted_in: npt.NDArray[np.int64]
    """(r,) the step of the log in which each of them was."""
    sent_s: npt.NDArray[np.float64]
    """(r,) when each of them was sent, by the clock of the trace."""
    num_requests: int
    """Requests of the trace, r or more."""
    trace_digest: str
    """The trace's."""
    num_unsure_tokens: npt.NDArray[np.int64]
    """(k,) by how much the context of a step's requests may be off, tokens, summed; 0 without speculative decoding."""
    flag_uses: tuple[FlagUse, ...]
    """How often each flag acted in the explained steps."""
    differences: tuple[Difference, ...]
    """The first lines that are not explained."""

    @property
    def num_covered(self) -> int:
        """How many: m of "n of m steps explained"."""
        return int(self.is_covered.sum())

    @property
    def num_explained(self) -> int:
        """How many: n of "n of m steps explained"."""
        return int(self.is_explained.sum())

    @property
    def share_unsure(self) -> float:
        """Context that the explained steps may have read besides, or not, as a share of what is taken, 0 or more."""
        steps = self.steps[self.is_explained]
        read = steps["kv_decode_tokens"].sum() + steps["kv_prefill_tokens"].sum()
        return float(self.num_unsure_tokens[self.is_explained].sum() / read) if read else 0.0

    @property
    def share_explained(self) -> float:
        """Explained ÷ covered steps, 0–1; 0 when the trace explains nothing."""
        return self.num_explained / self.num_covered if self.num_covered else 0.0


def align(log: StepLog, trace: RequestTrace, engine_config: EngineConfig) -> Alignment:
    """Explain a server's log by the requests it served.

    Each line is one call of the scheduler. Requests are let in, in the order they were sent, as many as the line's
    requests in the context phase demand; who is computed how far, who is preempted, and what the prefix cache
    holds, follows from the rules alone. Where near-simultaneous requests reached the engine in another order
    than they were sent, the line's tokens tell which. By priority, and under a threshold, it matters who waits
    besides: whoever had been sent by the time of the line, or as many more or fewer as explain it. What ran before
    the trace (a warm-up) or after it is not covered; after a stretch that nothing explains, the walk starts anew
    where the engine was idle.

    Under speculative decoding the lines do not say how many drafts were accepted; see `planner.drafts`.

    A request ends after its output tokens, as in `replay`.

    Parameters
    ----------
    log : StepLog
        k steps in the order they ran; from a server log, with `num_decode_tokens`.
    trace : RequestTrace
        n requests, ordered by the time they were sent.
    engine_config : EngineConfig
        The flags of that server.

    Returns
    -------
    Alignment

    Raises
    ------
    BadFlags
        From `check_flags`.

    Source
    ------
    vLLM 0.32, v1/utils.py, compute_iteration_details: a request is in the context phase until its first output
    token is scheduled; one that was preempted later counts as decoding while it is computed again.
    """
    check_flags(engine_config)
    if engine_config.speculative_method is None:
        walk = _walked(log, Engine(trace, engine_config))
    else:
        guessing = DraftingEngine(trace, engine_config)
        walk = _walked(log, guessing.settled(_walked(log, guessing).admitted))
    covered = np.zeros(len(log), np.bool_)
    if walk.covered:
        covered[min(walk.covered) : max(walk.covered) + 1] = True
    return Alignment(
        is_covered=covered,
        is_explained=walk.is_explained,
        steps=walk.steps,
        follows=walk.follows & walk.is_explained,
        admitted=np.array(walk.admitted, np.int64),
        admitted_in=np.array(walk.admitted_in, np.int64),
        sent_s=trace.arrival_s[walk.admitted],
        num_requests=len(trace),
        trace_digest=trace.digest,
        num_unsure_tokens=walk.num_unsure_tokens,
        flag_uses=flag_uses(engine_config, walk.acting[walk.is_explained], walk.steps[walk.is_explained]),
        differences=tuple(walk.differences[:NUM_DIFFERENCES]),
    )


def align_whole(log: StepLog, trace: RequestTrace, engine_config: EngineConfig) -> Alignment:
    """Align, or refuse where trace, flags and log do not belong together; for parameters see `align`.

    Raises
    ------
    BadFlags
        From `align`.
    BadPlan
        The trace explains less than `MIN_SHARE_EXPLAINED` of the steps; lists the first differences.
    """
    alignment = align(log, trace, engine_config)
    if alignment.share_explained >= MIN_SHARE_EXPLAINED:
        return alignment
    differences = "".join(f"\n  {difference_sentence(one)}" for one in alignment.differences)
    drafts = ""
    if engine_config.speculative_method is not None:
        drafts = (
            " A log does not say how many drafts were accepted, and where KV blocks are short that decides who is "
            "preempted: such a log cannot be explained."
        )
    flags = ", ".join(f"{name} {value}" for name, value in asdict(engine_config).items() if value is not None)
    raise BadPlan(
        trace.receipt.file_name if trace.receipt else "trace",
        f"explains {alignment.num_explained:,} of the log's {len(log):,} steps: these are not the requests behind it, "
        f"or the server ran with other flags than these ({flags}). Give the flags that are missing, or calibrate "
        f"without the trace.{drafts}{differences}",
    )


def alignment_sentence(alignment: Alignment, num_steps: int) -> str:
    """How many steps of a log the rules explain, and how many requests of the trace were found in it."""
    outside = num_steps - alignment.num_covered
    said = f"{alignment.num_explained:,} of {alignment.num_covered:,} steps explained by the trace under these flags"
    if outside:
        said += f"; {outside:,} more are outside the stretches that it was walked along"
    if alignment.share_unsure > 0:
        said += (
            "; the lines do not say which drafts were accepted, so the context read is known within "
            f"{100 * alignment.share_unsure:.1f} %"
        )
    num_found, num_requests = len(alignment.admitted), alignment.num_requests
    return f"{said}; {num_found:,} of {num_requests:,} requests found in the log."


def difference_sentence(difference: Difference) -> str:
    """What a line says, and what the rules give."""
    logged, simulated = difference.logged, difference.simulated
    return (
        f"line {difference.source_row + 1}: logged {logged.num_prefill_reqs} context requests with "
        f"{logged.prefill_tokens:,} tokens and {logged.num_decode_reqs} generation requests with "
        f"{logged.num_decode_tokens:,}; the rules give {simulated.num_prefill_reqs} with {simulated.prefill_tokens:,} "
        f"and {simulated.num_decode_reqs} with {simulated.num_decode_tokens:,}"
    )


def aligned_log(log: StepLog, alignment: Alignment) -> StepLog:
    """The explained steps of a log, with the features that its lines do not tell."""
    which = alignment.is_explained
    steps = alignment.steps[which]
    return replace(
        log,
        step_s=log.step_s[which],
        num_prefill_reqs=steps["num_scheduled"] - steps["num_decodes"],
        prefill_tokens=steps["prefill_tokens"].copy(),
        num_decode_reqs=steps["num_decodes"].copy(),
        source_row=log.source_row[which],
        kv_decode_tokens=steps["kv_decode_tokens"].astype(np.float64),
        kv_usage=None,
        prefill_attention=steps["prefill_attention"].copy(),
        kv_prefill_tokens=steps["kv_prefill_tokens"].astype(np.float64),
        weight=None,
        num_decode_tokens=None,
        stamp_s=None if log.stamp_s is None else log.stamp_s[which],
    )


def clocks(log: StepLog, is_async: bool) -> list[Clock]:
    """When each step was scheduled, by the log's stamps if they have fractions of a second, else by its step times.

    A line is written when its step ends; the next step is scheduled then, or the next but one when asynchronous.
    """
    stamp_s = log.stamp_s
    ended_s = np.cumsum(log.step_s) if stamp_s is None or (stamp_s % 1 == 0).all() else stamp_s
    start_s = ended_s - log.step_s
    depth = 2 if is_async else 1
    scheduled_s = np.concatenate([start_s[:depth], ended_s[:-depth]])[: len(log)]
    return [Clock(*row) for row in np.stack([scheduled_s, start_s], axis=1).tolist()]


def _walked(log: StepLog, engine: Engine) -> "_Walk":
    """A log walked from its first line to its last."""
    walk = _Walk(log, engine)
    line, row = 0, 0
    while (start := walk.find_start(line, row)) is not None:
        line = walk.run(*start)
        row = walk.num_let_in
    return walk


class _Walk:
    """The state of one alignment."""

    def __init__(self, log: StepLog, engine: Engine) -> None:
        tokens = log.num_decode_reqs if log.num_decode_tokens is None else log.num_decode_tokens
        columns = (log.num_prefill_reqs, log.prefill_tokens, log.num_decode_reqs, tokens)
        self.lines = [Work(*row) for row in np.column_stack(columns).tolist()]
        self.clocks = clocks(log, engine.limits.is_async)
        self.source_row = log.source_row
        self.engine = engine
        self.is_explained = np.zeros(len(log), np.bool_)
        self.follows = np.zeros(len(log), np.bool_)
        self.steps = np.zeros(len(log), kernel.STEP)
        self.num_unsure_tokens = np.zeros(len(log), np.int64)
        self.acting = np.zeros((len(log), len(FLAGS)), np.bool_)
        self.admitted: list[int] = []
        self.admitted_in: list[int] = []
        self.let_in_by = np.zeros(len(log), np.int64)
        self.differences: list[Difference] = []
        self.covered: list[int] = []
        self.num_let_in = 0
        self.num_starts = self.num_retaken = 0
        self.max_starts = min(MAX_STARTS, max(MIN_STARTS, MAX_STARTED_BYTES // self.engine.num_bytes))

    def find_start(self, first_line: int, first_row: int) -> tuple[int, int] | None:
        """The next line, and the request, from which the rules explain what follows."""
        for line in range(first_line, len(self.lines)):
            work = self.lines[line]
            if work.num_decode_reqs == 0 and work.num_prefill_reqs > 0:
                for row in self.engine.rows_like(work, first_row):
                    self.num_starts += 1
                    if self.num_starts > self.max_starts:
                        return None
                    if self._num_explained(line, row) >= min(SURE_LINES, len(self.lines) - line):
                        return line, row
        return None

    def run(self, line: int, row: int) -> int:
        """Walk from a start to the end of the trace, or until lost; returns the line after."""
        engine = self.engine
        first_line = line
        engine.reset(row)
        choices: deque[_Choice] = deque(maxlen=max(1, min(MAX_RECONSIDERED, MAX_BYTES // engine.num_bytes)))
        num_lost = 0
        while line < len(self.lines) and num_lost < LOST_LINES:
            simulated = self._take(line)
            if simulated is None:
                break
            if simulated != self.lines[line] and num_lost == 0 and self._reconsider(choices, line):
                simulated = self.lines[line]
            self._note(choices, line)
            self._record(line, simulated)
            num_lost = 0 if self.is_explained[line] else num_lost + 1
            line += 1
        self.admitted += engine.order[row : engine.num_let_in].tolist()
        places = np.searchsorted(self.let_in_by[first_line:line], np.arange(row, engine.num_let_in), "right")
        self.admitted_in += (first_line + places).tolist()
        self.num_let_in = engine.num_let_in
        return line

    def _take(self, line: int) -> Work | None:
        """Let the engine take the step of a line."""
        return self.engine.take(self.lines[line], self.clocks[line])

    def _note(self, choices: "deque[_Choice]", line: int) -> None:
        """Keep what else could have been behind a line."""
        if self.engine.others:
            choices.append(_Choice(line, self.engine.others))

    def _reconsider(self, choices: "deque[_Choice]", line: int) -> bool:
        """Whether this line is explained once something else was behind an earlier one; if so, it was."""
        engine = self.engine
        now, others = engine.save(0), engine.others
        for past in reversed(choices):
            for other in past.others:
                if self.num_retaken > RETAKEN_PER_LINE * len(self.lines):
                    break
                self.num_retaken += 1 + line - past.line
                if other() == self.lines[past.line] and all(
                    self._take(later) == self.lines[later] for later in range(past.line + 1, line + 1)
                ):
                    self._walk_again(choices, past, other, line)
                    return True
        engine.restore(now)
        engine.others = others
        return False

    def _walk_again(
        self, choices: "deque[_Choice]", past: "_Choice", other: Callable[[], Work | None], line: int
    ) -> None:
        """Take the lines up to this one again, with something else behind an earlier one."""
        while choices and choices[-1].line >= past.line:
            choices.pop()
        self._record(past.line, other())
        for later in range(past.line + 1, line + 1):
            work = self._take(later)
            if later < line:
                self._note(choices, later)
            self._record(later, work)

    def _record(self, line: int, simulated: Work | None) -> None:
        """Keep what the engine did in a line."""
        self.covered.append(line)
        self.is_explained[line] = simulated == self.lines[line]
        self.follows[line] = not self.engine.fell_idle
        self.let_in_by[line] = self.engine.num_let_in
        self.steps[line] = self.engine.step[0]
        self.num_unsure_tokens[line] = self.engine.num_unsure_tokens
        self.acting[line] = flags_acting(self.engine, self.engine.now_s(self.clocks[line], self.engine.fell_idle))
        if simulated is not None and simulated != self.lines[line]:
            self.differences.append(Difference(int(self.source_row[line]), self.lines[line], simulated))

    def _num_explained(self, line: int, row: int) -> int:
        """How many lines in a row a start explains, at most `SURE_LINES`."""
        self.engine.reset(row)
        num = 0
        while num < SURE_LINES and line + num < len(self.lines):
            if self._take(line + num) != self.lines[line + num]:
                break
            num += 1
        return num


class _Choice(NamedTuple):
    """A line behind which something else may have been."""

    line: int
    others: list[Callable[[], Work | None]]
    """Each takes the step anew, from the state before it."""
