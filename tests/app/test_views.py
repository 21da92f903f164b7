"""Every page empty, filled with the example, and with what users do wrong."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from shared import files
from streamlit.testing.v1 import AppTest

from app import compute, jobs
from app.jobs import NUM_GAPS, NUM_STEPS
from planner.errors import Cancelled
from planner.plan_file import read_plan, save_plan, write_plan
from planner.search import Recommendation
from planner.step_time import StepTimeFit, write_model
from planner.verdict import not_simulated, seconds
from traces.measured import read_measured
from traces.requests import RequestTrace
from traces.workload import PRESETS, make_trace
from traces.write import to_parquet

MAIN = Path(compute.__file__).parent / "main.py"
NO_UNIT = b"arrival_time,prompt_tokens,output_tokens\n0,10,2\n250,20,3\n12500,30,4\n"
BAD_ROW = b"arrival_ms,prompt_tokens,output_tokens\n0,10,2\n250,-20,3\n12500,30,4\n"


def opened(page: str = "trace") -> AppTest:
    """The app on one of its pages."""
    test = AppTest.from_file(MAIN, default_timeout=60).run()
    return shown(test, page) if page != "trace" else test


def shown(test: AppTest, page: str) -> AppTest:
    """The same session on another page, where nothing went wrong."""
    test.switch_page(f"views/{page}.py").run()
    assert not test.exception
    return test


def press(test: AppTest, label: str) -> AppTest:
    """Click a button by its words."""
    next(button for button in test.button if button.label == label).click()
    return test.run()


def upload(test: AppTest, name: str, data: bytes) -> AppTest:
    """Give a file to the page's uploader."""
    test.file_uploader[0].set_value((name, data, "application/octet-stream"))
    return test.run()


def planned(test: AppTest) -> AppTest:
    """Wait for the plan that is running."""
    deadline = time.monotonic() + 120
    while any(button.label == "Cancel" for button in test.button):
        assert time.monotonic() < deadline
        time.sleep(0.2)
        test.run()
    assert not test.exception
    return test


def words(test: AppTest) -> str:
    """Everything that is written on the page."""
    kinds = (test.markdown, test.caption, test.info, test.warning, test.error, test.success, test.subheader)
    return "\n".join(element.value for kind in kinds for element in kind)


@pytest.fixture(scope="module")
def example() -> AppTest:
    """The example after its plan; tests read it, and leave it as it is."""
    return planned(press(opened(), "Run the example"))


@pytest.mark.parametrize(
    ("page", "missing"),
    [
        ("trace", "Which vLLM scheduler flags keep your streams smooth?"),
        ("calibration", "--enable-logging-iteration-details"),
        ("plan", "A plan needs a request trace"),
        ("inspect", "To look inside a replay needs a request trace"),
        ("export", "an export needs a plan"),
    ],
)
def test_an_empty_page_says_what_is_missing_and_offers_the_example(page: str, missing: str) -> None:
    test = opened(page)
    assert not test.exception
    assert missing in words(test)
    assert "Run the example" in [button.label for button in test.button]


def test_the_landing_takes_step_log_and_plan_file_as_well() -> None:
    test = opened()
    assert len(test.file_uploader) == 3
    log = (compute.SAMPLES / compute.EXAMPLE_LOG).read_bytes()
    test.file_uploader[1].set_value((compute.EXAMPLE_LOG, log, "application/gzip")).run()
    assert f"{len(compute.example()[1]):,} steps read" in test.get("page_link")[-1].label
    upload(test, "ok.csv", b"arrival_s,prompt_tokens,output_tokens\n0,10,2\n1,20,3\n")
    assert len(test.file_uploader) == 1
    shown(test, "calibration")
    assert "d at" in test.metric[0].label

    test = opened()
    test.file_uploader[1].set_value(("log.txt", b"INFO nothing", "text/plain")).run()
    assert "This step log cannot be used as it is." in words(test)
    test.file_uploader[2].set_value(("plan.json", b"{}", "application/json")).run()
    assert "plan.json" in words(test), "the Export page, which says what is wrong"


def test_one_click_leads_to_a_verdict(example: AppTest) -> None:
    shown(example, "plan")
    assert example.success[0].value.startswith("**Met: p99 token gap")
    assert "--max-num-batched-tokens" in example.code[0].value
    assert list(example.table[0].value.columns) == ["Today", "Recommended", "vLLM default"]
    assert len(example.get("plotly_chart")) == 5
    assert "Probability that the targets are met" in words(example)
    assert f"{len(example.dataframe[0].value) + 1} settings tried" in words(example)


