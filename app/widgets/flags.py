"""vLLM's flags: today's, its defaults, and which ones are searched."""

import os
from dataclasses import replace

import streamlit as st

from app.frames import literal
from app.widgets.fields import MOST_TOKENS, choice, number, segments, several, switch, text
from planner.engine_config import GPU_TIERS, EngineConfig
from planner.executors import ADDRESS_VARIABLE
from planner.search import MORE, SEARCHED, More, read_more
from planner.verdict import flag_value

ABOUT = {
    "max_num_batched_tokens": "Token budget of a step.",
    "max_num_seqs": "Most requests in a step.",
    "long_prefill_token_threshold": "Most prompt tokens one request gets in a step while others are there; 0 = off.",
    "num_gpu_blocks": "KV blocks, the null block included: KV tokens ÷ block size + 1.",
    "block_size": "Tokens per KV block.",
    "async_scheduling": "Step k+1 is scheduled while step k runs.",
    "scheduler_reserve_full_isl": "Admit a request only when all that is known of it fits now.",
    "enable_prefix_caching": "Shows only where the trace says which prompts begin alike.",
}
"""Flag to what it is."""
LEAST = {"long_prefill_token_threshold": 0, "num_gpu_blocks": 2}
"""Smallest values; of the others 1."""


def ask_today(logged: EngineConfig, has_priorities: bool, name: str) -> EngineConfig:
    """Ask for today's flags and what is fixed.

    Parameters
    ----------
    logged : EngineConfig
        What is filled in: the log's values where it has them.
    has_priorities : bool
        Whether the trace says which requests are urgent.
    name : str
        Names the widgets; another log's answers are other widgets.
    """
    columns = st.columns(3)
    asked = (
        ("max_num_batched_tokens", "num_gpu_blocks", "async_scheduling", "scheduler_reserve_full_isl"),
        ("max_num_seqs", "block_size", "enable_prefix_caching"),
        ("long_prefill_token_threshold",),
    )
    values = {}
    for column, flags in zip(columns, asked, strict=True):
        with column:
            values |= {flag: _ask_flag(flag, logged, flag, name) for flag in flags}
    with columns[-1]:
        max_model_len = number(
            "max_model_len",
            f"max_model_len_{name}",
            logged.max_model_len,
            1,
            MOST_TOKENS,
            placeholder="bounded by the KV cache alone",
            help="Longest context, tokens.",
        )
        by_priority = switch(
            "scheduling_policy priority",
            f"policy_{name}",
            disabled=not has_priorities,
            help="Off: first come first served. Needs a trace with a priority per request.",
        )
    policy = "priority" if by_priority and has_priorities else "fcfs"
    return replace(logged, **values, max_model_len=max_model_len, scheduling_policy=policy)


def ask_three_flags(logged: EngineConfig, name: str) -> EngineConfig:
    """Ask for budget, seats and threshold; the rest stays as it is today."""
    values = {}
    for column, flag in zip(st.columns(len(SEARCHED), vertical_alignment="bottom"), SEARCHED, strict=True):
        with column:
            values[flag] = _ask_flag(flag, logged, f"inspect_{flag}", name)
    return replace(logged, **values)


def ask_threshold(tried: tuple[int, ...], answer: EngineConfig) -> int:
    """Ask for one of the thresholds that were tried; the answer's is filled in."""
    words = {tokens: f"{tokens:,}" if tokens else "off" for tokens in tried}
    key = f"grid_{'_'.join(words.values())}_{answer.long_prefill_token_threshold}"
    start = answer.long_prefill_token_threshold
    return segments(
        "Threshold shown, tokens", key, tried, start if start in tried else tried[0], format_func=words.__getitem__
    )


def _ask_flag(flag: str, logged: EngineConfig, key: str, name: str) -> int | bool:
    """Ask for one flag, with the logged value filled in."""
    value = getattr(logged, flag)
    if isinstance(value, bool):
        return switch(flag, f"{key}_{name}", value, help=ABOUT[flag])
    return number(flag, f"{key}_{name}", value, LEAST.get(flag, 1), MOST_TOKENS, help=ABOUT[flag])


def ask_default_flags(logged: EngineConfig, name: str) -> tuple[int, int]:
    """Ask for the GPU, which decides vLLM's default budget and seats."""
    today = (logged.max_num_batched_tokens, logged.max_num_seqs)
    of_tiers = {(tier.max_num_batched_tokens, tier.max_num_seqs): tier for tier in GPU_TIERS}
    tier = choice(
        "GPU memory",
        f"tier_{name}",
        GPU_TIERS,
        of_tiers.get(today, GPU_TIERS[1]),
        lambda t: f"{t.label}: {t.max_num_batched_tokens:,} tokens, {t.max_num_seqs:,} seqs",
        help="Decides what `vllm serve` takes when the flags are not given: max_num_batched_tokens and max_num_seqs.",
    )
    return tier.max_num_batched_tokens, tier.max_num_seqs


def ask_more(today: EngineConfig) -> More | None:
    """Ask what to search beside or instead of the usual; None, and why, where the values are not allowed."""
    names = several("Try other values, or further flags", "more", (*SEARCHED, *MORE))
    words = [
        text(
            f"{name}: values to try",
            f"more_{name}",
            placeholder="32, 64, 128" if name in SEARCHED else "the usual ones beside today's",
            help="Separated by commas, for instance 0, 0.05; on, off; 32, 64, none. KV blocks stand for "
            "--gpu-memory-utilization. Today's flags and vLLM's defaults are always tried.",
        )
        for name in names
    ]
    try:
        more = read_more((f"{name}={values}" for name, values in zip(names, words, strict=True)), today)
    except ValueError as fault:
        st.error(literal(str(fault)), icon=":material/error:")
        return None
    st.caption(
        " · ".join(f"{name}: {', '.join(flag_value(name, v) for v in getattr(more, name))}" for name in names)
        or "Every flag multiplies the settings to replay by the number of its values."
    )
    return more


def ask_scheduler() -> str:
    """Ask where replays run; "" = on this machine."""
    return text(
        "Dask scheduler to replay on",
        "scheduler",
        os.environ.get(ADDRESS_VARIABLE, ""),
        placeholder="tcp://HOST:8786; empty: this machine",
        help="Started with `dask scheduler`, and `dask worker tcp://HOST:8786` on each machine. The answer "
        "is the same; large traces take less time.",
    ).strip()
