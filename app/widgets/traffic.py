"""Which traffic is planned for: part of a trace, or made up."""

from itertools import cycle
from typing import Any

import streamlit as st

from app.widgets.fields import choice, number, several, span, switch
from traces.requests import RequestTrace, Selection
from traces.selection import sessions_of
from traces.workload import PRESETS, Lengths, Workload

MOST_WORDS = 200
"""A column with more different words is not offered to choose by."""


def ask_part(selection: Selection, trace: RequestTrace, clock_step_s: float | None, num_windows: int) -> Selection:
    """Ask which part of a trace is to be planned for, and how it is to be changed.

    Parameters
    ----------
    selection : Selection
        As chosen so far; its window is filled in.
    trace : RequestTrace
        The whole one.
    clock_step_s : float, optional
        How coarse its clock is, where it makes bursts.
    num_windows : int
        Names the question for the window; another one's answer is another widget's.
    """
    name = trace.digest[:8]
    begin, end, speed, sample, seeds = st.columns(5, vertical_alignment="bottom")
    window_s = span(
        (begin, end),
        f"part_{name}_{num_windows}",
        trace.span_s,
        60.0,
        selection.window_s or (0.0, None),
        " Draw a window on the plot above instead, if you like.",
    )
    with speed:
        about = "2 = the same requests in half the time: growth, or traffic split over other replicas (0.5 for two)."
        rate = number("Rate, times", f"part_rate_{name}", 1.0, 0.01, 100.0, 0.1, help=about)
    with sample:
        whole = "; a session is kept whole or not at all." if sessions_of(trace) else "."
        about = f"Drawn at random, the same every time{whole}"
        share = number("Sample, % of requests", f"part_share_{name}", 100.0, 0.1, 100.0, 10.0, help=about)
    with seeds:
        seed = number("Seed", f"part_seed_{name}", 0, 0, 1 << 31, help="Of the sample and the spreading.")
    choosable = [one for one in trace.labels if 1 < len(one.words) <= MOST_WORDS]
    kept = []
    for column, labels in zip(cycle(st.columns(4)), choosable, strict=False):
        with column:
            words = several(
                f"Only {labels.name}",
                f"part_{labels.name}_{name}",
                sorted(labels.words),
                format_func=lambda word: word or "(none)",
                placeholder="all",
            )
        if words:
            kept.append((labels.name, tuple(words)))
    spread_seed = None
    if clock_step_s is not None:
        is_spread = switch(
            f"Spread arrivals that share a stamp over the {clock_step_s:.3g} s until the next",
            f"part_spread_{name}",
            help="These stamps come from a clock that ticks slowly: unspread, they make bursts that never were.",
        )
        spread_seed = seed if is_spread else None
    return Selection(
        spread_seed=spread_seed,
        window_s=None if window_s == (0.0, None) else window_s,
        keep=tuple(kept),
        share=share / 100.0,
        sample_seed=seed if share < 100.0 else 0,
        rate=rate,
    )


def ask_workload() -> Workload:
    """Ask for made-up traffic, beginning at a preset."""
    preset = choice("Begin with", "preset", list(PRESETS), next(iter(PRESETS)))
    start = PRESETS[preset]

    def ask(where: Any, label: str, value: float, about: str = "") -> float:
        with where:
            return number(label, f"{label}_{preset}", float(value), 0.0, help=about or None)

    def lengths(name: str, of: Lengths) -> Lengths:
        columns = st.columns(4, vertical_alignment="bottom")
        median = ask(columns[0], f"{name} tokens, median", of.median)
        sigma = ask(
            columns[1], f"{name}, spread", of.sigma, "Lognormal σ: with 1, a tenth is 3.6 × the median or more."
        )
        low, high = ask(columns[2], f"{name}, shortest", of.low), ask(columns[3], f"{name}, longest", of.high)
        return Lengths(round(median), sigma, round(low), round(high))

    columns = st.columns(4, vertical_alignment="bottom")
    rate_rps = ask(columns[0], "Requests per second", start.rate_rps)
    duration_s = ask(columns[1], "For, s", start.duration_s)
    gap_cv = ask(
        columns[2],
        "Variation of gaps",
        start.gap_cv,
        "Standard deviation ÷ mean: 1 = Poisson, above = clumps, 0 = a clock.",
    )
    swing = ask(columns[3], "Swing of the rate", start.swing, "0.3 = from 0.7 to 1.3 times the mean.")
    prompt, output = lengths("Prompt", start.prompt), lengths("Output", start.output)
    with st.expander("Long prompts, bursts, shared prefixes, seed"):
        columns = st.columns(4, vertical_alignment="bottom")
        long_share = ask(columns[0], "Long prompts, % of requests", 100.0 * start.long_share)
        burst_size = ask(columns[1], "Burst, requests at once", start.burst_size)
        burst_every_s = ask(columns[2], "Bursts every, s", start.burst_every_s)
        seed = ask(columns[3], "Seed of the traffic", start.seed)
        long_prompt = lengths("Long prompt", start.long_prompt)
        columns = st.columns(4, vertical_alignment="bottom")
        prefix_share = ask(columns[0], "Shared prefix, % of requests", 100.0 * start.prefix_share)
        prefix_tokens = ask(columns[1], "Shared prefix, tokens", start.prefix_tokens)
        num_prefixes = ask(columns[2], "Different prefixes", start.num_prefixes)
    return Workload(
        prompt=prompt,
        output=output,
        rate_rps=rate_rps,
        duration_s=duration_s,
        gap_cv=gap_cv,
        swing=swing,
        burst_size=round(burst_size),
        burst_every_s=burst_every_s,
        long_share=long_share / 100.0,
        long_prompt=long_prompt,
        prefix_share=prefix_share / 100.0,
        prefix_tokens=round(prefix_tokens),
        num_prefixes=round(num_prefixes),
        seed=round(seed),
    )
