"""What a server would have logged, by the plain model of the scheduler: its lines, and what they do not tell."""

from dataclasses import dataclass

import numpy as np
from naive import Engine
from numpy.typing import NDArray

from traces.steps import StepLog

FEATURES = (
    "num_scheduled", "prefill_tokens", "kv_decode_tokens", "prefill_attention", "num_draft_tokens", "kv_prefill_tokens",
)  # fmt: skip
"""Columns of `kernel.STEP` in the order in which the plain model hands them to its step time."""


@dataclass(eq=False)
class Logged:
    log: StepLog
    features: NDArray[np.float64]
    """(k, 6) `FEATURES` of each line."""
    steps: list[dict]
    """(k,) what the plain model says of each line's step."""
    accepted: list[list[int]]
    """Per request, the drafts accepted in each of its steps that had some."""


def served(requests, flags, step_ns, max_steps=200_000, id_block_tokens=16) -> Logged:
    """Serve requests by the plain model; stamps are rounded to a millisecond, as in a log of JSON lines."""
    engine = _LoggingEngine(requests, flags, step_ns, max_steps, id_block_tokens)
    engine.run()
    steps = [step for step in engine.steps if step["batch"]]
    columns = np.array(engine.lines, np.int64).reshape(-1, 4).T
    log = StepLog(
        step_s=np.array([(step["end_ns"] - step["start_ns"]) / 1e9 for step in steps]),
        num_prefill_reqs=columns[0],
        prefill_tokens=columns[1],
        num_decode_reqs=columns[2],
        num_decode_tokens=columns[3],
        source_row=np.arange(len(steps)),
        kv_usage=np.round(engine.usage, 3),
        stamp_s=np.round([step["end_ns"] / 1e9 for step in steps], 3),
    )
    return Logged(log, np.array(engine.features, np.float64).reshape(-1, 6), steps, engine.accepted)


class _LoggingEngine(Engine):
    """vLLM 0.32, v1/utils.py, compute_iteration_details: a request is in the context phase as long as no output of it
    was scheduled; KV usage is taken after the step's output was processed."""

    def __init__(self, requests, flags, step_ns, max_steps, id_block_tokens) -> None:
        super().__init__(requests, flags, self.charge, max_steps, id_block_tokens)
        self.plain_step_ns = step_ns
        self.lines, self.usage, self.features = [], [], []
        self.accepted = [[] for _ in requests]

    def charge(self, *features) -> int:
        self.features.append(features)
        return self.plain_step_ns(*features)

    def start_step(self, now, gpu_free, admitted):
        line = [0, 0, 0, 0]
        for entry in self.batch:
            is_generation = len(entry.request.token_step) + entry.request.num_placeholders > 0
            line[2 * is_generation] += 1
            line[2 * is_generation + 1] += entry.tokens
        if self.batch:
            self.lines.append(line)
        return super().start_step(now, gpu_free, admitted)

    def process_output(self, flight) -> None:
        super().process_output(flight)
        if flight.entries:
            self.usage.append(1 - len(self.pool.free) / (self.config["num_blocks"] - 1))

    def num_accepted(self, entry) -> int:
        num_accepted = super().num_accepted(entry)
        if entry.drafts > 0:
            self.accepted[entry.request.index].append(num_accepted)
        return num_accepted
