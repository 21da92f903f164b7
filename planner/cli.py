"""The `planner` command: the same code as the dashboard, without a browser.

Results go to standard output, progress and messages to standard error. Exit codes: 0 done; 2 bad input or usage;
3 no candidate meets the targets.
"""

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from planner import experiments
from planner.acting import flags_sentence
from planner.align import Alignment, align_whole, alignment_sentence, difference_sentence
from planner.calibrate import fit_step_time
from planner.candidates import Candidate
from planner.capacity import HOUR_S, LOADS, LoadPoint, find_capacity
from planner.command import MODEL, MODEL_NAME, serve_command
from planner.engine_config import DRAFTERS, GPU_TIERS, VLLM_VERSION, EngineConfig, default_flags, flags_from_facts
from planner.errors import BadPlan, UnfitStepLog
from planner.executors import ADDRESS_VARIABLE, executor_at
from planner.export import bench_command, config_yaml, container_args, head, helm_values, timed_trace
from planner.inside.chrome_trace import chrome_trace
from planner.inside.report import inside_report, report_document, report_lines
from planner.json_values import to_json
from planner.measured import SHARES, Comparison, compare, mismatches, served, signed_percent, trust_sentence
from planner.metrics import Spread, Summary, summarise
from planner.plan_comparison import Row, compare_plans, inputs_sentence, value_in_words
from planner.plan_file import SavedPlan, open_plan, save_plan, trace_origin, write_plan
from planner.remedies import what_to_record
from planner.replay import Replay, replay, warm_up
from planner.routing import Routing
from planner.search import MORE, Objective, Recommendation, read_more, recommend
from planner.slo import ClassTarget, Slo, read_class_target
from planner.step_time import Model, SavedModel, StepTime, StepTimeFit, read_model, step_time_of, write_model
from planner.verdict import (
    binding_constraint,
    capacity_sentence,
    confidence_sentences,
    curve_sentence,
    kv_sentence,
    no_op_flags,
    not_simulated,
    rejection_sentence,
    rules_in_force,
    seconds,
    slo_sentence,
    unseen_prefixes,
    verdict,
    windows_sentence,
)
from traces.answers import ReadAnswers
from traces.errors import InputError
from traces.measured import read_measured
from traces.read import read_steps, read_trace
from traces.requests import WHOLE, RequestTrace, Selection
from traces.selection import select
from traces.steps import ServerFacts, StepLog

OK, BAD_INPUT, NOT_MET = 0, 2, 3


