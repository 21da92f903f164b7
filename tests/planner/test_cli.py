"""The command line: what it prints, where, and how it ends."""

import json
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shared import Case, cases, files
from traces_by_hand import chat_trace

from planner.cli import outputs, tables
from planner.cli.main import main
from planner.engine_config import EngineConfig
from planner.plan_file import open_plan
from planner.slo import ClassTarget
from traces.read import read_trace
from traces.synthetic import LOG_SAMPLE, TRACE_SAMPLE


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory):
    trace = chat_trace(150)
    path = tmp_path_factory.mktemp("trace") / "trace.parquet"
    columns = {name: getattr(trace, name) for name in ("arrival_s", "prompt_tokens", "output_tokens")}
    pq.write_table(pa.table(columns), path)
    return str(path)


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_replay_prints_one_json_object(capsys, trace_file):
    code, out, _ = run(capsys, "replay", trace_file, "--max-num-batched-tokens", 512, "--json")
    document = json.loads(out)
    assert code == 0
    assert document["requests"] == document["finished"] == 150
    assert document["flags"]["max_num_batched_tokens"] == 512
    assert document["itl_ms"]["p50"] <= document["itl_ms"]["p99"] <= document["worst_gap_ms"]
    assert document["kernel_seconds"] < 1.0, "compiling does not count"
    assert document["trace"]["prompt_tokens_sum"] == int(chat_trace(150).prompt_tokens.sum())
    assert document["simulated"]["vllm"] == "0.32"


def test_replay_speaks_to_people(capsys, trace_file):
    code, out, _ = run(capsys, "replay", trace_file, "--no-async-scheduling", "--no-scheduler-reserve-full-isl")
    assert code == 0
    assert "asynchronous scheduling: off" in out
    assert "150 of 150 requests finished" in out
    assert "ITL, pooled gaps" in out


def test_inspect_tells_worst_gaps_and_why_a_request_was_late(capsys, trace_file, tmp_path):
    perfetto = tmp_path / "trace.json"
    given = ["inspect", trace_file, "--max-num-batched-tokens", 8192, "--request", 7, "--at", 1, "--num-gaps", 3]
    code, out, _ = run(capsys, *given, "--perfetto", perfetto)
    assert code == 0
    assert "prefill tokens of request" in out
    assert "request 7: " in out
    assert json.loads(perfetto.read_text())["traceEvents"]
    code, out, _ = run(capsys, *given, "--window", 1, 5, "--json")
    document = json.loads(out)
    assert code == 0
    assert len(document["worst_gaps"]) == 3
    assert all(1 <= gap["end_s"] <= 5 for gap in document["worst_gaps"])
    assert document["worst_gaps"][0]["cause"] == "prefill beside"
    assert document["request"]["row"] == 7
    phases = document["request"]["phases"]
    assert sum(p["end_ns"] - p["start_ns"] for p in phases) == round(document["request"]["e2e_s"] * 1e9)
    assert len(document["steps"]) == 11
    assert max(document["timeline"]["running"]["high"]) >= 1


def test_the_road_from_log_to_flags(capsys, tmp_path):
    """The sample: today's flags miss 80 ms, the recommended ones meet it, and --model repeats the answer of --steps."""
    model, plan = tmp_path / "model.json", tmp_path / "plan.json"
    code, out, err = run(capsys, "calibrate", LOG_SAMPLE, "-o", model)
    assert code == 0
    assert "per_prefill_token" in out
    assert "To record next: Record steps of up to 256 requests" in err
    code, out, err = run(capsys, "plan", TRACE_SAMPLE, "--steps", LOG_SAMPLE, "--itl-ms", 80, "--json", "-o", plan)
    document = json.loads(out)
    assert code == 0
    assert json.loads(plan.read_text()) == document
    assert document["verdict"] == "met"
    assert document["today"]["flags"]["max_num_batched_tokens"] == 8192, "today's flags come from the log"
    assert document["today"]["violations"]
    assert document["recommended"]["summary"]["itl_at_percentile_s"] <= 0.080
    assert document["command"].startswith("vllm serve MODEL")
    assert document["probability_met"] is not None

    _, again, _ = run(capsys, "plan", TRACE_SAMPLE, "--model", model, "--itl-ms", 80, "--json")
    assert json.loads(again) == document


