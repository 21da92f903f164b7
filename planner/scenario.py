"""What if the load, the KV memory or the prompts were others: the same requests, replayed under a change."""

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from planner.candidates import Candidate, evaluate
from planner.capacity import scale_load
from planner.engine_config import EngineConfig
from planner.slo import Slo
from planner.step_time import StepTime
from traces.prefixes import same_beginning, with_less_reuse
from traces.requests import RequestTrace


@dataclass(frozen=True, slots=True)
class Scenario:
    """A change to the traffic and to the memory; the default changes nothing."""

    load: float = 1.0
    """Arrivals come so many times as fast, above 0."""
    kv_memory: float = 1.0
    """The KV cache has so many times the tokens, above 0."""
    prompt_length: float = 1.0
    """Prompts are so many times as long, above 0; only for a trace that says nothing of shared prefixes."""
    seen_share: float | None = None
    """Share of the prompt tokens, 0–1, that begin like an earlier prompt, so that a prefix cache without end would save
    them; None = as the trace says. One that says which prompts begin alike can only have less than it says; in another,
    all prompts begin with the same made-up text."""


def changed_trace(trace: RequestTrace, scenario: Scenario) -> RequestTrace:
    """The traffic of a scenario; prompts keep at least one token.

    Raises
    ------
    ValueError
        Prompts are scaled though the trace says which of them begin alike: it does not say how they would go on.
    """
    if scenario.prompt_length != 1.0:
        if trace.prefix_hashes is not None:
            raise ValueError("prompt_length is for traces without prefix hashes")
        tokens = np.maximum(1, np.rint(trace.prompt_tokens * scenario.prompt_length)).astype(np.int64)
        trace = replace(trace, prompt_tokens=tokens)
    if scenario.seen_share is not None:
        known, tokens = trace.prefix_hashes, trace.prompt_tokens
        if known is None:
            hashes = same_beginning(tokens, scenario.seen_share)
        else:
            hashes = with_less_reuse(known, tokens, scenario.seen_share)
        trace = replace(trace, prefix_hashes=hashes)
    return trace if scenario.load == 1.0 else scale_load(trace, scenario.load)


def changed_config(config: EngineConfig, scenario: Scenario) -> EngineConfig:
    """The flags of a scenario: whole blocks, at least one and the null block."""
    return replace(config, num_gpu_blocks=max(2, round((config.num_gpu_blocks - 1) * scenario.kv_memory) + 1))


def evaluate_scenario(
    trace: RequestTrace,
    configs: tuple[EngineConfig, ...],
    step_time: StepTime,
    slo: Slo,
    scenario: Scenario,
    executor: Executor,
    *,
    on_candidate: Callable[[Candidate], None] | None = None,
    cancel: npt.NDArray[np.uint8] | None = None,
) -> tuple[Candidate, ...]:
    """Replay every setting under a scenario, side by side; in the order given, in which `on_candidate` gets them too.

    Raises
    ------
    Cancelled
        After `cancel` became non-zero.
    """
    changed = changed_trace(trace, scenario)
    runs = [
        executor.submit(evaluate, changed, changed_config(config, scenario), step_time, slo, cancel)
        for config in configs
    ]
    found = []
    for run in runs:
        found.append(run.result())
        if on_candidate is not None:
            on_candidate(found[-1])
    return tuple(found)