def _number(text: str) -> float:
    """A finite number; anything else is bad usage."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError
    return value


def _count(text: str) -> int:
    """A whole number that the kernel can hold."""
    value = int(text)
    if abs(value) > MOST_COUNT:
        raise ValueError
    return value


BY_HAND_MS = {
    "base": (8.0, "of every step"),
    "per_seq": (0.06, "per request in the step"),
    "per_prefill_token": (0.02, "per prefill token"),
}
"""Coefficients without a model, milliseconds: those of the reference experiments."""
COLUMN = 28
"""Characters of a column of `planner compare`."""
MOST_COUNT = 1 << 31
"""Larger counts are no flags of a real server."""
OPTION_TYPES: dict[str, Callable[[str], Any]] = {
    "watermark": _number,
    "draft_acceptance_rate": _number,
    "scheduling_policy": str,
    "speculative_method": str,
}
"""Flags that do not take a whole number or a switch."""


FORMS: dict[str, Callable[[EngineConfig, str], str]] = {
    "config": config_yaml,
    "k8s": container_args,
    "helm": helm_values,
}
"""Forms of a recommended setting, by their names on the command line."""
Report = Callable[[SavedPlan], str]
"""Draws a plan as one HTML page; the command that has the figures brings it along."""


def main(argv: list[str] | None = None, html_report: Report | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = _parser().parse_args(argv, argparse.Namespace(html_report=html_report))
    try:
        return int(arguments.run(arguments))
    except InputError as fault:
        print(fault, file=sys.stderr)
        if isinstance(fault, UnfitStepLog):
            _say_remedies(fault)
        return BAD_INPUT


def run_tables(_: argparse.Namespace) -> int:
    """Print the reference experiments as they were published, then what other policies make of them."""
    print(" budget threshold  long TTFT  short TTFT  ITL p50   p99   max")
    for budget, threshold in experiments.SETTINGS_A:
        print(_line_a(experiments.run_experiment_a(budget, threshold)))
    print(" max_num_seqs  preemptions  recomputed  worst stall  makespan")
    for num_seqs in experiments.SETTINGS_B:
        print(_line_b(experiments.run_experiment_b(num_seqs)))
    print("What if: these rows are not what vLLM does with the settings above")
    for name, a in experiments.what_if_rows_a():
        print(f"{_line_a(a)}  {name}")
    for name, b in experiments.what_if_rows_b():
        print(f"{_line_b(b)}  {name}")
    return OK


def _line_a(row: experiments.RowA) -> str:
    """A row of experiment A as published."""
    return (
        f"{row.max_num_batched_tokens:7} {row.long_prefill_token_threshold:9} "
        f"{1e3 * row.long_ttft_s:8.0f}ms {1e3 * row.short_ttft_s:9.0f}ms "
        f"{1e3 * row.itl_p50_s:6.1f}ms {1e3 * row.itl_p99_s:5.0f} {1e3 * row.itl_max_s:5.0f}"
    )


def _line_b(row: experiments.RowB) -> str:
    """A row of experiment B as published."""
    return (
        f"{row.max_num_seqs:13} {row.num_preemptions:12} {row.num_recomputed_tokens:11,} "
        f"{1e3 * row.worst_gap_s:10.0f}ms {row.makespan_s:8.1f}s"
    )


def run_replay(arguments: argparse.Namespace) -> int:
    """Replay one configuration and print what happened."""
    trace = _trace(arguments)
    model = _given_model(arguments)
    config = _replayed_config(arguments, model)
    _say_unseen_prefixes(trace, config)
    warm_up()
    run = replay(trace, config, step_time_of(model), keeps_steps=False)
    summary = summarise(run, arguments.itl_ms / 1e3)
    compared = _compared(arguments, trace, config, model) if arguments.measured else ()
    if arguments.json:
        document = _replay_document(trace, run, summary, arguments.itl_ms)
        _print_json(document | ({"measured": _comparison_document(compared)} if compared else {}))
    else:
        _print_replay(trace, run, summary)
        _print_comparison(compared)
    return OK


def _replayed_config(arguments: argparse.Namespace, model: SavedModel | StepTime) -> EngineConfig:
    """The flags given, else those of the model's server, else vLLM's defaults."""
    facts = ServerFacts() if isinstance(model, StepTime) else model.facts
    if facts != ServerFacts():
        print("Flags that are not given here are those of the model's server.", file=sys.stderr)
    return _config(arguments, flags_from_facts(facts))


def _compared(
    arguments: argparse.Namespace, trace: RequestTrace, config: EngineConfig, model: SavedModel | StepTime
) -> tuple[Comparison, ...]:
    """The replay beside what was measured."""
    if trace.selection != WHOLE:
        raise BadPlan("command line", "--measured needs the whole trace: its requests are those that were measured")
    said = ReadAnswers(benchmark=arguments.benchmark, drop_bad_rows=arguments.drop_bad_rows)
    measured = read_measured(Path(arguments.measured), answers=said)
    for mismatch in mismatches(trace, measured):
        print(f"{arguments.measured}: {mismatch}", file=sys.stderr)
    return compare(served(trace, config, model), measured)


def run_inspect(arguments: argparse.Namespace) -> int:
    """Replay one configuration and look inside."""
    trace = _trace(arguments)
    model = _given_model(arguments)
    config = _replayed_config(arguments, model)
    request = _request(arguments, trace)
    _say_unseen_prefixes(trace, config)
    run = replay(trace, config, step_time_of(model))
    window_s = tuple(arguments.window) if arguments.window else None
    report = inside_report(trace, run, window_s, arguments.num_gaps, arguments.at, request)
    if arguments.perfetto:
        from_s, until_s = window_s or (0.0, run.end_s)
        _write(arguments.perfetto, chrome_trace(trace, run, from_s, until_s))
    if arguments.json:
        _print_json(report_document(trace, report) | {"flags": asdict(config)})
    else:
        print(f"Simulated: {'; '.join(rules_in_force(config))}.")
        print("\n".join(report_lines(trace, report)))
    return OK


def run_calibrate(arguments: argparse.Namespace) -> int:
    """Fit d and p to a step log."""
    log = read_steps(Path(arguments.steplog), Path(arguments.steplog).name, _answers(arguments))
    alignment = _alignment(log, arguments, _trace(arguments)) if arguments.trace else None
    fit = _fit(log, arguments, alignment)
    if arguments.output:
        _write(arguments.output, write_model(fit))
    if arguments.json:
        _print_json(json.loads(write_model(fit)) | ({"alignment": _alignment_document(alignment)} if alignment else {}))
    else:
        _print_fit(fit)
    return OK


def run_plan(arguments: argparse.Namespace) -> int:
    """Search the flags and print the answer."""
    slo = _slo(arguments)
    _check_output(arguments.output)
    trace = _trace(arguments)
    model, known = _model(arguments, trace)
    today = _config(arguments, known)
    try:
        more = read_more(arguments.search, today)
    except ValueError as fault:
        raise BadPlan("command line", f"--search {fault}") from fault
    _say_unseen_prefixes(trace, today)
    warm_up()
    with executor_at(arguments.dask_scheduler) as executor:
        plan = recommend(
            trace,
            model,
            today,
            slo,
            default_flags=default_flags(arguments.gpu_memory_gib),
            more=more,
            objective=Objective(arguments.objective),
            executor=executor,
            on_progress=_show_progress,
        )
    print(file=sys.stderr)
    document = write_plan(save_plan(plan, trace, model, answers=_answers(arguments)))
    if arguments.output:
        _write(arguments.output, document)
    if arguments.json:
        print(document, end="")
    else:
        is_stated = not isinstance(model, StepTime) and model.facts != ServerFacts()
        _print_plan(plan, today if is_stated else None)
    return OK if plan.best is not None else NOT_MET


def run_compare(arguments: argparse.Namespace) -> int:
    """Put two plan files side by side."""
    compared = compare_plans(open_plan(arguments.first), open_plan(arguments.second))
    if arguments.json:
        _print_json(
            {"inputs": compared.inputs, "answers": compared.answers, "same_inputs": not compared.changed_inputs}
        )
    else:
        print(inputs_sentence(compared))
        _print_rows(compared.changed_inputs)
        print()
        _print_rows(compared.answers)
    return OK


def _print_rows(rows: tuple[Row, ...]) -> None:
    """Two columns; what differs is marked. A cell that is too long for a column gets lines of its own."""
    for row in rows:
        cells = [value_in_words(value, row.unit) for value in (row.first, row.second)]
        mark = "≠" if row.differs else " "
        if max(len(cell) for cell in cells) <= COLUMN:
            print(f"{mark} {row.name:48} {cells[0]:{COLUMN}} {cells[1]}")
        else:
            print(f"{mark} {row.name}:\n    {cells[0]}" + (f"\n    {cells[1]}" if row.differs else ""))


def run_export(arguments: argparse.Namespace) -> int:
    """Write a plan in a form that people deploy, verify or read."""
    _check_output(arguments.output)
    if not re.fullmatch(MODEL_NAME, arguments.model_name):
        raise BadPlan("command line", "--model-name: allowed are letters, digits and . / : @ + -")
    saved = open_plan(arguments.plan)
    plan, form, model = saved.recommendation, arguments.form, arguments.model_name
    if form == "html":
        if arguments.html_report is None:
            raise BadPlan("command line", "--as html needs the command as installed, which brings the figures along")
        text = arguments.html_report(saved)
    elif form == "trace":
        text = timed_trace(_planned_trace(arguments, saved))
    elif form == "bench":
        text = head(saved) + bench_command(saved.trace, model, arguments.timed_trace) + "\n"
    elif plan.best is None:
        print(f"Nothing to deploy: {saved.words.sentence}", file=sys.stderr)
        return NOT_MET
    elif form == "command":
        today = None if arguments.full else plan.today.engine_config
        text = head(saved) + serve_command(plan.best.engine_config, today, model) + "\n"
    else:
        text = head(saved) + FORMS[form](plan.best.engine_config, model)
    if arguments.output:
        _write(arguments.output, text)
    else:
        print(text, end="")
    return OK


def _planned_trace(arguments: argparse.Namespace, saved: SavedPlan) -> RequestTrace:
    """The trace that a plan was made for, read as it was read then."""
    if not arguments.trace:
        raise BadPlan("command line", "--as trace needs --trace, the file that the plan was made for")
    whole = read_trace(Path(arguments.trace), Path(arguments.trace).name, saved.trace.answers)
    trace = select(whole, saved.trace.selection)
    if trace.digest != saved.trace.digest:
        raise BadPlan(
            arguments.trace,
            f"is not the trace of this plan: digest {trace.digest[:12]}, the plan was made for {saved.trace.name} "
            f"with {saved.trace.digest[:12]}",
        )
    return trace


def run_capacity(arguments: argparse.Namespace) -> int:
    """Find the load at which a target breaks, and the replicas that a growth needs."""
    slo = _slo(arguments)
    trace = _trace(arguments)
    model, known = _model(arguments, trace)
    config = _config(arguments, known)
    _say_unseen_prefixes(trace, config)
    warm_up()
    step_time = step_time_of(model)
    with executor_at(arguments.dask_scheduler) as executor:
        found = find_capacity(
            trace,
            config,
            step_time,
            slo,
            growth=arguments.growth,
            routing=Routing(arguments.routing),
            loads=tuple(arguments.loads),
            width_s=arguments.window_s,
            executor=executor,
            on_point=_show_point,
        )
    headroom, replicas, curve = found.headroom, found.replicas, found.curve
    document = {
        "met_load": headroom.met.load if headroom.met else None,
        "missed_load": headroom.missed.load if headroom.missed else None,
        "points": [_load_point(point) for point in headroom.points],
        "growth": arguments.growth,
        "routing": arguments.routing,
        "replicas": replicas.num_replicas,
        "routing_confirmed": {"share": replicas.share_confirmed, "mean_excess": replicas.mean_excess},
        "curve": [_load_point(point) for point in curve.points],
        "knee_load": curve.knee.load if curve.knee else None,
        "windows": found.windows,
        "flags": asdict(config),
        "trace": trace_origin(trace, answers=_answers(arguments)),
        "simulated": {"vllm": VLLM_VERSION, "rules": rules_in_force(config)},
    }
    if arguments.json:
        _print_json(document)
    else:
        print(capacity_sentence(headroom, replicas, arguments.growth))
        print(curve_sentence(curve))
        for point in curve.points:
            summary = point.candidate.summary
            print(
                f"  {point.load:5.3g} times  {point.requests_per_s:8.3g} requests/s  "
                f"ITL p{100 * slo.itl_percentile:g} {seconds(summary.itl_at_percentile_s):>8}  "
                f"TTFT p{100 * slo.ttft_percentile:g} {seconds(summary.ttft_at_percentile_s):>8}"
                + ("  unstable, these depend on the length of the trace" if summary.is_unstable else "")
            )
        print(windows_sentence(found.windows))
    return OK if replicas.num_replicas is not None else NOT_MET


def _parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    parser = argparse.ArgumentParser(prog="planner", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    tables = commands.add_parser("tables", help="the reference experiments")
    tables.set_defaults(run=run_tables)

    one = commands.add_parser("replay", help="replay a trace under one configuration")
    one.add_argument("trace", help="request trace: Parquet, CSV or JSONL")
    _add_model_options(one)
    _add_flag_options(one)
    _add_part_options(one)
    one.add_argument("--measured", help="what was measured under these flags, in any form that the README names")
    one.add_argument("--itl-ms", type=_number, default=80.0, help="gap above which a stream counts as stalled")
    one.set_defaults(run=run_replay)

    inspect = commands.add_parser("inspect", help="look inside a replay: worst gaps and why, one request's life")
    inspect.add_argument("trace", help="request trace: Parquet, CSV or JSONL")
    inspect.add_argument(
        "--request", type=_count, metavar="ROW", help="why this one was late: data row, counted from 1"
    )
    inspect.add_argument(
        "--window", type=_number, nargs=2, metavar=("FROM", "TO"), help="seconds; the whole replay else"
    )
    inspect.add_argument("--at", type=_number, metavar="S", help="list the steps around this second")
    inspect.add_argument("--num-gaps", type=_count, default=10, help="worst gaps to list")
    inspect.add_argument("--perfetto", metavar="OUT.json", help="write the window for ui.perfetto.dev")
    _add_model_options(inspect)
    _add_flag_options(inspect)
    _add_part_options(inspect)
    inspect.set_defaults(run=run_inspect)

    calibrate = commands.add_parser("calibrate", help="fit d and p to a step log")
    calibrate.add_argument("steplog", help="server log or table of steps")
    calibrate.add_argument(
        "--trace", help="the requests behind this log: explain its steps by them, and fit on what they computed"
    )
    _add_flag_options(calibrate)
    calibrate.add_argument("-o", "--output", help="write the model here, for --model")
    calibrate.set_defaults(run=run_calibrate)

    plan = commands.add_parser("plan", help="find the flags that meet a target")
    plan.add_argument("trace", help="request trace: Parquet, CSV or JSONL")
    _add_steps_options(plan)
    _add_model_options(plan)
    _add_flag_options(plan)
    _add_part_options(plan)
    _add_target_options(plan)
    plan.add_argument(
        "--search",
        action="append",
        default=[],
        metavar="FLAG[=V1,V2,…]",
        help="also choose this flag, among these values or the usual ones; may be given more than once: "
        f"{', '.join(MORE)}",
    )
    _add_scheduler_option(plan)
    plan.add_argument("-o", "--output", help="write the plan here, as JSON")
    plan.set_defaults(run=run_plan)

    compare = commands.add_parser("compare", help="two plan files side by side")
    compare.add_argument("first", metavar="A.json", help="written by planner plan -o, or on the Export page")
    compare.add_argument("second", metavar="B.json")
    compare.add_argument("--json", action="store_true", help="print one JSON object")
    compare.set_defaults(run=run_compare)

    export = commands.add_parser("export", help="a plan as a command, manifests, a benchmark or a report")
    export.add_argument("plan", metavar="PLAN.json", help="written by planner plan -o, or on the Export page")
    export.add_argument("--as", dest="form", choices=["command", *FORMS, "bench", "trace", "html"], default="command")
    export.add_argument("--full", action="store_true", help="the whole command, not only the flags that change")
    export.add_argument("--model-name", default=MODEL, help="as given to vllm serve")
    export.add_argument("--timed-trace", metavar="T.jsonl", help="for --as bench: what --as trace wrote")
    export.add_argument("--trace", help="for --as trace: the file that the plan was made for")
    export.add_argument("-o", "--output", help="write it here")
    export.set_defaults(run=run_export)

    capacity = commands.add_parser("capacity", help="find the load that breaks a target, and the replicas needed")
    capacity.add_argument("trace", help="request trace: Parquet, CSV or JSONL")
    _add_steps_options(capacity)
    _add_model_options(capacity)
    _add_flag_options(capacity)
    _add_part_options(capacity)
    _add_target_options(capacity)
    capacity.add_argument(
        "--growth", type=_number, default=1.0, help="multiple of the trace's rate to size replicas for"
    )
    capacity.add_argument(
        "--loads", type=_number, nargs="+", default=LOADS, help="multiples of the trace's rate for the curve"
    )
    capacity.add_argument(
        "--window-s", type=_number, default=HOUR_S, help="width of the stretches that are judged one by one"
    )
    _add_scheduler_option(capacity)
    capacity.add_argument("--routing", choices=[r.value for r in Routing], default=Routing.ROUND_ROBIN.value)
    capacity.set_defaults(run=run_capacity)

    for command in (one, inspect, calibrate, plan, capacity):
        command.add_argument("--json", action="store_true", help="print one JSON object")
        _add_answer_options(command)
    return parser


def _add_steps_options(parser: argparse.ArgumentParser) -> None:
    """A step log to calibrate from."""
    parser.add_argument("--steps", metavar="STEPLOG", help="server log or table of steps to calibrate from")
    parser.add_argument(
        "--align", action="store_true", help="the step log was written while this very trace was served"
    )


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    """Where the step-time model comes from."""
    parser.add_argument("--model", metavar="M.json", help="model written by planner calibrate")
    for name, (value, what) in BY_HAND_MS.items():
        option = f"--{name.replace('_', '-')}-ms"
        parser.add_argument(option, type=_number, help=f"time {what}, without a model (default {value:g})")


def _add_flag_options(parser: argparse.ArgumentParser) -> None:
    """VLLM's flags; what is not given comes from the step log, or is vLLM's default."""
    group = parser.add_argument_group("vLLM's flags")
    for field in fields(EngineConfig):
        option = "--" + field.name.replace("_", "-")
        if isinstance(field.default, bool):
            group.add_argument(option, action=argparse.BooleanOptionalAction, default=None)
        else:
            group.add_argument(option, type=OPTION_TYPES.get(field.name, _count), default=None)


def _add_target_options(parser: argparse.ArgumentParser) -> None:
    """What is wanted, and what decides among the settings that give it."""
    group = parser.add_argument_group("targets")
    group.add_argument("--itl-ms", type=_number, required=True, help="target inter-token latency")
    group.add_argument("--itl-percentile", type=_number, default=99.0, help="of all gaps, pooled over requests")
    group.add_argument("--worst-gap-ms", type=_number, help="cap on the longest gap of any request")
    group.add_argument("--ttft-ms", type=_number, help="target time to first token")
    group.add_argument("--ttft-percentile", type=_number, default=99.0)
    group.add_argument("--e2e-ms", type=_number, help="target time from arrival to last token")
    group.add_argument("--e2e-percentile", type=_number, default=99.0)
    group.add_argument("--stalled-percent", type=_number, help="most time beyond the gap target, of all streaming time")
    group.add_argument(
        "--class-target",
        action="append",
        default=[],
        metavar="prompt=MIN-MAX,priority=N,ttft_ms=…,e2e_ms=…,worst_gap_ms=…",
        help="targets of some requests only; may be given more than once",
    )
    group.add_argument("--objective", choices=[o.value for o in Objective], default=Objective.LOWEST_TTFT.value)
    group.add_argument(
        "--gpu-memory-gib",
        type=_number,
        default=80.0,
        help=f"device memory, decides vLLM's default flags ({'; '.join(tier.label for tier in GPU_TIERS)})",
    )


def _add_scheduler_option(parser: argparse.ArgumentParser) -> None:
    """Where replays run."""
    parser.add_argument(
        "--dask-scheduler",
        metavar="tcp://HOST:8786",
        default=os.environ.get(ADDRESS_VARIABLE, ""),
        help=f"replay on this Dask cluster (default: what {ADDRESS_VARIABLE} says; without one, on this machine)",
    )


def _add_part_options(parser: argparse.ArgumentParser) -> None:
    """Which part of the trace is used, and how it is changed."""
    group = parser.add_argument_group("part of the trace")
    group.add_argument("--from-s", type=_number, default=0.0, help="seconds since the first arrival")
    group.add_argument("--until-s", type=_number, help="likewise; not given = to the last arrival")
    group.add_argument("--only", action="append", default=[], metavar="COLUMN=WORD", help="repeat it for more")
    group.add_argument("--sample", type=_number, default=100.0, help="percent of the requests, drawn at random")
    group.add_argument("--sample-seed", type=_count, default=0)
    group.add_argument("--rate", type=_number, default=1.0, help="times: 2 = the same requests in half the time")
    group.add_argument("--spread-seed", type=_count, help="spread arrivals that share a stamp of a slow clock")


def _add_answer_options(parser: argparse.ArgumentParser) -> None:
    """What the user can say about a file that the file itself does not say."""
    group = parser.add_argument_group("about the files")
    for field in fields(ReadAnswers):
        option = "--" + field.name.replace("_", "-")
        if isinstance(field.default, bool):
            group.add_argument(option, action="store_true")
        else:
            group.add_argument(option)


def _answers(arguments: argparse.Namespace) -> ReadAnswers:
    """The answers given on the command line."""
    try:
        return ReadAnswers(**{field.name: getattr(arguments, field.name) for field in fields(ReadAnswers)})
    except ValueError as fault:
        raise BadPlan("command line", str(fault)) from fault


def _trace(arguments: argparse.Namespace) -> RequestTrace:
    """The trace, with its notices on standard error."""
    trace = read_trace(Path(arguments.trace), Path(arguments.trace).name, _answers(arguments))
    for notice in trace.receipt.notices if trace.receipt else ():
        print(f"{arguments.trace}: {notice}", file=sys.stderr)
    return select(trace, _selection(arguments))


def _selection(arguments: argparse.Namespace) -> Selection:
    """The part of the trace that is asked for; all of it where a command does not ask."""
    if "rate" not in arguments:
        return WHOLE
    from_s, until_s = arguments.from_s, arguments.until_s
    seeds = (arguments.sample_seed, arguments.spread_seed or 0)
    if arguments.rate <= 0 or not 0 < arguments.sample <= 100 or min(from_s, *seeds) < 0:
        raise BadPlan(
            "command line", "--rate must be above 0, --sample above 0 and at most 100, --from-s and seeds not negative"
        )
    words: dict[str, list[str]] = {}
    for one in arguments.only:
        column, equals, word = one.partition("=")
        if not equals:
            raise BadPlan("command line", f"--only {one!r}: give COLUMN=WORD")
        words.setdefault(column, []).append(word)
    return Selection(
        spread_seed=arguments.spread_seed,
        window_s=None if from_s == 0.0 and until_s is None else (from_s, until_s),
        keep=tuple((column, tuple(chosen)) for column, chosen in words.items()),
        share=arguments.sample / 100.0,
        sample_seed=arguments.sample_seed,
        rate=arguments.rate,
    )


def _request(arguments: argparse.Namespace, trace: RequestTrace) -> int | None:
    """The row of the trace that `--request` names."""
    if arguments.window and not 0 <= arguments.window[0] < arguments.window[1]:
        raise BadPlan("command line", "--window needs two seconds, 0 or more, the first before the second")
    if arguments.request is None:
        return None
    found = np.flatnonzero(trace.source_row == arguments.request - 1)
    if len(found) == 0:
        raise BadPlan("command line", f"--request {arguments.request}: the trace has no such data row in use")
    return int(found[0])


def _say_unseen_prefixes(trace: RequestTrace, config: EngineConfig) -> None:
    """On standard error: whether TTFT is an upper bound."""
    said = unseen_prefixes(trace, config)
    if said is not None:
        print(said, file=sys.stderr)


def _alignment(log: StepLog, arguments: argparse.Namespace, trace: RequestTrace) -> Alignment:
    """The log's steps explained by the trace, with how many on standard error."""
    config = _config(arguments, flags_from_facts(log.facts))
    alignment = align_whole(log, trace, config)
    print(alignment_sentence(alignment, len(log)), file=sys.stderr)
    print(flags_sentence(alignment.flag_uses), file=sys.stderr)
    for one in alignment.differences:
        print(f"  {difference_sentence(one)}", file=sys.stderr)
    return alignment


