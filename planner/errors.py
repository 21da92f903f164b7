"""What can be wrong on the planner's side; the root is shared with `traces.errors`.

traces.errors.InputError
├── BadFlags               flags that vLLM refuses, with vLLM's reason
├── UnfitStepLog           the log cannot determine d or p; says what to record next
├── BadPlan                a model or plan file, or targets, that cannot be used
└── NoCluster              a Dask cluster that cannot be used

Cancelled is not a fault: the user stopped a long piece of work.
"""

from traces.errors import BadData, InputError


class BadFlags(InputError):
    """vLLM would not start with these flags."""


class UnfitStepLog(BadData):
    """A step log that cannot support a step-time model; `problems` says why and what to record next."""


class BadPlan(InputError):
    """Targets, a model file or a plan file that cannot be used."""


class NoCluster(InputError):
    """There is no usable Dask cluster where one was said to be."""


class Cancelled(Exception):
    """The user stopped the work."""
