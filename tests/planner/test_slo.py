"""Targets of a class in one line of words."""

import pytest

from planner.slo import ClassTarget, read_class_target


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("prompt=1-1000,ttft_ms=500", ClassTarget(1, 1000, ttft_s=0.5)),
        ("prompt=2000-, worst_gap_ms=900, e2e_ms=70000", ClassTarget(2000, None, e2e_s=70.0, worst_gap_s=0.9)),
        ("priority=-1,ttft_ms=1", ClassTarget(priority=-1, ttft_s=0.001)),
        ("column=model=a=b,itl_ms=40", ClassTarget(label=("model", "a=b"), itl_s=0.04)),
        ("stalled_percent=2", ClassTarget(stalled_share=0.02)),
    ],
)
def test_words_make_a_class(text, target):
    assert read_class_target(text) == target


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "write it as"),
        ("ttft_ms", "write it as"),
        ("prompt=a-b,ttft_ms=5", "write it as"),
        ("colour=1", "known are prompt, priority"),
        ("ttft=5", "write it as"),
        ("column=model,itl_ms=5", "write it as"),
        ("prompt=1-9", "needs a limit above 0"),
        ("ttft_ms=0", "needs a limit above 0"),
        ("ttft_ms=nan", "needs a limit above 0"),
        ("ttft_ms=inf", "needs a limit above 0"),
        ("prompt=9-1,ttft_ms=5", "no prompt has 9 tokens or more and at most 1"),
        ("prompt=1-9,prompt=2-3,ttft_ms=5", "names one thing twice"),
        ("stalled_percent=101", "no more than 100 percent"),
    ],
)
def test_other_words_are_refused(text, words):
    with pytest.raises(ValueError, match=words):
        read_class_target(text)