def test_further_flags_are_searched_when_asked_for(capsys, trace_file):
    given = ("plan", trace_file, "--base-ms", 8, "--itl-ms", 80)
    code, out, _ = run(capsys, *given, "--search", "watermark=0,0.05", "--search", "scheduling_policy", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["space"]["more"]["watermark"] == [0, 0.05]
    assert document["space"]["more"]["scheduling_policy"] == ["fcfs", "priority"]
    assert {loser["flags"].get("watermark", 0.0) for loser in document["losers"]} == {0.0, 0.05}
    code, out, err = run(capsys, *given, "--search", "seats")
    assert (code, out) == (2, "")
    assert "--search seats: known are max_num_batched_tokens" in err


def test_a_target_that_no_setting_meets_ends_with_3(capsys, trace_file, tmp_path):
    model = tmp_path / "m.json"
    step_time = {"base_ns": 8_000_000, "per_seq_ns": 60_000, "per_prefill_token_ns": 20_000}
    model.write_text(json.dumps({"version": 2, "step_time": step_time}))
    code, out, _ = run(capsys, "plan", trace_file, "--model", model, "--itl-ms", 5)
    assert code == 3
    assert "Missed by every setting" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["replay", "absent.parquet"], "absent.parquet"),
        (["replay", "{trace}", "--max-num-seqs", "9000"], "smaller than max_num_seqs"),
        (["replay", "{trace}", "--base-ms", "-1"], "must not be negative"),
        (["replay", "{trace}", "--model", "absent.json"], "cannot be read"),
        (["replay", "{trace}", "--arrival-unit", "hours"], "arrival_unit"),
        (["plan", "{trace}", "--itl-ms", "80"], "needs --steps STEPLOG, --model M.json"),
        (["plan", "{trace}", "--model", "m", "--itl-ms", "0"], "must be above 0"),
        (["calibrate", "{trace}"], "trace"),
        (["replay", "{trace}", "--base-ms", "0", "--per-seq-ms", "0"], "steps must take time"),
        (["replay", "{trace}", "--model", "m.json", "--base-ms", "8"], "either --model or the times"),
        (["plan", "{trace}", "--base-ms", "8", "--itl-ms", "80", "--ttft-ms", "0"], "--ttft-ms is 0"),
        (["plan", "{trace}", "--base-ms", "8", "--itl-ms", "80", "--worst-gap-ms", "-5"], "must be above 0"),
        (["plan", "{trace}", "--base-ms", "8", "--itl-ms", "80", "--gpu-memory-gib", "-1"], "not be negative"),
        (["plan", "{trace}", "--base-ms", "8", "--itl-ms", "80", "-o", "absent/plan.json"], "folder does not exist"),
        (["capacity", "{trace}", "--base-ms", "8", "--itl-ms", "80", "--growth", "-1"], "must be above 0"),
        (["capacity", "{trace}", "--base-ms", "8", "--itl-ms", "80", "--loads", "1", "0"], "--loads must be above 0"),
        (["capacity", "{trace}", "--base-ms", "8", "--itl-ms", "80", "--window-s", "0"], "--window-s is 0"),
        (["plan", "{trace}", "--base-ms", "8", "--itl-ms", "80", "--dask-scheduler", "nonsense"], "no Dask scheduler"),
        (
            ["plan", "{trace}", "--base-ms", "8", "--itl-ms", "80", "--class-target", "ttft_ms"],
            "write it as",
        ),
        (["plan", "{trace}", "--base-ms", "8", "--itl-ms", "80", "--class-target", "colour=1"], "known are prompt"),
        (["plan", "{trace}", "--base-ms", "8", "--itl-ms", "80", "--class-target", "prompt=1-9"], "needs a limit"),
        (["inspect", "{trace}", "--request", "151"], "no such data row"),
        (["inspect", "{trace}", "--window", "5", "1"], "the first before the second"),
    ],
)
def test_bad_input_ends_with_2_and_says_why_on_standard_error(capsys, trace_file, arguments, words):
    code, out, err = run(capsys, *(argument.format(trace=trace_file) for argument in arguments))
    assert code == 2
    assert out == ""
    assert words in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["replay"],
        ["replay", "t", "--base-ms", "nan"],
        ["plan", "t", "--itl-ms", "inf"],
        ["replay", "t", "--max-num-batched-tokens", "99999999999999999999999"],
    ],
)
def test_bad_usage_ends_with_2(capsys, arguments):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert capsys.readouterr().out == ""


