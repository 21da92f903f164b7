"""Pieces that several pages draw: the strip, the example, faults, receipts, links."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from app import compute, frames, state
from app.compute import PlanInputs
from app.figures import distributions
from app.figures.data import drawn_values
from app.figures.labels import d_and_p, three_digits
from app.jobs import Job, Look, Status, WhatIf
from app.pages import PAGES
from app.report import calibration_report
from app.state import Reading, Session
from app.widgets.files import ask_answers, ask_columns, ask_file
from planner.align import Alignment
from planner.engine_config import VLLM_VERSION, EngineConfig
from planner.errors import UnfitStepLog
from planner.export import timed_trace
from planner.measured import Comparison, mismatches, trust_sentence
from planner.remedies import what_to_record
from planner.step_time import SavedModel, StepTime, StepTimeFit, step_time_of, write_model
from planner.verdict import class_sentence, seconds
from traces.answers import ReadAnswers
from traces.errors import BadData, InputError, NeedsAnswer
from traces.requests import WHOLE, RequestTrace
from traces.selection import selection_sentence
from traces.tables import Source
from traces.write import to_parquet

PATIENCE_S = 0.8
"""How long an answer may take without a word about how far it is."""
PICKED = "Picked"
"""What the Inspect page calls a setting that was picked among all that a plan tried."""

INPUT_NAMES = {
    "trace_digest": "trace",
    "step_time": "step times",
    "slo": "targets",
    "objective": "objective",
    "today": "today's flags or context",
    "default_flags": "GPU memory",
    "more": "further flags searched",
}
"""Parts of the inputs, as the page calls them."""


def show_strip() -> None:
    """What the numbers on the page stand on, in one thin row."""
    session = state.session()
    cells = (
        ("Trace", _trace_in_words(session)),
        ("Step times", _model_in_words(session)),
        ("Context", _context_in_words(session)),
        ("Target", _target_in_words(session)),
    )
    with st.container(border=True, key="strip"):
        for column, (name, words) in zip(st.columns(len(cells), gap="medium"), cells, strict=True):
            column.caption(f"**{name}**  \n{words}")


def _trace_in_words(session: Session) -> str:
    trace = session.traffic
    if trace is None:
        return "none yet"
    rate = f"{three_digits(len(trace) / trace.span_s)}/s" if trace.span_s else "all at once"
    part = "" if trace.selection == WHOLE else f" · {selection_sentence(trace.selection)}"
    return (
        f"{frames.literal(session.trace.file_name)} ({trace.digest[:8]}) · {seconds(trace.span_s)} · "
        f"{len(trace):,} requests · {rate}{part}"
    )


def _model_in_words(session: Session) -> str:
    model = session.model
    if model is None:
        return "none yet"
    step_time = step_time_of(model)
    num_seqs, decode_s, source = 1, (step_time.base_ns + step_time.per_seq_ns) / 1e9, "set by hand"
    if not isinstance(model, StepTime):
        source = model.source
        if model.typical_num_seqs is not None and model.typical_decode_s is not None:
            num_seqs, decode_s = model.typical_num_seqs, model.typical_decode_s
    return f"{d_and_p(decode_s, num_seqs, step_time.per_prefill_token_ns / 1e9)} · {frames.literal(source)}"


def _context_in_words(session: Session) -> str:
    rules = f"vLLM {VLLM_VERSION} rules"
    if session.inputs is None:
        return f"{rules} · flags: see Plan"
    today = session.inputs.today
    return (
        f"{rules} · KV {today.num_kv_tokens:,} tokens · today {today.max_num_batched_tokens:,} tokens, "
        f"{today.max_num_seqs:,} seqs, threshold {today.long_prefill_token_threshold or 'off'}, "
        f"async {'on' if today.async_scheduling else 'off'}"
    )


def _target_in_words(session: Session) -> str:
    planning = " · **planning…**" if session.job is not None and session.job.is_going else ""
    if session.inputs is None:
        return f"see Plan{planning}"
    slo = session.inputs.slo
    words = f"ITL p{100 * slo.itl_percentile:g} ≤ {seconds(slo.itl_s)}"
    if slo.worst_gap_s is not None:
        words += f" · no gap above {seconds(slo.worst_gap_s)}"
    if slo.ttft_s is not None:
        words += f" · TTFT p{100 * slo.ttft_percentile:g} ≤ {seconds(slo.ttft_s)}"
    if slo.e2e_s is not None:
        words += f" · E2E p{100 * slo.e2e_percentile:g} ≤ {seconds(slo.e2e_s)}"
    if slo.stalled_share is not None:
        words += f" · stalled ≤ {100 * slo.stalled_share:.3g} %"
    words += "".join(f" · {class_sentence(target, slo)}" for target in slo.classes)
    return words + planning


def answer(question: WhatIf | Look, trace: RequestTrace) -> Any:
    """What comes of a question; where that is not there at once, None, and how far it is or why it came to nothing."""
    job = state.session().ask(question, trace)
    job.wait(PATIENCE_S)
    if job.is_going:
        watch(job, type(question).__name__)
        return None
    result = job.result
    if result is None:
        show_end(job)
        st.button(
            "Replay again",
            icon=":material/replay:",
            key=f"again_{type(question).__name__}",
            on_click=state.session().ask_again,
            args=(type(question),),
        )
    return result


@st.fragment(run_every=0.4)
def watch(job: Job, name: str = "") -> None:
    """Say how far a job is and what it tries, offer to stop it, and run the page again when it is through.

    Parameters
    ----------
    job : Job
    name : str
        Tells apart jobs that are watched at the same time.
    """
    waited = f"{time.monotonic() - job.started_s:.0f} s"
    share = 0.0
    if job.status is Status.COMPILING:
        words = f"Compiling the scheduler, once per installation (about half a minute) … {waited}"
    elif not job.num_planned:
        words = f"Starting … {waited}"
    else:
        share = min(1.0, (job.num_done + job.part_done) / job.num_planned)
        left = "" if job.left_s is None else f", about {job.left_s:.0f} s more"
        num = "1 replay" if job.num_planned == 1 else f"{job.num_planned:,} replays"
        words = " · ".join(filter(None, (f"{job.num_done:,} of {num}", f"{waited}{left}", job.newest)))
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.progress(share, words)
        if st.button("Cancel", icon=":material/stop:", key=f"cancel_{type(job).__name__}_{name}"):
            job.cancel()
    if not job.is_going:
        st.rerun()


def show_end(job: Job) -> None:
    """Say why a job came to no result."""
    if job.status is Status.CANCELLED:
        st.warning("Cancelled.", icon=":material/cancel:")
    elif job.status is Status.FAILED:
        st.error(frames.literal(job.fault), icon=":material/error:")


def show_missing(sentence: str, page: str, label: str) -> None:
    """Say what a page still needs, with the way there and the example beside it."""
    st.info(sentence, icon=":material/arrow_upward:")
    with st.container(horizontal=True, vertical_alignment="center"):
        show_next(page, label)
        offer_example()


def offer_example() -> None:
    """One click that loads a trace and a step log, and plans."""
    if st.button(
        "Run the example",
        type="primary",
        icon=":material/play_arrow:",
        help="Ten minutes of made-up chat traffic with long prompts, the log of its server, a target of 80 ms.",
    ):
        state.session().take_example()
        st.switch_page(PAGES["plan"])


def take(label: str, forms: str, name: str, upload: Callable[[bytes, str], None]) -> bool:
    """Take a file; whether one came."""
    file = ask_file(label, forms, name)
    if file is None:
        return False
    with st.spinner(f"Reading {file.name} …"):
        upload(file.getvalue(), file.name)
    return True


def take_trace() -> None:
    """Take a request trace."""
    session = state.session()
    label = "Request trace" if session.trace.value is None else "Another request trace"
    forms = "Parquet, CSV or JSON lines, also as .gz or .zst"
    if take(label, forms, f"trace_{session.trace.num_uploads}", session.upload_trace):
        st.rerun()


def take_steps() -> None:
    """Take a step log."""
    session = state.session()
    label = "Step log" if session.steps.value is None else "Another step log"
    forms = "a vLLM server log or a table, also as .gz or .zst"
    if take(label, forms, f"steps_{session.steps.num_uploads}", session.upload_steps):
        st.rerun()


def take_plan() -> bool:
    """Take a plan file; whether one came."""
    session = state.session()
    return take("Plan file", "as written here or by planner plan -o", f"plan_{session.num_opened}", session.open_plan)


def offer_look(label: str, name: str, picked: EngineConfig | None = None, where: str = "") -> None:
    """One click that opens a setting of the plan in the Inspect page.

    Parameters
    ----------
    label : str
        Of the button.
    name : str
        As the Inspect page calls the setting.
    picked : EngineConfig, optional
        The setting, where its name is `PICKED`.
    where : str
        Tells buttons of the same name apart.
    """
    if st.button(label, icon=":material/troubleshoot:", key=f"look_{where}_{label}"):
        state.session().look_into(name, picked)
        st.switch_page(PAGES["inspect"])


def show_figure(figure: go.Figure, key: str) -> None:
    """A figure, and the values in it as a file; the picture is a button of the figure's own."""
    st.plotly_chart(figure, key=key)
    offer_values(figure, key)


