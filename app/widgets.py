"""Questions to the user: each `ask_` shows widgets and returns one checked value. Units are converted here."""

import os
import re
from dataclasses import replace
from itertools import cycle

import streamlit as st
from streamlit.delta_generator import DeltaGenerator
from streamlit.typing import UploadedFile

from app.figures.calibration import Against
from app.figures.labels import MS_PER_S, TERMS
from app.frames import ROLES, literal
from app.glossary import GLOSSARY
from planner.command import MODEL, MODEL_NAME
from planner.engine_config import GPU_TIERS, EngineConfig
from planner.executors import ADDRESS_VARIABLE
from planner.inside.lesson import toy_config
from planner.routing import Routing
from planner.scenario import Scenario
from planner.search import MORE, More, Objective, read_more
from planner.slo import ClassTarget, Slo, read_class_target
from planner.step_time import StepTime
from planner.verdict import flag_value
from traces.answers import ReadAnswers
from traces.errors import Question, Unmapped
from traces.requests import RequestTrace, Selection
from traces.selection import sessions_of
from traces.steps import ServerFacts
from traces.workload import PRESETS, Lengths, Workload

PERCENTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
USUAL_SLO = Slo(itl_s=0.08)
"""Targets until the user states others."""
MULTIPLES = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0)
"""Of load, memory and prompt length."""
OBJECTIVES = {
    Objective.LOWEST_TTFT: "lowest TTFT",
    Objective.MOST_HEADROOM: "smallest token gap",
    Objective.HIGHEST_THROUGHPUT: "highest throughput",
    Objective.PARETO: "front: unbeaten in gap and TTFT, fewest changes first",
}
ALWAYS_ASKED = {"base": "d base", "per_seq": "d per request in the step", "per_prefill_token": "p per prefill token"}
"""Terms that every model has; the others may stay 0."""
WHOLE_NS = (*ALWAYS_ASKED, "per_draft_token")
"""Coefficients that the kernel charges in whole nanoseconds."""
MOST_WORDS = 200
"""A column with more different words is not offered to choose by."""
MOST_TOKENS = 1 << 40
"""Upper end of number inputs; far above any cache."""


def ask_file(label: str, forms: str, name: str) -> UploadedFile | None:
    """Ask for a file; the widget states the limit. What a file is, its content decides, not its name."""
    return st.file_uploader(f"{label}: {forms}", key=name)


def ask_shelf(names: tuple[str, ...], name: str) -> str | None:
    """Ask for a file that lies on the server."""
    return st.selectbox("Or a file on the server", names, index=None, placeholder="choose a file", key=name)


def ask_answers(questions: tuple[Question, ...], answers: ReadAnswers, name: str) -> ReadAnswers:
    """Put every open question of a file, each reading with its consequence."""
    for question in questions:
        options = [choice.value for choice in question.choices]
        labels = {choice.value: choice.label for choice in question.choices}
        given = getattr(answers, question.field)
        value = st.radio(
            question.text,
            options,
            index=options.index(given) if given in options else None,
            format_func=lambda option, labels=labels: f"{option}: {labels[option]}",
            key=f"{name}_{question.field}",
        )
        answers = replace(answers, **{question.field: value})
    return answers


