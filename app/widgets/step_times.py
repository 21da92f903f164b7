"""Where step times come from, and what they are."""

from itertools import cycle

import streamlit as st

from app.figures.calibration import Against
from app.figures.labels import TERMS
from app.widgets.fields import MOST_TOKENS, number, segments, switch
from planner.step_time import StepTime
from traces.steps import ServerFacts

ALWAYS_ASKED = {"base": "d base", "per_seq": "d per request in the step", "per_prefill_token": "p per prefill token"}
"""Terms that every model has; the others may stay 0."""
WHOLE_NS = (*ALWAYS_ASKED, "per_draft_token")
"""Coefficients that the kernel charges in whole nanoseconds."""


def ask_source(sources: tuple[str, ...]) -> str:
    """Ask where the step times come from."""
    return segments("Step times", "source", sources, sources[0], label_visibility="collapsed")


def ask_num_kv_tokens(facts: ServerFacts, name: str) -> int | None:
    """Size of the logged server's KV cache, which turns its usage into context tokens; None = not known."""
    is_known = facts.num_gpu_blocks is not None and facts.block_size is not None
    return number(
        "KV cache of the logged server, tokens",
        name,
        (facts.num_gpu_blocks - 1) * facts.block_size if is_known else None,
        1,
        MOST_TOKENS,
        16,
        placeholder="not known",
        help="vLLM prints it at start: “GPU KV cache size: … tokens”. With it, KV cache usage in the log becomes the "
        "context that decodes read, which long contexts need. The log's own value is filled in where it has one.",
    )


def ask_is_behind_log(name: str) -> bool:
    """Ask whether the trace is the traffic that the log was written under."""
    return switch(
        "Log and trace are of the same run",
        name,
        help="Every step is then explained by the requests in it: the share of explained steps says whether the "
        "scheduler model holds on your server, and the fit knows each step's context and attention.",
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
    given = number(f"{label}, {TERMS[term].unit}", f"{term}_{hash(start)}", value, 0.0)
    return start_ns if given == value else given / per_ns


def ask_against() -> Against:
    """Ask what the residuals are to be laid out along."""
    return segments("Residuals along", "against", list(Against), Against.PREFILL)
