"""A plan file opens to the plan it was written from, and nothing else opens."""

import json
from dataclasses import replace

import numpy as np
import pytest
from traces_by_hand import chat_trace, trace_of

from planner.engine_config import EngineConfig
from planner.errors import BadPlan
from planner.plan_file import open_plan, read_plan, save_plan, write_plan
from planner.search import SEARCHED, More, SearchSpace, recommend
from planner.slo import Slo
from planner.step_time import TERMS, Covered, SavedModel, StepTime
from traces.answers import ReadAnswers
from traces.steps import ServerFacts

TODAY = EngineConfig(max_num_batched_tokens=8192, max_num_seqs=64, num_gpu_blocks=4001)
STEP_TIME = StepTime(8_000_000, 60_000, 60_000)
SPACE = SearchSpace((512, 1024, 8192), (64,), (0, 200))


def saved_plan(itl_ms=80.0, trace=None, model=STEP_TIME, **options):
    trace = chat_trace(120) if trace is None else trace
    slo = Slo(itl_s=itl_ms / 1e3)
    plan = recommend(trace, model, TODAY, slo, default_flags=(8192, 1024), **{"space": SPACE} | options)
    return save_plan(plan, trace, model, trace_name="chats.parquet", answers=ReadAnswers(arrival_unit="ms"))


@pytest.fixture(scope="module")
def text():
    return write_plan(saved_plan())


@pytest.mark.parametrize("itl_ms", [80, 5])
def test_an_opened_plan_is_written_with_the_same_bytes(itl_ms):
    written = write_plan(saved_plan(itl_ms))
    assert write_plan(read_plan(written)) == written


def test_numbers_that_do_not_exist_come_back_too():
    """One request of one token: no gap, no span, and the calibration does not say what it covers."""
    covered = Covered(64, 8192, float("nan"))
    model = SavedModel(
        STEP_TIME, (), np.zeros((0, len(TERMS))), None, None, ServerFacts(), covered, None, None, "m.json", "ab12"
    )
    written = write_plan(saved_plan(trace=trace_of((0.0, 5, 1)), model=model))
    assert write_plan(read_plan(written)) == written


def test_further_flags_and_finalists_come_back_too():
    more = More(max_num_active_seqs=(16, None), watermark=(0.0, 0.05), scheduling_policy=("fcfs",))
    made = saved_plan(space=replace(SPACE, more=more))
    written = write_plan(made)
    opened = read_plan(written)
    assert write_plan(opened) == written
    assert repr(opened) == repr(made)
    assert opened.recommendation.space.more == more
    assert {c.engine_config.watermark for c in opened.recommendation.candidates} == {0.0, 0.05}
    assert opened.recommendation.finalists


def test_a_plan_of_a_release_without_them_opens(text):
    document = json.loads(text)
    del document["finalists"], document["space"]["more"], document["digest"]
    opened = read_plan(json.dumps(document)).recommendation
    assert opened.finalists == ()
    assert opened.space.searched == SEARCHED


def test_an_opened_plan_is_the_plan(text):
    made, opened = saved_plan(), read_plan(text)
    assert repr(opened) == repr(made)
    assert opened.recommendation.best in opened.recommendation.candidates
    assert opened.trace.answers.arrival_unit == "ms"


@pytest.mark.parametrize("itl_ms", [80, 5])
def test_the_document_stands_on_its_own(itl_ms):
    made = saved_plan(itl_ms)
    document = json.loads(write_plan(made))
    assert document["version"] == 1
    assert document["trace"]["digest"] == made.recommendation.trace_digest
    assert document["simulated"]["vllm"] == "0.32"
    assert document["model"]["step_time"]["base_ns"] == 8_000_000
    assert document["slo"]["itl_s"] == itl_ms / 1e3
    assert (document["recommended"] is None) == (itl_ms == 5)
    assert (document["command"] is None) == (itl_ms == 5)
    assert {loser["reason"] for loser in document["losers"]} <= {"itl", "later_tokens", "unstable", "no_better"}
    assert all(loser["measured"] >= loser["limit"] for loser in document["losers"])


