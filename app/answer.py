"""The answer of a plan, drawn from the verdict down to the losers."""

from contextlib import nullcontext

import streamlit as st

from app import compute, frames, load, panels, state
from app.figures import distributions, theme, tradeoff
from app.figures.budget import latency_by_budget
from app.figures.distributions import Latencies
from app.figures.grid import gap_by_budget_and_seats
from app.figures.labels import answer_label, percent
from app.glossary import LATENCIES
from app.jobs import PlanJob
from app.widgets.flags import ask_threshold
from planner.command import serve_command
from planner.export import provenance
from planner.measured import trust_sentence
from planner.plan_file import Words
from planner.reasons import why
from planner.search import Recommendation
from planner.step_time import StepTimeFit
from planner.verdict import (
    advice,
    confidence_sentences,
    effort,
    flags_in_words,
    kv_sentence,
    not_simulated,
    rules_in_force,
    seconds,
    unseen_prefixes,
)


def show_verdict(job: PlanJob) -> None:
    """What a tired operator needs first: the sentence, how sure it is, and the command."""
    assert job.saved is not None
    plan = job.saved.recommendation
    show_sentence(job.saved.words)
    _show_command(plan)
    _show_confidence(plan)
    _show_trust(job)


def show_evidence(job: PlanJob) -> None:
    """What the answer stands on, from the comparison down to the losers."""
    assert job.saved is not None
    plan = job.saved.recommendation
    st.subheader(
        "Today, recommended, and vLLM's default" if plan.best else "Today, the closest, and vLLM's default",
        help=LATENCIES,
    )
    st.table(frames.comparison(plan), border="horizontal")
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown("See each step, and what caused the worst gaps:", width="content")
        for name in ("Today", answer_label(plan), "vLLM default"):
            panels.offer_look(f"Inspect: {name}", name)
    _show_why(job, plan)
    _show_tradeoff(plan)
    _show_distributions(job, plan)
    load.show_load(job)
    _show_losers(plan)
    st.caption(effort(plan) + " " + " · ".join(frames.literal(line) for line in provenance(job.saved)))


def show_sentence(words: Words) -> None:
    """Say the verdict, in the colour of its kind."""
    show, icon = {
        "met": (st.success, ":material/check_circle:"),
        "missed": (st.error, ":material/cancel:"),
        "unstable": (st.warning, ":material/trending_up:"),
    }[words.verdict]
    show(f"**{words.sentence}**", icon=icon)


def _show_confidence(plan: Recommendation) -> None:
    """Say how sure the verdict is, in a line; the rest when asked for."""
    sure, *details = confidence_sentences(plan) or ("The closest setting misses the targets.",)
    summary = plan.closest.summary
    st.markdown(
        f"{sure} The worst gap of any request is {seconds(summary.itl.max_s)}; "
        f"{seconds(summary.stalled_s)} stalled beyond the target, summed over all requests."
    )
    if details:
        with st.expander("How sure, target by target"):
            st.markdown("\n".join(f"- {sentence}" for sentence in details))


def _show_trust(job: PlanJob) -> None:
    """How far a replay and its step times can be believed: against what was measured, or against the log alone."""
    comparisons = state.session().compared
    if comparisons is not None:
        st.markdown(f"{trust_sentence(comparisons)} The Calibration page shows it.")
        return
    fitted = ""
    if isinstance(job.model, StepTimeFit):
        fitted = (
            f"Step times are off by {percent(job.model.held_out_mape)} on steps that the fit did not see, on average. "
        )
    st.markdown(f"{fitted}The replay is not held against a measurement yet; the Calibration page does that.")


def _show_command(plan: Recommendation) -> None:
    """Give the flags that change, ready to paste."""
    if plan.best is None:
        return
    config, today = plan.best.engine_config, plan.today.engine_config
    st.markdown(advice(plan))
    if config != today:
        st.code(serve_command(config, today), language="bash", wrap_lines=True)
    with st.expander("The full command") if config != today else nullcontext():
        st.code(serve_command(config), language="bash", wrap_lines=True)


