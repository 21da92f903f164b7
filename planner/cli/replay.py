"""`planner replay`: a trace under one configuration, and how that compares with what was measured."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from planner.cli.inputs import asked_answers, asked_replay, bad_usage, check_positive
from planner.cli.options import add_answers, add_flags, add_json, add_model, add_trace, number
from planner.cli.outputs import OK, milliseconds, print_json, say
from planner.engine_config import VLLM_VERSION, EngineConfig
from planner.measured import SHARES, Comparison, compare, mismatches, served, signed_percent, trust_sentence
from planner.metrics import Summary, summarise
from planner.plan_file import trace_origin
from planner.replay import Replay, replay, warm_up
from planner.step_time import SavedModel, StepTime, step_time_of
from planner.verdict import not_simulated, rules_in_force, seconds
from traces.measured import read_measured
from traces.requests import WHOLE, RequestTrace


def add_to(commands: Any) -> None:
    """The command and its options."""
    parser = commands.add_parser("replay", help="replay a trace under one configuration")
    add_trace(parser)
    add_model(parser)
    add_flags(parser)
    parser.add_argument("--measured", help="what was measured under these flags, in any form that the README names")
    parser.add_argument("--itl-ms", type=number, default=80.0, help="gap above which a stream counts as stalled")
    add_json(parser)
    add_answers(parser)
    parser.set_defaults(run=run_replay)


def run_replay(arguments: argparse.Namespace) -> int:
    """Replay one configuration and print what happened."""
    check_positive(arguments, "itl_ms")
    trace, model, config = asked_replay(arguments)
    warm_up()
    run = replay(trace, config, step_time_of(model), keeps_steps=False)
    summary = summarise(run, arguments.itl_ms / 1e3)
    compared = _compared(arguments, trace, config, model) if arguments.measured else ()
    if arguments.json:
        document = _document(trace, run, summary, arguments.itl_ms)
        print_json(document | ({"measured": _comparison_document(compared)} if compared else {}))
    else:
        _print(trace, run, summary)
        _print_comparison(compared)
    return OK


def _compared(
    arguments: argparse.Namespace, trace: RequestTrace, config: EngineConfig, model: SavedModel | StepTime
) -> tuple[Comparison, ...]:
    """The replay beside what was measured."""
    if trace.selection != WHOLE:
        raise bad_usage("--measured needs the whole trace: its requests are those that were measured")
    measured = read_measured(Path(arguments.measured), answers=asked_answers(arguments))
    for mismatch in mismatches(trace, measured):
        say(f"{arguments.measured}: {mismatch}")
    return compare(served(trace, config, model), measured)


def _document(trace: RequestTrace, run: Replay, summary: Summary, itl_ms: float) -> dict[str, Any]:
    """The JSON of `planner replay`."""
    return {
        "requests": summary.num_requests,
        "finished": summary.num_finished,
        "never_run": summary.num_never_run,
        "never_run_rows": (trace.source_row[run.never_runs] + 1).tolist(),
        "outcome": summary.outcome,
        "unstable": summary.is_unstable,
        "steps": summary.num_steps,
        "preemptions": summary.num_preemptions,
        "prefix_hit_share": summary.hit_share,
        "preempted_requests": int((run.num_preemptions > 0).sum()),
        "recomputed_tokens": summary.num_recomputed_tokens,
        "gaps": summary.num_gaps,
        "itl_ms": milliseconds(summary.itl),
        "worst_gap_ms": 1e3 * summary.itl.max_s,
        "stalled_s": summary.stalled_s,
        "stalled_above_ms": itl_ms,
        "ttft_ms": milliseconds(summary.ttft),
        "tpot_ms": milliseconds(summary.tpot),
        "e2e_ms": milliseconds(summary.e2e),
        "queue_ms": milliseconds(summary.queue),
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


def _print(trace: RequestTrace, run: Replay, summary: Summary) -> None:
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
            "predicted_ms": milliseconds(one.predicted),
            "reach_of_runs_ms": {share: [1e3 * end_s for end_s in one.reach_s(share)] for share in SHARES},
            "measured_ms": milliseconds(one.measured),
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
