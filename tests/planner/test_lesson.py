"""The toy replay of the method page obeys the rule that the page teaches."""

import pytest

from planner.inside.lesson import LONG, TOY, lesson, toy_config
from planner.inside.recording import HeldBy

SETTINGS = [(16, 0, 128), (8, 0, 128), (32, 0, 128), (16, 4, 128), (16, 0, 72), (8, 4, 72)]


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_step_closes_gaps_within_the_budget(setting: tuple[int, int, int]) -> None:
    config = toy_config(*setting)
    turns = lesson(config)
    for turn in turns:
        given = [share for share in turn.shares if share.num_tokens]
        assert sum(share.num_tokens for share in given) <= config.max_num_batched_tokens
        assert len(given) <= config.max_num_seqs
        assert all(0 <= share.num_tokens <= share.gap for share in turn.shares)
        assert len({share.request for share in turn.shares}) == len(turn.shares)
    # Each output token is sampled by a step that closes a gap.
    closed = [share.request for turn in turns for share in turn.shares if share.num_tokens == share.gap]
    assert [closed.count(request) for request in range(len(TOY))] == TOY.output_tokens.tolist()


def test_time_is_the_equation() -> None:
    step_time = lesson(toy_config())[0].row
    # Two prompts of 6 and 4 tokens: 8 ms + 2 requests at 0.5 ms + 10 prefill tokens at 2 ms.
    assert step_time.end_s - step_time.start_s == pytest.approx(0.029)


def test_the_budget_cuts_the_long_prompt_and_seats_make_the_last_wait() -> None:
    turns = lesson(toy_config())
    chunks = [share.num_tokens for turn in turns for share in turn.shares if share.request == LONG]
    assert chunks[:3] == [14, 14, 12]
    assert {turn.row.held_by for turn in turns} >= {HeldBy.SEAT, HeldBy.BUDGET}
    capped = lesson(toy_config(threshold=4))
    assert max(share.num_tokens for turn in capped for share in turn.shares if share.request == LONG) == 4


def test_a_short_kv_cache_preempts_and_what_was_computed_is_computed_again() -> None:
    assert not any(turn.row.preempted for turn in lesson(toy_config()))
    turns = lesson(toy_config(num_kv_tokens=72))
    lost = sum(share.num_tokens for turn in turns for share in turn.row.preempted)
    computed = sum(share.num_tokens for turn in turns for share in turn.shares)
    assert lost > 0
    assert computed == TOY.prompt_tokens.sum() + TOY.output_tokens.sum() - len(TOY) + lost
