"""`planner compare`: two plan files side by side."""

import argparse
from typing import Any

from planner.cli.options import add_json
from planner.cli.outputs import OK, print_json
from planner.plan_comparison import Row, compare_plans, inputs_sentence, value_in_words
from planner.plan_file import open_plan

COLUMN = 28
"""Characters of a column."""


def add_to(commands: Any) -> None:
    """The command and its options."""
    parser = commands.add_parser("compare", help="two plan files side by side")
    parser.add_argument("first", metavar="A.json", help="written by planner plan -o, or on the Export page")
    parser.add_argument("second", metavar="B.json")
    add_json(parser)
    parser.set_defaults(run=run_compare)


def run_compare(arguments: argparse.Namespace) -> int:
    """Put two plan files side by side."""
    compared = compare_plans(open_plan(arguments.first), open_plan(arguments.second))
    if arguments.json:
        print_json({"inputs": compared.inputs, "answers": compared.answers, "same_inputs": not compared.changed_inputs})
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