def _fit(log: StepLog, arguments: argparse.Namespace, alignment: Alignment | None = None) -> StepTimeFit:
    """A fit to a step log, with its notices on standard error."""
    num_kv_tokens = None
    if arguments.num_gpu_blocks is not None:
        block_size = arguments.block_size or log.facts.block_size or EngineConfig().block_size
        num_kv_tokens = (arguments.num_gpu_blocks - 1) * block_size
    fit = fit_step_time(log, num_kv_tokens, alignment)
    for notice in (*(log.receipt.notices if log.receipt else ()), *fit.notices):
        print(f"{fit.source}: {notice}", file=sys.stderr)
    return fit


def _given_model(arguments: argparse.Namespace) -> SavedModel | StepTime:
    """The model given as a file or as three numbers."""
    given = {name: getattr(arguments, f"{name}_ms") for name in BY_HAND_MS}
    if arguments.model:
        if any(value is not None for value in given.values()):
            raise BadPlan("command line", "give either --model or the times of a step, not both")
        return _saved_model(arguments.model)
    times_ms = [default if given[name] is None else given[name] for name, (default, _) in BY_HAND_MS.items()]
    if min(times_ms) < 0 or max(times_ms) > 1e6:
        raise BadPlan(
            "command line", "--base-ms, --per-seq-ms and --per-prefill-token-ms must not be negative or hours"
        )
    if times_ms[0] == times_ms[1] == 0:
        raise BadPlan("command line", "--base-ms and --per-seq-ms are both 0: steps must take time")
    return StepTime(*(round(value * 1e6) for value in times_ms))