def _show_why(job: PlanJob, plan: Recommendation) -> None:
    """Say what binds, what does nothing, and what the answer does not know."""
    st.subheader("Why")
    lines = list(why(plan))
    if (needed := kv_sentence(plan)) is not None:
        lines.insert(0, needed)
    unseen = unseen_prefixes(job.trace, plan.closest.engine_config)
    if unseen is not None:
        lines.append(unseen)
    if plan.closed_form_budget is not None:
        lines.append(
            f"Closed form: (target − d) ÷ p + decodes = {plan.closed_form_budget:,} tokens is the budget whose full "
            f"step takes the target, with d = {seconds(plan.typical_decode_s)} at {plan.typical_num_seqs:.0f} decoding."
        )
    if plan.extrapolated_share is None:
        lines.append("How far the answer leaves the calibrated range is unknown: no step log stands behind it.")
    elif plan.extrapolated_share:
        share = percent(plan.extrapolated_share)
        lines.append(f"{share} of its steps lie outside the range that the step log covers, where it is less sure.")
    else:
        lines.append("All of its steps lie in the range that the step log covers.")
    st.markdown("\n".join(f"- {line}" for line in lines))
    notches, curve = st.columns(2, gap="large")
    with notches:
        others = ", the others as recommended" if plan.best else ""
        st.markdown(f"**One notch on each flag**{others}:")
        st.table(frames.one_notch(plan), border="horizontal", hide_index=True)
    with curve:
        panels.show_figure(latency_by_budget(plan), "budget")
    with st.expander("Simulated, and not simulated"):
        rules, missing = st.columns(2)
        rules.markdown("Simulated:\n" + "\n".join(f"- {rule}" for rule in rules_in_force(plan.closest.engine_config)))
        missing.markdown("Not simulated:\n" + "\n".join(f"- {thing}" for thing in not_simulated()))


def _show_tradeoff(plan: Recommendation) -> None:
    """Show every setting tried; a click on one leads inside it."""
    figure = tradeoff.gap_against_ttft(plan)
    front, grid = st.columns(2, gap="large")
    with front:
        chosen = st.plotly_chart(figure, key="tradeoff", on_select="rerun", selection_mode="points")
        panels.offer_values(figure, "tradeoff")
        points = [point for point in chosen["selection"]["points"] if point.get("customdata")]
        candidate = tradeoff.candidate_at(plan, points[0]["customdata"]) if points else None
        if candidate is None:
            st.caption("Click a point to look inside that setting.")
        else:
            panels.offer_look(
                f"Inspect: {flags_in_words(candidate, plan.space.searched)}",
                panels.PICKED,
                candidate.engine_config,
                "tradeoff",
            )
    with grid:
        _show_grid(plan)


@st.fragment
def _show_grid(plan: Recommendation) -> None:
    """Show the same settings by their flags."""
    drawn = st.container()
    tokens = ask_threshold(plan.space.long_prefill_token_threshold, plan.closest.engine_config)
    with drawn:
        panels.show_figure(gap_by_budget_and_seats(plan, tokens), "budget_and_seats")


def tails(job: PlanJob) -> tuple[Latencies, ...]:
    """Whole distributions of the three settings of a plan that was made here."""
    assert job.result is not None
    plan = job.result
    return tuple(
        Latencies(
            name, look, *compute.latencies(plan.trace_digest, candidate.engine_config, plan.step_time, _trace=job.trace)
        )
        for name, look, candidate in (
            ("Today", theme.TODAY, plan.today),
            (answer_label(plan), theme.RECOMMENDED, plan.closest),
            ("vLLM default", theme.VLLM_DEFAULT, plan.vllm_default),
        )
    )


def _show_distributions(job: PlanJob, plan: Recommendation) -> None:
    """Show the tails of the three settings."""
    settings = tails(job)
    gaps, waits = st.columns(2, gap="large")
    with gaps:
        panels.show_figure(distributions.gap_tail(settings, plan.slo), "gap_tail")
    with waits:
        panels.show_figure(distributions.ttft_tail(settings, plan.slo), "ttft_tail")


def _show_losers(plan: Recommendation) -> None:
    """List every other setting with the reason it lost."""
    table = frames.losers(plan)
    with st.expander(f"Why the other {len(table):,} settings lost"):
        chosen = st.dataframe(
            frames.rounded(table.drop(columns="reason")),  # a code for the file; on screen the sentence says it
            hide_index=True,
            key="losers",
            on_select="rerun",
            selection_mode="single-row",
        )
        rows = [row for row in chosen["selection"]["rows"] if row < len(plan.losers)]
        if rows:
            candidate, _ = plan.losers[rows[0]]
            panels.offer_look(
                f"Inspect: {flags_in_words(candidate, plan.space.searched)}",
                panels.PICKED,
                candidate.engine_config,
                "losers",
            )
        st.download_button(
            "Download as CSV",
            table.to_csv(index=False),
            "losers.csv",
            "text/csv",
            icon=":material/download:",
            on_click="ignore",
        )
