"""What is wanted: latency targets, and what decides among the settings that meet them."""

import streamlit as st

from app.figures.labels import MS_PER_S
from app.widgets.fields import choice, number, text
from planner.search import Objective
from planner.slo import ClassTarget, Slo, read_class_target

PERCENTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
USUAL_SLO = Slo(itl_s=0.08)
"""Targets until the user states others."""
OBJECTIVES = {
    Objective.LOWEST_TTFT: "lowest TTFT",
    Objective.MOST_HEADROOM: "smallest token gap",
    Objective.HIGHEST_THROUGHPUT: "highest throughput",
    Objective.PARETO: "front: unbeaten in gap and TTFT, fewest changes first",
}


def ask_slo() -> Slo:
    """Ask for the latency targets."""
    gap, gap_share, worst, wait, wait_share = st.columns(5, vertical_alignment="bottom")
    with gap:
        itl_ms = number(
            "Token gap (ITL) target, ms",
            "itl_ms",
            USUAL_SLO.itl_s * MS_PER_S,
            0.1,
            step=5.0,
            help="ITL: the gap between two consecutive tokens of one request.",
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
    given = text(
        "Targets of some requests only, one class a line",
        "classes",
        widget=st.text_area,
        placeholder="prompt=1-1000,ttft_ms=500",
        help="By prompt tokens (prompt=1-1000, prompt=2000-), priority (priority=0) or a column of the trace "
        "(column=model=small); with itl_ms, worst_gap_ms, ttft_ms, e2e_ms and stalled_percent. Percentiles are those "
        "of the targets of all requests.",
    )
    found = []
    for line in filter(str.strip, given.splitlines()):
        try:
            found.append(read_class_target(line))
        except ValueError as fault:
            st.error(str(fault), icon=":material/error:")
    return tuple(found)


def _target(label: str, key: str, about: str) -> float | None:
    """A latency target that may be left out."""
    return number(label, key, None, 0.1, step=5.0, help=about, placeholder="none")


def _percentile(label: str, key: str, about: str) -> float:
    """A share as a percentile."""
    return choice(label, key, PERCENTILES, 0.99, lambda share: f"{100 * share:g} % (p{100 * share:g})", help=about)


def ask_objective() -> Objective:
    """Ask what decides among the settings that meet every target."""
    return choice(
        "Among settings that meet the targets, take the",
        "objective",
        list(OBJECTIVES),
        Objective.LOWEST_TTFT,
        OBJECTIVES.__getitem__,
        help="Usually many settings meet the targets; this decides among them. Ties go to the fewest changed flags.",
    )
