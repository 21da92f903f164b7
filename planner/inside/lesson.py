"""Five requests through the real kernel, small enough to follow by hand: what the method page steps through."""

from dataclasses import dataclass

import numpy as np

from planner.engine_config import EngineConfig
from planner.inside.step_table import StepRow, step_table
from planner.replay import replay
from planner.step_time import StepTime
from traces.requests import RequestTrace

TOY = RequestTrace(
    arrival_s=np.array([0.0, 0.0, 0.05, 0.06, 0.07]),
    prompt_tokens=np.array([6, 4, 40, 6, 5]),
    output_tokens=np.array([14, 12, 4, 4, 3]),
    source_row=np.arange(5),
)
"""Two chats, a long prompt beside them, and two short ones behind it; sizes are a hundredth of real ones."""
LONG = 2
"""The request with the long prompt."""
TOY_STEP_TIME = StepTime(base_ns=8_000_000, per_seq_ns=500_000, per_prefill_token_ns=2_000_000)
"""A full step of 16 tokens takes as long as a real one of some thousand."""


@dataclass(frozen=True, slots=True)
class GapShare:
    """One request in one step: its gap, and how much of it is closed."""

    request: int
    """Row of `TOY`."""
    num_known: int
    """Prompt and output tokens known when the step is scheduled."""
    num_computed: int
    """How many of them were computed before."""
    num_tokens: int
    """How many the step computes; 0 = it waits."""

    @property
    def gap(self) -> int:
        """Tokens known and not computed."""
        return self.num_known - self.num_computed


@dataclass(frozen=True, slots=True)
class Turn:
    """One step of the lesson."""

    row: StepRow
    """The step as the Inspect page knows it."""
    shares: tuple[GapShare, ...]
    """Who has a gap: those who decode, those who prefill, then those who wait."""


def toy_config(budget: int = 16, threshold: int = 0, num_kv_tokens: int = 128) -> EngineConfig:
    """Four seats, blocks of four tokens, and none of the rules that hide the first one."""
    block_size = 4
    return EngineConfig(
        max_num_batched_tokens=budget,
        max_num_seqs=4,
        long_prefill_token_threshold=threshold,
        num_gpu_blocks=num_kv_tokens // block_size + 1,
        block_size=block_size,
        async_scheduling=False,
        enable_prefix_caching=False,
        scheduler_reserve_full_isl=False,
    )


def lesson(config: EngineConfig) -> tuple[Turn, ...]:
    """Replay the toy trace, and say of every step which gaps it closes.

    Parameters
    ----------
    config : EngineConfig
        Of `toy_config`.

    Source
    ------
    vLLM 0.32, v1/core/sched/scheduler.py, Scheduler.schedule: each request has num_computed_tokens and
    num_tokens_with_spec, and each step tries to let the former catch up with the latter.
    """
    run = replay(TOY, config, TOY_STEP_TIME)
    known = TOY.prompt_tokens.tolist()
    computed = [0] * len(TOY)
    ended: set[int] = set()
    turns = []
    for row in step_table(TOY, run, 0.0, 2 * len(run.steps)):
        for loser in row.preempted:
            computed[loser.request] = 0
        given = dict((*row.decoded, *row.prefilled))
        waiting = [i for i in range(len(TOY)) if TOY.arrival_s[i] <= row.sched_s and i not in ended and i not in given]
        shares = tuple(GapShare(i, known[i], computed[i], given.get(i, 0)) for i in (*given, *waiting))
        turns.append(Turn(row, shares))
        for share in shares:
            computed[share.request] += share.num_tokens
            known[share.request] += computed[share.request] == known[share.request]
        ended.update(row.finished)
    return tuple(turns)
