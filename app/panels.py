"""Pieces that several pages draw: the strip, the example, faults, receipts, links."""

from collections.abc import Callable
from dataclasses import replace

import streamlit as st

from app import frames, state, widgets
from app.compute import PlanInputs
from app.figures.labels import d_and_p, three_digits
from app.state import Reading, Session
from planner.engine_config import VLLM_VERSION, EngineConfig
from planner.step_time import StepTime, StepTimeFit
from planner.verdict import class_sentence, seconds
from traces.answers import ReadAnswers
from traces.errors import BadData, InputError, NeedsAnswer

PAGES = {
    "trace": "views/trace.py",
    "calibration": "views/calibration.py",
    "plan": "views/plan.py",
    "inspect": "views/inspect.py",
    "export": "views/export.py",
}
"""Scripts of the pages, from the folder of `main.py`."""

PICKED = "Picked"
"""What the Inspect page calls a setting that was picked among all that a plan tried."""

INPUT_NAMES = {
    "trace_digest": "trace",
    "step_time": "step times",
    "slo": "targets",
    "objective": "objective",
    "today": "today's flags or context",
    "default_flags": "GPU memory",
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
    trace = session.trace.value
    if trace is None:
        return "none yet"
    rate = f"{three_digits(len(trace) / trace.span_s)}/s" if trace.span_s else "all at once"
    return (
        f"{frames.literal(session.trace.file_name)} ({trace.digest[:8]}) · {seconds(trace.span_s)} · "
        f"{len(trace):,} requests · {rate}"
    )


def _model_in_words(session: Session) -> str:
    model = session.model
    if isinstance(model, StepTimeFit):
        words = d_and_p(model.typical_decode_s, model.typical_num_seqs, model.step_time.per_prefill_token_ns / 1e9)
        return f"{words} · {frames.literal(model.source)}"
    if isinstance(model, StepTime):
        base_s, p_s = (model.base_ns + model.per_seq_ns) / 1e9, model.per_prefill_token_ns / 1e9
        return f"{d_and_p(base_s, 1, p_s)} · by hand"
    return "none yet"


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


def show_missing(sentence: str, page: str, label: str) -> None:
    """Say what a page still needs, with the way there and the example beside it."""
    st.info(sentence, icon=":material/arrow_upward:")
    with st.container(horizontal=True, vertical_alignment="center"):
        st.page_link(PAGES[page], label=label, icon=":material/upload_file:")
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


def show_next(page: str, label: str) -> None:
    """The way on."""
    st.page_link(PAGES[page], label=label, icon=":material/arrow_forward:")


def show_reading(
    reading: Reading[object], read: Callable[[bytes, str, ReadAnswers], object | InputError], name: str
) -> None:
    """Faults and questions of an uploaded file; reads it again as soon as an answer changes."""
    fault = reading.fault
    if isinstance(fault, NeedsAnswer):
        st.warning(f"{frames.literal(fault.file_name)} can be read in more than one way. Which is right?")
    if reading.questions:
        answers = widgets.ask_answers(reading.questions, reading.answers, f"{name}_{reading.num_uploads}")
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
    reading: Reading[object], read: Callable[[bytes, str, ReadAnswers], object | InputError], fault: BadData
) -> None:
    """Offer to leave bad rows out, where only rows are bad."""
    if reading.data is None or not all(problem.rows for problem in fault.problems):
        return
    if st.button("Leave these rows out and read the rest", help="They are listed in the receipt."):
        reading.answer(replace(reading.answers, drop_bad_rows=True), read)
        st.rerun()


def show_notices(notices: tuple[str, ...]) -> None:
    """What the user must know although all went well."""
    if notices:
        st.warning("\n".join(f"- {frames.literal(notice)}" for notice in notices), icon=":material/info:")


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
