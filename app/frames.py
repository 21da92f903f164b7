"""Tables for people: results in, data frames of words out; nothing here knows about Streamlit."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from app.figures.labels import (
    MS_PER_S,
    TERMS,
    answer_label,
    compact,
    percent,
    percentile,
    term_value,
    three_digits,
    threshold,
)
from app.figures.lesson import letter
from planner.align import Difference
from planner.candidates import Candidate
from planner.engine_config import EngineConfig
from planner.inside.lesson import TOY_STEP_TIME, GapShare, Turn
from planner.inside.phases import Life, PhaseKind
from planner.inside.recording import Share
from planner.inside.step_table import StepRow
from planner.inside.words import WAITING_FOR, WAITS, gap_sentence, wait_in_words
from planner.inside.worst_gaps import WorstGap
from planner.measured import Comparison, signed_percent
from planner.metrics import Summary
from planner.plan_comparison import PlanComparison, value_in_words
from planner.reasons import notches
from planner.search import SEARCHED, Recommendation, offered_load
from planner.slo import Slo
from planner.step_time import Coefficient, SavedModel, StepTime, StepTimeFit
from planner.stepper import Work
from planner.verdict import flag_value, rejection_sentence, seconds
from traces.errors import Problem
from traces.prefixes import reuse_share
from traces.receipt import Receipt
from traces.requests import RequestTrace
from traces.steps import ServerFacts, StepLog

ROLES = {
    "arrival": "arrival time",
    "prompt": "prompt tokens",
    "output": "output tokens",
    "step_time": "step time",
    "prefill_tokens": "prefill tokens in the step",
    "decode_reqs": "decoding requests",
    "prefill_reqs": "prefilling requests",
    "kv_decode_tokens": "context tokens that decodes read",
    "kv_prefill_tokens": "context tokens that prefills read",
    "kv_usage": "KV cache usage",
    "prefill_attention": "prefill attention",
    "weight": "steps a row stands for",
}
"""The parts that columns play, in words; others are shown as they are."""
MIN_DIFFERENCE = 0.01
"""Results closer than this share are called the same."""
MOST_LISTED = 6
"""Requests named in one cell; the rest is counted."""


def problems(found: tuple[Problem, ...]) -> pd.DataFrame:
    """Everything wrong with a file, one fault a row."""
    return pd.DataFrame(
        {
            "column": [literal(p.column or "–") for p in found],
            "rows": [_rows(p.rows, p.num_rows) for p in found],
            "found": [literal(p.found) for p in found],
            "allowed": [literal(p.allowed) for p in found],
            "what to do": [literal(p.action) for p in found],
        }
    )


def literal(text: str) -> str:
    """Words of a file, so written that no character of theirs is taken for Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>#$~|:])", r"\\\1", text)


def _rows(rows: tuple[int, ...], num_rows: int) -> str:
    """Row numbers as people count them, from 1."""
    if not rows:
        return "all" if not num_rows else f"{num_rows:,}"
    shown = ", ".join(f"{row + 1:,}" for row in rows[:5])
    return shown if num_rows <= len(rows[:5]) else f"{shown}, … ({num_rows:,} in all)"


def receipt_of_trace(trace: RequestTrace, receipt: Receipt) -> pd.DataFrame:
    """What was understood of a trace."""
    first_gap = seconds(float(trace.arrival_s[1] - trace.arrival_s[0])) if len(trace) > 1 else "–"
    facts = [
        *_file_facts(receipt),
        ("first gap", f"{first_gap} between the two earliest arrivals"),
        ("span", f"{seconds(trace.span_s)} from the first arrival to the last"),
    ]
    return _facts(facts)


def receipt(of_file: Receipt) -> pd.DataFrame:
    """How a file was read."""
    return _facts(_file_facts(of_file))


def receipt_of_steps(log: StepLog, receipt: Receipt) -> pd.DataFrame:
    """What was understood of a step log."""
    return _facts([*_file_facts(receipt), *_server_facts(log.facts)])


