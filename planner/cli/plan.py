"""`planner plan`: the flags that meet the targets."""

import argparse
from functools import partial
from typing import Any

from planner.candidates import Candidate
from planner.cli.inputs import asked_answers, asked_search, asked_slo, bad_usage
from planner.cli.options import add_answers, add_flags, add_json, add_judged, add_trace
from planner.cli.outputs import NOT_MET, OK, Progress, check_output, write
from planner.command import serve_command
from planner.engine_config import EngineConfig, default_flags
from planner.executors import executor_at
from planner.plan_file import save_plan, write_plan
from planner.reasons import notches, why
from planner.replay import warm_up
from planner.search import MORE, SEARCHED, Objective, Recommendation, read_more, recommend
from planner.step_time import StepTime
from planner.verdict import (
    advice,
    confidence_sentences,
    effort,
    kv_sentence,
    losers_sentence,
    rejection_sentence,
    rules_in_force,
    seconds,
    slo_sentence,
    verdict,
)
from traces.steps import ServerFacts


def add_to(commands: Any) -> None:
    """The command and its options."""
    parser = commands.add_parser("plan", help="find the flags that meet a target")
    add_trace(parser)
    add_judged(parser)
    add_flags(parser)
    parser.add_argument(
        "--search",
        action="append",
        default=[],
        metavar="FLAG[=V1,V2,…]",
        help="choose this flag among these values; may be given more than once. Searched anyway, these values "
        f"instead of the usual ones: {', '.join(SEARCHED)}. Searched as well, the usual values where none are "
        f"given: {', '.join(MORE)}",
    )
    parser.add_argument("-o", "--output", help="write the plan here, as JSON")
    add_json(parser)
    add_answers(parser)
    parser.set_defaults(run=run_plan)


def run_plan(arguments: argparse.Namespace) -> int:
    """Search the flags and print the answer."""
    slo = asked_slo(arguments)
    check_output(arguments.output)
    trace, model, today = asked_search(arguments)
    try:
        more = read_more(arguments.search, today)
    except ValueError as fault:
        raise bad_usage(f"--search {fault}") from fault
    warm_up()
    progress = Progress()
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
            on_progress=partial(_show_progress, progress),
        )
    progress.end()
    document = write_plan(save_plan(plan, trace, model, answers=asked_answers(arguments)))
    if arguments.output:
        write(arguments.output, document)
    if arguments.json:
        print(document, end="")
    else:
        is_stated = not isinstance(model, StepTime) and model.facts != ServerFacts()
        _print_plan(plan, today if is_stated else None)
    return OK if plan.best is not None else NOT_MET


def _show_progress(progress: Progress, num_done: int, num_planned: int, newest: Candidate | None) -> None:
    """How many replays are done."""
    config = newest.engine_config if newest else None
    name = f", budget {config.max_num_batched_tokens:,}, seats {config.max_num_seqs:,}" if config else ""
    progress.show(f"{num_done:,}/{num_planned:,} replays{name}")


def _print_plan(plan: Recommendation, today: EngineConfig | None) -> None:
    """The answer, for people; `today` where a log states what really runs today."""
    print(verdict(plan).sentence)
    for sentence in (*confidence_sentences(plan), kv_sentence(plan)):
        if sentence is not None:
            print(sentence)
    if plan.best is not None:
        if today is not None:
            print(f"\n{advice(plan)}\n{serve_command(plan.best.engine_config, today)}")
        print(f"\nIn full:\n{serve_command(plan.best.engine_config)}\n")
        if plan.best.engine_config.speculative_method is not None:
            print("Keep your own --speculative-config: the answer holds with the drafts simulated, named below.")
    print(f"Target: {slo_sentence(plan.slo, plan.objective)}")
    print(f"Why: {' '.join(why(plan))}")
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
    print(effort(plan))
    print("One notch on each flag:")
    for notch in notches(plan):
        summary = notch.candidate.summary
        print(
            f"  {notch.said(plan):48} ITL p{100 * plan.slo.itl_percentile:g} {seconds(summary.itl_at_percentile_s)}, "
            f"worst {seconds(summary.itl.max_s)}; TTFT p{100 * plan.slo.ttft_percentile:g} "
            f"{seconds(summary.ttft_at_percentile_s)}; "
            + ("; ".join(rejection_sentence(violation) for violation in notch.candidate.violations) or "targets met")
        )
    if plan.losers:
        print(losers_sentence(plan))
    if plan.best is None:
        for violation in plan.closest.violations:
            print(f"Closest: {rejection_sentence(violation)}")
