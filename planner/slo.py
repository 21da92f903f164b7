"""What the user wants of the latencies."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClassTarget:
    """Latency targets of some requests only, on top of those of all; percentiles are those of the `Slo`."""

    min_prompt_tokens: int = 1
    """Shortest prompt of the class, tokens."""
    max_prompt_tokens: int | None = None
    """Longest prompt of the class, tokens; None = no bound."""
    priority: int | None = None
    """Only requests of this priority; None = of any."""
    label: tuple[str, str] | None = None
    """Only requests for which this column of the trace has this word; None = any."""
    itl_s: float | None = None
    """Target inter-token latency, seconds, of the gaps pooled over the class; None = not constrained, like the next."""
    ttft_s: float | None = None
    """Target time to first token, seconds."""
    e2e_s: float | None = None
    """Target time from arrival to last token, seconds."""
    worst_gap_s: float | None = None
    """Longest gap any request of the class may see, seconds."""
    stalled_share: float | None = None
    """Most stalled time (parts of gaps above its `itl_s`, else that of all) as a share of its streaming time, 0–1."""


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
    stalled_share: float | None = None
    """Most stalled time (parts of gaps above `itl_s`) as a share of all streaming time, 0–1; None = not constrained."""
    e2e_s: float | None = None
    """Target time from arrival to last token, seconds; None = not constrained."""
    e2e_percentile: float = 0.99
    """Share of requests whose last token must come within `e2e_s`; 0–1."""
    classes: tuple[ClassTarget, ...] = ()
    """Further targets of some requests."""


LIMITS = {
    "itl_ms": ("itl_s", 1e3),
    "worst_gap_ms": ("worst_gap_s", 1e3),
    "ttft_ms": ("ttft_s", 1e3),
    "e2e_ms": ("e2e_s", 1e3),
    "stalled_percent": ("stalled_share", 100.0),
}
"""Limits of a class as people write them, its fields, and how many of the one make one of the other."""


def class_in_words(target: ClassTarget) -> str:
    """Which requests a target is for."""
    if target.max_prompt_tokens is None:
        words = "" if target.min_prompt_tokens == 1 else f"prompts of {target.min_prompt_tokens:,} tokens or more"
    elif target.min_prompt_tokens == 1:
        words = f"prompts up to {target.max_prompt_tokens:,} tokens"
    else:
        words = f"prompts of {target.min_prompt_tokens:,} to {target.max_prompt_tokens:,} tokens"
    if target.priority is not None:
        words = f"{words or 'requests'} of priority {target.priority}"
    if target.label is not None:
        words = f"{words or 'requests'} with {target.label[0]} {target.label[1]}"
    return words or "all requests"


def read_class_target(text: str) -> ClassTarget:
    """A class and its targets from words such as "prompt=1-1000,priority=0,column=model=small,ttft_ms=500".

    Raises
    ------
    ValueError
        The words are not of that form, or ask for nothing; says what was found and what is allowed.
    """
    try:
        parts = [(name.strip(), value) for name, value in (part.split("=", 1) for part in text.split(","))]
        given = dict(parts)
        num_named = len(given)
        first, _, last = given.pop("prompt", "1-").partition("-")
        priority, label = given.pop("priority", None), None
        if "column" in given:
            column, word = given.pop("column").split("=", 1)
            label = (column, word)
        limits = {LIMITS[name][0]: float(value) / LIMITS[name][1] for name, value in given.items()}
        target = ClassTarget(
            int(first),
            int(last) if last.strip() else None,
            None if priority is None else int(priority),
            label,
            **limits,
        )
    except (ValueError, KeyError) as fault:
        known = f"prompt, priority, column=NAME=WORD, {', '.join(LIMITS)}"
        raise ValueError(f"{text}: write it as prompt=1-1000,ttft_ms=500; known are {known}") from fault
    if num_named < len(parts):
        raise ValueError(f"{text}: names one thing twice; give the option once more for another class")
    if target.max_prompt_tokens is not None and target.max_prompt_tokens < target.min_prompt_tokens:
        raise ValueError(f"{text}: no prompt has {first} tokens or more and at most {last}")
    if not limits or not all(0 < limit < float("inf") for limit in limits.values()):
        raise ValueError(f"{text}: needs a limit above 0, such as ttft_ms=500")
    if target.stalled_share is not None and target.stalled_share > 1:
        raise ValueError(f"{text}: no more than 100 percent of the time can be stalled")
    return target