def test_requests_that_never_run_are_in_the_sentence(capsys, trace_file):
    given = ("plan", trace_file, "--base-ms", 8, "--itl-ms", 80, "--num-gpu-blocks", 100)
    _, out, _ = run(capsys, *given)
    assert "requests can never run in this KV cache" in out
    assert "One notch on each flag:\n  max_num_batched_tokens " in out
    assert "KV cache of 1584 tokens" in out or "KV cache of 1,584 tokens" in out


def test_defaults_that_vllm_would_not_take_are_lowered(capsys, trace_file):
    """Chunked prefill off raises a defaulted budget; seats above the budget are lowered."""
    off = ("--no-enable-chunked-prefill", "--max-model-len", 16_384, "--max-num-batched-tokens", 16_384)
    code, out, _ = run(capsys, "plan", trace_file, "--base-ms", 8, "--itl-ms", 800, "--json", *off)
    assert code == 0
    assert json.loads(out)["vllm_default"]["flags"]["max_num_batched_tokens"] == 16_384


def test_a_drafter_without_async_turns_it_off(capsys, trace_file):
    drafts = ("--speculative-method", "ngram", "--num-speculative-tokens", 3)
    code, out, _ = run(capsys, "replay", trace_file, *drafts, "--json")
    assert code == 0
    assert json.loads(out)["flags"]["async_scheduling"] is False
    code, _, err = run(capsys, "replay", trace_file, *drafts, "--async-scheduling")
    assert code == 2
    assert "not supported" in err


def test_a_stall_is_called_so(capsys, trace_file):
    """A prompt that does not fit the budget in one piece blocks everybody behind it."""
    off = ("--no-enable-chunked-prefill", "--max-num-batched-tokens", 2048)
    code, out, _ = run(capsys, "replay", trace_file, *off)
    assert code == 0
    assert "Stalled: the others wait for ever" in out
    _, out, _ = run(capsys, "plan", trace_file, "--base-ms", 8, "--itl-ms", 80, *off, "--json")
    reasons = {loser["reason"] for loser in json.loads(out)["losers"]}
    assert "stalled" in reasons


def test_a_file_that_needs_an_answer_names_the_option(capsys, tmp_path):
    path = tmp_path / "mooncake.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 5, "output_length": 3}\n' * 3)
    code, _, err = run(capsys, "replay", path)
    assert code == 2
    assert "--arrival-unit ms" in err
    code, _, _ = run(capsys, "replay", path, "--arrival-unit", "ms")
    assert code == 0


def test_capacity_says_where_it_breaks(capsys, trace_file, tmp_path):
    model = tmp_path / "m.json"
    step_time = {"base_ns": 8_000_000, "per_seq_ns": 60_000, "per_prefill_token_ns": 60_000}
    model.write_text(json.dumps({"version": 2, "step_time": step_time}))
    flags = ("--max-num-batched-tokens", 2048, "--max-num-seqs", 256)
    given = ("capacity", trace_file, "--model", model, "--itl-ms", 140, "--growth", 4, *flags)
    code, out, err = run(capsys, *given, "--json")
    document = json.loads(out)
    assert code == 0
    assert document["met_load"] < document["missed_load"]
    assert document["replicas"] > 1
    code, out, _ = run(capsys, *given)
    assert f"At 4 times this load, {document['replicas']} replicas meet them." in out
    assert "The knee lies near" in out
    assert [point["load"] for point in document["curve"]] == sorted(point["load"] for point in document["curve"])
    assert sum(window["num_requests"] for window in document["windows"]) == 150
    code, out, _ = run(capsys, *given, "--routing", "least_loaded", "--loads", 1, "--window-s", 5, "--json")
    document = json.loads(out)
    assert 0 < document["routing_confirmed"]["share"] <= 1
    assert len(document["curve"]) == 1
    assert len(document["windows"]) > 2