def _model(arguments: argparse.Namespace, trace: RequestTrace) -> tuple[Model, EngineConfig]:
    """The model to plan with, and what its log says of today's flags; elsewhere vLLM's defaults on this GPU."""
    usual = default_flags(arguments.gpu_memory_gib)
    if arguments.steps:
        log = read_steps(Path(arguments.steps), Path(arguments.steps).name, _answers(arguments))
        if arguments.align and trace.selection != WHOLE:
            raise BadPlan(
                "command line",
                "--align needs the whole trace: run planner calibrate LOG --trace TRACE -o M.json, then give --model",
            )
        alignment = _alignment(log, arguments, trace) if arguments.align else None
        return _fit(log, arguments, alignment), flags_from_facts(log.facts, usual)
    if not arguments.model and arguments.base_ms is None:
        raise BadPlan("command line", "a plan needs --steps STEPLOG, --model M.json, or --base-ms and its companions")
    model = _given_model(arguments)
    facts = ServerFacts() if isinstance(model, StepTime) else model.facts
    if facts == ServerFacts():
        print(
            f"Today's flags are those given here, and vLLM's defaults for {arguments.gpu_memory_gib:g} GiB; a log has "
            "them.",
            file=sys.stderr,
        )
    return model, flags_from_facts(facts, usual)