def offer_values(figure: go.Figure, key: str) -> None:
    """The values that a figure draws, as a file."""
    st.download_button(
        "CSV",
        lambda: drawn_values(figure).to_csv(index=False),
        f"{key}.csv",
        "text/csv",
        icon=":material/download:",
        type="tertiary",
        key=f"csv_{key}",
        on_click="ignore",
        help="The values drawn above, with units.",
    )


def show_next(page: str, label: str) -> None:
    """The way on."""
    st.page_link(PAGES[page], label=label, icon=":material/arrow_forward:")


def show_reading(
    reading: Reading[object], read: Callable[[Source, str, ReadAnswers], object | InputError], name: str
) -> None:
    """Faults and questions of an uploaded file; reads it again as soon as an answer changes."""
    fault = reading.fault
    if isinstance(fault, NeedsAnswer):
        st.warning(f"{frames.literal(fault.file_name)} can be read in more than one way. Which is right?")
    if reading.questions:
        answers = ask_answers(reading.questions, reading.answers, f"{name}_{reading.num_uploads}")
        if answers != reading.answers:
            reading.answer(answers, read)
            st.rerun()
    if reading.unmapped is not None:
        st.warning("Columns of this file are not known by their names. What is what?", icon=":material/view_column:")
        answers = ask_columns(reading.unmapped, reading.answers, f"{name}_{reading.num_uploads}")
        if answers != reading.answers:
            reading.answer(answers, read)
            st.rerun()
    if isinstance(fault, BadData):
        show_problems(fault)
        _offer_to_drop(reading, read, fault)
    elif fault is not None and not isinstance(fault, NeedsAnswer):
        st.error(frames.literal(str(fault)), icon=":material/error:")