@pytest.mark.cases
@pytest.mark.parametrize("case", cases("trace", stating="minimal_replicas"))
def test_minimal_replicas_of_the_cases(capsys, case: Case, tmp_path):
    model, slo = case.sidecar["replay"]["model"], case.sidecar["slo"]
    path = tmp_path / "m.json"
    step_ns, token_ns = round(model["d_ms"] * 1e6), round(model["p_ms_per_token"] * 1e6)
    coefficients = {"base_ns": step_ns, "per_seq_ns": 0, "per_prefill_token_ns": token_ns}
    path.write_text(json.dumps({"version": 2, "step_time": coefficients}))
    config = case.sidecar["replay"]["config"][0]
    code, out, _ = run(
        capsys, "capacity", case.path, "--model", path, "--itl-ms", slo["gap_ms"], "--worst-gap-ms", slo["gap_ms"],
        "--ttft-ms", 1e3 * slo["ttft_p99_s"], "--max-num-batched-tokens", config["max_num_batched_tokens"],
        "--max-num-seqs", config["max_num_seqs"], "--num-gpu-blocks", 1_000_000, "--json",
    )  # fmt: skip
    assert code == 0
    assert json.loads(out)["replicas"] == case.sidecar["minimal_replicas"]


@pytest.mark.data
@pytest.mark.parametrize("path", files("data/traces/*.parquet"))
def test_real_traces_replay(capsys, path):
    code, out, _ = run(capsys, "replay", path, "--arrival-unit", "ms", "--num-gpu-blocks", 400_001, "--json")
    document = json.loads(out)
    assert code == 0
    assert document["outcome"] == "done"
    assert document["finished"] + document["never_run"] == document["requests"]


def test_every_flag_of_the_configuration_is_an_option(capsys, trace_file):
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    shown = capsys.readouterr().out
    for field in EngineConfig.__dataclass_fields__:
        assert "--" + field.replace("_", "-") in shown


@pytest.mark.measured
@pytest.mark.parametrize("path", files("measured/sync_b256/server.log.gz"))
def test_calibrate_and_plan_explain_the_log_by_its_trace(capsys, tmp_path, path):
    trace, other = path.parent / "requests.parquet", path.parents[1] / "calib_sync" / "requests.parquet"
    code, out, err = run(capsys, "calibrate", path, "--trace", trace, "--json")
    assert code == 0
    assert "2,324 of 2,324 steps explained" in err
    document = json.loads(out)
    assert "Never acted, so this log does not test them: max_num_seqs 64 (at most 2" in err
    flags = {use["name"]: use["num_steps"] for use in document["alignment"].pop("flags")}
    assert flags["max_num_batched_tokens"] > 0
    assert flags["max_num_seqs"] == 0
    assert document["alignment"] == {"explained": 2324, "covered": 2324, "differences": []}
    assert document["step_time"]["per_prefill_attention_ns"] > 0

    code, out, err = run(capsys, "calibrate", path, "--trace", other)
    assert (code, out) == (2, "")
    assert "not the requests behind it" in err