def test_load_is_answered_when_it_is_asked_for(example: AppTest) -> None:
    shown(example, "plan")
    assert "The targets hold up to" not in words(example)
    planned(press(example, "Find out"))
    text = words(example)
    assert "The targets hold up to" in text
    assert "At this load, 1 replica meets them" in text
    assert "The knee lies near" in text
    assert len(example.get("plotly_chart")) == 7
    example.number_input(key="growth").set_value(2.0).run()
    assert "The targets hold up to" not in words(example), "another question, not asked yet"
    example.number_input(key="growth").set_value(1.0).run()
    assert "The targets hold up to" in words(example)


def test_the_strip_says_what_the_numbers_stand_on(example: AppTest) -> None:
    for page in ("trace", "calibration", "plan", "inspect", "export"):
        text = words(shown(example, page))
        for part in (
            "1,514 requests",
            "d 11.1 ms at 28 decoding",
            "vLLM 0.32 rules",
            "640,000 tokens",
            "ITL p99 ≤ 80 ms",
        ):
            assert part in text, page


def test_the_trace_page_shows_the_receipt(example: AppTest) -> None:
    shown(example, "trace")
    metrics = {metric.label: metric.value for metric in example.metric}
    assert metrics["Requests"] == "1,514"
    assert metrics["Offered load ÷ capacity"].startswith("at least 0.")
    assert example.table[0].value.loc["rows", "value"] == "1,514 read, 1,514 used, 0 left out"
    assert len(example.get("plotly_chart")) == 4


def test_a_part_of_the_trace_is_planned_for_and_said_everywhere() -> None:
    test = planned(press(opened(), "Run the example"))
    shown(test, "trace")
    next(widget for widget in test.number_input if widget.label == "From, s").set_value(60.0)
    next(widget for widget in test.number_input if widget.label == "Rate, times").set_value(2.0)
    next(widget for widget in test.number_input if widget.label == "Until, s").set_value(120.0).run()
    arrival_s = compute.example()[0].arrival_s
    num = int(((arrival_s >= 60.0) & (arrival_s < 120.0)).sum())
    assert {metric.label: metric.value for metric in test.metric}["Requests"] == f"{num}"
    assert f"{num} requests" in words(test)
    assert "from 60 s to 120 s after the first arrival; 2 × the rate" in words(test)
    shown(shown(test, "inspect"), "trace")
    assert {metric.label: metric.value for metric in test.metric}["Requests"] == f"{num}"
    assert "Changed since: trace" in words(shown(test, "plan"))
    planned(press(test, "Plan"))
    assert "belong to other inputs" not in words(test)
    assert "of it from 60 s to 120 s after the first arrival; 2 × the rate" in words(shown(test, "export"))


def test_a_part_without_requests_is_refused_and_the_last_one_stays() -> None:
    test = upload(opened(), "named.csv", NO_UNIT.replace(b"arrival_time", b"arrival_ms"))
    next(widget for widget in test.number_input if widget.label == "From, s").set_value(100.0).run()
    assert "no request is left\\: from 100 s to the end" in test.error[0].value
    assert {metric.label: metric.value for metric in test.metric}["Requests"] == "3"


def test_a_model_is_chosen_where_the_trace_tells_them_apart() -> None:
    rows = b"arrival_s,prompt_tokens,output_tokens,model\n0.0,10,2,small\n1.0,20,3,large\n2.0,30,4,small\n"
    test = upload(opened(), "models.csv", rows)
    test.multiselect[0].set_value(["small"]).run()
    assert {metric.label: metric.value for metric in test.metric}["Prompt tokens"] == "40"
    assert "model small" in words(test)
    shown(shown(test, "plan"), "trace")
    assert {metric.label: metric.value for metric in test.metric}["Prompt tokens"] == "40"


def test_a_slow_clock_is_seen_and_can_be_undone() -> None:
    rows = "".join(f"{tick * 3.0},{10 + k},5\n" for tick in range(50) for k in range(8))
    test = upload(opened(), "ticks.csv", f"arrival_s,prompt_tokens,output_tokens\n{rows}".encode())
    (toggle,) = test.toggle
    assert "Spread arrivals that share a stamp over the 3 s until the next" in toggle.label
    toggle.set_value(True).run()
    shown(shown(test, "plan"), "trace")
    assert "arrivals with one stamp are spread until the next stamp (seed 0)" in words(test)


def test_the_busiest_ten_minutes_are_one_click_away() -> None:
    rows = "".join(f"{at},10,5\n" for at in [*range(0, 2000, 10), *range(1000, 1100)])
    test = upload(opened(), "busy.csv", f"arrival_s,prompt_tokens,output_tokens\n{rows}".encode())
    press(test, "Busiest 10 minutes")
    begin = next(widget for widget in test.number_input if widget.label == "From, s").value
    assert begin == 500.0
    assert "from 500 s to 1,100 s after the first arrival" in words(test)
    press(test, "All of it")
    assert "from 500 s" not in words(test)
    assert {metric.label: metric.value for metric in test.metric}["Requests"] == "300"