def _saved_model(path: str) -> SavedModel:
    """A model file."""
    try:
        return read_model(Path(path).read_text(encoding="utf-8-sig"), path)
    except (OSError, UnicodeDecodeError) as fault:
        raise BadPlan(path, f"cannot be read: {fault}") from fault


def _config(arguments: argparse.Namespace, known: EngineConfig) -> EngineConfig:
    """`known`, with the flags given on the command line in place.

    With a drafter that does not support it, vLLM turns asynchronous scheduling off unless it is asked for explicitly.
    """
    given = {f.name: value for f in fields(EngineConfig) if (value := getattr(arguments, f.name)) is not None}
    drafter = DRAFTERS.get(given.get("speculative_method"))
    if drafter is not None and not drafter.allows_async:
        given.setdefault("async_scheduling", False)
    return EngineConfig(**{**asdict(known), **given})


def _slo(arguments: argparse.Namespace) -> Slo:
    """The targets given on the command line."""
    if min(getattr(arguments, "loads", LOADS)) <= 0:
        raise BadPlan("command line", "--loads must be above 0")
    for name in ("itl_ms", "worst_gap_ms", "ttft_ms", "e2e_ms", "growth", "window_s"):
        value = getattr(arguments, name, None)
        if value is not None and not value > 0:
            raise BadPlan("command line", f"--{name.replace('_', '-')} is {value:g}; it must be above 0")
    for name in ("itl_percentile", "ttft_percentile", "e2e_percentile"):
        if not 0 < getattr(arguments, name) <= 100:
            raise BadPlan("command line", f"--{name.replace('_', '-')} must be above 0 and at most 100")
    if arguments.gpu_memory_gib < 0:
        raise BadPlan("command line", f"--gpu-memory-gib is {arguments.gpu_memory_gib:g}; it must not be negative")
    return Slo(
        itl_s=arguments.itl_ms / 1e3,
        itl_percentile=arguments.itl_percentile / 100,
        worst_gap_s=None if arguments.worst_gap_ms is None else arguments.worst_gap_ms / 1e3,
        ttft_s=None if arguments.ttft_ms is None else arguments.ttft_ms / 1e3,
        ttft_percentile=arguments.ttft_percentile / 100,
        stalled_share=None if arguments.stalled_percent is None else arguments.stalled_percent / 100,
        e2e_s=None if arguments.e2e_ms is None else arguments.e2e_ms / 1e3,
        e2e_percentile=arguments.e2e_percentile / 100,
        classes=tuple(_class_target(text) for text in arguments.class_target),
    )