@pytest.mark.measured
@pytest.mark.parametrize("path", files("measured/sync_b256/server.log.gz"))
def test_replay_beside_what_clients_measured(capsys, path):
    trace = path.parent / "requests.parquet"
    flags = ("--max-num-batched-tokens", 256, "--max-num-seqs", 64, "--no-async-scheduling")
    model = ("--base-ms", 12, "--per-seq-ms", 0.4, "--per-prefill-token-ms", 0.15)

    code, out, _ = run(capsys, "replay", trace, *flags, *model, "--measured", trace)
    assert code == 0
    assert "Against what was measured" in out

    code, out, _ = run(capsys, "replay", trace, *flags, *model, "--measured", trace, "--json")
    assert json.loads(out)["measured"]["itl"]["measured_ms"]["p50"] == pytest.approx(17.6, abs=0.1)


def test_two_plans_side_by_side(capsys, trace_file, tmp_path):
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    for itl_ms, path in ((80, first), (5, second)):
        run(capsys, "plan", trace_file, "--base-ms", 8, "--itl-ms", itl_ms, "-o", path)
    code, out, _ = run(capsys, "compare", first, second)
    assert code == 0
    assert out.startswith("The plans stand on different inputs: target, searched max_num_batched_tokens")
    assert "≠ verdict                                          met                          missed" in out
    code, out, _ = run(capsys, "compare", first, first, "--json")
    document = json.loads(out)
    assert document["same_inputs"] is True
    assert {row["name"]: row["first"] for row in document["answers"]}["verdict"] == "met"
    second.write_text("{}")
    code, out, err = run(capsys, "compare", first, second)
    assert (code, out) == (2, "")
    assert "A plan file is what" in err


@pytest.fixture(scope="module")
def plan_file(trace_file, tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    flags = ["--base-ms", "8", "--itl-ms", "80", "--max-num-batched-tokens", "16384"]
    assert main(["plan", trace_file, *flags, "-o", str(path)]) == 0
    return path


@pytest.mark.parametrize(
    ("form", "words"),
    [
        (["command"], "\nvllm serve org/m "),
        (["command", "--full"], "\nvllm serve org/m \\\n  --max-num-batched-tokens "),
        (["config"], '\nmodel: "org/m"\nmax-num-batched-tokens: '),
        (["k8s"], '\nargs:\n  - "org/m"\n  - "--max-num-batched-tokens"\n'),
        (["helm"], '\nservingEngineSpec:\n  modelSpec:\n  - name: "vllm"\n    modelURL: "org/m"\n'),
        (["bench"], "--dataset-name random"),
        (["bench", "--timed-trace", "t.jsonl"], "--dataset-name timed_trace --dataset-path t.jsonl"),
    ],
)
def test_a_plan_is_exported_in_every_form(capsys, plan_file, tmp_path, form, words):
    code, out, _ = run(capsys, "export", plan_file, "--as", *form, "--model-name", "org/m")
    assert code == 0
    assert out.startswith("# trace: trace.parquet (digest ")
    assert words in out
    run(capsys, "export", plan_file, "--as", *form, "--model-name", "org/m", "-o", tmp_path / "out")
    assert (tmp_path / "out").read_text() == out


def test_the_planned_traffic_is_exported_and_no_other(capsys, plan_file, trace_file, tmp_path):
    code, out, _ = run(capsys, "export", plan_file, "--as", "trace", "--trace", trace_file)
    assert code == 0
    assert len(out.splitlines()) == 150
    other = tmp_path / "other.csv"
    other.write_text("arrival_s,prompt_tokens,output_tokens\n0,5,3\n1,5,3\n")
    code, out, err = run(capsys, "export", plan_file, "--as", "trace", "--trace", other)
    assert (code, out) == (2, "")
    assert "is not the trace of this plan" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--as", "trace"], "--as trace needs --trace"),
        (["--as", "html"], "brings the figures along"),
        (["--model-name", "x; rm -rf /"], "--model-name: allowed are"),
        (["-o", "absent/x"], "folder does not exist"),
    ],
)
def test_an_export_that_cannot_be_is_said(capsys, plan_file, arguments, words):
    code, out, err = run(capsys, "export", plan_file, *arguments)
    assert (code, out) == (2, "")
    assert words in err