def ask_workload() -> Workload:
    """Ask for made-up traffic, beginning at a preset."""
    preset = st.selectbox("Begin with", list(PRESETS), key="preset", persist_state="session")
    start = PRESETS[preset]

    def number(where: DeltaGenerator, label: str, value: float, about: str = "") -> float:
        return where.number_input(
            label, 0.0, None, float(value), format="%g", key=f"{label}_{preset}", help=about or None
        )

    def lengths(name: str, of: Lengths) -> Lengths:
        columns = st.columns(4, vertical_alignment="bottom")
        median = number(columns[0], f"{name} tokens, median", of.median)
        sigma = number(
            columns[1], f"{name}, spread", of.sigma, "Lognormal σ: with 1, a tenth is 3.6 × the median or more."
        )
        low, high = number(columns[2], f"{name}, shortest", of.low), number(columns[3], f"{name}, longest", of.high)
        return Lengths(round(median), sigma, round(low), round(high))

    columns = st.columns(4, vertical_alignment="bottom")
    rate_rps = number(columns[0], "Requests per second", start.rate_rps)
    duration_s = number(columns[1], "For, s", start.duration_s)
    gap_cv = number(
        columns[2],
        "Variation of gaps",
        start.gap_cv,
        "Standard deviation ÷ mean: 1 = Poisson, above = clumps, 0 = a clock.",
    )
    swing = number(columns[3], "Swing of the rate", start.swing, "0.3 = from 0.7 to 1.3 times the mean.")
    prompt, output = lengths("Prompt", start.prompt), lengths("Output", start.output)
    with st.expander("Long prompts, bursts, shared prefixes, seed"):
        columns = st.columns(4, vertical_alignment="bottom")
        long_share = number(columns[0], "Long prompts, % of requests", 100.0 * start.long_share)
        burst_size = number(columns[1], "Burst, requests at once", start.burst_size)
        burst_every_s = number(columns[2], "Bursts every, s", start.burst_every_s)
        seed = number(columns[3], "Seed of the traffic", start.seed)
        long_prompt = lengths("Long prompt", start.long_prompt)
        columns = st.columns(4, vertical_alignment="bottom")
        prefix_share = number(columns[0], "Shared prefix, % of requests", 100.0 * start.prefix_share)
        prefix_tokens = number(columns[1], "Shared prefix, tokens", start.prefix_tokens)
        num_prefixes = number(columns[2], "Different prefixes", start.num_prefixes)
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


def ask_columns(unmapped: Unmapped, answers: ReadAnswers, name: str) -> ReadAnswers:
    """Ask what the columns of a file are; nothing changes until every part has one."""
    chosen = {}
    for column, field in zip(st.columns(len(unmapped.fields)), unmapped.fields, strict=True):
        role = field.removesuffix("_column")
        given = getattr(answers, field)
        chosen[field] = column.selectbox(
            f"Column with the {ROLES.get(role, role)}",
            unmapped.columns,
            index=unmapped.columns.index(given) if given in unmapped.columns else None,
            placeholder="choose a column",
            key=f"{name}_{field}",
        )
    return replace(answers, **chosen) if all(chosen.values()) else answers


def ask_source(sources: tuple[str, ...]) -> str:
    """Ask where the step times come from."""
    return st.segmented_control(
        "Step times",
        sources,
        default=sources[0],
        key="source",
        label_visibility="collapsed",
        persist_state="session",
    )


