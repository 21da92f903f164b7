"""What can be wrong on the planner's side; the root is shared with `traces.errors`.

traces.errors.InputError
├── BadFlags               flags that vLLM refuses, with vLLM's reason
├── UnfitStepLog           the log cannot determine d or p; says what to record next
├── BadPlan                a model or plan file, or targets, that cannot be used
└── NoCluster              a Dask cluster that cannot be used

Cancelled is not a fault: the user stopped a long piece of work.
"""

from dataclasses import dataclass
from enum import StrEnum

from traces.errors import BadData, InputError, Problem
from traces.steps import ServerFacts


class Gap(StrEnum):
    """What a step log does not tell, so that `remedies` can say how to record it."""

    TOO_FEW_STEPS = "too_few_steps"
    NO_DECODE_ONLY_STEPS = "no_decode_only_steps"
    NO_PREFILL = "no_prefill"
    PREFILL_SIZES = "prefill_sizes"
    """Prefill of one size only, or p is known roughly."""
    HIDDEN_TIMES = "hidden_times"
    """Times that are waits under asynchronous scheduling, or that leave out what passes between steps."""
    UNIT = "unit"
    MIXED_REGIMES = "mixed_regimes"
    """Two servers, or two ways to run one, in one file."""
    SAME_BATCH = "same_batch"
    LARGER_BATCHES = "larger_batches"
    """Fewer requests in a step than the server has seats."""
    LARGER_PREFILLS = "larger_prefills"
    """Fewer prefill tokens in a step than the budget allows."""
    CONTEXT = "context"
    """How much context decodes read is not known, or its cost cannot be seen."""
    SINGLE_STEPS = "single_steps"
    """Rows are averages, or in no order of time: how single steps scatter is not known."""


@dataclass(frozen=True, slots=True)
class UnfitProblem(Problem):
    """A reason for which a step log cannot be fitted."""

    gap: Gap = Gap.TOO_FEW_STEPS
    """What is missing."""


class BadFlags(InputError):
    """vLLM would not start with these flags."""


class UnfitStepLog(BadData):
    """A step log that cannot support a step-time model; `problems` says why and what to record next."""

    def __init__(
        self,
        file_name: str,
        problems: tuple[Problem, ...],
        facts: ServerFacts = ServerFacts(),  # noqa: B008 (frozen)
    ) -> None:
        super().__init__(file_name, problems)
        self.facts = facts
        """What the log says about its server."""


class BadPlan(InputError):
    """Targets, a model file or a plan file that cannot be used."""


class NoCluster(InputError):
    """There is no usable Dask cluster where one was said to be."""


class Cancelled(Exception):
    """The user stopped the work."""
