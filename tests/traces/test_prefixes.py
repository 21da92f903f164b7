"""Priorities and prefix hashes."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.prefixes import (
    output_limits,
    prefix_hashes,
    priorities,
    reuse_share,
    same_beginning,
    with_less_reuse,
)
from traces.requests import PrefixHashes


def lists(*rows: list[object] | None) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(rows)])


@pytest.mark.parametrize(
    ("rows", "prompts", "block_tokens"),
    [
        ([[7, 8], [7]], [1000, 512], 512),  # an id per started block
        ([[7], [7, 9]], [40, 64], 32),  # an id per full block
        ([[1] * 34], [542], 16),
        ([["a", "b"], ["a"]], [700, 100], 512),  # ids of any kind
    ],
)
def test_the_block_length_follows_from_the_number_of_ids(rows, prompts, block_tokens) -> None:
    found, notice = prefix_hashes(lists(*rows), "hash_ids", np.array(prompts))
    assert found is not None
    assert found.block_tokens == block_tokens
    assert f"one per {block_tokens} prompt tokens" in notice
    per_row = [found.ids[found.offsets[i] : found.offsets[i + 1]].tolist() for i in range(len(rows))]
    assert [len(row) for row in per_row] == [len(row) for row in rows]
    same = {id_: code for row, codes in zip(rows, per_row, strict=True) for id_, code in zip(row, codes, strict=True)}
    assert per_row == [[same[id_] for id_ in row] for row in rows]


def test_a_request_without_a_list_shares_nothing() -> None:
    found, _ = prefix_hashes(lists([3, 4], None, [3]), "hash_ids", np.array([600, 900, 512]))
    assert found is not None
    assert found.offsets.tolist() == [0, 2, 2, 3]


@pytest.mark.parametrize(
    ("rows", "words"), [([[1, 2, 3], [1]], "fits no block length"), ([[1, None], [1]], "some ids are missing")]
)
def test_hashes_that_cannot_be_right_are_not_used(rows, words) -> None:
    found, notice = prefix_hashes(lists(*rows), "hash_ids", np.array([600, 500]))
    assert found is None
    assert words in notice
    assert "upper bound" in notice


def test_priorities() -> None:
    values, notice = priorities(pa.chunked_array([pa.array([2, -1, 0], pa.int32())]), "priority")
    assert values is not None
    assert values.tolist() == [2, -1, 0]
    assert "lower runs first" in notice
    assert priorities(pa.chunked_array([pa.array([1, None])]), "priority")[0] is None
    assert "whole number" in priorities(pa.chunked_array([pa.array(["high", "low"])]), "priority")[1]


def test_output_limits() -> None:
    output = np.array([5, 7])
    values, notice = output_limits(pa.chunked_array([pa.array([16, 7])]), "max_tokens", output)
    assert values is not None
    assert values.tolist() == [16, 7]
    assert "1 requests end before it, on a stop token" in notice
    for column, words in (([16, None], "no limit"), ([4, 7], "more output tokens"), (["a", "b"], "whole number")):
        found, notice = output_limits(pa.chunked_array([pa.array(column)]), "max_tokens", output)
        assert found is None
        assert words in notice


def test_what_begins_alike_could_be_saved() -> None:
    hashes = PrefixHashes(np.array([1, 2, 1, 2, 3, 9, 2, 1]), np.array([0, 2, 5, 5, 7, 8]), 16)
    prompts = np.array([32, 40, 5, 32, 10])
    # The second shares 32 tokens, the fourth begins anew, the fifth shares all of its 10.
    assert reuse_share(hashes, prompts) == (32 + 10) / prompts.sum()
    assert reuse_share(PrefixHashes(np.zeros(0, np.int64), np.zeros(3, np.int64), 16), np.array([3, 4])) == 0.0


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=8))
def test_what_requests_share_is_a_tree(rows) -> None:
    """By comparing everybody with everybody: on one branch where everything up to there is equal, and somebody has."""
    offsets = np.cumsum([0, *map(len, rows)])
    hashes = PrefixHashes(np.array([one for row in rows for one in row], np.int64), offsets, 16)
    shared = hashes.shared
    branches = []
    for i, row in enumerate(rows):
        others = [other for j, other in enumerate(rows) if j != i]
        alike = [any(row[: k + 1] == other[: k + 1] for other in others) for k in range(len(row))]
        taken = slice(shared.offsets[i], shared.offsets[i + 1])
        branches.append(np.repeat(shared.branch[taken], np.diff([0, *shared.until[taken]])).tolist())
        assert shared.num_ids[i] == len(branches[i]) == sum(alike)
        assert len(set(branches[i])) == len(shared.branch[taken]), "a branch that was left is not taken again"
    met = {((k, one), tuple(rows[i][: k + 1])) for i, row in enumerate(branches) for k, one in enumerate(row)}
    assert len(met) == len({place for place, _ in met}) == len({prefix for _, prefix in met})
    goes_on = {prefix: {longer for _, longer in met if longer[:-1] == prefix} for _, prefix in met}
    for (k, branch), prefix in met:
        assert ((k + 1, branch) in {place for place, _ in met}) == (len(goes_on[prefix]) == 1)
    assert hashes.shared is shared, "found once"


def test_made_up_common_text_has_the_share_that_was_asked_for() -> None:
    prompts = np.random.default_rng(3).integers(100, 8000, 400)
    for share in (0.0, 0.25, 0.9):
        made = same_beginning(prompts, share)
        assert reuse_share(made, prompts) == pytest.approx(share, abs=0.01)
        assert made.ids[: made.offsets[1]].tolist() == list(range(int(np.rint(share * prompts[0] / 64))))


def test_less_is_shared_and_never_more_than_asked_for() -> None:
    # Ten conversations of eight turns: every turn begins with the whole turn before it.
    turns = [[100 * who + k for k in range(4 * (turn + 1))] for turn in range(8) for who in range(10)]
    hashes = PrefixHashes(np.concatenate(turns), np.cumsum([0, *map(len, turns)]), 16)
    prompts = np.array([16 * len(turn) for turn in turns])
    whole = reuse_share(hashes, prompts)
    assert whole == pytest.approx(1 - 10 * 8 * 4 / sum(map(len, turns)))
    for share in (0.0, 0.2, 0.5):
        less = with_less_reuse(hashes, prompts, share)
        assert share - 0.1 < reuse_share(less, prompts) <= share
        assert less.offsets.tolist() == hashes.offsets.tolist()
        first = less.ids[: hashes.offsets[10]]
        assert first.tolist() == hashes.ids[: hashes.offsets[10]].tolist(), "what nobody said before stays"


def test_who_wants_all_that_is_shared_gets_it() -> None:
    hashes = PrefixHashes(np.array([1, 2, 1, 2, 3, 1]), np.array([0, 2, 5, 6]), 16)
    assert with_less_reuse(hashes, np.array([32, 48, 16]), 1.0).ids.tolist() == hashes.ids.tolist()
