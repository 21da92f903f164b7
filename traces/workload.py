"""Made-up traffic for people without a trace: arrivals, lengths and shared prefixes from a few numbers and a seed."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traces.requests import PrefixHashes, RequestTrace

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MAX_REQUESTS = 2_000_000
"""More are not made up: a mistyped rate must not fill the memory."""
MAX_IDS = 50_000_000
"""Nor more blocks of prompts that have shared prefixes."""
HASH_BLOCK_TOKENS = 16
"""Prompt tokens per prefix hash: vLLM's own block size."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lognormal token counts, cut off at both ends."""

    median: int
    """Tokens."""
    sigma: float
    """Standard deviation of the logarithm: with 1, a tenth is 3.6 times the median or longer."""
    low: int
    """Tokens, at least 1."""
    high: int
    """Tokens."""

    def draw(self, rng: np.random.Generator, num: int) -> Ints:
        """(num,) token counts."""
        return np.clip(np.rint(rng.lognormal(np.log(self.median), self.sigma, num)), self.low, self.high).astype(int)


@dataclass(frozen=True, slots=True)
class Workload:
    """Traffic in a few numbers."""

    prompt: Lengths
    """Of most requests."""
    output: Lengths
    """Of all requests."""
    rate_rps: float
    """Mean arrivals, requests per second."""
    duration_s: float = 600.0
    """Length of the window, seconds."""
    gap_cv: float = 1.0
    """Standard deviation ÷ mean of the gaps between arrivals: 1 = Poisson, 0 = a clock, above 1 = clumps."""
    swing: float = 0.0
    """How far the rate swings about its mean, once over the window, 0–1."""
    burst_size: int = 0
    """Requests that arrive at once, on top,"""
    burst_every_s: float = 60.0
    """this often, seconds."""
    long_share: float = 0.0
    """Share of requests with a long prompt, 0–1."""
    long_prompt: Lengths = Lengths(9_000, 0.5, 4_000, 30_000)
    """Of those."""
    prefix_share: float = 0.0
    """Share of requests that begin with a shared prefix, 0–1."""
    prefix_tokens: int = 0
    """Its length."""
    num_prefixes: int = 1
    """How many different ones there are, all as likely."""
    seed: int = 7
    """Of the random generator."""


CHAT_WITH_LONG_PROMPTS = Workload(
    prompt=Lengths(800, 0.8, 16, 4_000), output=Lengths(160, 0.6, 8, 1_200), rate_rps=2.5, long_share=0.08
)
"""A chat service in which now and then somebody pastes a document."""

PRESETS = {
    "Chat with pasted documents": CHAT_WITH_LONG_PROMPTS,
    "Conversation, as in the Azure 2023 trace": Workload(
        Lengths(1_020, 0.8, 2, 14_050), Lengths(129, 0.9, 7, 1_000), rate_rps=5.5, gap_cv=1.05, swing=0.3
    ),
    "General service, as ServeGen m-large": Workload(
        Lengths(602, 0.8, 14, 7_700), Lengths(28, 1.4, 1, 7_400), rate_rps=3.85, gap_cv=1.2, swing=0.4
    ),
    "Reasoning, as ServeGen DeepSeek-R1": Workload(
        Lengths(357, 1.7, 4, 36_000), Lengths(511, 0.8, 72, 22_300), rate_rps=2.6, gap_cv=1.1, swing=0.2
    ),
    "Long shared conversations, as Mooncake": Workload(
        Lengths(6_900, 1.1, 890, 126_000),
        Lengths(350, 0.4, 1, 2_000),
        rate_rps=3.4,
        prefix_share=0.6,
        prefix_tokens=9_000,
        num_prefixes=40,
    ),
}
"""Workloads to begin with; those named after a public trace have its rate, medians, p90 and prefix reuse."""


def make_trace(workload: Workload) -> RequestTrace:
    """Make up a trace; same workload, same bytes.

    Parameters
    ----------
    workload : Workload

    Returns
    -------
    RequestTrace
        Arrivals in whole microseconds; no file stands behind it.

    Raises
    ------
    ValueError
        A number is out of its range, or there would be no request, or more than `MAX_REQUESTS`.
    """
    faults = workload_faults(workload)
    if faults:
        raise ValueError("; ".join(faults))
    rng = np.random.default_rng(workload.seed)
    arrival_us = _arrivals_us(rng, workload)
    num = len(arrival_us)
    prompt = workload.prompt.draw(rng, num)
    is_long = rng.random(num) < workload.long_share
    prompt[is_long] = workload.long_prompt.draw(rng, int(is_long.sum()))
    output = workload.output.draw(rng, num)
    if num == 0:
        raise ValueError("no request arrives: a longer window or a higher rate is needed")
    return RequestTrace(
        arrival_s=(arrival_us - arrival_us[0]) / 1e6,
        prompt_tokens=prompt,
        output_tokens=output,
        source_row=np.arange(num),
        prefix_hashes=_prefixes(rng, prompt, workload) if workload.prefix_share else None,
    )