def _file_facts(receipt: Receipt) -> list[tuple[str, str]]:
    """How a file was read."""
    left_out = receipt.num_rows - receipt.num_kept
    return [
        ("file", f"{receipt.file_name} (SHA-256 {receipt.file_digest[:12]}…)"),
        ("layout", receipt.layout),
        ("rows", f"{receipt.num_rows:,} read, {receipt.num_kept:,} used, {left_out:,} left out"),
        *((ROLES.get(role, role), f"column {column}") for role, column in receipt.columns),
        ("time unit", f"{receipt.time_unit}: {receipt.time_unit_reason}"),
        *((f"left out: {d.num_rows:,}", f"{d.reason} (rows {_rows(d.rows, d.num_rows)})") for d in receipt.dropped),
    ]


def _server_facts(facts: ServerFacts) -> list[tuple[str, str]]:
    """What a log says about its server."""
    named = (
        ("vLLM version", facts.vllm_version),
        ("max_num_batched_tokens", facts.max_num_batched_tokens),
        ("max_num_seqs", facts.max_num_seqs),
        ("long_prefill_token_threshold", facts.long_prefill_token_threshold),
        ("max_model_len", facts.max_model_len),
        ("KV blocks", facts.num_gpu_blocks),
        ("block_size", facts.block_size),
        ("async scheduling", facts.async_scheduling),
        ("prefix caching", facts.enable_prefix_caching),
    )
    return [(name, _plain(value)) for name, value in named if value is not None]