def test_a_missed_plan_has_no_command_to_export(capsys, trace_file, tmp_path):
    run(capsys, "plan", trace_file, "--base-ms", 8, "--itl-ms", 5, "-o", tmp_path / "p.json")
    for form in ("command", "k8s"):
        code, out, err = run(capsys, "export", tmp_path / "p.json", "--as", form)
        assert (code, out) == (3, "")
        assert "Nothing to deploy: Missed by every setting" in err
    assert run(capsys, "export", tmp_path / "p.json", "--as", "bench")[0] == 0


def test_all_targets_go_from_the_command_line_into_the_plan(capsys, trace_file, tmp_path):
    more = (
        *("--e2e-ms", 60_000, "--e2e-percentile", 95, "--stalled-percent", 50, "--class-target"),
        *("prompt=1-1000,ttft_ms=9000", "--class-target", "prompt=2000-,itl_ms=70,worst_gap_ms=900"),
    )
    code, _, _ = run(capsys, "plan", trace_file, "--base-ms", 8, "--itl-ms", 80, *more, "-o", tmp_path / "p.json")
    assert code == 0
    slo = open_plan(str(tmp_path / "p.json")).recommendation.slo
    assert (slo.e2e_s, slo.e2e_percentile, slo.stalled_share) == (60.0, 0.95, 0.5)
    assert slo.classes == (
        ClassTarget(1, 1000, ttft_s=9.0),
        ClassTarget(2000, None, itl_s=0.07, worst_gap_s=0.9),
    )


def test_a_refused_log_says_what_to_record(capsys, tmp_path):
    decodes = tmp_path / "decodes.csv"
    decodes.write_text("step_ms,prefill_tokens,decode_reqs\n" + "20.0,0,8\n21.0,0,9\n" * 100)
    code, out, err = run(capsys, "calibrate", decodes)
    assert (code, out) == (2, "")
    assert "To record next: Record " in err
    assert "vllm bench serve --model MODEL" in err


def test_a_part_of_the_trace_is_planned_for_and_the_plan_says_so(capsys, tmp_path):
    part = ("--from-s", "60", "--until-s", "120", "--rate", "2", "--sample", "50")
    code, out, _ = run(capsys, "replay", TRACE_SAMPLE, "--json", *part)
    assert code == 0
    arrival_s = read_trace(TRACE_SAMPLE, "x.parquet").arrival_s
    num = ((arrival_s >= 60) & (arrival_s < 120)).sum()
    assert 0.3 * num < json.loads(out)["requests"] < 0.7 * num

    plan = tmp_path / "plan.json"
    code, _, _ = run(capsys, "plan", TRACE_SAMPLE, "--base-ms", "8", "--itl-ms", "80", "-o", plan, *part)
    assert code == 0
    selection = json.loads(plan.read_text())["trace"]["selection"]
    assert selection == {
        "keep": [], "window_s": [60.0, 120.0], "rate": 2.0, "share": 0.5, "sample_seed": 0, "spread_seed": None,
    }  # fmt: skip
    code, out, _ = run(capsys, "export", plan, "--as", "trace", "--trace", TRACE_SAMPLE)
    assert code == 0
    assert len(out.splitlines()) == json.loads(plan.read_text())["trace"]["num_requests"]

    assert run(capsys, "replay", TRACE_SAMPLE, "--from-s", "1e6")[:2] == (2, "")
    assert run(capsys, "replay", TRACE_SAMPLE, "--rate", "0")[:2] == (2, "")


def test_requests_are_chosen_by_words(capsys, tmp_path):
    trace = tmp_path / "models.csv"
    trace.write_text(
        "arrival_s,prompt_tokens,output_tokens,model\n0,10,2,small\n1,20,3,large\n2,30,4,small\n3,9,9,tiny\n"
    )
    code, out, _ = run(capsys, "replay", trace, "--json", "--only", "model=small", "--only", "model=tiny")
    assert (code, json.loads(out)["requests"]) == (0, 3)
    code, out, err = run(capsys, "replay", trace, "--only", "tenant=a")
    assert (code, out) == (2, "")
    assert "no column of words is called 'tenant'; there are: 'model'" in err


