from dataclasses import replace

import numpy as np
import pandas as pd

from app import frames
from app.jobs import NUM_GAPS, NUM_STEPS
from planner.inside.phases import life_of
from planner.inside.step_table import step_table
from planner.inside.worst_gaps import worst_gaps
from planner.measured import Comparison
from planner.metrics import Distribution, Spread
from planner.replay import replay
from planner.search import Recommendation
from planner.slo import Slo
from planner.step_time import StepTimeFit
from planner.verdict import flag_value
from traces.errors import Problem
from traces.receipt import Dropped, Receipt
from traces.requests import RequestTrace
from traces.steps import StepLog

RECEIPT = Receipt(
    file_name="a_b.csv",
    file_digest="0123456789abcdef",
    layout="Azure LLM inference trace, CSV",
    num_rows=5,
    num_kept=3,
    columns=(("arrival", "TIMESTAMP"), ("prompt", "ContextTokens"), ("output", "GeneratedTokens")),
    time_unit="text datetime",
    time_unit_reason="from the text",
    dropped=(Dropped("0 output tokens: failed requests", 2, (1, 4)),),
)


def test_problems_count_rows_from_one() -> None:
    table = frames.problems((Problem("prompt_tokens", "a null", "1 or more", "Fill it.", rows=(0, 6), num_rows=9),))
    assert table.loc[0].tolist() == ["prompt\\_tokens", "1, 7, … (9 in all)", "a null", "1 or more", "Fill it."]


def test_words_of_a_file_are_not_taken_for_markdown() -> None:
    assert frames.literal("*a*_b_ [c](d) $e$") == "\\*a\\*\\_b\\_ \\[c\\](d) \\$e\\$"


def test_the_receipt_tells_columns_unit_gap_and_what_was_left_out() -> None:
    rows = np.arange(3)
    trace = RequestTrace(np.array([0.0, 0.25, 12.5]), np.array([5, 6, 7]), np.array([1, 2, 3]), rows, receipt=RECEIPT)
    facts = frames.receipt_of_trace(trace, RECEIPT)["value"]
    assert facts["rows"] == "5 read, 3 used, 2 left out"
    assert facts["arrival time"] == "column TIMESTAMP"
    assert facts["time unit"] == "text datetime\\: from the text"
    assert facts["left out: 2"] == "0 output tokens\\: failed requests (rows 2, 5)"
    assert facts["first gap"] == "250 ms between the two earliest arrivals"
    assert facts["span"] == "12.5 s from the first arrival to the last"


def test_a_comparison_says_measured_simulated_reach_and_error_line_by_line() -> None:
    def run(gap_s: float) -> Spread:
        return Spread(gap_s, gap_s, gap_s, gap_s, 2 * gap_s, 4 * gap_s)

    measured = Distribution(np.array([0.01, 0.04]), np.array([99, 1]))
    one = Comparison("itl", measured, measured, (run(0.01), run(0.012), run(0.3)))
    table = frames.compared((one, replace(one, name="ttft", runs=(run(0.012),))))
    lines = [[cell.replace("\N{NO-BREAK SPACE}", " ") for cell in (name, *row)] for name, *row in table.itertuples()]
    assert lines == [
        ["ITL, token gaps pooled", "measured", "10.3 ms", "10 ms", "10 ms", "40 ms", "40 ms"],
        ["", "simulated", "12 ms", "12 ms", "12 ms", "24 ms", "48 ms"],
        ["", "in 3 replays", "10 to 300 ms", "10 to 300 ms", "10 to 300 ms", "20 to 600 ms", "40 ms to 1.2 s"],
        ["", "off by", "+17 %", "+20 %", "+20 %", "-40 %", "+20 %"],
        ["TTFT, queueing included", "measured", "10.3 ms", "10 ms", "10 ms", "40 ms", "40 ms"],
        ["", "simulated", "12 ms", "12 ms", "12 ms", "24 ms", "48 ms"],
        ["", "off by", "+17 %", "+20 %", "+20 %", "-40 %", "+20 %"],
    ]


def test_the_receipt_of_a_log_shows_todays_flags(log: StepLog) -> None:
    assert log.receipt is not None
    facts = frames.receipt_of_steps(log, log.receipt)["value"]
    assert facts["max_num_batched_tokens"] == "8,192"
    assert facts["async scheduling"] == "off"


def test_token_sums_are_exact() -> None:
    trace = RequestTrace(np.zeros(3), np.array([1000, 2, 3]), np.array([7, 8, 9]), np.arange(3))
    table = frames.token_sums(trace)
    assert table.loc["sum"].tolist() == ["1,005", "24"]
    assert table.loc["most"].tolist() == ["1,000", "9"]


def test_coefficients_have_sensible_units_and_an_interval(fit: StepTimeFit) -> None:
    table = frames.coefficients(fit.coefficients, fit.step_time)
    assert table.loc["Per prefill token (p)", "value"] == "60.1 µs per token"
    low, high = table.loc["Per prefill token (p)", "95 % interval"].split(" to ")
    assert float(low) < 60.1 < float(high)


def test_the_basis_of_a_fit_names_what_was_left_out(fit: StepTimeFit) -> None:
    facts = frames.fit_basis(replace(fit, left_out=(("warm-up", 10),)))["value"]
    assert facts["left out: 10"] == "warm-up"
    assert facts["prefill tokens in a step"] == f"up to {fit.covered.max_prefill_tokens:,}"