def _plain(value: str | int | bool) -> str:
    """A flag's value as people read it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else value


def _facts(pairs: list[tuple[str, str]]) -> pd.DataFrame:
    """Two columns of words."""
    return pd.DataFrame([(key, literal(value)) for key, value in pairs], columns=["fact", "value"]).set_index("fact")


def traffic_numbers(
    trace: RequestTrace, step_time: StepTime | None, config: EngineConfig
) -> tuple[tuple[str, str, str], ...]:
    """(label, value, what it is) of the traffic that is planned for."""
    numbers = [
        ("Requests", compact(len(trace)), "In the part that is planned for."),
        ("Span", seconds(trace.span_s), "First arrival to last."),
        ("Arrivals per second", three_digits(len(trace) / trace.span_s) if trace.span_s else "all at once", "Mean."),
        ("Prompt tokens", compact(int(trace.prompt_tokens.sum())), "Sum over all requests."),
        ("Output tokens", compact(int(trace.output_tokens.sum())), "Sum over all requests."),
    ]
    if trace.prefix_hashes is not None:
        share = percent(reuse_share(trace.prefix_hashes, trace.prompt_tokens))
        numbers.append(("Prompt tokens seen before", share, "What a prefix cache without end would save."))
    if step_time is not None:
        load = offered_load(trace, step_time, config, config.max_num_batched_tokens)
        about = "Least engine time this traffic needs ÷ its span, under today's budget; above 1 queues grow for ever."
        numbers.append(("Offered load ÷ capacity", "not known" if np.isnan(load) else f"at least {load:.2g}", about))
    return tuple(numbers)


def token_sums(trace: RequestTrace) -> pd.DataFrame:
    """Prompt and output tokens: sums and percentiles, exact."""

    def column(tokens: npt.NDArray[np.int64]) -> list[str]:
        shares = np.quantile(tokens, [0.5, 0.9, 0.99], method="higher")
        return [f"{int(value):,}" for value in (tokens.sum(), tokens.min(), *shares, tokens.max())]

    return pd.DataFrame(
        {"prompt tokens": column(trace.prompt_tokens), "output tokens": column(trace.output_tokens)},
        index=pd.Index(["sum", "least", "p50", "p90", "p99", "most"], name="per request"),
    )


def fit_numbers(fit: StepTimeFit) -> tuple[tuple[str, str, str], ...]:
    """(label, value, what it is) of the numbers that a fit is judged by."""
    return (
        (f"d at {fit.typical_num_seqs} decoding", seconds(fit.typical_decode_s), "Time of a step without prefill."),
        (
            "p per prefill token",
            f"{term_value('per_prefill_token', fit.step_time.per_prefill_token_ns / 1e9)} µs",
            "Added by each prompt token computed in a step.",
        ),
        ("Error on held-out steps", percent(fit.held_out_mape), "Mean, on steps that the fit did not see."),
        ("95 % of steps within", percent(fit.held_out_p95), "Of held-out steps, by absolute error."),
        ("Total time, predicted ÷ measured", f"{fit.total_time_ratio:.3f}", "1 means queues come out without bias."),
    )


def coefficients(terms: tuple[Coefficient, ...], step_time: StepTime) -> pd.DataFrame:
    """Every term of an equation with its interval, in units one can picture; without one where none is known."""
    rows = [(c.name, c.value, f"{term_value(c.name, c.low)} to {term_value(c.name, c.high)}") for c in terms] or [
        (name.removesuffix("_ns"), value / 1e9, "–") for name, value in step_time._asdict().items() if value
    ]
    return pd.DataFrame(
        {
            "term": [TERMS[name].label for name, _, _ in rows],
            "value": [f"{term_value(name, value)} {TERMS[name].unit}" for name, value, _ in rows],
            "95 % interval": [interval for _, _, interval in rows],
        }
    ).set_index("term")


def fit_basis(model: StepTimeFit | SavedModel) -> pd.DataFrame:
    """What a model stands on: the steps used, those left out, and the range they cover."""
    facts = [("source", model.source)]
    if isinstance(model, StepTimeFit):
        facts += [
            ("steps used", f"{int(model.kept.sum()):,} of {len(model.log):,}"),
            *((f"left out: {num:,}", reason) for reason, num in model.left_out),
        ]
    if (covered := model.covered) is not None:
        context = covered.max_kv_decode_tokens
        facts += [
            ("covered range", "beyond it, a plan extrapolates and says so"),
            ("requests in a step", f"up to {covered.max_num_seqs:,}"),
            ("prefill tokens in a step", f"up to {covered.max_prefill_tokens:,}"),
            ("context that decodes read", f"up to {context:,.0f} tokens" if context == context else "not in the log"),
        ]
    else:
        facts.append(("covered range", "not known: nothing is called extrapolation"))
    return _facts(facts)


LATENCIES = {
    "itl": "ITL, token gaps pooled",
    "worst_gap": "worst gap of a request",
    "tpot": "TPOT of a request",
    "ttft": "TTFT, queueing included",
    "e2e": "E2E, arrival to last token",
}
"""By the names of `planner.measured.Comparison`."""


def compared(comparisons: tuple[Comparison, ...]) -> pd.DataFrame:
    """Every latency, line by line: measured, simulated, what several replays reach, and how far off that is."""
    shares = ("mean", "p50", "p90", "p99", "max")
    rows = []
    for one in comparisons:
        lines = {
            "measured": [seconds(getattr(one.measured, f"{share}_s")) for share in shares],
            "simulated": [seconds(getattr(one.predicted, f"{share}_s")) for share in shares],
            f"in {len(one.runs)} replays": [_reach(*one.reach_s(share)) for share in shares],
            "off by": [signed_percent(one.relative_error(share)) for share in shares],
        }
        if len(one.runs) == 1:
            del lines["in 1 replays"]
        named = {line: LATENCIES[one.name] if line == "measured" else "" for line in lines}
        rows += [[named[line], *map(_unbroken, (line, *cells))] for line, cells in lines.items()]
    return pd.DataFrame(rows, columns=["latency", "", *shares]).set_index("latency")


def _reach(low_s: float, high_s: float) -> str:
    """Two durations, the unit once where it is the same."""
    low, high = seconds(low_s), seconds(high_s)
    return f"{low.removesuffix(' ' + high.partition(' ')[2])} to {high}"


def differences(unexplained: tuple[Difference, ...]) -> pd.DataFrame:
    """Lines of a log that the scheduler's rules do not explain, beside what the rules give."""
    return pd.DataFrame(
        {
            "line": [f"{one.source_row + 1:,}" for one in unexplained],
            "the log says": [_work(one.logged) for one in unexplained],
            "the rules give": [_work(one.simulated) for one in unexplained],
        }
    )


def _work(work: Work) -> str:
    """What a step computed, in the words of vLLM's log."""
    return (
        f"{work.num_prefill_reqs} context requests, {work.prefill_tokens:,} tokens; "
        f"{work.num_decode_reqs} generation requests, {work.num_decode_tokens:,} tokens"
    )


