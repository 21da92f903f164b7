"""Small request traces for tests."""

import numpy as np

from traces.requests import RequestTrace


def trace_of(*rows: tuple[float, int, int]) -> RequestTrace:
    """A trace from (arrival in seconds, prompt tokens, output tokens)."""
    arrival_s, prompt_tokens, output_tokens = zip(*rows, strict=True)
    return RequestTrace(
        np.array(arrival_s, float), np.array(prompt_tokens), np.array(output_tokens), np.arange(len(rows))
    )


def chat_trace(num_requests: int = 300, rate_rps: float = 8.0, seed: int = 1) -> RequestTrace:
    """Chats with a long prompt now and then."""
    rng = np.random.default_rng(seed)
    prompt_tokens = np.where(rng.random(num_requests) < 0.05, 12_000, rng.integers(100, 900, num_requests))
    return RequestTrace(
        np.cumsum(rng.exponential(1 / rate_rps, num_requests)),
        prompt_tokens,
        rng.integers(20, 120, num_requests),
        np.arange(num_requests),
    )