def show_problems(fault: BadData) -> None:
    """Everything wrong with a file as one table."""
    num = len(fault.problems)
    what = "one thing stands" if num == 1 else f"{num} things stand"
    st.error(f"{frames.literal(fault.file_name)} cannot be used as it is: {what} against it.", icon=":material/error:")
    st.table(frames.problems(fault.problems), hide_index=True)


def _offer_to_drop(
    reading: Reading[object], read: Callable[[Source, str, ReadAnswers], object | InputError], fault: BadData
) -> None:
    """Offer to leave bad rows out, where only rows are bad."""
    if reading.data is None or not all(problem.rows for problem in fault.problems):
        return
    if st.button("Leave these rows out and read the rest", help="They are listed in the receipt."):
        reading.answer(replace(reading.answers, drop_bad_rows=True), read)
        st.rerun()


def offer_traffic(trace: RequestTrace) -> None:
    """The part of the trace that is planned for, as files."""
    with st.container(horizontal=True):
        st.download_button(
            "Download as Parquet",
            lambda: to_parquet(trace),
            "traffic.parquet",
            "application/vnd.apache.parquet",
            icon=":material/download:",
            on_click="ignore",
            help="This part of the trace, as it is planned for.",
        )
        st.download_button(
            "Download for vllm bench serve",
            lambda: timed_trace(trace),
            "timed_trace.jsonl",
            "application/jsonl",
            icon=":material/download:",
            on_click="ignore",
            help="For --dataset-name timed_trace, which sends every request at its own time to a real server; the "
            "Export page has the whole command.",
        )


def show_model(model: StepTimeFit | SavedModel) -> None:
    """The equation, and what it stands on."""
    terms, basis = st.columns(2, gap="large")
    terms.table(frames.coefficients(model.coefficients, model.step_time), border="horizontal")
    basis.table(frames.fit_basis(model), border="horizontal", hide_header=True)