@dataclass(frozen=True, slots=True)
class Measure:
    """One row of the comparison."""

    label: str
    """What it is, with definition and percentile."""
    value: Callable[[Summary], float]
    """Where it stands."""
    shown: Callable[[float], str]
    """How it is written."""
    is_more_better: bool = False
    """Whether larger is better."""
    needs_stability: bool = False
    """Whether it says nothing while the queue grows for ever."""


def measures(slo: Slo) -> tuple[Measure, ...]:
    """Rows of the comparison, in the order in which they matter."""
    gap, wait = percentile(slo.itl_percentile), percentile(slo.ttft_percentile)
    target_gap = () if gap in ("p50", "p99") else (_gap(gap, lambda s: s.itl_at_percentile_s),)
    end = Measure(
        f"E2E {percentile(slo.e2e_percentile)}", lambda s: s.e2e_at_percentile_s, seconds, needs_stability=True
    )
    target_end = () if slo.e2e_s is None else (end,)
    target_wait = () if wait in ("p50", "p99") else (_wait(wait, lambda s: s.ttft_at_percentile_s),)
    return (
        _gap("p50", lambda s: s.itl.p50_s),
        _gap("p99", lambda s: s.itl.p99_s),
        *target_gap,
        Measure(
            f"Margin below the {seconds(slo.itl_s)} target, at {gap}",
            lambda s: 1.0 - s.itl_at_percentile_s / slo.itl_s,
            percent,
            is_more_better=True,
        ),
        Measure("Worst gap of any request", lambda s: s.itl.max_s, seconds),
        Measure(f"Stalled time: gaps beyond {seconds(slo.itl_s)}, summed", lambda s: s.stalled_s, seconds),
        Measure("Stalled share of the streaming time", lambda s: s.stalled_share, percent),
        _wait("p50", lambda s: s.ttft.p50_s),
        _wait("p99", lambda s: s.ttft.p99_s),
        *target_wait,
        Measure("E2E p50, arrival to last token", lambda s: s.e2e.p50_s, seconds, needs_stability=True),
        *target_end,
        Measure(
            "Throughput, output tokens per second", lambda s: s.output_tokens_per_s, three_digits, is_more_better=True
        ),
        Measure("Preemptions", lambda s: s.num_preemptions, _count),
        Measure("Tokens computed again after preemptions", lambda s: s.num_recomputed_tokens, _count),
        Measure("Prompt tokens found in the prefix cache", lambda s: s.hit_share, percent, is_more_better=True),
        Measure("Peak KV cache use", lambda s: s.peak_kv_usage, percent),
        Measure("Requests that can never run", lambda s: s.num_never_run, _count),
    )


def _gap(name: str, value: Callable[[Summary], float]) -> Measure:
    return Measure(f"ITL {name}, all token gaps pooled", value, seconds)


def _wait(name: str, value: Callable[[Summary], float]) -> Measure:
    return Measure(f"TTFT {name}, queueing included", value, seconds, needs_stability=True)


def _count(value: float) -> str:
    return f"{value:,.0f}"


def comparison(plan: Recommendation) -> pd.DataFrame:
    """Today, the answer and vLLM's default, number by number; better or worse than today in words."""
    rows = measures(plan.slo)
    today = plan.today.summary
    columns = {
        "Today": [*_flags(plan.space.searched, plan.today), *(_number(row, today) for row in rows)],
        answer_label(plan): [
            *_flags(plan.space.searched, plan.closest),
            *(_against(row, plan.closest.summary, today) for row in rows),
        ],
        "vLLM default": [
            *_flags(plan.space.searched, plan.vllm_default),
            *(_against(row, plan.vllm_default.summary, today) for row in rows),
        ],
    }
    return pd.DataFrame(columns, index=pd.Index([*plan.space.searched, *(row.label for row in rows)], name="simulated"))


