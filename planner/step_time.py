"""The step-time model: the coefficients the kernel charges, and what is known about them."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class StepTime(NamedTuple):
    """Coefficients of `kernel.step_ns`; scalars only, so that compiled code takes it as it is."""

    base_ns: int
    """Every step, nanoseconds."""
    per_seq_ns: int
    """Per scheduled request, nanoseconds."""
    per_prefill_token_ns: int
    """p: per prefill token, nanoseconds."""
    any_prefill_ns: float = 0.0
    """Once per step that has prefill tokens, nanoseconds."""
    per_kv_token_ns: float = 0.0
    """Per context token that decodes read, in a step without prefill, nanoseconds."""
    per_kv_token_mixed_ns: float = 0.0
    """The same in a step with prefill, nanoseconds."""
    per_prefill_attention_ns: float = 0.0
    """Per chunk·(context before it + chunk/2), nanoseconds per token²."""


@dataclass(frozen=True, slots=True)
class Coefficient:
    """One fitted number with its interval, in seconds per unit of its term."""

    name: str
    """Field of `StepTime` without `_ns` ("base", "per_seq", "per_prefill_token", …)."""
    value: float
    """Seconds per unit."""
    low: float
    """Lower end of the 95 % interval."""
    high: float
    """Upper end of the 95 % interval."""


@dataclass(frozen=True, slots=True)
class Covered:
    """Range of work that the kept steps of the log span; leaving it is extrapolation."""

    max_num_seqs: int
    """Most requests in one step."""
    max_prefill_tokens: int
    """Most prefill tokens in one step."""
    max_kv_decode_tokens: float
    """Most context tokens read by decodes in one step; NaN when the log does not say."""


@dataclass(frozen=True, slots=True, eq=False)
class StepTimeFit:
    """Result of `calibrate.fit_step_time`."""

    step_time: StepTime
    """What the kernel charges: the coefficients below in nanoseconds."""
    coefficients: tuple[Coefficient, ...]
    """Every term in the equation, with its interval."""
    draws: npt.NDArray[np.float64]
    """(draws, 7) joint bootstrap sample of the coefficients in the order of `StepTime`, seconds per unit."""
    num_steps: int
    """Steps in the log."""
    kept: npt.NDArray[np.bool_]
    """(steps,) the steps that the fit used."""
    left_out: tuple[tuple[str, int], ...]
    """(reason, how many steps) for those it did not use."""
    predicted_s: npt.NDArray[np.float64]
    """(steps,) the fitted equation at every step of the log, seconds."""
    measured_s: npt.NDArray[np.float64]
    """(steps,) the log's own times, seconds."""
    held_out_mape: float
    """Mean absolute percentage error on steps the fit did not see, 0–1, from blocked cross-validation."""
    held_out_p95: float
    """95th percentile of the same absolute error, 0–1."""
    total_time_ratio: float
    """Predicted ÷ measured total time of the kept steps; 1 when queues will be predicted without bias."""
    typical_num_seqs: int
    """Median batch of the kept decode-only steps."""
    typical_decode_s: float
    """d: predicted time of a decode-only step at `typical_num_seqs` (and its median context), seconds."""
    covered: Covered
    """What the log covers."""
    notices: tuple[str, ...]
    """What the user must know before trusting this fit."""
    source: str
    """File the log came from, with a short digest."""
    digest: str
    """The log's digest."""