def test_a_model_replays_under_the_flags_of_its_server(capsys, tmp_path):
    model = tmp_path / "model.json"
    assert run(capsys, "calibrate", LOG_SAMPLE, "-o", model)[0] == 0
    saved = json.loads(model.read_text())
    saved["facts"]["max_num_seqs"] = 3
    model.write_text(json.dumps(saved))
    code, out, err = run(capsys, "replay", TRACE_SAMPLE, "--model", model, "--json")
    assert code == 0
    assert "those of the model's server" in err
    stated = run(capsys, "replay", TRACE_SAMPLE, "--model", model, "--max-num-seqs", "3", "--json")[1]
    other = run(capsys, "replay", TRACE_SAMPLE, "--model", model, "--max-num-seqs", "256", "--json")[1]
    ttft = [json.loads(one)["ttft_ms"]["p99"] for one in (out, stated, other)]
    assert ttft[0] == ttft[1] > ttft[2]


def test_measurements_of_something_else_are_said(capsys, tmp_path):
    measured = tmp_path / "measured.jsonl"
    measured.write_text('{"arrival_s": 0.0, "token_s": [0.1, 0.2]}\n')
    code, _, err = run(capsys, "replay", TRACE_SAMPLE, "--measured", measured)
    assert code == 0
    assert "1 requests were measured; the trace has 1,514." in err
    assert run(capsys, "replay", TRACE_SAMPLE, "--measured", measured, "--rate", "2")[:2] == (2, "")


@pytest.mark.parametrize(
    "part", [("--rate", "1e-300"), ("--sample", "50", "--sample-seed", "-1"), ("--spread-seed", "-1")]
)
def test_a_part_that_makes_no_sense_is_refused(capsys, part):
    assert run(capsys, "replay", TRACE_SAMPLE, *part)[:2] == (2, "")


def test_requests_that_never_run_are_named_by_rows_from_1(capsys, tmp_path):
    """As the text names them, and as `planner inspect --request` takes them."""
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,9000,5\n2,10,5\n3,9000,5\n")
    small = ("replay", trace, "--num-gpu-blocks", 100)
    _, out, _ = run(capsys, *small, "--json")
    assert json.loads(out)["never_run_rows"] == [2, 4]
    _, out, _ = run(capsys, *small)
    assert "2 requests can never run under these flags (data rows 2, 4)" in out


def test_a_trace_of_which_nothing_can_run_is_no_plan(capsys, tmp_path):
    columns = {"arrival_s": [0.0, 1.0], "prompt_tokens": [5000, 6000], "output_tokens": [5, 5]}
    pq.write_table(pa.table(columns), tmp_path / "long.parquet")
    given = (tmp_path / "long.parquet", "--base-ms", 8, "--itl-ms", 80, "--max-model-len", 4096)
    for command in ("plan", "capacity"):
        code, out, err = run(capsys, command, *given)
        assert (code, out) == (2, "")
        assert "none of the 2 requests can run: the shortest prompt has 5,000 tokens, max_model_len is 4096" in err


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("prompt=90000-,ttft_ms=1", "no request is among prompts of 90,000 tokens or more: prompts have "),
        ("priority=7,ttft_ms=1", "no request is among requests of priority 7: "),
    ],
)
def test_a_target_of_nobody_is_refused(capsys, trace_file, target, words):
    for command in ("plan", "capacity"):
        given = (command, trace_file, "--base-ms", 8, "--itl-ms", 80, "--class-target", target)
        code, out, err = run(capsys, *given)
        assert (code, out) == (2, "")
        assert words in err
        assert "priorities are not given" in err


@pytest.mark.parametrize(("where", "code", "said"), [("pipe", 141, ""), ("/dev/full", 2, "No space left on device\n")])
def test_output_that_goes_nowhere_ends_without_a_traceback(trace_file, where, code, said):
    read_end, write_end = os.pipe()
    os.close(read_end)
    if where != "pipe":
        os.close(write_end)
        write_end = os.open(where, os.O_WRONLY)
    given = [sys.executable, "-m", "planner.cli.main", "replay", trace_file]
    done = subprocess.run(given, stdout=write_end, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write_end)
    assert done.returncode == code
    assert done.stderr.endswith(said)
    assert "Traceback" not in done.stderr