def side_by_side(names: tuple[str, ...], candidates: tuple[Candidate, ...], slo: Slo) -> pd.DataFrame:
    """Some settings, number by number, better or worse than the first; and which targets each misses."""
    rows, first = measures(slo), candidates[0].summary
    columns = {
        literal(name): [
            *_flags(SEARCHED, candidate),
            f"{candidate.engine_config.num_kv_tokens:,}",
            "; ".join(rejection_sentence(missed) for missed in candidate.violations) or "met",
            *(_against(row, candidate.summary, first) for row in rows),
        ]
        for name, candidate in zip(names, candidates, strict=True)
    }
    labels = [*SEARCHED, "KV cache, tokens", "Targets", *(row.label for row in rows)]
    return pd.DataFrame(columns, index=pd.Index(labels, name="simulated"))


def two_plans(compared: PlanComparison, names: tuple[str, str]) -> pd.DataFrame:
    """Inputs that differ and all answers of two plans side by side, under their names; what differs is marked."""
    rows = [*compared.changed_inputs, *compared.answers]
    columns = {
        "": ["≠" if row.differs else "" for row in rows],
        names[0]: [literal(value_in_words(row.first, row.unit)) for row in rows],
        names[1]: [literal(value_in_words(row.second, row.unit)) for row in rows],
    }
    return pd.DataFrame(columns, index=pd.Index([row.name for row in rows], name="simulated"))


def _flags(names: tuple[str, ...], candidate: Candidate) -> list[str]:
    """The flags of these names."""
    return [flag_value(name, getattr(candidate.engine_config, name)) for name in names]


def _number(row: Measure, summary: Summary) -> str:
    """One number; a word instead where a number would be false precision."""
    return "unstable" if row.needs_stability and summary.is_unstable else row.shown(row.value(summary))


def _against(row: Measure, summary: Summary, today: Summary) -> str:
    """One number, with how it compares with today's; the colour only repeats the word."""
    text, value, before = _number(row, summary), row.value(summary), row.value(today)
    if "unstable" in (text, _number(row, today)) or not abs(value - before) > MIN_DIFFERENCE * abs(before):
        return text
    arrow = "▲" if value > before else "▼"
    return (
        f"{text} :blue[{arrow} better]" if (value > before) == row.is_more_better else f"{text} :orange[{arrow} worse]"
    )


def one_notch(plan: Recommendation) -> pd.DataFrame:
    """What the next lower and the next higher value of each flag would give, the others staying as they are."""
    gap, wait = percentile(plan.slo.itl_percentile), percentile(plan.slo.ttft_percentile)
    return pd.DataFrame(
        [
            {
                "flag": notch.said(plan),
                f"ITL {gap}, pooled": _unbroken(seconds(summary.itl_at_percentile_s)),
                "worst gap": _unbroken(seconds(summary.itl.max_s)),
                f"TTFT {wait}": "unstable" if summary.is_unstable else _unbroken(seconds(summary.ttft_at_percentile_s)),
                "targets": "; ".join(rejection_sentence(v) for v in notch.candidate.violations) or "met",
            }
            for notch in notches(plan)
            for summary in [notch.candidate.summary]
        ]
    )


def losers(plan: Recommendation) -> pd.DataFrame:
    """Every setting that lost, with its first reason and its numbers in milliseconds; none of a stopped replay."""
    gap, wait = percentile(plan.slo.itl_percentile), percentile(plan.slo.ttft_percentile)

    def ms(candidate: Candidate, value_s: float) -> float:
        return value_s * MS_PER_S if candidate.is_complete else float("nan")

    return pd.DataFrame(
        [
            {
                **{name: getattr(candidate.engine_config, name) for name in plan.space.searched},
                f"ITL {gap}, pooled [ms]": ms(candidate, candidate.summary.itl_at_percentile_s),
                "worst gap [ms]": ms(candidate, candidate.summary.itl.max_s),
                f"TTFT {wait} [ms]": ms(candidate, candidate.summary.ttft_at_percentile_s),
                "preemptions": candidate.summary.num_preemptions if candidate.is_complete else None,
                "reason": rejection.reason.value,
                "why": rejection_sentence(rejection),
            }
            for candidate, rejection in plan.losers
        ]
    )


def rounded(table: pd.DataFrame) -> pd.DataFrame:
    """A table for reading: three significant digits, still numbers, so that columns sort."""

    def three(value: object) -> object:
        return float(f"{value:.3g}") if isinstance(value, float) else value

    return table.map(three)