def test_the_calibration_page_shows_d_and_p_with_intervals(example: AppTest) -> None:
    shown(example, "calibration")
    metrics = {metric.label: metric.value for metric in example.metric}
    assert metrics["d at 28 decoding"] == "11.1 ms"
    assert metrics["p per prefill token"] == "60.1 µs"
    assert example.table[0].value.loc["Per prefill token (p)", "95 % interval"] == "59.9 to 60.3"
    assert example.number_input[0].value == 640_000


def test_the_export_page_gives_every_form(example: AppTest) -> None:
    shown(example, "export")
    assert [tab.label for tab in example.tabs] == [
        "Command", "Config file", "Kubernetes", "Helm", "Verify", "Report", "Plan file", "Step times",
    ]  # fmt: skip
    changes, command, config, args, values, bench, model = (code.value for code in example.code)
    assert changes.startswith("vllm serve MODEL --max-num-batched-tokens")
    assert command.startswith("vllm serve MODEL \\\n")
    assert "max-num-batched-tokens:" in config
    assert args.startswith("args:\n")
    assert "servingEngineSpec:" in values
    assert "--dataset-name timed_trace --dataset-path timed_trace.jsonl" in bench
    assert '"per_prefill_token_ns"' in model
    assert "digest" in words(example)
    labels = {button.label for button in example.get("download_button")}
    assert {"Download report.html", "Download plan.json", "Download timed_trace.jsonl"} <= labels


def test_a_plan_file_opens_on_an_empty_page(plan: Recommendation, trace: RequestTrace, fit: StepTimeFit) -> None:
    document = write_plan(save_plan(plan, trace, fit))
    test = upload(opened("export"), "monday.json", document.encode())
    assert not test.exception
    text = words(test)
    assert "Read from the file monday.json, which planner" in text
    assert "Nothing of it was computed now." in text
    assert plan.best is not None
    assert test.code[1].value.startswith("vllm serve MODEL")
    assert "--dataset-name random" in test.code[-1].value
    assert list(test.table[0].value.columns) == ["Today", "Recommended", "vLLM default"]
    assert "Step times" not in [tab.label for tab in test.tabs]
    press(test, "Close all plan files")
    assert "an export needs a plan" in words(test)


def test_two_plans_stand_side_by_side(
    example: AppTest, missed_plan: Recommendation, trace: RequestTrace, fit: StepTimeFit
) -> None:
    document = write_plan(save_plan(missed_plan, trace, fit))
    upload(shown(example, "export"), "missed.json", document.encode())
    assert "The plans stand on different inputs: trace digest, requests, span of arrivals, target" in words(
        example
    ).replace("\\", "")
    table = example.table[0].value
    assert list(table.columns) == ["", "Made in this session", "missed.json"]
    assert table.loc["verdict"].tolist() == ["≠", "met", "missed"]
    assert table.loc["max_num_batched_tokens"].iloc[2] == "–"
    control = next(c for c in example.segmented_control if c.label == "Plan")
    control.set_value("missed.json").run()
    assert "there is no command to give" in words(example)
    assert [tab.label for tab in example.tabs] == ["Verify", "Report", "Plan file"]
    press(example, "Close all plan files")


def test_a_file_that_is_no_plan_is_refused_in_words() -> None:
    test = upload(opened("export"), "notes.json", b'{"version": 9, "recommended": null}')
    assert "notes.json: version: found 9; allowed: 1." in test.error[0].value.replace("\\", "")
    upload(test, "latin.json", b"\xff\xfe")
    assert "latin.json: not JSON" in test.error[0].value.replace("\\", "")


def test_the_inspect_page_explains_gaps_steps_and_a_late_request(example: AppTest) -> None:
    shown(example, "inspect")
    assert example.segmented_control[0].value == "Recommended"
    gaps, sums = example.table[0].value, example.table[1].value
    assert len(gaps) == NUM_GAPS
    assert gaps["cause, simulated"].str.contains("prefill tokens of request").all()
    steps = example.dataframe[0].value
    assert len(steps) == NUM_STEPS
    assert steps[""].tolist().index("▶") == NUM_STEPS // 2
    assert "in all, first token after" in words(example)
    assert sums.index[-1] == "E2E, arrival to last token"
    assert "ui.perfetto.dev" in words(example)
    assert len(example.get("plotly_chart")) == 2