def _class_target(text: str) -> ClassTarget:
    """A class of requests and what is wanted for it, as one option says it."""
    try:
        return read_class_target(text)
    except ValueError as fault:
        raise BadPlan("command line", f"--class-target {fault}") from fault


def _check_output(path: str | None) -> None:
    """Refuse an output that cannot be written before any work is done for it."""
    if path is not None and not Path(path).absolute().parent.is_dir():
        raise BadPlan(path, "cannot be written: its folder does not exist")


def _write(path: str, text: str) -> None:
    """Write a result."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as fault:
        raise BadPlan(path, f"cannot be written: {fault}") from fault


def _show_progress(num_done: int, num_planned: int, newest: Candidate | None) -> None:
    """One line on standard error, rewritten."""
    config = newest.engine_config if newest else None
    name = f"budget {config.max_num_batched_tokens}, seats {config.max_num_seqs}" if config else ""
    print(f"\r{num_done}/{num_planned} replays  {name:40}", end="", file=sys.stderr, flush=True)


def _show_point(point: LoadPoint) -> None:
    """One line on standard error per load tried."""
    print(f"load {point.load:.3g}: {'met' if point.candidate.meets else 'missed'}", file=sys.stderr)


def _load_point(point: LoadPoint) -> dict[str, Any]:
    """A load tried, in the units of `planner replay`."""
    summary = point.candidate.summary
    return {
        "load": point.load,
        "requests_per_s": point.requests_per_s,
        "meets": point.candidate.meets,
        "unstable": summary.is_unstable,
        "itl_ms": _milliseconds(summary.itl),
        "ttft_ms": _milliseconds(summary.ttft),
        "violations": [rejection_sentence(violation) for violation in point.candidate.violations],
    }


def _print_json(document: dict[str, Any]) -> None:
    """One JSON object, NaN as null."""
    print(json.dumps(to_json(document), indent=2, sort_keys=True))


def _milliseconds(spread: Spread) -> dict[str, float]:
    """A latency spread in vLLM's own unit."""
    return {name.removesuffix("_s"): 1e3 * value for name, value in asdict(spread).items()}