def flags_in_full(config: EngineConfig) -> str:
    """The three flags that are searched, by the names that vLLM gives them."""
    return (
        f"max_num_batched_tokens {config.max_num_batched_tokens:,} · max_num_seqs {config.max_num_seqs:,} · "
        f"long_prefill_token_threshold {threshold(config.long_prefill_token_threshold)}"
    )


def worst_gaps(trace: RequestTrace, gaps: tuple[WorstGap, ...]) -> pd.DataFrame:
    """The longest gaps, each with its cause."""
    return pd.DataFrame(
        {
            "no.": [f"{k}" for k in range(1, len(gaps) + 1)],
            "gap": [_unbroken(seconds(gap.gap_s)) for gap in gaps],
            "from": [_unbroken(moment(gap.start_s)) for gap in gaps],
            "request": [f"{data_row(trace, gap.request)}" for gap in gaps],
            "streams that wait": [f"{gap.num_requests:,}" for gap in gaps],
            "cause, simulated": [literal(gap_sentence(trace, gap)) for gap in gaps],
        }
    )


def gap_labels(trace: RequestTrace, gaps: tuple[WorstGap, ...]) -> tuple[str, ...]:
    """What each gap is called where one is chosen."""
    return tuple(
        f"{k}: {seconds(gap.gap_s)} at {moment(gap.start_s)}, request {data_row(trace, gap.request)}"
        for k, gap in enumerate(gaps, start=1)
    )


def _unbroken(number: str) -> str:
    """A number that a narrow column does not part from its unit."""
    return number.replace(" ", "\N{NO-BREAK SPACE}")


def data_row(trace: RequestTrace, request: int) -> int:
    """A request's data row in the file, counted from 1."""
    return int(trace.source_row[request]) + 1


def moment(at_s: float) -> str:
    """A time of the replay, exact to the millisecond."""
    return f"{at_s:,.3f} s"


def steps(trace: RequestTrace, rows: tuple[StepRow, ...], moment_s: float) -> pd.DataFrame:
    """Engine steps, one a row: who got tokens, who came, who went, and what the first in the queue waits for."""
    begun = [row.step for row in rows if row.start_s <= moment_s]
    current = begun[-1] if begun else rows[0].step if rows else None
    return pd.DataFrame(
        {
            "": ["▶" if row.step == current else "" for row in rows],
            "step": [row.step for row in rows],
            "begins [s]": [f"{row.start_s:,.4f}" for row in rows],
            "takes [ms]": [round((row.end_s - row.start_s) * MS_PER_S, 2) for row in rows],
            "prefill (tokens)": [_shares(trace, row.prefilled) for row in rows],
            "decoding": [len(row.decoded) for row in rows],
            "admitted (hit)": [_shares(trace, row.admitted) for row in rows],
            "resumed (hit)": [_shares(trace, row.resumed) for row in rows],
            "evicted (lost)": [_shares(trace, row.preempted) for row in rows],
            "finished": [", ".join(f"{data_row(trace, request)}" for request in row.finished) for row in rows],
            "running": [row.num_running for row in rows],
            "waiting": [row.num_waiting for row in rows],
            "KV use [%]": [round(100.0 * row.kv_usage, 1) for row in rows],
            "first in the queue": [_head(trace, row) for row in rows],
            "who decodes": [_decoded(trace, row.decoded) for row in rows],
        }
    )


def _shares(trace: RequestTrace, shares: tuple[Share, ...]) -> str:
    """Requests with their tokens; as many as fit a cell."""
    listed = [f"{data_row(trace, share.request)} ({share.num_tokens:,})" for share in shares[:MOST_LISTED]]
    rest = len(shares) - MOST_LISTED
    return ", ".join(listed) + (f" and {rest:,} more" if rest > 0 else "")


def _decoded(trace: RequestTrace, shares: tuple[Share, ...]) -> str:
    """All requests that decode; with their tokens where drafts make more than one possible."""
    return ", ".join(
        f"{data_row(trace, share.request)}" + (f" ({share.num_tokens})" if share.num_tokens != 1 else "")
        for share in shares
    )


def _head(trace: RequestTrace, row: StepRow) -> str:
    """Who stands first in the queue, and why there."""
    return "" if row.head is None else f"{data_row(trace, row.head)}: {WAITING_FOR[row.held_by]}"