def workload_faults(workload: Workload) -> tuple[str, ...]:
    """Everything that is out of its range."""
    expected = workload.rate_rps * workload.duration_s
    if workload.burst_size:
        expected += workload.burst_size * (workload.duration_s / max(workload.burst_every_s, 1e-9))
    mean_prompt = workload.prompt.median * np.exp(workload.prompt.sigma**2 / 2)
    num_ids = expected * min(mean_prompt, workload.prompt.high) / HASH_BLOCK_TOKENS if workload.prefix_share else 0.0
    checks = (
        (workload.rate_rps > 0 and workload.duration_s > 0, "rate and duration must be above 0"),
        (expected <= MAX_REQUESTS, f"{expected:,.0f} requests are expected; allowed: {MAX_REQUESTS:,}"),
        (num_ids <= MAX_IDS, f"{num_ids:,.0f} blocks of shared prompts are expected; allowed: {MAX_IDS:,}"),
        (0 <= workload.gap_cv <= 20, "the variation of gaps must be from 0 to 20"),
        (0 <= workload.swing <= 1, "the swing of the rate must be from 0 to 1"),
        (workload.burst_size >= 0 and workload.burst_every_s > 0, "bursts must have a size and come after some time"),
        (0 <= workload.long_share <= 1 and 0 <= workload.prefix_share <= 1, "shares must be from 0 to 1"),
        (
            not workload.prefix_share or (workload.prefix_tokens > 0 and workload.num_prefixes > 0),
            "shared prefixes need a length and a number above 0",
        ),
    )
    lengths = {"prompt": workload.prompt, "output": workload.output, "long prompt": workload.long_prompt}
    return tuple(words for is_right, words in checks if not is_right) + tuple(
        f"{name} lengths must have 1 ≤ shortest ≤ median ≤ longest and a spread from 0 to 5"
        for name, one in lengths.items()
        if not (1 <= one.low <= one.median <= one.high and 0 <= one.sigma <= 5)
    )


def _arrivals_us(rng: np.random.Generator, workload: Workload) -> Ints:
    """Arrivals in order, whole microseconds of the window."""
    window_us = round(workload.duration_s * 1e6)
    if workload.gap_cv == 1.0 and not workload.swing:
        num = int(rng.poisson(workload.duration_s * workload.rate_rps))
        arrival_us = rng.integers(0, window_us, num)
    else:
        arrival_us = (_renewals(rng, workload) * 1e6).astype(np.int64)
    if workload.burst_size:
        moments = np.arange(workload.burst_every_s, workload.duration_s, workload.burst_every_s)
        arrival_us = np.concatenate([arrival_us, np.repeat((moments * 1e6).astype(np.int64), workload.burst_size)])
    return np.sort(arrival_us)


def _renewals(rng: np.random.Generator, workload: Workload) -> Floats:
    """Gaps from a gamma distribution, stretched where the rate is low; the window opens at any moment of one.

    Source
    ------
    D. R. Cox, Renewal Theory, 1962: from a moment taken at random to the next arrival it is a uniform share of a gap
    drawn by its length. Begun with an arrival instead, (cv² − 1)/2 requests too many would come.
    """
    expected = workload.rate_rps * workload.duration_s
    num = int(expected + 10 * max(workload.gap_cv, 1.0) * np.sqrt(expected) + 50)
    if workload.gap_cv == 0.0:
        gaps, around = np.ones(num), 1.0
    else:
        shape = 1.0 / workload.gap_cv**2
        gaps, around = rng.gamma(shape, 1.0 / shape, num), rng.gamma(shape + 1.0, 1.0 / shape)
    gaps[0] = rng.random() * around
    due = np.cumsum(gaps)
    # Arrivals due until each moment at a rate that swings as a sine does, upwards first.
    moment_s = np.linspace(0.0, workload.duration_s, 10_001)
    phase = 2 * np.pi * moment_s / workload.duration_s
    expected_until = workload.rate_rps * (
        moment_s + workload.swing * workload.duration_s / (2 * np.pi) * (1 - np.cos(phase))
    )
    arrival_s: Floats = np.interp(due[due < expected_until[-1]], expected_until, moment_s)
    return arrival_s


def _prefixes(rng: np.random.Generator, prompt: Ints, workload: Workload) -> PrefixHashes:
    """Ids of whole blocks that requests share, and of blocks of their own."""
    num_ids = -(-prompt // HASH_BLOCK_TOKENS)
    which = rng.integers(0, workload.num_prefixes, len(prompt))
    shares = rng.random(len(prompt)) < workload.prefix_share
    num_shared = np.where(shares, np.minimum(prompt, workload.prefix_tokens) // HASH_BLOCK_TOKENS, 0)
    offsets = np.concatenate([[0], np.cumsum(num_ids)]).astype(np.int64)
    request = np.repeat(np.arange(len(prompt)), num_ids)
    place = np.arange(offsets[-1]) - offsets[request]
    per_prefix = workload.prefix_tokens // HASH_BLOCK_TOKENS
    is_shared = place < num_shared[request]
    own = workload.num_prefixes * per_prefix + np.arange(offsets[-1])
    return PrefixHashes(np.where(is_shared, which[request] * per_prefix + place, own), offsets, HASH_BLOCK_TOKENS)