def ask_num_kv_tokens(facts: ServerFacts, name: str) -> int | None:
    """Size of the logged server's KV cache, which turns its usage into context tokens; None = not known."""
    return st.number_input(
        "KV cache of the logged server, tokens",
        min_value=1,
        max_value=MOST_TOKENS,
        value=_kv_tokens(facts),
        step=16,
        placeholder="not known",
        key=name,
        persist_state="session",
        help="vLLM prints it at start: “GPU KV cache size: … tokens”. With it, KV cache usage in the log becomes the "
        "context that decodes read, which long contexts need. The log's own value is filled in where it has one.",
    )


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
    name, window = trace.digest[:8], selection.window_s
    columns = st.columns(5, vertical_alignment="bottom")
    from_s = columns[0].number_input(
        "From, s",
        0.0,
        None,
        0.0 if window is None else window[0],
        60.0,
        "%g",
        key=f"part_from_{name}_{num_windows}",
        persist_state="session",
        help="Seconds since the first arrival. Draw a window on the plot above instead, if you like.",
    )
    until_s = columns[1].number_input(
        "Until, s",
        0.0,
        None,
        None if window is None else window[1],
        60.0,
        "%g",
        key=f"part_until_{name}_{num_windows}",
        placeholder=f"the end, {trace.span_s:,.0f}",
        persist_state="session",
        help="Empty = to the last arrival.",
    )
    rate = columns[2].number_input(
        "Rate, times",
        0.01,
        100.0,
        1.0,
        0.1,
        "%g",
        key=f"part_rate_{name}",
        persist_state="session",
        help="2 = the same requests in half the time: growth, or traffic split over other replicas (0.5 for two).",
    )
    share = columns[3].number_input(
        "Sample, % of requests",
        0.1,
        100.0,
        100.0,
        10.0,
        "%g",
        key=f"part_share_{name}",
        persist_state="session",
        help="Drawn at random, the same every time"
        + ("; a session is kept whole or not at all." if sessions_of(trace) else "."),
    )
    seed = columns[4].number_input(
        "Seed", 0, 1 << 31, 0, key=f"part_seed_{name}", persist_state="session", help="Of the sample and the spreading."
    )
    choosable = [one for one in trace.labels if 1 < len(one.words) <= MOST_WORDS]
    kept = []
    for column, labels in zip(cycle(st.columns(4)), choosable, strict=False):
        words = column.multiselect(
            f"Only {labels.name}",
            sorted(labels.words),
            format_func=lambda word: word or "(none)",
            placeholder="all",
            key=f"part_{labels.name}_{name}",
            persist_state="session",
        )
        if words:
            kept.append((labels.name, tuple(words)))
    spread_seed = None
    if clock_step_s is not None:
        is_spread = st.toggle(
            f"Spread arrivals that share a stamp over the {clock_step_s:.3g} s until the next",
            key=f"part_spread_{name}",
            persist_state="session",
            help="These stamps come from a clock that ticks slowly: unspread, they make bursts that never were.",
        )
        spread_seed = seed if is_spread else None
    is_whole = from_s == 0.0 and until_s is None
    return Selection(
        spread_seed=spread_seed,
        window_s=None if is_whole else (from_s, until_s),
        keep=tuple(kept),
        share=share / 100.0,
        sample_seed=seed if share < 100.0 else 0,
        rate=rate,
    )


def ask_is_behind_log(name: str) -> bool:
    """Ask whether the trace is the traffic that the log was written under."""
    return st.toggle(
        "This log was written while the loaded trace was served",
        key=name,
        help="Every step is then explained by the requests in it: the share of explained steps says whether the "
        "scheduler model holds on your server, and the fit knows each step's context and attention.",
        persist_state="session",
    )


def ask_by_hand(start: StepTime) -> StepTime:
    """Coefficients from somebody who knows d and p without a log, or knows better; `start` is filled in."""
    values = start._asdict()
    columns = st.columns(len(ALWAYS_ASKED), vertical_alignment="bottom")
    for column, (term, label) in zip(columns, ALWAYS_ASKED.items(), strict=True):
        with column:
            values[f"{term}_ns"] = _ask_term(term, label, start)
    rest = [term for term in TERMS if term not in ALWAYS_ASKED]
    with st.expander("Further terms", expanded=any(values[f"{term}_ns"] for term in rest)):
        for column, term in zip(cycle(st.columns(2)), rest, strict=False):
            with column:
                values[f"{term}_ns"] = _ask_term(term, TERMS[term].label, start)
    for term in WHOLE_NS:
        values[f"{term}_ns"] = round(values[f"{term}_ns"])
    return StepTime(**values)


def _ask_term(term: str, label: str, start: StepTime) -> float:
    """One coefficient in the unit people know it in; nanoseconds come back, exactly those of `start` if left alone."""
    start_ns: float = getattr(start, f"{term}_ns")
    per_ns = TERMS[term].per_second / 1e9
    value = float(f"{start_ns * per_ns:.4g}")
    given = st.number_input(
        f"{label}, {TERMS[term].unit}",
        0.0,
        None,
        value,
        format="%g",
        key=f"{term}_{hash(start)}",
        persist_state="session",
    )
    return start_ns if given == value else given / per_ns