def toy_sentence(turn: Turn) -> str:
    """What a step of the toy replay does, and how long it takes by the equation."""
    prefill = sum(share.num_tokens for share in turn.row.prefilled)
    num = len(turn.row.prefilled) + len(turn.row.decoded)
    base_ms, per_seq_ms, per_token_ms = (value_ns / 1e6 for value_ns in TOY_STEP_TIME[:3])
    took_ms = (turn.row.end_s - turn.row.start_s) * MS_PER_S
    said = (
        f"{base_ms:g} ms + {num} × {per_seq_ms:g} ms + {prefill} prefill tokens × {per_token_ms:g} ms "
        f"= {three_digits(took_ms)} ms, simulated."
    )
    lost = [f"{letter(share.request)} is preempted and loses {share.num_tokens} tokens" for share in turn.row.preempted]
    ended = [f"{letter(request)} gets its last token" for request in turn.row.finished]
    return " ".join([said, *(f"{event}." for event in (*lost, *ended))])


def toy_gaps(turn: Turn) -> pd.DataFrame:
    """Every request with a gap: how large, how much of it is closed, and why not more."""

    def why(share: GapShare) -> str:
        if share.num_tokens == share.gap:
            return "closed: one more token" if share.gap == 1 else "closed: first token"
        if share.num_tokens:
            return "cut by the budget or the threshold"
        return WAITING_FOR[turn.row.held_by] if share.request == turn.row.head else "behind the first in the queue"

    return pd.DataFrame(
        {
            "request": [letter(share.request) for share in turn.shares],
            "known": [f"{share.num_known}" for share in turn.shares],
            "computed": [f"{share.num_computed}" for share in turn.shares],
            "gap": [f"{share.gap}" for share in turn.shares],
            "gets": [f"{share.num_tokens}" for share in turn.shares],
            "": [why(share) for share in turn.shares],
        }
    )


def flags_explained(flags: dict[str, tuple[str, str]]) -> pd.DataFrame:
    """What lowering each flag gives, and what it costs."""
    rows = [(literal(flag), gives, costs) for flag, (gives, costs) in flags.items()]
    return pd.DataFrame(rows, columns=["lowered", "gives", "costs"])


def two_columns(pairs: dict[str, str], names: tuple[str, str]) -> pd.DataFrame:
    """Words and what is said about them."""
    return pd.DataFrame([(f"**{literal(a)}**", literal(b)) for a, b in pairs.items()], columns=list(names))


def life_sums(life: Life) -> pd.DataFrame:
    """A request's time by what it did; the rows sum to E2E."""
    kinds = [kind for kind in PhaseKind if life.of_kind(kind)]

    def cells(name: str, time_s: float, num_tokens: int) -> dict[str, str]:
        share = _unbroken(percent(time_s / life.e2e_s)) if life.e2e_s else "–"
        return {"phase": name, "time": _unbroken(seconds(time_s)), "share": share, "tokens": f"{num_tokens:,}"}

    rows = [cells(kind, life.seconds_of(kind), sum(p.num_tokens for p in life.of_kind(kind))) for kind in kinds]
    whole = "E2E, arrival to last token" if life.is_finished else "so far, not finished"
    total = cells(whole, life.e2e_s, sum(phase.num_tokens for phase in life.phases))
    return pd.DataFrame([*rows, total]).set_index("phase")


def phases(life: Life) -> pd.DataFrame:
    """A request's phases in order, with the reason of every wait."""
    return pd.DataFrame(
        {
            "begins [s]": [f"{phase.start_ns / 1e9:,.4f}" for phase in life.phases],
            "takes [ms]": [round(phase.duration_s * MS_PER_S, 2) for phase in life.phases],
            "phase": [str(phase.kind) for phase in life.phases],
            "steps": [phase.num_steps for phase in life.phases],
            "tokens": [phase.num_tokens for phase in life.phases],
            "for prefill of others [ms]": [round(phase.beside_ns / 1e6, 2) for phase in life.phases],
            "why": [
                wait_in_words(phase.kind, phase.held_by, phase.is_head) if phase.kind in WAITS else ""
                for phase in life.phases
            ],
        }
    )