def _replay_document(trace: RequestTrace, run: Replay, summary: Summary, itl_ms: float) -> dict[str, Any]:
    """The JSON of `planner replay`."""
    return {
        "requests": summary.num_requests,
        "finished": summary.num_finished,
        "never_run": summary.num_never_run,
        "never_run_rows": trace.source_row[run.never_runs].tolist(),
        "outcome": summary.outcome,
        "unstable": summary.is_unstable,
        "steps": summary.num_steps,
        "preemptions": summary.num_preemptions,
        "prefix_hit_share": summary.hit_share,
        "preempted_requests": int((run.num_preemptions > 0).sum()),
        "recomputed_tokens": summary.num_recomputed_tokens,
        "gaps": summary.num_gaps,
        "itl_ms": _milliseconds(summary.itl),
        "worst_gap_ms": 1e3 * summary.itl.max_s,
        "stalled_s": summary.stalled_s,
        "stalled_above_ms": itl_ms,
        "ttft_ms": _milliseconds(summary.ttft),
        "tpot_ms": _milliseconds(summary.tpot),
        "e2e_ms": _milliseconds(summary.e2e),
        "queue_ms": _milliseconds(summary.queue),
        "output_tokens_per_s": summary.output_tokens_per_s,
        "requests_per_s": summary.requests_per_s,
        "makespan_s": summary.makespan_s,
        "peak_running": summary.peak_running,
        "peak_kv_usage": summary.peak_kv_usage,
        "kernel_seconds": run.kernel_seconds,
        "flags": asdict(run.engine_config),
        "step_time": run.step_time._asdict(),
        "trace": trace_origin(trace),
        "simulated": {
            "vllm": VLLM_VERSION,
            "rules": list(rules_in_force(run.engine_config)),
            "not_simulated": list(not_simulated()),
        },
    }


def _alignment_document(alignment: Alignment) -> dict[str, Any]:
    """The alignment in the JSON of `planner calibrate`."""
    return {
        "explained": alignment.num_explained,
        "covered": alignment.num_covered,
        "flags": [asdict(use) for use in alignment.flag_uses],
        "differences": [
            {"line": one.source_row + 1, "logged": one.logged._asdict(), "simulated": one.simulated._asdict()}
            for one in alignment.differences
        ],
    }


def _print_replay(trace: RequestTrace, run: Replay, summary: Summary) -> None:
    """What happened, for people."""
    print(f"Simulated: {'; '.join(rules_in_force(run.engine_config))}.")
    print(f"{summary.num_finished:,} of {summary.num_requests:,} requests finished in {seconds(summary.makespan_s)}.")
    if summary.num_never_run:
        rows = ", ".join(str(row + 1) for row in trace.source_row[run.never_runs][:10])
        print(f"{summary.num_never_run:,} requests can never run under these flags (data rows {rows}).")
    if summary.outcome != "done":
        print(f"{summary.outcome.replace('_', ' ').capitalize()}: the others wait for ever; latencies leave them out.")
    elif summary.is_unstable:
        print("Unstable: the queue grows for as long as the trace lasts; the latencies depend on its length.")
    for name, spread in (
        ("ITL, pooled gaps", summary.itl),
        ("TTFT, queueing included", summary.ttft),
        ("TPOT, per request", summary.tpot),
        ("E2E", summary.e2e),
    ):
        print(
            f"{name:24} p50 {seconds(spread.p50_s):>8}  p90 {seconds(spread.p90_s):>8}  "
            f"p99 {seconds(spread.p99_s):>8}  max {seconds(spread.max_s):>8}"
        )
    print(
        f"{summary.num_steps:,} steps, {summary.num_preemptions:,} preemptions, "
        f"{summary.num_recomputed_tokens:,} tokens recomputed, at most {summary.peak_running:,} running, "
        f"KV use up to {100 * summary.peak_kv_usage:.0f} %."
    )


