"""`planner tables`: the reference experiments."""

import argparse
from typing import Any

from planner import experiments
from planner.cli.outputs import OK


def add_to(commands: Any) -> None:
    """The command, which has no options."""
    commands.add_parser("tables", help="the reference experiments").set_defaults(run=run_tables)


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
