"""The toy replay, drawn."""

from app.figures.lesson import FADED, who_got_tokens
from planner.inside.lesson import TOY, lesson, toy_config


def test_columns_are_the_steps_and_the_chosen_one_stands_out() -> None:
    turns = lesson(toy_config())
    figure = who_got_tokens(turns, 16, current=4)
    heights = dict.fromkeys(range(1, len(turns) + 1), 0)
    for bar in figure.data:
        for number, tokens, opacity in zip(bar.x, bar.y, bar.marker.opacity, strict=True):
            heights[number] += tokens
            assert opacity == (1.0 if number == 5 else FADED)
    assert list(heights.values()) == [sum(share.num_tokens for share in turn.shares) for turn in turns]
    assert [bar.name for bar in figure.data if bar.showlegend] == ["decode", "prefill"]
    assert len(figure.data) == 2 * len(TOY)
    assert figure.layout.yaxis.title.text == "Tokens computed [tokens]"
    assert figure.layout.annotations[0].text == "budget 16 tokens"
