"""Words, display units and number formats of figures and tables: each has its one home here."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.search import Recommendation
from planner.verdict import seconds

MS_PER_S = 1e3
"""Milliseconds exist on screen only."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """Something on an axis."""

    name: str
    """What it is, with its definition where there is more than one."""
    unit: str
    """As shown."""
    per_inside: float = 1.0
    """Units shown per unit used inside (1e3: seconds inside, milliseconds on screen)."""

    @property
    def title(self) -> str:
        """Axis title."""
        return f"{self.name} [{self.unit}]"

    def shown(self, values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Values in the unit shown."""
        return np.asarray(values, np.float64) * self.per_inside


ITL = Quantity("Token gap (ITL), pooled over requests", "ms", MS_PER_S)
TTFT = Quantity("TTFT, queueing included", "ms", MS_PER_S)
LATENCY = Quantity("Latency", "ms", MS_PER_S)
LOAD = Quantity("Load", "times this trace's rate")
STEP_TIME = Quantity("Step time", "ms", MS_PER_S)
MEASURED_STEP = Quantity("Measured step time", "ms", MS_PER_S)
PREDICTED_STEP = Quantity("Predicted step time", "ms", MS_PER_S)
PREFILL_TOKENS = Quantity("Prefill tokens in the step", "tokens")
BATCH = Quantity("Requests in the step", "requests")
CONTEXT_READ = Quantity("Context that decodes read", "tokens")
DECODE_TIME = Quantity("d, time of a decode-only step", "ms", MS_PER_S)
RESIDUAL = Quantity("Predicted ÷ measured − 1", "%", 100.0)
LOGGED_AT = Quantity("Time since the log's first step", "s")
STEP_NUMBER = Quantity("Step of the log", "number")
TOKENS = Quantity("Tokens per request", "tokens")
PROMPT_TOKENS = Quantity("Prompt", "tokens")
OUTPUT_TOKENS = Quantity("Output", "tokens")
BIN_WIDTH = Quantity("Counted over", "s")
DISPERSION = Quantity("Variance ÷ mean of the count", "1")
SHARE_OF_REQUESTS = Quantity("Share of requests", "%", 100.0)
SHARE_LONGER = Quantity("Share that is longer", "%", 100.0)
REQUEST_RATE = Quantity("Arrivals", "requests/s")
RUNNING = Quantity("Running", "requests")
WAITING = Quantity("Waiting", "requests")
KV_USE = Quantity("KV use", "%", 100.0)
PREEMPTIONS = Quantity("Preempted", "times")
TOY_STEP = Quantity("Step", "number")
SCHEDULED_TOKENS = Quantity("Tokens computed", "tokens")
BUDGET = Quantity("max_num_batched_tokens (budget)", "tokens")
SEATS = Quantity("max_num_seqs (seats)", "requests")
MOMENT = Quantity("Time since the first arrival", "s")
"""In seconds however long the trace is: what is read off here is typed in as a window."""


def since_first_arrival(span_s: float) -> Quantity:
    """Time axis of a trace, in the unit that suits its span."""
    units = {"s": 1.0, "min": 60.0, "h": 3600.0}
    unit = next((unit for unit, unit_s in units.items() if span_s <= 600.0 * unit_s), "h")
    return Quantity("Time since the first arrival", unit, 1.0 / units[unit])


@dataclass(frozen=True, slots=True)
class Term:
    """How a coefficient of the step-time equation is shown."""

    label: str
    """In words."""
    unit: str
    """Per unit of its term."""
    per_second: float
    """Units shown per second."""


TERMS = {
    "base": Term("Base, every step (d)", "ms", 1e3),
    "per_seq": Term("Per request in the step (d)", "µs per request", 1e6),
    "per_prefill_token": Term("Per prefill token (p)", "µs per token", 1e6),
    "any_prefill": Term("Once per step with prefill", "ms", 1e3),
    "per_kv_token": Term("Per context token that decodes read, step without prefill (d)", "ns per token", 1e9),
    "per_kv_token_mixed": Term("Per context token that decodes read, step with prefill", "ns per token", 1e9),
    "per_draft_token": Term("Per draft token that is checked", "µs per token", 1e6),
    "per_kv_prefill_token": Term("Per context token that prefills had before their chunk", "ns per token", 1e9),
    "per_token_beyond_128": Term("Per token beyond 128 of a step with prefill, on top of p", "µs per token", 1e6),
    "per_token_beyond_256": Term("Per token beyond 256 of a step with prefill, on top", "µs per token", 1e6),
    "per_token_beyond_512": Term("Per token beyond 512 of a step with prefill, on top", "µs per token", 1e6),
    "per_seq_beyond_128": Term("Per request beyond 128 in a step without prefill, on top (d)", "µs per request", 1e6),
    "per_padding_seq": Term("Per empty place of a batch padded to a captured CUDA graph (d)", "µs per place", 1e6),
    "per_prefill_attention": Term("Prefill attention, per prefill token × context token", "ps per token²", 1e12),
}
"""By the names of `step_time.Coefficient`."""


def percentile(share: float) -> str:
    """0.99 → "p99"."""
    return f"p{100 * share:g}"


def percent(share: float) -> str:
    """A share of 0–1 with three significant digits at most."""
    return f"{three_digits(100 * share)} %" if share == share else "–"


def three_digits(value: float) -> str:
    """A number with three significant digits at most, thousands separated."""
    if value != value:
        return "–"
    return f"{float(f'{value:.3g}'):,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def compact(value: int) -> str:
    """A count; exact below a million, with three digits above."""
    return f"{value:,}" if value < 1_000_000 else f"{value / 1e6:.3g} M"


def term_value(name: str, value_s: float) -> str:
    """A coefficient in the unit of its term, without the unit."""
    return three_digits(value_s * TERMS[name].per_second)


def threshold(tokens: int) -> str:
    """The long-prefill threshold; 0 turns it off."""
    return f"{tokens:,}" if tokens else "0 (off)"


def d_and_p(decode_s: float, num_seqs: float, per_prefill_token_s: float) -> str:
    """The two numbers a step-time model is known by."""
    return f"d {seconds(decode_s)} at {num_seqs:.0f} decoding · p {seconds(per_prefill_token_s)}/token"


def answer_label(plan: Recommendation) -> str:
    """What the middle column of a comparison is called."""
    return "Recommended" if plan.best else "Closest (misses)"