def test_another_gap_moves_the_steps_and_a_window_leaves_gaps_out(example: AppTest) -> None:
    shown(example, "inspect")
    before = example.dataframe[0].value["step"].tolist()
    example.selectbox[0].set_value(5).run()
    assert example.dataframe[0].value["step"].tolist() != before
    begin, until = (example.number_input(key=f"{end}_{compute.example()[0].digest[:8]}") for end in ("from", "until"))
    begin.set_value(10.0)
    until.set_value(20.0).run()
    starts = [float(cell.split()[0]) for cell in example.table[0].value["from"]]
    assert 9.0 < min(starts) <= max(starts) < 20.0
    assert "The file holds the whole window, 10.000 s to 20.000 s." in words(example)
    example.number_input(key=until.key).set_value(5.0).run()
    assert "The window is empty" in words(example)
    example.number_input(key=begin.key).set_value(0.0)
    example.number_input(key=until.key).set_value(None).run()
    assert not example.exception


def test_the_plan_page_leads_inside_each_column(example: AppTest) -> None:
    press(shown(example, "plan"), "Inspect: vLLM default")
    shown(example, "inspect")
    assert example.segmented_control[0].value == "vLLM default"
    assert "max\\_num\\_seqs 1,024" in words(example)


def test_flags_by_hand_are_checked_and_replayed(example: AppTest) -> None:
    shown(example, "inspect").segmented_control[0].set_value("By hand").run()
    budget = next(widget for widget in example.number_input if widget.label == "max_num_batched_tokens")
    assert budget.value == 8192
    budget.set_value(100).run()
    assert "vLLM would not start: max_num_batched_tokens (100) is smaller than max_num_seqs (256)" in words(example)
    next(widget for widget in example.number_input if widget.label == "max_num_batched_tokens").set_value(512).run()
    assert len(example.table[0].value) == NUM_GAPS
    assert not example.exception