def changed(text, *path, to):
    """The same file with one thing changed."""
    document = json.loads(text)
    place = document
    for name in path[:-1]:
        place = place[name]
    if to is None:
        del place[path[-1]]
    else:
        place[path[-1]] = to
    return json.dumps(document)


@pytest.mark.parametrize(
    ("path", "to", "words"),
    [
        (("version",), 2, "version: found 2; allowed: 1"),
        (("version",), None, 'without "version"'),
        (("slo",), None, "'slo' is missing"),
        (("model", "step_time"), None, "'step_time' is missing"),
        (("simulated",), None, "'rules' is missing"),
        (("slo", "itl_s"), "80 ms", "slo.itl_s: found '80 ms'; allowed: a number"),
        (("objective",), "cheapest", "objective: found 'cheapest'; allowed: lowest_ttft"),
        (("today", "summary", "num_steps"), 1.5, "today.summary.num_steps: found 1.5; allowed: a whole number"),
        (("today", "summary", "num_steps"), 7, "; the rest of the file gives 7"),
        (("closest", "flags", "max_num_seqs"), 7, "closest: its flags are among neither"),
        (("losers", 0, "reason"), "ugly", "losers[0].reason"),
        (("losers",), [1], "losers: allowed: a list of objects"),
        (("recommended", "violations"), "none", "recommended.violations"),
        (("trace", "answers", "arrival_unit"), "h", "arrival_unit is 'h'"),
        (("colour",), "red", "colour: not known"),
    ],
)
def test_a_broken_file_is_refused_with_the_place(text, path, to, words):
    with pytest.raises(BadPlan) as fault:
        read_plan(changed(text, *path, to=to), "mine.json")
    assert str(fault.value).startswith("mine.json: ")
    assert words in str(fault.value)


@pytest.mark.parametrize(
    ("path", "to"),
    [
        (("sentence",), "Met: p99 token gap 1 ms."),
        (("slo", "itl_s"), 0.05),
        (("command",), "vllm serve MODEL"),
        (("trace", "digest"), "00"),
        (("model", "step_time", "base_ns"), 1),
        (("num_replays",), 1),
        (("losers", 0), None),
        (("digest",), "00"),
    ],
)
def test_a_file_that_was_changed_is_refused_though_it_fits_together(text, path, to):
    with pytest.raises(BadPlan, match="digest: not that of what the file says"):
        read_plan(changed(text, *path, to=to))


def test_a_file_that_was_only_laid_out_anew_opens(text):
    """Other spaces, another order, and whole numbers without their point, as other programs write them."""
    document = json.loads(text, parse_float=lambda word: int(float(word)) if float(word).is_integer() else float(word))
    opened = read_plan(json.dumps(dict(reversed(document.items()))))
    assert json.loads(write_plan(opened)) == json.loads(text)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"version": NaN, "recommended": null}', "{}"])
def test_what_is_no_plan_is_refused(text):
    with pytest.raises(BadPlan, match="A plan file is what"):
        read_plan(text)


def test_half_a_file_is_refused(text):
    with pytest.raises(BadPlan, match="not JSON"):
        read_plan(text[: len(text) // 2])


def test_a_file_that_cannot_be_read_is_said(tmp_path, text):
    (tmp_path / "plan.json").write_text(text, encoding="utf-8")
    assert write_plan(open_plan(str(tmp_path / "plan.json"))) == text
    with pytest.raises(BadPlan, match="cannot be read"):
        open_plan(str(tmp_path / "absent.json"))
    (tmp_path / "latin.json").write_bytes(b'{"version": "\xe9"}')
    with pytest.raises(BadPlan, match="cannot be read"):
        open_plan(str(tmp_path / "latin.json"))


def test_everything_wrong_is_listed(text):
    twice = changed(changed(text, "slo", "itl_s", to="x"), "space", "max_num_seqs", to=[1.5])
    with pytest.raises(BadPlan) as fault:
        read_plan(twice)
    assert "slo.itl_s" in str(fault.value)
    assert "space.max_num_seqs[0]" in str(fault.value)