def _comparison_document(compared: tuple[Comparison, ...]) -> dict[str, Any]:
    """Predicted beside measured in the JSON of `planner replay`."""
    return {
        one.name: {
            "predicted_ms": _milliseconds(one.predicted),
            "measured_ms": _milliseconds(one.measured),
            "relative_error": {share: one.relative_error(share) for share in SHARES},
        }
        for one in compared
    }


def _print_comparison(compared: tuple[Comparison, ...]) -> None:
    """Predicted beside measured, for people."""
    for one in compared:
        columns = "  ".join(
            f"{share} {seconds(getattr(one.predicted, f'{share}_s'))} / {seconds(getattr(one.measured, f'{share}_s'))} "
            f"({signed_percent(one.relative_error(share))})"
            for share in SHARES
        )
        print(f"{one.name:10} predicted / measured: {columns}")
    if compared:
        print(trust_sentence(compared))


def _print_fit(fit: StepTimeFit) -> None:
    """The fit, for people."""
    print(f"{fit.source}: {int(fit.kept.sum()):,} of {len(fit.log):,} steps used")
    for reason, num in fit.left_out:
        print(f"  left out: {num:,} {reason}")
    print(f"d = {seconds(fit.typical_decode_s)} for a decode-only step of {fit.typical_num_seqs} requests")
    for coefficient in fit.coefficients:
        print(
            f"  {coefficient.name:24} {seconds(coefficient.value):>9}  "
            f"(95 %: {seconds(coefficient.low)} to {seconds(coefficient.high)})"
        )
    print(
        f"error on held-out steps: median {100 * fit.held_out_median:.1f} %, mean {100 * fit.held_out_mape:.1f} %, "
        f"p95 {100 * fit.held_out_p95:.1f} %; "
        f"predicted total time {100 * fit.total_time_ratio:.1f} % of measured"
    )
    _say_remedies(fit)


def _say_remedies(calibration: StepTimeFit | UnfitStepLog) -> None:
    """On standard error: what to record next, with the lines to paste."""
    for remedy in what_to_record(calibration):
        print(f"To record next: {remedy.sentence}", file=sys.stderr)
        for line in (remedy.serve, remedy.bench):
            if line:
                print(f"    {line}", file=sys.stderr)


def _print_plan(plan: Recommendation, today: EngineConfig | None) -> None:
    """The answer, for people; `today` where a log states what really runs today."""
    print(verdict(plan).sentence)
    for sentence in (*confidence_sentences(plan), kv_sentence(plan)):
        if sentence is not None:
            print(sentence)
    if plan.best is not None:
        if today is not None:
            print(f"\nChange these flags of today's command:\n{serve_command(plan.best.engine_config, today)}")
        print(f"\nIn full:\n{serve_command(plan.best.engine_config)}\n")
        if plan.best.engine_config.speculative_method is not None:
            print("Keep your own --speculative-config: the answer holds with the drafts simulated, named below.")
    print(f"Target: {slo_sentence(plan.slo, plan.objective)}")
    print(f"Why: {' '.join([binding_constraint(plan), *no_op_flags(plan)])}")
    if plan.extrapolated_share:
        print(f"{100 * plan.extrapolated_share:.1f} % of the steps lie outside the calibrated range.")
    config = plan.today.engine_config
    print(f"Simulated: {'; '.join(rules_in_force(config))}; KV cache of {config.num_kv_tokens:,} tokens.")
    answer = ("recommended", plan.best) if plan.best is not None else ("closest", plan.closest)
    columns = [("today", plan.today), answer, ("vLLM default", plan.vllm_default)]
    for name, candidate in columns:
        summary = candidate.summary
        c = candidate.engine_config
        print(
            f"{name:13} {c.max_num_batched_tokens:6} / {c.max_num_seqs:4} / {c.long_prefill_token_threshold:5}  "
            f"ITL p50 {seconds(summary.itl.p50_s)}, p99 {seconds(summary.itl.p99_s)}, "
            f"worst {seconds(summary.itl.max_s)}, stalled {seconds(summary.stalled_s)}; "
            f"TTFT p50 {seconds(summary.ttft.p50_s)}, "
            f"p99 {seconds(summary.ttft.p99_s)}; {summary.num_preemptions:,} preemptions"
            + ("; unstable, these depend on the length of the trace" if summary.is_unstable else "")
            + "".join(f"; {name} {getattr(c, name)}" for name in plan.space.searched if name in MORE)
        )
    reasons: dict[str, int] = {}
    for _, rejection in plan.losers:
        reasons[rejection.reason.value] = reasons.get(rejection.reason.value, 0) + 1
    print(f"Losers: {', '.join(f'{num} {reason}' for reason, num in sorted(reasons.items()))}.")
    if plan.best is None:
        for violation in plan.closest.violations:
            print(f"Closest: {rejection_sentence(violation)}")


if __name__ == "__main__":
    sys.exit(main())