def test_a_look_inside_that_takes_long_says_so_and_can_be_cancelled(
    example: AppTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless(trace: RequestTrace, *setting: object, **watched: np.ndarray) -> None:
        while not watched["cancel"][0]:
            time.sleep(0.01)
        raise Cancelled

    monkeypatch.setattr(jobs, "replay", endless)
    shown(example, "inspect").segmented_control[0].set_value("By hand").run()
    budget = next(widget for widget in example.number_input if widget.label == "max_num_batched_tokens")
    budget.set_value(517).run()
    assert not example.table
    press(example, "Cancel")
    assert "Cancelled." in words(example)
    monkeypatch.undo()
    planned(press(example, "Replay again"))
    assert len(example.table[0].value) == NUM_GAPS


def test_a_trace_without_gaps_is_looked_into_all_the_same() -> None:
    test = opened("calibration")
    test.segmented_control[0].set_value("By hand").run()
    press(test, "Use these coefficients")
    upload(shown(test, "trace"), "one.csv", b"arrival_ms,prompt_tokens,output_tokens\n0,10,1\n250,20,1\n")
    shown(test, "inspect")
    assert test.segmented_control[0].options == ["Today", "By hand"]
    assert "No gap between two tokens" in words(test)
    assert "2 of 2 requests finished in 2 engine steps" in words(test)
    assert len(test.dataframe[0].value) == 2


def test_a_row_that_is_not_in_the_trace_is_said(example: AppTest) -> None:
    shown(example, "inspect")
    row = next(widget for widget in example.number_input if widget.label.startswith("Request: data row"))
    late = row.value
    row.set_value(1_000_000).run()
    assert "Data row 1,000,000 is not in the trace" in words(example)
    row.set_value(late).run()


def test_a_model_name_that_a_shell_would_read_is_not_written(example: AppTest) -> None:
    shown(example, "export")
    example.text_input[0].set_value("meta-llama/Llama-3.1-8B").run()
    assert "vllm serve meta-llama/Llama-3.1-8B" in example.code[0].value
    example.text_input[0].set_value("x; rm -rf /").run()
    assert "A model name has letters" in example.error[0].value
    assert example.code[0].value.startswith("vllm serve MODEL")
    example.text_input[0].set_value("MODEL").run()


def test_results_are_marked_the_moment_an_input_changes(example: AppTest) -> None:
    shown(example, "plan")
    assert "belong to other inputs" not in words(example)
    example.number_input(key="itl_ms").set_value(50.0).run()
    assert "These results belong to other inputs. Changed since: targets." in words(example)
    assert "belong to other inputs" in words(shown(example, "export"))
    shown(example, "plan").number_input(key="itl_ms").set_value(80.0).run()
    assert "belong to other inputs" not in words(example)


def test_more_targets_are_part_of_the_target(example: AppTest) -> None:
    shown(example, "plan").number_input(key="e2e_ms").set_value(20_000.0)
    example.text_area(key="classes").set_value("prompt=1-1000,ttft_ms=500\ncolour=1")
    example.number_input(key="stalled_percent").set_value(2.0).run()
    text = words(example)
    assert "E2E p99 ≤ 20 s · stalled ≤ 2 % · for prompts up to 1,000 tokens p99 of TTFT at most 500 ms" in text
    assert example.error[0].value.startswith("colour=1: write it as prompt=1-1000,ttft_ms=500")
    assert "Changed since: targets." in words(example)
    example.number_input(key="e2e_ms").set_value(None)
    example.text_area(key="classes").set_value("")
    example.number_input(key="stalled_percent").set_value(None).run()
    assert "belong to other inputs" not in words(example)


def test_further_flags_are_searched_when_they_are_opened(example: AppTest) -> None:
    test = shown(example, "plan")
    test.multiselect(key="more").set_value(["watermark", "scheduling_policy"]).run()
    assert "scheduling_policy: fcfs, priority" in words(test)
    test.text_input(key="more_watermark").set_value("2").run()
    assert any("vLLM allows 0 up to, not including, 1" in error.value for error in test.error)
    assert next(button for button in test.button if button.label == "Plan").disabled
    test.text_input(key="more_watermark").set_value("0, 0.2").run()
    assert "further flags searched" in words(test)
    planned(press(test, "Plan"))
    assert "watermark" in test.table[0].value.index
    test.multiselect(key="more").set_value([]).run()
    planned(press(test, "Plan"))
    assert "watermark" not in test.table[0].value.index


def test_inputs_survive_a_look_at_another_page(example: AppTest) -> None:
    shown(example, "plan").number_input(key="itl_ms").set_value(55.0).run()
    shown(example, "trace")
    assert shown(example, "plan").number_input(key="itl_ms").value == 55.0
    example.number_input(key="itl_ms").set_value(80.0).run()


def test_an_open_question_is_asked_with_the_consequence_of_each_answer() -> None:
    test = upload(opened(), "no_unit.csv", NO_UNIT)
    assert "can be read in more than one way" in words(test)
    (question,) = test.radio
    assert question.value is None
    assert any("12.5 s" in option for option in question.options)
    milliseconds = next(option for option in question.options if option.startswith("ms:"))
    question.set_value(milliseconds.split(":")[0]).run()
    assert test.table[0].value.loc["time unit", "value"].startswith("ms")
    assert {metric.label: metric.value for metric in test.metric}["Span"] == "12.5 s"


def test_traffic_is_made_up_where_there_is_no_trace() -> None:
    test = opened()
    next(box for box in test.selectbox if box.label == "Begin with").set_value(
        "Long shared conversations, as Mooncake"
    ).run()
    press(test, "Use this traffic")
    metrics = {metric.label: metric.value for metric in test.metric}
    assert metrics["Requests"] == f"{len(make_trace(PRESETS['Long shared conversations, as Mooncake'])):,}"
    assert metrics["Prompt tokens seen before"].endswith("%")
    assert "made-up traffic, seed 7" in words(test)
    next(box for box in test.number_input if box.label == "Requests per second").set_value(1e9).run()
    assert "requests are expected" in test.error[0].value
    assert next(button for button in test.button if button.label == "Use this traffic").disabled


def test_unknown_columns_are_named_by_hand_and_the_plan_file_says_so() -> None:
    rows = b"when,inn,outt,other\n0.0,10,2,x\n1.5,20,3,y\n2.0,30,4,z\n"
    test = upload(opened(), "odd.csv", rows)
    assert "not known by their names" in words(test)
    boxes = {box.label: box for box in test.selectbox}
    boxes["Column with the arrival time"].set_value("when")
    boxes["Column with the prompt tokens"].set_value("inn")
    boxes["Column with the output tokens"].set_value("outt").run()
    (question,) = test.radio
    question.set_value("s").run()
    assert test.table[0].value.loc["prompt tokens", "value"] == "column inn"
    assert {metric.label: metric.value for metric in test.metric}["Prompt tokens"] == "60"
    next(box for box in test.selectbox if box.label == "Column with the output tokens").set_value("inn").run()
    assert {metric.label: metric.value for metric in test.metric}["Output tokens"] == "60"
    shown(test, "calibration").segmented_control[0].set_value("By hand").run()
    press(test, "Use these coefficients")
    planned(press(shown(test, "plan"), "Plan"))
    saved = test.session_state["session"].finished.saved
    assert read_plan(write_plan(saved)).trace.answers.prompt_column == "inn"


def test_a_bad_file_gets_a_table_and_a_way_on() -> None:
    test = upload(opened(), "bad.csv", BAD_ROW)
    assert "bad.csv cannot be used as it is" in words(test)
    fault = test.table[0].value.iloc[0]
    assert fault["rows"] == "2"
    assert "prompt" in fault["column"]
    press(test, "Leave these rows out and read the rest")
    assert test.table[0].value.loc["rows", "value"] == "3 read, 2 used, 1 left out"


def test_a_file_that_is_no_trace_is_refused_in_words() -> None:
    test = upload(opened(), "notes.txt", b"dear diary")
    assert not test.exception
    assert "notes.txt" in test.error[0].value


def test_a_log_that_cannot_support_a_fit_says_what_to_record() -> None:
    rows = b"step_ms,prefill_tokens,decode_reqs\n" + b"20.0,0,8\n21.0,0,9\n" * 100
    test = upload(opened("calibration"), "decodes.csv", rows)
    assert not test.exception
    assert "decodes.csv cannot be used as it is" in words(test)
    assert test.table[0].value["what to do"].str.len().min() > 10
    assert any("vllm bench serve" in code.value for code in test.code)
    assert any("--enable-logging-iteration-details" in code.value for code in test.code)
    assert "A plan needs a request trace" in words(shown(test, "plan"))


def test_coefficients_by_hand_make_a_model() -> None:
    test = opened("calibration")
    test.segmented_control[0].set_value("By hand").run()
    press(test, "Use these coefficients")
    assert "d 8.06 ms at 1 decoding · p 20 µs/token · set by hand" in words(test)
    upload(shown(test, "trace"), "named.csv", NO_UNIT.replace(b"arrival_time", b"arrival_ms"))
    planned(press(shown(test, "plan"), "Plan"))
    assert "coefficients given by hand have no interval" in words(test)


def test_coefficients_by_hand_begin_at_the_fit() -> None:
    test = planned(press(opened(), "Run the example"))
    shown(test, "calibration").segmented_control[0].set_value("By hand").run()
    fitted = compute.fit_step_time(compute.example()[1].digest, 640_000, compute.example()[1]).step_time
    press(test, "Use these coefficients")
    assert f"p {fitted.per_prefill_token_ns / 1e3:.3g} µs/token · set by hand" in words(test)
    prefill = next(widget for widget in test.number_input if widget.label == "p per prefill token, µs per token")
    prefill.set_value(30.0).run()
    press(test, "Use these coefficients")
    assert "p 30 µs/token · set by hand" in words(test)
    assert "Changed since: step times" in words(shown(test, "plan"))


def test_a_saved_model_is_taken_back_and_a_broken_one_is_not() -> None:
    log = compute.example()[1]
    saved = write_model(compute.fit_step_time(log.digest, None, log))
    test = opened("calibration")
    test.segmented_control[0].set_value("From a model file").run()
    upload(test, "model.json", saved.encode())
    assert "Plans use this model." in words(test)
    assert "p 60.1 µs/token · server.log" in words(test)
    assert test.table[0].value.loc["Per prefill token (p)", "95 % interval"] == "59.9 to 60.3"
    upload(test, "model.json", saved.replace('"base_ns": ', '"base_ns": -').encode())
    assert "step\\_time.base\\_ns" in test.error[0].value
    assert "none yet" in words(test)
    assert "A plan needs a request trace" in words(shown(test, "plan"))


@pytest.mark.parametrize("log", files("measured/*/server.log.gz"))
def test_a_log_is_explained_by_the_trace_behind_it(log: Path) -> None:
    trace = log.with_name("requests.parquet")
    test = upload(opened(), trace.name, trace.read_bytes())
    upload(shown(test, "calibration"), log.name, log.read_bytes())
    test.toggle[0].set_value(True).run()
    assert not test.exception
    assert "steps explained by the trace under these flags" in test.success[0].value
    assert any("this log does not test them" in caption.value for caption in test.caption)
    assert {"decode_curve", "residuals", "measured_itl"} <= {chart.key for chart in test.get("plotly_chart")}


@pytest.mark.parametrize("log", files("measured/sync_b256/server.log.gz"))
def test_a_trace_that_says_when_tokens_came_is_held_against_a_replay(log: Path) -> None:
    trace = log.with_name("requests.parquet")
    test = upload(opened(), trace.name, trace.read_bytes())
    assert "Does a replay give what was measured?" not in words(test)
    upload(shown(test, "calibration"), log.name, log.read_bytes())
    assert "Against what was measured the replay is off by: token gaps p50" in words(test)
    table = next(table.value for table in test.table if "TTFT, queueing included" in table.value.index)
    measured = read_measured(trace)
    p50 = np.sort(measured.first_token_s - measured.arrival_s)[len(measured.arrival_s) // 2]
    assert table.loc["TTFT, queueing included", ""] == "measured"
    assert table.loc["TTFT, queueing included", "p50"] == seconds(float(p50)).replace(" ", "\N{NO-BREAK SPACE}")
    planned(press(shown(test, "plan"), "Plan"))
    assert "Against what was measured" in words(test)


def test_measurements_of_other_requests_are_said() -> None:
    test = planned(press(opened(), "Run the example"))
    shown(test, "calibration")
    result = b'{"arrival_s": 0.0, "token_s": [0.1, 0.2]}\n{"arrival_s": 1.0, "token_s": [1.3]}\n'
    test.file_uploader[1].set_value(("measured.jsonl", result, "application/json")).run()
    assert "2 requests were measured; the trace has 1,514." in words(test)
    assert "largest miss" in words(test)


def test_a_log_of_other_requests_is_not_explained() -> None:
    test = press(opened(), "Run the example")
    planned(test)
    shown(test, "calibration").toggle[0].set_value(True).run()
    assert not test.exception
    assert "explains 0 of the log's 1,500 steps" in test.error[0].value
    assert {metric.label: metric.value for metric in test.metric}["d at 28 decoding"] == "11.1 ms"


def test_a_refused_flag_is_said_before_planning(example: AppTest) -> None:
    test = opened()
    press(test, "Run the example")
    planned(test)
    budget = next(widget for widget in test.number_input if widget.label == "max_num_batched_tokens")
    budget.set_value(100).run()
    assert "vLLM would not start: max_num_batched_tokens (100) is smaller than max_num_seqs (256)" in words(test)
    assert next(button for button in test.button if button.label == "Plan").disabled


def test_a_cluster_that_does_not_answer_is_said_and_this_machine_offered() -> None:
    test = opened("calibration")
    test.segmented_control[0].set_value("By hand").run()
    press(test, "Use these coefficients")
    upload(shown(test, "trace"), "named.csv", NO_UNIT.replace(b"arrival_time", b"arrival_ms"))
    shown(test, "plan").text_input(key="scheduler").set_value("tcp://127.0.0.1:1").run()
    test.number_input(key="itl_ms").set_value(43.0).run()
    planned(press(test, "Plan"))
    assert "no Dask scheduler answers there" in words(test)
    planned(press(test, "Plan on this machine instead"))
    assert test.success[0].value.startswith("**Met: p99 token gap")


def test_cancel_keeps_the_last_result() -> None:
    test = planned(press(opened(), "Run the example"))
    long = make_trace(replace(PRESETS["Chat with pasted documents"], duration_s=80_000.0))
    upload(shown(test, "trace"), "long.parquet", to_parquet(long))
    press(shown(test, "plan"), "Plan")
    press(test, "Cancel")
    time.sleep(1.0)
    test.run()
    assert "Cancelled." in words(test)
    assert "These results belong to other inputs" in words(test)
    assert not test.exception


def test_a_file_of_the_same_name_with_other_content_is_another_file() -> None:
    test = upload(opened(), "trace.csv", b"arrival_s,prompt_tokens,output_tokens\n0,10,2\n1,20,3\n")
    assert {metric.label: metric.value for metric in test.metric}["Prompt tokens"] == "30"
    next(widget for widget in test.number_input if widget.label == "Until, s").set_value(0.5).run()
    upload(test, "trace.csv", b"arrival_s,prompt_tokens,output_tokens\n0,11,2\n1,21,3\n")
    assert {metric.label: metric.value for metric in test.metric}["Prompt tokens"] == "32"


def test_two_sessions_see_their_own_files_only() -> None:
    first = upload(opened(), "trace.csv", b"arrival_s,prompt_tokens,output_tokens\n0,10,2\n1,20,3\n")
    second = upload(opened(), "trace.csv", b"arrival_s,prompt_tokens,output_tokens\n0,100,2\n1,200,3\n")
    for test, tokens in ((first.run(), "30"), (second.run(), "300")):
        assert {metric.label: metric.value for metric in test.metric}["Prompt tokens"] == tokens
        assert "Run the example" not in [button.label for button in test.button]
    assert "none yet" in words(opened())


def test_the_method_page_steps_through_a_toy_replay() -> None:
    test = opened("method")
    assert {chart.key for chart in test.get("plotly_chart")} == {"lesson"}
    assert "**Step 5**: 8 ms + 3 × 0.5 ms + 14 prefill tokens × 2 ms = 37.5 ms, simulated." in words(test)
    assert test.table[0].value["gets"].tolist() == ["1", "1", "14"]
    test.slider[0].set_value(8).run()
    assert test.table[0].value.loc[4].tolist() == ["E", "5", "0", "5", "0", "all seats (max_num_seqs) were taken"]
    test.select_slider(key="toy_kv").set_value(72).run()
    assert not test.exception
    test.slider[0].set_value(8).run()
    assert "D is preempted and loses 2 tokens." in words(test)
    assert all(thing in words(test) for thing in not_simulated())


def test_up_to_four_settings_stand_side_by_side_under_another_load() -> None:
    test = opened()
    press(test, "Run the example")
    planned(test)
    planned(shown(test, "inspect").toggle(key="is_what_if").set_value(True).run())
    table = test.table[0].value
    assert table.columns.tolist() == ["1\\: Recommended", "2\\: Today", "3\\: vLLM default"]
    assert table.loc["Targets"].iloc[0] == "met"
    assert next(button for button in test.button if button.label == "Pin: Recommended").disabled
    alone = table.loc["ITL p99, all token gaps pooled"].tolist()

    test.select_slider(key="what_if_load").set_value(2.0).run()
    planned(test.select_slider(key="what_if_memory").set_value(0.5).run())
    table = test.table[0].value
    assert table.loc["KV cache, tokens"].tolist() == ["320,000"] * 3
    assert table.loc["ITL p99, all token gaps pooled"].tolist() != alone
    assert not test.exception

    planned(test.select_slider(key="what_if_hits_0").set_value(0.5).run())
    assert "every prompt begins with the same text" in words(test)
    assert "Prefix caching is off in Recommended, Today, vLLM default" in words(test)

    test.segmented_control(key="setting_0").set_value("By hand").run()
    test.number_input(key=next(w.key for w in test.number_input if w.label == "max_num_seqs")).set_value(32).run()
    planned(press(test, "Pin: By hand"))
    assert test.table[0].value.loc["max_num_seqs"].tolist()[3].startswith("32")
    planned(press(test, "Unpin 2: Today"))
    assert test.table[0].value.columns.tolist() == ["1\\: Recommended", "2\\: vLLM default", "3\\: By hand"]
    for _ in range(3):
        planned(press(test, next(button.label for button in test.button if button.label.startswith("Unpin 1"))))
    assert "Nothing is pinned" in words(test)
    assert not test.exception


def test_words_of_another_file_with_equal_requests_are_not_taken_for_ones_own() -> None:
    head = b"arrival_s,prompt_tokens,output_tokens,model\n"
    upload(opened(), "theirs.csv", head + b"0,10,2,blue\n1,20,3,red\n2,30,4,red\n")
    test = upload(opened(), "mine.csv", head + b"0,10,2,red\n1,20,3,blue\n2,30,4,blue\n")
    test.multiselect[0].set_value(["red"]).run()
    traffic = test.session_state["session"].traffic
    assert traffic.source_row.tolist() == [0]
    assert traffic.receipt.file_name == "mine.csv"


def test_equal_steps_of_another_server_do_not_lend_their_flags() -> None:
    log = compute.SAMPLES / compute.EXAMPLE_LOG
    upload(opened("calibration"), "theirs.log", log.read_bytes())
    changed = log.read_bytes().replace(b"'max_num_seqs': 256", b"'max_num_seqs': 77")
    test = upload(opened("calibration"), "mine.log", changed)
    session = test.session_state["session"]
    assert session.fit.facts.max_num_seqs == 77
    assert session.fit.source.startswith("mine.log")


def test_flags_of_the_log_before_are_not_todays() -> None:
    test = planned(press(opened(), "Run the example"))
    log = (compute.SAMPLES / compute.EXAMPLE_LOG).read_bytes().replace(b"'max_num_seqs': 256", b"'max_num_seqs': 77")
    upload(shown(test, "calibration"), "other.log", log)
    assert test.session_state["session"].today.max_num_seqs == 77


def test_measurements_of_the_trace_before_are_forgotten() -> None:
    measured = b'{"arrival_s": 0.0, "token_s": [0.1, 0.2], "prompt_tokens": 5, "output_tokens": 2}\n'
    test = upload(opened(), "measured.jsonl", measured)
    assert test.session_state["session"].measured.value is not None
    upload(test, "plain.csv", b"arrival_s,prompt_tokens,output_tokens\n0,10,2\n1,20,3\n")
    assert test.session_state["session"].measured.value is None


def test_a_look_at_the_log_tab_keeps_coefficients_by_hand() -> None:
    test = opened("calibration")
    test.segmented_control[0].set_value("By hand").run()
    press(test, "Use these coefficients")
    test.segmented_control[0].set_value("From a step log").run()
    assert "set by hand" in words(test)