def ask_against() -> Against:
    """Ask what the residuals are to be laid out along."""
    return st.segmented_control(
        "Residuals along",
        list(Against),
        default=Against.PREFILL,
        required=True,
        key="against",
        label_visibility="collapsed",
        persist_state="session",
    )


def ask_more(today: EngineConfig) -> More | None:
    """Ask which further flags to search; None, and why, where the values are none of theirs."""
    names = st.multiselect("Search these flags as well", MORE, key="more", persist_state="session")
    words = [
        st.text_input(
            f"{name}: values to try",
            key=f"more_{name}",
            placeholder="the usual ones beside today's",
            help="Separated by commas, for instance 0, 0.05; on, off; 32, 64, none. KV blocks stand for "
            "--gpu-memory-utilization.",
            persist_state="session",
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


def ask_slo() -> Slo:
    """Ask for the latency targets."""
    gap, gap_share, worst, wait, wait_share = st.columns(5, vertical_alignment="bottom")
    with gap:
        itl_ms = st.number_input(
            "Token gap (ITL) target, ms",
            min_value=0.1,
            value=USUAL_SLO.itl_s * MS_PER_S,
            step=5.0,
            format="%g",
            key="itl_ms",
            help="ITL: the gap between two consecutive tokens of one request.",
            persist_state="session",
        )
    with gap_share:
        itl_percentile = _percentile("for this share of all gaps", "itl_percentile", "Pooled over all requests.")
    with worst:
        worst_ms = _target(
            "No gap above, ms",
            "worst_ms",
            "A percentile of pooled gaps can hide one stream that freezes for a second; this cap cannot.",
        )
    with wait:
        ttft_ms = _target("TTFT target, ms", "ttft_ms", "TTFT: first token − arrival, queueing included.")
    with wait_share:
        ttft_percentile = _percentile("for this share of requests", "ttft_percentile", "Also the percentile shown.")
    with st.expander("More targets"):
        end, end_share, still = st.columns(3, vertical_alignment="bottom")
        classes = _ask_classes()
    with end:
        e2e_ms = _target("E2E target, ms", "e2e_ms", "E2E: last token − arrival.")
    with end_share:
        e2e_percentile = _percentile("for this share of all requests", "e2e_percentile", "Of the E2E target.")
    with still:
        stalled_percent = _target(
            "Stalled at most, % of streaming time",
            "stalled_percent",
            "Stalled time: the parts of gaps above the token gap target, summed over all requests.",
        )
    return Slo(
        itl_s=itl_ms / MS_PER_S,
        itl_percentile=itl_percentile,
        worst_gap_s=None if worst_ms is None else worst_ms / MS_PER_S,
        ttft_s=None if ttft_ms is None else ttft_ms / MS_PER_S,
        ttft_percentile=ttft_percentile,
        stalled_share=None if stalled_percent is None else stalled_percent / 100,
        e2e_s=None if e2e_ms is None else e2e_ms / MS_PER_S,
        e2e_percentile=e2e_percentile,
        classes=classes,
    )


def _ask_classes() -> tuple[ClassTarget, ...]:
    """Ask for targets of some requests only; a line that says nothing is left out and said."""
    text = st.text_area(
        "Targets of some requests only, one class a line",
        key="classes",
        placeholder="prompt=1-1000,ttft_ms=500",
        help="By prompt tokens (prompt=1-1000, prompt=2000-) or priority (priority=0); with ttft_ms, e2e_ms and "
        "worst_gap_ms. Percentiles are those of the targets of all requests.",
        persist_state="session",
    )
    found = []
    for line in filter(str.strip, text.splitlines()):
        try:
            found.append(read_class_target(line))
        except ValueError as fault:
            st.error(str(fault), icon=":material/error:")
    return tuple(found)


def _target(label: str, key: str, about: str) -> float | None:
    """A latency target that may be left out."""
    return st.number_input(
        label,
        min_value=0.1,
        value=None,
        step=5.0,
        format="%g",
        key=key,
        help=about,
        placeholder="none",
        persist_state="session",
    )


def _percentile(label: str, key: str, about: str) -> float:
    """A share as a percentile."""
    return st.selectbox(
        label,
        PERCENTILES,
        index=PERCENTILES.index(0.99),
        format_func=lambda share: f"{100 * share:g} % (p{100 * share:g})",
        key=key,
        help=about,
        persist_state="session",
    )


def ask_objective() -> Objective:
    """Ask what decides among the settings that meet every target."""
    return st.selectbox(
        "Among settings that meet the targets, take the",
        list(OBJECTIVES),
        format_func=OBJECTIVES.__getitem__,
        key="objective",
        help="Usually many settings meet the targets; this decides among them. Ties go to the fewest changed flags.",
        persist_state="session",
    )


def ask_default_flags(logged: EngineConfig, name: str) -> tuple[int, int]:
    """Ask for the GPU, which decides vLLM's default budget and seats."""
    flags = [(tier.max_num_batched_tokens, tier.max_num_seqs) for tier in GPU_TIERS]
    today = (logged.max_num_batched_tokens, logged.max_num_seqs)
    tier = st.selectbox(
        "GPU memory",
        GPU_TIERS,
        index=flags.index(today) if today in flags else 1,
        format_func=lambda t: f"{t.label}: {t.max_num_batched_tokens:,} tokens, {t.max_num_seqs:,} seqs",
        key=f"tier_{name}",
        help="Decides what `vllm serve` takes when the flags are not given: max_num_batched_tokens and max_num_seqs.",
        persist_state="session",
    )
    return tier.max_num_batched_tokens, tier.max_num_seqs


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

    def number(flag: str, about: str, least: int = 1) -> int:
        value = getattr(logged, flag)
        return st.number_input(
            flag, least, MOST_TOKENS, value, key=f"{flag}_{name}", help=about, persist_state="session"
        )

    def switch(flag: str, about: str) -> bool:
        return st.toggle(flag, getattr(logged, flag), key=f"{flag}_{name}", help=about, persist_state="session")

    left, middle, right = st.columns(3)
    with left:
        max_num_batched_tokens = number("max_num_batched_tokens", "Token budget of a step.")
        num_gpu_blocks = number("num_gpu_blocks", "KV blocks, the null block included: KV tokens ÷ block size + 1.", 2)
        async_scheduling = switch("async_scheduling", "Step k+1 is scheduled while step k runs.")
        reserve = switch("scheduler_reserve_full_isl", "Admit a request only when all that is known of it fits now.")
    with middle:
        max_num_seqs = number("max_num_seqs", "Most requests in a step.")
        block_size = number("block_size", "Tokens per KV block.")
        caching = switch("enable_prefix_caching", "Shows only where the trace says which prompts begin alike.")
    with right:
        threshold = number(
            "long_prefill_token_threshold",
            "Most prompt tokens one request gets in a step while others are there; 0 = off.",
            0,
        )
        max_model_len = _ask_max_model_len(logged.max_model_len, name)
        by_priority = st.toggle(
            "scheduling_policy priority",
            key=f"policy_{name}",
            disabled=not has_priorities,
            help="Off: first come first served. Needs a trace with a priority per request.",
            persist_state="session",
        )
    return replace(
        logged,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        long_prefill_token_threshold=threshold,
        num_gpu_blocks=num_gpu_blocks,
        block_size=block_size,
        max_model_len=max_model_len,
        async_scheduling=async_scheduling,
        scheduler_reserve_full_isl=reserve,
        enable_prefix_caching=caching,
        scheduling_policy="priority" if by_priority and has_priorities else "fcfs",
    )


def ask_growth() -> float:
    """Ask which growth replicas are sized for."""
    return st.number_input(
        "Replicas for this multiple of the load",
        min_value=0.01,
        max_value=1000.0,
        value=1.0,
        step=0.5,
        format="%g",
        key="growth",
        help="1 is the trace as it is; 2 is the same requests twice as fast.",
        persist_state="session",
    )


def ask_routing() -> Routing:
    """Ask how requests are dealt to replicas."""
    names = {
        Routing.ROUND_ROBIN: "round robin",
        Routing.LEAST_LOADED: "least loaded (fewest outstanding requests; an estimate)",
        Routing.PREFIX_AFFINITY: "prefix affinity (needs a trace with prefix hashes)",
    }
    return st.selectbox(
        "Routing",
        list(names),
        format_func=names.__getitem__,
        key="routing",
        help="Which replica gets a request, where one is not enough.",
        persist_state="session",
    )


def ask_scheduler() -> str:
    """Ask where replays run; "" = on this machine."""
    return st.text_input(
        "Dask scheduler to replay on",
        value=os.environ.get(ADDRESS_VARIABLE, ""),
        placeholder="tcp://HOST:8786; empty: this machine",
        key="scheduler",
        help="Started with `dask scheduler`, and `dask worker tcp://HOST:8786` on each machine. The answer "
        "is the same; large traces take less time.",
        persist_state="session",
    ).strip()


def _ask_max_model_len(logged: int | None, name: str) -> int | None:
    """Ask for the longest context, which may be unknown."""
    return st.number_input(
        "max_model_len",
        1,
        MOST_TOKENS,
        logged,
        placeholder="bounded by the KV cache alone",
        key=f"max_model_len_{name}",
        help="Longest context, tokens.",
        persist_state="session",
    )


def ask_setting(names: tuple[str, ...], default: str, name: str) -> str:
    """Ask which setting to look into."""
    return st.segmented_control(
        "Setting to look into",
        names,
        default=default if default in names else names[0],
        required=True,
        key=name,
        help="Flags whose replay is opened below. A click in the trade-off on the Plan page brings another one here.",
        persist_state="session",
    )


def ask_three_flags(logged: EngineConfig, name: str) -> EngineConfig:
    """Ask for budget, seats and threshold; the rest stays as it is today."""
    abouts = {
        "max_num_batched_tokens": "Token budget of a step.",
        "max_num_seqs": "Most requests in a step.",
        "long_prefill_token_threshold": "Most prompt tokens one request gets in a step; 0 = off.",
    }
    values = {}
    for column, (flag, about) in zip(st.columns(len(abouts), vertical_alignment="bottom"), abouts.items(), strict=True):
        least = 0 if flag == "long_prefill_token_threshold" else 1
        value = getattr(logged, flag)
        values[flag] = column.number_input(
            flag, least, MOST_TOKENS, value, key=f"inspect_{flag}_{name}", help=about, persist_state="session"
        )
    return replace(logged, **values)


def ask_window(end_s: float, name: str) -> tuple[float, float]:
    """Ask for a stretch of the replay; all of it unless told.

    Parameters
    ----------
    end_s : float
        When the replay ends, seconds.
    name : str
        Names the widgets.
    """
    left, right, _ = st.columns([1, 1, 2], vertical_alignment="bottom")
    from_s = left.number_input(
        "From, s",
        0.0,
        None,
        0.0,
        1.0,
        "%g",
        key=f"from_{name}",
        persist_state="session",
        help="Seconds since the first arrival.",
    )
    until_s = right.number_input(
        "Until, s",
        0.0,
        None,
        None,
        1.0,
        "%g",
        key=f"until_{name}",
        persist_state="session",
        placeholder=f"the end, {end_s:,.1f}",
        help="Empty = to the end of the replay.",
    )
    return from_s, end_s if until_s is None else min(until_s, end_s)


def ask_gap(labels: tuple[str, ...], name: str) -> int:
    """Ask which of the worst gaps to look at; its position."""
    return st.selectbox("Gap to look at", range(len(labels)), format_func=labels.__getitem__, key=name)


def ask_moment(moment_s: float, end_s: float, name: str) -> float:
    """Ask for a moment of the replay, seconds; the step of a gap is filled in."""
    return st.number_input(
        "Moment, s",
        0.0,
        max(end_s, moment_s),
        moment_s,
        0.1,
        "%.4f",
        key=name,
        help="The step that runs then stands in the middle of the table. Filled in: the step that ends the gap.",
    )


def ask_whether_what_if() -> bool:
    """Ask whether settings are to be compared under a changed load."""
    return st.toggle(
        "What if load, memory or prompts change? Up to four settings side by side",
        key="is_what_if",
        persist_state="session",
    )


def ask_scenario(can_stretch_prompts: bool) -> Scenario:
    """Ask for another load, another memory and other prompts, as multiples.

    Parameters
    ----------
    can_stretch_prompts : bool
        Whether the trace leaves open how longer prompts would go on.
    """

    def times(label: str, key: str, about: str, disabled: bool = False) -> float:
        return st.select_slider(
            label,
            MULTIPLES,
            1.0,
            format_func=lambda value: f"× {value:g}",
            key=f"what_if_{key}",
            help=about,
            disabled=disabled,
            persist_state="session",
        )

    load, memory, prompts = st.columns(3, gap="large")
    with load:
        load_asked = times("Load", "load", "2 = the same requests in half the time.")
    with memory:
        memory_asked = times("KV memory", "memory", "Multiple of each setting's own KV cache.")
    with prompts:
        about = "Every prompt becomes so many times as long; outputs stay."
        if not can_stretch_prompts:
            about = "The trace says which prompts begin alike, but not how longer ones would go on."
        prompts_asked = times("Prompt length", "prompts", about, disabled=not can_stretch_prompts)
    return Scenario(load_asked, memory_asked, prompts_asked if can_stretch_prompts else 1.0)


def ask_toy() -> EngineConfig:
    """Ask for the flags of the toy replay."""
    budget, threshold, kv = st.columns(3, vertical_alignment="bottom")
    with budget:
        budget_asked = st.select_slider(
            "Budget, tokens", (8, 16, 24, 32), 16, key="toy_budget", help=GLOSSARY["budget"]
        )
    with threshold:
        threshold_asked = st.select_slider(
            "Threshold, tokens (0: off)", (0, 4, 8), 0, key="toy_threshold", help=GLOSSARY["threshold"]
        )
    with kv:
        kv_asked = st.select_slider(
            "KV cache, tokens", (72, 96, 128), 128, key="toy_kv", help="With 72, requests are preempted."
        )
    return toy_config(budget_asked, threshold_asked, kv_asked)


def ask_toy_step(num_steps: int, name: str) -> int:
    """Ask for a step of the toy replay, counted from 1."""
    return st.slider(
        "Step", 1, num_steps, min(5, num_steps), key=name, help="Drag, or use the arrow keys, to go step by step."
    )


def ask_request(row: int, name: str) -> int:
    """Ask for a request by its data row in the file, counted from 1."""
    return st.number_input(
        "Request: data row, counted from 1",
        1,
        MOST_TOKENS,
        row,
        key=name,
        help="Filled in: the request with the longest TTFT under the setting that was opened first.",
        persist_state="session",
    )


def ask_plan(names: tuple[str, ...], label: str, name: str) -> str:
    """Ask for one of several plans."""
    if len(names) == 1:
        return names[0]
    return st.segmented_control(label, names, default=names[0], required=True, key=name)


def ask_model_name() -> str:
    """Ask for the model to write into the command; a name that a shell would read otherwise is not taken."""
    model = st.text_input(
        "Model to write into the command",
        value=MODEL,
        key="model_name",
        help="As you give it to `vllm serve`: a name on the hub or a path.",
        persist_state="session",
    )
    if re.fullmatch(MODEL_NAME, model):
        return model
    st.error(f"A model name has letters, digits and . / : @ + - only; {MODEL} is written instead.")
    return MODEL


def _kv_tokens(facts: ServerFacts) -> int | None:
    """KV cache size as the log states it."""
    if facts.num_gpu_blocks is None or facts.block_size is None:
        return None
    return (facts.num_gpu_blocks - 1) * facts.block_size
