"""The `planner` command as installed: `planner.cli`, and the report that needs the figures."""

import sys

from planner.cli import main as cli
from planner.plan_file import SavedPlan


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    return cli.main(argv, html_report=_html_report)


def _html_report(saved: SavedPlan) -> str:
    """Draw the report; plotly is loaded by those who ask for it only."""
    from app.report import plan_report

    return plan_report(saved)


if __name__ == "__main__":
    sys.exit(main())