def test_the_comparison_says_better_and_worse_in_words(plan: Recommendation) -> None:
    table = frames.comparison(plan)
    assert list(table.columns) == ["Today", "Recommended", "vLLM default"]
    assert plan.closest.summary.itl.max_s < plan.today.summary.itl.max_s
    assert table.loc["Worst gap of any request", "Recommended"].endswith(":blue[▼ better]")
    assert table.loc["max_num_batched_tokens", "Today"] == "8,192"
    assert "better" not in "".join(table["Today"])


def test_a_percentile_of_its_own_gets_its_own_row() -> None:
    rows = [row.label for row in frames.measures(Slo(itl_s=0.08, itl_percentile=0.999, ttft_percentile=0.9))]
    assert "ITL p99.9, all token gaps pooled" in rows
    assert "TTFT p90, queueing included" in rows
    assert len(rows) == len(frames.measures(Slo(itl_s=0.08))) + 2


def test_an_unstable_setting_shows_no_precise_waiting_time(plan: Recommendation) -> None:
    unstable = replace(plan.today, summary=replace(plan.today.summary, is_unstable=True))
    table = frames.comparison(replace(plan, today=unstable))
    assert table.loc["TTFT p99, queueing included", "Today"] == "unstable"
    assert table.loc["ITL p99, all token gaps pooled", "Today"] != "unstable"


def test_one_notch_shows_the_neighbours_that_were_tried(plan: Recommendation) -> None:
    table = frames.one_notch(plan)
    chosen = plan.closest.engine_config
    flags = [text.split(" ")[0] for text in table["flag"]]
    assert set(flags) == {"max_num_batched_tokens", "max_num_seqs", "long_prefill_token_threshold"}
    for flag, text in zip(flags, table["flag"], strict=True):
        assert text.startswith(f"{flag} {flag_value(flag, getattr(chosen, flag))} → ")
    met = {c.engine_config: c.meets for c in plan.candidates}
    assert set(table["targets"]) - {"met"} or all(met.values())


def test_every_loser_has_a_reason(plan: Recommendation) -> None:
    table = frames.losers(plan)
    assert len(table) == len(plan.candidates) - 1
    assert (table["why"].str.len() > 0).all()
    assert pd.api.types.is_numeric_dtype(table["worst gap [ms]"])


def test_a_table_for_reading_has_three_digits_and_still_sorts() -> None:
    table = frames.rounded(pd.DataFrame({"flag": [16384], "why": ["1.23456 s"], "gap [ms]": [123.456]}))
    assert table.loc[0].tolist() == [16384, "1.23456 s", 123.0]
    assert pd.api.types.is_numeric_dtype(table["gap [ms]"])


def test_settings_side_by_side_are_held_against_the_first(plan: Recommendation) -> None:
    table = frames.side_by_side(("1: a", "2: b"), (plan.today, plan.closest), plan.slo)
    usual = frames.comparison(plan)
    for row in frames.measures(plan.slo):
        assert table.loc[row.label].tolist() == usual.loc[row.label].tolist()[:2]
    assert table.loc["Targets"].iloc[1] == "met"
    assert table.loc["Targets"].iloc[0] != "met"


def test_gaps_steps_and_phases_count_data_rows_from_one(
    trace: RequestTrace, fit: StepTimeFit, plan: Recommendation
) -> None:
    run = replay(trace, plan.today.engine_config, fit.step_time)
    gaps = worst_gaps(trace, run, NUM_GAPS, 0.0, run.end_s)
    table = frames.worst_gaps(trace, gaps)
    assert table["no."].tolist() == [f"{k}" for k in range(1, len(gaps) + 1)]
    assert table["request"].tolist() == [f"{trace.source_row[gap.request] + 1}" for gap in gaps]
    where = f"1: {table['gap'][0]} at {table['from'][0]}, request ".replace("\N{NO-BREAK SPACE}", " ")
    assert frames.gap_labels(trace, gaps)[0].startswith(where)
    step = gaps[0].step
    moment_s = float(run.steps["start_ns"][step]) / 1e9 + 1e-6
    rows = step_table(trace, run, moment_s, NUM_STEPS)
    steps = frames.steps(trace, rows, moment_s)
    assert steps.set_index("").loc["▶", "step"] == step
    assert steps["takes [ms]"].max() == round(1e3 * gaps[0].gap_s, 2)
    culprit = gaps[0].culprits[0]
    assert f"{trace.source_row[culprit.request] + 1} ({culprit.num_tokens:,})" in ", ".join(steps["prefill (tokens)"])


def test_the_phases_of_a_request_sum_to_its_latency(
    trace: RequestTrace, fit: StepTimeFit, plan: Recommendation
) -> None:
    life = life_of(trace, replay(trace, plan.today.engine_config, fit.step_time), 3)
    sums, phases = frames.life_sums(life), frames.phases(life)
    assert sums.index[-1] == "E2E, arrival to last token"
    assert sums["share"].iloc[-1] == "100\N{NO-BREAK SPACE}%"
    assert abs(phases["takes [ms]"].sum() - 1e3 * life.e2e_s) < 0.01 * len(phases)
    assert phases["tokens"].sum() == sum(phase.num_tokens for phase in life.phases)


def test_no_gaps_and_no_steps_are_tables_without_rows(trace: RequestTrace) -> None:
    assert len(frames.worst_gaps(trace, ())) == 0
    assert len(frames.steps(trace, (), 0.0)) == 0
