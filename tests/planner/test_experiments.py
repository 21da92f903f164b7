"""The reference experiments, to the printed digit."""

import pytest

from planner.cli import main
from planner.experiments import run_experiment_a

PUBLISHED = """\
 budget threshold  long TTFT  short TTFT  ITL p50   p99   max
   2048         0      821ms       893ms   10.9ms    51    51
   8192         0      705ms       776ms   10.9ms   174   174
  32768         0      670ms       726ms   10.9ms    69   665
   8192      2048      902ms       133ms   10.9ms   153   174
 max_num_seqs  preemptions  recomputed  worst stall  makespan
           32           13       9,734     4055ms      9.7s
           24            5       4,364     2001ms     11.1s
           16            0           0        9ms     11.0s
"""


def test_tables_are_the_published_ones(capsys):
    assert main(["tables"]) == 0
    printed = capsys.readouterr().out
    assert [line.split() for line in printed.splitlines()] == [line.split() for line in PUBLISHED.splitlines()]


def test_row_that_the_table_invites_lies_between_its_neighbours():
    """Budget 4,096 with threshold 1,024: smoother than 8,192 with 2,048, dearer for the long prompt."""
    row, looser, tighter = run_experiment_a(4096, 1024), run_experiment_a(8192, 2048), run_experiment_a(2048, 512)
    assert tighter.itl_p99_s < row.itl_p99_s < looser.itl_p99_s
    assert looser.long_ttft_s < row.long_ttft_s < tighter.long_ttft_s
    assert row.long_ttft_s == pytest.approx(1.07048)
    assert row.itl_max_s == pytest.approx(0.09226)
