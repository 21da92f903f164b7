"""What the user wants of the latencies."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency targets; every one that is set must hold."""

    itl_s: float
    """Target inter-token latency: seconds between two consecutive tokens of one request."""
    itl_percentile: float = 0.99
    """Share of all gaps, pooled over requests, that must be within `itl_s`; 0–1."""
    worst_gap_s: float | None = None
    """Longest gap any request may see, seconds; None = not constrained."""
    ttft_s: float | None = None
    """Target time to first token, seconds, queueing included; None = not constrained."""
    ttft_percentile: float = 0.99
    """Share of requests whose first token must come within `ttft_s`; 0–1."""
