"""`planner capacity`: the load at which a target breaks, and the replicas that a growth needs."""

import argparse
from dataclasses import asdict
from functools import partial
from typing import Any

from planner.capacity import HOUR_S, LOADS, LoadPoint, find_capacity
from planner.cli.inputs import asked_answers, asked_search, asked_slo, bad_usage, check_positive
from planner.cli.options import add_answers, add_flags, add_json, add_judged, add_trace, number
from planner.cli.outputs import NOT_MET, OK, Progress, milliseconds, print_json
from planner.engine_config import VLLM_VERSION
from planner.executors import executor_at
from planner.plan_file import trace_origin
from planner.replay import warm_up
from planner.routing import Routing
from planner.step_time import step_time_of
from planner.verdict import (
    capacity_sentence,
    curve_sentence,
    rate_in_words,
    rejection_sentence,
    rules_in_force,
    seconds,
    windows_sentence,
)


def add_to(commands: Any) -> None:
    """The command and its options."""
    parser = commands.add_parser("capacity", help="find the load that breaks a target, and the replicas needed")
    add_trace(parser)
    add_judged(parser)
    add_flags(parser)
    parser.add_argument("--growth", type=number, default=1.0, help="multiple of the trace's rate to size replicas for")
    parser.add_argument(
        "--loads", type=number, nargs="+", default=LOADS, help="multiples of the trace's rate for the curve"
    )
    parser.add_argument(
        "--window-s", type=number, default=HOUR_S, help="width of the stretches that are judged one by one"
    )
    parser.add_argument("--routing", choices=[r.value for r in Routing], default=Routing.ROUND_ROBIN.value)
    add_json(parser)
    add_answers(parser)
    parser.set_defaults(run=run_capacity)


def run_capacity(arguments: argparse.Namespace) -> int:
    """Find the load at which a target breaks, and the replicas that a growth needs."""
    if min(arguments.loads) <= 0:
        raise bad_usage("--loads must be above 0")
    check_positive(arguments, "growth", "window_s")
    slo = asked_slo(arguments)
    trace, model, config = asked_search(arguments)
    warm_up()
    progress = Progress()
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
            on_point=partial(_show_point, progress),
        )
    progress.end()
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
        "trace": trace_origin(trace, answers=asked_answers(arguments)),
        "simulated": {"vllm": VLLM_VERSION, "rules": rules_in_force(config)},
    }
    if arguments.json:
        print_json(document)
    else:
        print(capacity_sentence(headroom, replicas, arguments.growth))
        print(curve_sentence(curve))
        for point in curve.points:
            summary = point.candidate.summary
            print(
                f"  {point.load:5.3g} times  {rate_in_words(point.requests_per_s):>8} requests/s  "
                f"ITL p{100 * slo.itl_percentile:g} {seconds(summary.itl_at_percentile_s):>8}  "
                f"TTFT p{100 * slo.ttft_percentile:g} {seconds(summary.ttft_at_percentile_s):>8}"
                + ("  unstable, these depend on the length of the trace" if summary.is_unstable else "")
            )
        print(windows_sentence(found.windows))
    return OK if replicas.num_replicas is not None else NOT_MET


def _show_point(progress: Progress, point: LoadPoint) -> None:
    """The load that was tried last."""
    progress.show(f"load {point.load:.3g}: {'met' if point.candidate.meets else 'missed'}")


def _load_point(point: LoadPoint) -> dict[str, Any]:
    """A load tried, in the units of `planner replay`."""
    summary = point.candidate.summary
    return {
        "load": point.load,
        "requests_per_s": point.requests_per_s,
        "meets": point.candidate.meets,
        "unstable": summary.is_unstable,
        "itl_ms": milliseconds(summary.itl),
        "ttft_ms": milliseconds(summary.ttft),
        "violations": [rejection_sentence(violation) for violation in point.candidate.violations],
    }