def offer_model(fit: StepTimeFit) -> None:
    """The model as a file, and what it stands on as a page."""
    session = state.session()
    alignment = session.alignment if isinstance(session.alignment, Alignment) else None
    with st.container(horizontal=True):
        st.download_button(
            "Download the model",
            lambda: write_model(fit),
            "model.json",
            "application/json",
            icon=":material/download:",
            on_click="ignore",
            help="JSON: coefficients with intervals, covered range. This page and `planner plan --model` take it back.",
        )
        st.download_button(
            "Download the report",
            lambda: calibration_report(fit, alignment, session.compared or ()),
            "calibration.html",
            "text/html",
            icon=":material/download:",
            on_click="ignore",
            help="One HTML file with the figures, the tables and every assumption, asking no other server.",
        )


def show_remedies(calibration: StepTimeFit | UnfitStepLog) -> None:
    """What to record next, with the lines to paste."""
    remedies = what_to_record(calibration)
    if not remedies:
        return
    is_refused = isinstance(calibration, UnfitStepLog)
    with st.expander(f"What to record next ({len(remedies)})", expanded=is_refused, icon=":material/playlist_add:"):
        for remedy in remedies:
            st.markdown(frames.literal(remedy.sentence))
            if remedy.bench:
                st.code(remedy.bench, language="bash", wrap_lines=True)
        for words, lines in (
            ("Start vLLM with its iteration log:", [remedy.serve for remedy in remedies]),
            ("Or with the recorder, which needs no log:", [remedy.plug_in for remedy in remedies]),
        ):
            if (chosen := next((line for line in lines if line), None)) is not None:
                st.markdown(words)
                st.code(chosen, language="bash", wrap_lines=True)


def show_measured() -> None:
    """Predicted against measured: how far a plan on this model can be trusted."""
    session = state.session()
    st.subheader("Does a replay give what was measured?")
    if session.trace.value is None:
        st.write("With the trace of requests whose token times were measured, a replay can be held against them.")
        st.page_link(PAGES["trace"], label="Upload a trace", icon=":material/upload_file:")
        return
    reading = session.measured
    label = "Measured results" if reading.value is None else "Other measured results"
    forms = (
        "vllm bench serve --save-detailed, GuideLLM, AIPerf, inference-perf, OTLP spans, or Parquet with token times"
    )
    read = partial(reading.upload, read=compute.understand_measured)
    if take(label, forms, f"measured_{reading.num_uploads}", read):
        st.rerun()
    show_reading(reading, compute.understand_measured, "measured")
    comparisons = session.compared
    if comparisons is None or reading.value is None:
        return
    measured, trace = reading.value, session.trace.value
    show_notices(mismatches(trace, measured))
    st.info(trust_sentence(comparisons), icon=":material/balance:")
    st.caption(
        f"Measured by {measured.clock} clocks ({frames.literal(reading.file_name)}), simulated under today's flags"
        f"{_of_replays(comparisons)}. A client's times hold the way to the engine and back, which a replay does not "
        "know."
    )
    st.table(frames.compared(comparisons), border="horizontal")
    columns = st.columns(2, gap="large")
    for column, one in zip(columns, (one for one in comparisons if one.name in ("itl", "ttft")), strict=False):
        with column:
            show_figure(distributions.predicted_and_measured(one), f"measured_{one.name}")


def _of_replays(comparisons: tuple[Comparison, ...]) -> str:
    """What the simulated numbers are taken from."""
    num = max(len(one.runs) for one in comparisons)
    if num == 1:
        return " by a plain replay"
    return f": the middle of {num} replays with the scatter of the log's steps, and the least to the most of them"


def show_notices(notices: tuple[str, ...]) -> None:
    """What the user must know although all went well."""
    if notices:
        words = [frames.literal(notice) for notice in notices]
        st.warning("\n".join(f"- {one}" for one in words) if len(words) > 1 else words[0], icon=":material/info:")


def show_stale(planned: PlanInputs, now: PlanInputs | None) -> None:
    """Mark results that belong to other inputs than those on the page."""
    if now is None:
        return
    changed = [words for name, words in INPUT_NAMES.items() if getattr(planned, name) != getattr(now, name)]
    if changed:
        st.warning(
            f"These results belong to other inputs. Changed since: {', '.join(changed)}. "
            "Plan again to bring them up to date.",
            icon=":material/history:",
        )


def show_file(text: str, language: str, content: str, file_name: str, height: int | None = None) -> None:
    """Text to copy, and the same as a file."""
    st.code(text, language=language, height=height or "content")
    st.download_button(
        f"Download {file_name}", content, file_name, "text/plain", icon=":material/download:", on_click="ignore"
    )
