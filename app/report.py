"""A plan, or a calibration, as one HTML page that asks nobody for anything: for a ticket, a review, an archive."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from html import escape

import pandas as pd
import plotly.graph_objects as go
from plotly.io import to_html
from plotly.offline import get_plotlyjs

from app import frames
from app.figures import calibration, distributions, tradeoff
from app.figures.budget import latency_by_budget
from app.figures.distributions import Latencies
from app.figures.grid import gap_by_budget_and_seats
from app.figures.labels import percent, three_digits
from planner.acting import flags_sentence
from planner.align import Alignment, alignment_sentence
from planner.command import serve_command
from planner.engine_config import VLLM_VERSION
from planner.export import bench_command, provenance
from planner.measured import Comparison, trust_sentence
from planner.plan_file import SavedPlan
from planner.remedies import what_to_record
from planner.step_time import StepTimeFit
from planner.verdict import confidence_sentences
from traces.receipt import Receipt
from traces.steps import StepLog

STYLE = """
body {font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; max-width: 70rem; margin: 2rem auto; padding: 0 1rem}
h1 {font-size: 1.5rem} h2 {font-size: 1.15rem; margin-top: 2rem} summary {font-weight: 600; cursor: pointer}
.verdict {border-left: .4rem solid #808080; padding: .6rem 1rem; background: #f4f4f4; font-weight: 600}
.met {border-color: #0E9F80} .missed {border-color: #D55E00} .unstable {border-color: #A87800}
table {border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .5rem 0}
th, td {border-bottom: 1px solid #ddd; padding: .2rem .6rem; text-align: left; vertical-align: top}
.wide th, .wide td {white-space: nowrap} .plotly-graph-div {height: 26rem}
pre {background: #f4f4f4; padding: .7rem 1rem; overflow-x: auto} .wide {overflow-x: auto}
"""
ASKS_NOBODY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
"""The browser itself then refuses every request that the page could make."""


def plan_report(saved: SavedPlan, settings: tuple[Latencies, ...] = ()) -> str:
    """A plan with its verdict, figures, tables and everything it stands on.

    Parameters
    ----------
    saved : SavedPlan
    settings : tuple of Latencies
        Whole distributions of some settings, where a replay is at hand; a plan file does not hold them.
    """
    plan, words = saved.recommendation, saved.words
    parts = [
        _heading(1, f"vLLM flags for {saved.trace.name or 'this traffic'}"),
        f'<p class="verdict {escape(words.verdict)}">{escape(words.sentence)}</p>',
        _confidence(saved),
        *_commands(saved),
        _heading(2, "Today, the answer, and vLLM's default: simulated"),
        _table(frames.comparison(plan).map(_plain)),
        _heading(2, "Why"),
        _items(words.why),
        _table(frames.one_notch(plan).set_index("flag")),
        _heading(2, "What was tried: simulated"),
        _figure("budget", latency_by_budget(plan)),
        _figure("tradeoff", tradeoff.gap_against_ttft(plan)),
        _figure("grid", gap_by_budget_and_seats(plan, plan.closest.engine_config.long_prefill_token_threshold)),
        *_distributions(saved, settings),
        f"<details><summary>Why the other {len(plan.losers):,} settings lost</summary>",
        _table(frames.losers(plan).drop(columns="reason"), has_index=False),
        "</details>",
        _heading(2, "What this stands on"),
        _items(provenance(saved)),
        *_trace(saved),
        *_model(saved),
        _heading(3, "Settings in force today, the flags that were searched among them"),
        _facts(asdict(plan.today.engine_config)),
        _heading(3, "Searched"),
        _facts({name: plan.space.values(name) for name in plan.space.searched}),
        _heading(3, "Simulated"),
        _items(words.rules),
        _heading(3, "Not simulated"),
        _items(words.not_simulated),
    ]
    return _page(f"vLLM plan: {saved.trace.name}", parts)


def calibration_report(
    fit: StepTimeFit, alignment: Alignment | None = None, comparisons: tuple[Comparison, ...] = ()
) -> str:
    """A step-time model with its figures and everything it stands on.

    Parameters
    ----------
    fit : StepTimeFit
    alignment : Alignment, optional
        The log explained by the requests behind it, where the fit stands on that.
    comparisons : tuple of Comparison
        A replay beside what was measured, where that is known.
    """
    log = fit.log
    figures = {
        "measured": calibration.predicted_against_measured(fit),
        "prefill": calibration.step_time_by_prefill(fit),
        "decode": calibration.decode_curve(fit),
        **{f"residuals_{against.name}": calibration.residuals(fit, against) for against in calibration.Against},
    }
    numbers = {label: f"{value}: {about}" for label, value, about in frames.fit_numbers(fit)}
    parts = [
        _heading(1, f"Step times of {fit.source}"),
        _facts(numbers),
        _items(fit.notices),
        _heading(2, "The equation"),
        "<p>Step time = the sum of these terms; every term that is not listed is 0.</p>",
        _table(frames.coefficients(fit.coefficients, fit.step_time)),
        _heading(2, "What it stands on"),
        _table(frames.fit_basis(fit)),
        *_explained(alignment, len(log)),
        _heading(2, "How well it fits"),
        *(_figure(name, canvas) for name, canvas in figures.items()),
        *_measured(comparisons),
        *_remedies(fit),
        *([] if log.receipt is None else [_heading(2, "How the log was read"), *_log(log, log.receipt)]),
        f"<p>Digest of the log: {escape(fit.digest)}. Simulated: vLLM {escape(VLLM_VERSION)}.</p>",
    ]
    return _page(f"Step times of {fit.source}", parts)


def _page(title: str, parts: list[str]) -> str:
    """The whole document."""
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{ASKS_NOBODY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n"
        f"<script>{get_plotlyjs()}</script>\n</head>\n"
    )
    return head + "<body>\n" + "\n".join(parts) + "\n</body>\n</html>\n"


def _explained(alignment: Alignment | None, num_steps: int) -> list[str]:
    """How many steps the scheduler's rules explain, and the first they do not."""
    if alignment is None:
        return []
    table = [_table(frames.differences(alignment.differences), has_index=False)] if alignment.differences else []
    said = (alignment_sentence(alignment, num_steps), flags_sentence(alignment.flag_uses))
    return [*(f"<p>{escape(one)}</p>" for one in said), *table]


def _measured(comparisons: tuple[Comparison, ...]) -> list[str]:
    """A replay beside what was measured."""
    if not comparisons:
        return []
    drawn = [one for one in comparisons if one.name in ("itl", "ttft")]
    return [
        _heading(2, "A replay under today's flags, beside what was measured"),
        f"<p>{escape(trust_sentence(comparisons))}</p>",
        _table(frames.compared(comparisons)),
        *(_figure(f"compared_{one.name}", distributions.predicted_and_measured(one)) for one in drawn),
    ]


def _remedies(fit: StepTimeFit) -> list[str]:
    """What to record next."""
    remedies = what_to_record(fit)
    told = [part for one in remedies for part in (f"<p>{escape(one.sentence)}</p>", _code(one.bench)) if part]
    return [_heading(2, "What to record next"), *told] if remedies else []


def _log(log: StepLog, receipt: Receipt) -> list[str]:
    """The receipt of a step log."""
    return [_items(receipt.notices), _table(frames.receipt_of_steps(log, receipt).map(_plain))]


def _confidence(saved: SavedPlan) -> str:
    """How sure it is, as far as that is known."""
    plan = saved.recommendation
    outside = "not known" if plan.extrapolated_share is None else percent(plan.extrapolated_share)
    sure = " ".join(confidence_sentences(plan))
    return f"<p>{escape(sure)} Steps outside the calibrated range: {escape(outside)}.</p>"


def _commands(saved: SavedPlan) -> list[str]:
    """What to start, and what to verify it with."""
    best, today = saved.recommendation.best, saved.recommendation.today.engine_config
    if best is None:
        return ["<p>No setting tried meets the targets, so there is no command to give.</p>"]
    return [
        _heading(2, "Command"),
        _code(serve_command(best.engine_config, today)),
        "<p>In full:</p>",
        _code(serve_command(best.engine_config)),
        "<p>To verify it on a running server, at the mean rate and the mean lengths:</p>",
        _code(bench_command(saved.trace)),
    ]


def _distributions(saved: SavedPlan, settings: tuple[Latencies, ...]) -> list[str]:
    """The tails of the settings that were replayed for it."""
    if not settings:
        return ["<p>Whole distributions are no part of a plan file; the page that made the plan shows them.</p>"]
    slo = saved.recommendation.slo
    return [
        _figure("gap_tail", distributions.gap_tail(settings, slo)),
        _figure("ttft_tail", distributions.ttft_tail(settings, slo)),
    ]


def _trace(saved: SavedPlan) -> list[str]:
    """The traffic, and how its file was read."""
    origin = saved.trace
    facts = {name: value for name, value in asdict(origin).items() if name not in ("receipt", "answers")}
    answers = {name: value for name, value in asdict(origin.answers).items() if value}
    return [
        _heading(3, "Trace"),
        _facts(facts | {f"answered: {name}": value for name, value in answers.items()}),
        *([] if origin.receipt is None else [_table(frames.receipt(origin.receipt).map(_plain))]),
    ]


def _model(saved: SavedPlan) -> list[str]:
    """The step times: coefficients as charged, as fitted, and the range they cover."""
    model = saved.model
    return [
        _heading(3, f"Step times: {model.source}"),
        _table(frames.coefficients(model.coefficients, saved.recommendation.step_time)),
        *([] if model.covered is None else ["<p>The step log covers:</p>", _facts(asdict(model.covered))]),
    ]


def _heading(level: int, text: str) -> str:
    return f"<h{level}>{escape(text)}</h{level}>"


def _items(lines: tuple[str, ...]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def _code(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"


def _facts(facts: Mapping[str, object]) -> str:
    """Names and values."""
    rows = [(name, "–" if value is None else str(value)) for name, value in facts.items()]
    return _table(pd.DataFrame(rows, columns=["", "value"]).set_index(""))


def _table(table: pd.DataFrame, *, has_index: bool = True) -> str:
    with pd.option_context("display.max_colwidth", None):  # pandas would cut a cell after 50 characters
        return f'<div class="wide">{table.to_html(border=0, index=has_index, float_format=three_digits)}</div>'


def _plain(text: str) -> str:
    """A cell without the marks that the dashboard reads as colour or as escapes."""
    return re.sub(r"\\(.)", r"\1", re.sub(r":\w+\[(.*?)\]", r"\1", text))


def _figure(name: str, canvas: go.Figure) -> str:
    """A chart that moves under the pointer; the script it needs is in the head, once."""
    options = {"displaylogo": False}
    plain = go.Figure(canvas).update_layout(template="plotly_white")
    return str(to_html(plain, include_plotlyjs=False, full_html=False, div_id=name, config=options))
