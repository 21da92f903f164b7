"""The reference experiments, to the printed digit."""

import pytest
from traces_by_hand import trace_of

from planner.cli.main import main
from planner.engine_config import EngineConfig
from planner.errors import BadFlags
from planner.experiments import STEP_TIME, run_experiment_a, run_experiment_b, what_if_rows_a, what_if_rows_b
from planner.inside.phases import PhaseKind, life_of
from planner.replay import replay
from planner.step_time import StepTime
from planner.what_if import WhatIf

PUBLISHED = """\
 budget threshold  long TTFT  short TTFT  ITL p50   p99   max
   2048         0      821ms       893ms   10.9ms    51    51
   8192         0      705ms       776ms   10.9ms   174   174
  32768         0      670ms       726ms   10.9ms    69   665
   8192      2048      902ms       133ms   10.9ms   153   174
 max_num_seqs  preemptions  recomputed  worst stall  makespan
           32           13       9,734       4055ms      9.7s
           24            5       4,364       2001ms     11.1s
           16            0           0          9ms     11.0s
"""


def test_tables_are_the_published_ones(capsys):
    assert main(["tables"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(PUBLISHED)
    what_if = printed.removeprefix(PUBLISHED).splitlines()
    assert what_if[0] == "What if: these rows are not what vLLM does with the settings above"
    assert len(what_if) == 1 + len(what_if_rows_a()) + len(what_if_rows_b())


def test_what_other_policies_make_of_the_experiments():
    """Priority reorders the queue, whole prompts freeze the chats, and the newest has the fewest computed tokens."""
    priority, orca, sarathi = (row for _, row in what_if_rows_a())
    plain, threshold = run_experiment_a(8192, 0), run_experiment_a(8192, 2048)
    assert threshold.short_ttft_s < priority.short_ttft_s < plain.short_ttft_s
    assert priority.itl_max_s == pytest.approx(plain.itl_max_s, abs=0.001), "priority does not smooth the chats"
    assert orca.itl_max_s > run_experiment_a(32_768, 0).itl_max_s
    assert sarathi.itl_max_s < run_experiment_a(2048, 0).itl_max_s < orca.itl_max_s
    fewest, swapped = what_if_rows_b()[:2], what_if_rows_b()[2:]
    assert [row for _, row in fewest] == [run_experiment_b(32), run_experiment_b(24)]
    for (_, swap), (_, recompute) in zip(swapped, fewest, strict=True):
        assert swap.num_preemptions == recompute.num_preemptions
        assert swap.num_recomputed_tokens == 0
        assert swap.worst_gap_s < recompute.worst_gap_s


def test_fewest_computed_recomputes_less_when_the_newest_is_not_the_shortest():
    trace = trace_of((0.0, 30, 60), (0.0, 20, 60), (0.0, 200, 60))
    config = EngineConfig(
        num_gpu_blocks=25, block_size=16, async_scheduling=False, enable_prefix_caching=False,
    )  # fmt: skip
    newest = replay(trace, config, STEP_TIME)
    fewest = replay(trace, config, STEP_TIME, what_if=WhatIf(evicts_fewest_computed=True))
    assert newest.num_preemptions.tolist() == [0, 0, 1]
    assert fewest.num_preemptions.tolist() == [0, 1, 0]
    assert fewest.num_recomputed.sum() < newest.num_recomputed.sum()
    assert fewest.what_if.label.startswith("Not what vLLM does: the victim")
    assert newest.what_if == WhatIf()
    assert newest.what_if.label == ""


def test_swapping_costs_its_bandwidth_and_nothing_else():
    """Preempted with 32 tokens in the cache, as in the metrics' example: they leave and return at 1 ms each."""
    trace = trace_of((0.0, 16, 30), (0.0, 16, 30))
    config = EngineConfig(
        max_num_batched_tokens=100, max_num_seqs=8, num_gpu_blocks=5, async_scheduling=False,
        enable_prefix_caching=False,
    )  # fmt: skip
    free, dear = (
        replay(trace, config, StepTime(10_000_000, 0, 0), what_if=WhatIf(swap_ns_per_token=ns)) for ns in (0, 1_000_000)
    )
    assert free.num_preemptions.tolist() == dear.num_preemptions.tolist() == [0, 1]
    assert free.num_recomputed.tolist() == [0, 0]
    assert dear.end_s - free.end_s == pytest.approx(2 * 32 * 0.001)
    kinds = [phase.kind for phase in life_of(trace, dear, 1).phases]
    assert PhaseKind.RECOMPUTE not in kinds
    assert PhaseKind.PREEMPTED in kinds


@pytest.mark.parametrize(
    ("config", "swap_ns", "words"),
    [
        (EngineConfig(), 1, "without prefix caching"),
        (EngineConfig(enable_prefix_caching=False), -1, "0 or more"),
        (
            EngineConfig(enable_prefix_caching=False, speculative_method="ngram_gpu", num_speculative_tokens=2),
            1,
            "without speculative decoding",
        ),
    ],
)
def test_what_is_not_modelled_is_refused(config, swap_ns, words):
    with pytest.raises(BadFlags, match=words):
        replay(trace_of((0.0, 1, 1)), config, STEP_TIME, what_if=WhatIf(swap_ns_per_token=swap_ns))


def test_row_that_the_table_invites_lies_between_its_neighbours():
    """Budget 4,096 with threshold 1,024: smoother than 8,192 with 2,048, dearer for the long prompt."""
    row, looser, tighter = run_experiment_a(4096, 1024), run_experiment_a(8192, 2048), run_experiment_a(2048, 512)
    assert tighter.itl_p99_s < row.itl_p99_s < looser.itl_p99_s
    assert looser.long_ttft_s < row.long_ttft_s < tighter.long_ttft_s
    assert row.long_ttft_s == pytest.approx(1.07048)
    assert row.itl_max_s == pytest.approx(0.09226)