def test_an_interrupted_command_says_so(capsys, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(tables, "run_tables", interrupted)
    assert run(capsys, "tables") == (130, "", "\nInterrupted.\n")


def test_progress_is_written_over_on_a_terminal_and_said_now_and_then_elsewhere(capsys, monkeypatch, trace_file):
    given = ("capacity", trace_file, "--base-ms", 8, "--itl-ms", 140, "--loads", 1)
    _, _, err = run(capsys, *given)
    assert "load 1: " not in err
    monkeypatch.setattr(outputs, "PROGRESS_S", 0.0)
    _, _, err = run(capsys, *given)
    assert "\nload 1: met\n" in err
    assert "\r" not in err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    _, _, err = run(capsys, *given)
    assert f"\r{'load 1: met':70}" in err
    assert err.endswith("\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("replay", "--itl-ms", 0), "--itl-ms is 0; it must be above 0"),
        (("replay", "--rate", 0), "--rate is 0; it must be above 0"),
        (("replay", "--sample", 101), "--sample is 101; it must be above 0 and at most 100"),
        (("replay", "--sample-seed", -1), "--sample-seed is -1; it must not be negative"),
        (("replay", "--from-s", 9, "--until-s", 5), "--until-s is 5, --from-s 9; the window must end after it begins"),
        (("inspect", "--num-gaps", -3), "--num-gaps is -3; it must not be negative"),
        (("inspect", "--window", 5, 1), "--window needs two seconds, 0 or more, the first before the second"),
        (("inspect", "--window", 1e6, 2e6), "--window begins at 1e+06 s; the replay ends at "),
        (("inspect", "--perfetto", "/"), "/: cannot be written: it is a folder"),
        (("plan", "--itl-ms", 80, "--stalled-percent", -1), "--stalled-percent is -1; it must not be negative"),
        (("plan", "--itl-ms", 80, "--stalled-percent", 101), "--stalled-percent is 101; it must be at most 100"),
        (("plan", "--itl-ms", 80, "--align"), "--align needs --steps"),
        (("plan", "--itl-ms", 80, "--steps", LOG_SAMPLE), "give --steps, --model, or the times of a step, not two"),
        (("capacity", "--itl-ms", 80, "--window-s", 1e-9), "1e-09 s cut this trace into "),
    ],
)
def test_what_makes_no_sense_is_refused_before_it_is_done(capsys, trace_file, arguments, words):
    code, out, err = run(capsys, arguments[0], trace_file, "--base-ms", 8, *arguments[1:])
    assert (code, out) == (2, "")
    assert words in err


def test_a_file_that_is_not_there_is_said_plainly(capsys, tmp_path):
    _, _, err = run(capsys, "replay", tmp_path / "none.parquet")
    assert err == "none.parquet: cannot be opened: No such file or directory.\n"
    _, _, err = run(capsys, "calibrate", LOG_SAMPLE, "-o", tmp_path)
    assert err == f"{tmp_path}: cannot be written: it is a folder\n"


def test_wrong_options_are_said_in_a_line(capsys):
    with pytest.raises(SystemExit) as end:
        main(["replay", "trace.csv", "--rate", "nan"])
    assert end.value.code == 2
    said = "planner replay: argument --rate: invalid number value: 'nan'. planner replay --help lists what there is.\n"
    assert capsys.readouterr() == ("", said)


def test_a_trace_without_gaps_is_looked_into_all_the_same(capsys, tmp_path):
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,100,1\n1,120,1\n")
    code, out, _ = run(capsys, "inspect", trace, "--base-ms", 8)
    assert code == 0
    assert out.endswith("counted from 1)\n  none: no gap between two tokens of one request ends here\n")
