"""Kernel and naive model agree exactly on whatever hypothesis thinks of; the laws hold on every run."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_runs import limits, run_kernel, run_naive
from traces_by_hand import trace_of

from planner import kernel
from planner.engine_config import EngineConfig
from planner.replay import NO_CAPS, NO_NOISE, WHOLE_REPLAY, Beginnings, kernel_blocks, replay
from planner.step_time import StepTime
from planner.stepper import Engine
from traces.requests import PrefixHashes, RequestTrace

COMPARED = ("outcome", "end_ns", "steps", "token_step", "preemptions", "unfinished")


BASIC = {
    "max_num_batched_tokens": 64, "max_num_scheduled_tokens": None, "max_num_seqs": 8, "max_num_active_seqs": None,
    "long_prefill_token_threshold": 0, "long_prefill_token_threshold_adaptive": False,
    "enable_chunked_prefill": True, "scheduler_reserve_full_isl": False, "watermark": 0.0, "async_scheduling": True,
    "max_model_len": 10**6, "block_size": 4, "num_blocks": 60, "enable_prefix_caching": False, "policy": "fcfs",
    "spec": None,
}  # fmt: skip
EXAMPLES = int(os.environ.get("KERNEL_EXAMPLES", "2000"))
"""Scenarios per comparison; set it to 100000 for a night."""
ID_BLOCK_TOKENS = 6
"""Neither divides nor is divided by the block sizes below."""


@st.composite
def scenarios(draw):
    """Small pools, small budgets, arrivals that meet step ends: everything collides with everything."""
    block_size = draw(st.sampled_from([1, 4, 16]))
    num_blocks = draw(st.integers(3, 40))
    room = (num_blocks - 1) * block_size
    request = st.fixed_dictionaries(
        {
            "arrival_ns": st.integers(0, 30).map(lambda i: i * 500),
            "prompt": st.integers(1, max(1, room)),
            "out": st.integers(1, 12),
            "priority": st.integers(0, 2),
            "ids": st.lists(st.integers(0, 1), max_size=room // ID_BLOCK_TOKENS + 2),
        }
    )
    requests = draw(st.lists(request, min_size=1, max_size=9))
    for r in requests:
        r["max_tokens"] = r["out"] + draw(st.sampled_from([0, 0, 1, 5]))
    budget = draw(st.integers(2, 40))
    num_seqs = draw(st.integers(1, min(budget, 6)))
    method = draw(st.sampled_from([None, None, "ngram", "ngram_gpu", "eagle", "draft_model"]))
    drafts = {"method": method, "k": draw(st.integers(1, 3)), "accept": draw(st.lists(st.integers(0, 3), min_size=1))}
    return requests, {
        "max_num_batched_tokens": budget,
        "max_num_scheduled_tokens": draw(st.none() | st.integers(1, 50)),
        "max_num_seqs": num_seqs,
        "max_num_active_seqs": draw(st.none() | st.integers(1, num_seqs)),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 1, 3, 10])),
        "long_prefill_token_threshold_adaptive": draw(st.booleans()),
        "enable_chunked_prefill": draw(st.booleans()),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.05, 0.3])),
        "async_scheduling": draw(st.booleans()) and method != "ngram",
        "max_model_len": draw(st.sampled_from([10**9, max(2, room), max(2, room // 2)])),
        "block_size": block_size,
        "num_blocks": num_blocks,
        "enable_prefix_caching": draw(st.booleans()),
        "policy": draw(st.sampled_from(["fcfs", "priority"])),
        "spec": None if method is None else drafts,
    }


STEP_TIMES = st.builds(
    StepTime,
    st.integers(1, 3000),
    st.integers(0, 500),
    st.integers(0, 200),
    st.sampled_from([0.0, 17.25]),
    st.sampled_from([0.0, 0.375]),
    st.sampled_from([0.0, 1.5]),
    st.sampled_from([0.0, 0.125]),
    st.sampled_from([0, 9]),
    st.sampled_from([0.0, 0.25]),
    st.sampled_from([0.0, 2.5]),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from([0.0, 4.75]),
    st.sampled_from([0.0, 1.75]),
    st.sampled_from([0.0, 3.5]),
)


@settings(max_examples=EXAMPLES)
@given(scenarios(), STEP_TIMES)
def test_kernel_is_the_naive_model(scenario, step_time):
    requests, config = scenario
    requests = [r for r in requests if r["prompt"] < config["max_model_len"]]
    theirs = run_naive(requests, config, step_time, 600, ID_BLOCK_TOKENS)

    ours = run_kernel(requests, config, step_time, 600, ID_BLOCK_TOKENS)

    assert {name: ours[name] for name in COMPARED} == {name: theirs[name] for name in COMPARED}
    assert gaps_of(ours) == sorted(gap for times in token_times(theirs) for gap in np.diff(times).tolist())


@settings(max_examples=EXAMPLES // 10)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 3, 4, 6, 9, 12]),
    st.integers(10, 120),
    st.sampled_from([None, None, "eagle"]),
    st.sampled_from(["fcfs", "priority"]),
    st.booleans(),
)
def test_conversations_that_branch(seed, block_size, pool_percent, method, policy, is_async):
    """Turns that begin like others up to anywhere, in a cache that forgets: what is found, cut, grown and evicted."""
    rng = np.random.default_rng(seed)
    said = [[0], [1]]
    requests = []
    for i in range(40):
        before = said[rng.integers(len(said))]
        ids = before[: rng.integers(1, len(before) + 1)] if rng.random() < 0.3 else before
        ids = ids + [100 * i + k for k in range(10, 10 + rng.integers(0, 8))]
        said.append(ids)
        prompt = max(1, len(ids) * ID_BLOCK_TOKENS - int(rng.choice([0, 0, 1, 5])))
        requests.append(
            {"arrival_ns": int(rng.integers(0, 200)) * 500, "prompt": prompt, "out": int(rng.integers(1, 20))}
            | {"max_tokens": 30, "priority": int(rng.integers(0, 3)), "ids": ids}
        )
    longest = max(r["prompt"] + r["out"] for r in requests)
    most = max(longest + 8, sum(r["prompt"] for r in requests) * pool_percent // 200)
    config = BASIC | {
        "block_size": block_size, "num_blocks": most // block_size + 3, "enable_prefix_caching": True,
        "async_scheduling": is_async, "policy": policy, "scheduler_reserve_full_isl": bool(seed % 2),
        "max_num_batched_tokens": int(rng.choice([16, 64, 256])), "max_num_seqs": int(rng.integers(1, 9)),
        "spec": method and {"method": method, "k": 2, "accept": [0, 2, 1]},
    }  # fmt: skip
    theirs = run_naive(requests, config, StepTime(900, 70, 13), 5000, ID_BLOCK_TOKENS)

    ours = run_kernel(requests, config, StepTime(900, 70, 13), 5000, ID_BLOCK_TOKENS)

    assert {name: ours[name] for name in COMPARED} == {name: theirs[name] for name in COMPARED}


class Visited:
    """Rows, and in what order they were looked at."""

    def __init__(self, rows):
        self.rows, self.order = rows, []

    def __getitem__(self, row):
        if self.order[-1:] != [row]:
            self.order.append(row)
        return self.rows[row]


def test_a_text_that_is_held_up_to_every_block_is_walked_through_once():
    """Cut to single blocks by those who hold it, it costs a look at each, not at all before each."""
    num = 30
    num_ids = np.array([num, *range(num, 0, -1)])
    trace = RequestTrace(
        np.zeros(num + 1),
        num_ids * 16 + 1,
        np.full(num + 1, 100),
        np.arange(num + 1),
        prefix_hashes=PrefixHashes(np.concatenate([np.arange(n) for n in num_ids]), np.cumsum([0, *num_ids]), 16),
    )
    engine = Engine(trace, EngineConfig(max_num_batched_tokens=8192, max_num_seqs=64))
    engine._let_in(range(num + 1))
    engine._schedule()
    request, state, spans, paths = (
        rows.view(np.recarray) for rows in (engine.requests, engine.state, engine.spans, engine.paths)
    )
    visited = Visited(spans)

    num_hits = kernel.look_up.py_func(request[0], state[0], visited, paths, engine.table, engine.limits)

    assert state[0].num_running == num + 1
    assert num_hits == num
    assert len(visited.order) == 1 + num == len(set(visited.order)), "the branch and its blocks"


@settings(max_examples=200)
@given(scenarios(), STEP_TIMES)
def test_laws(scenario, step_time):
    requests, config = scenario
    requests = [r for r in requests if r["prompt"] < config["max_model_len"]]
    run = run_kernel(requests, config, step_time, 600, ID_BLOCK_TOKENS)
    steps, rows = run["step_rows"], run["rows"]
    usable = config["num_blocks"] - 1

    assert (np.diff(steps["start_ns"]) >= 0).all(), "the clock never steps back"
    assert (steps["start_ns"][1:] >= steps["end_ns"][:-1]).all(), "steps do not overlap"
    assert (steps["sched_ns"] <= steps["start_ns"]).all()
    assert ((steps["num_free_blocks"] >= 0) & (steps["num_free_blocks"] <= usable)).all()
    assert (steps["num_scheduled"] <= (config["max_num_active_seqs"] or config["max_num_seqs"])).all()
    tokens = steps["prefill_tokens"] + steps["num_decodes"] + steps["num_draft_tokens"]
    assert (tokens <= config["max_num_batched_tokens"]).all()
    finished = rows[rows["is_finished"]]
    assert (finished["arrival_ns"] <= finished["first_scheduled_ns"]).all()
    assert (finished["first_scheduled_ns"] < finished["first_token_ns"]).all()
    assert (finished["first_token_ns"] <= finished["last_token_ns"]).all()
    assert (rows["num_blocks"][rows["is_finished"]] == 0).all()
    if rows["is_finished"].all():
        assert run["num_free_blocks"] == usable, "free + used = total; nobody holds anything at the end"
    longest = np.minimum(finished["output_tokens"], config["max_model_len"] - finished["prompt_tokens"])
    assert (finished["num_outputs"] == longest).all(), "every finished request has all its tokens"
    if run["outcome"] == "done":
        assert rows["is_finished"].all(), "every request ends in exactly one bucket"
        assert steps["num_gaps"].sum() + len(run["gap_rows"]) == (rows["num_outputs"] - 1).clip(0).sum()


@settings(max_examples=100)
@given(scenarios(), st.integers(1, 20))
def test_true_lengths_are_invisible_to_the_scheduler(scenario, later):
    """Until the first request ends on a stop token, nothing can tell how long it will be."""
    requests, config = scenario
    requests = [r | {"max_tokens": 1000} for r in requests if r["prompt"] < config["max_model_len"]]
    step_time = StepTime(1000, 10, 10)
    longer = [r | {"out": r["out"] + later} for r in requests]

    short_run = run_kernel(requests, config, step_time, max_steps=300)["steps"]
    long_run = run_kernel(longer, config, step_time, max_steps=300)["steps"]

    first_end = next((k for k, ended in enumerate(short_run["finished"]) if ended), len(short_run["batch"]))
    for name in ("batch", "preempted", "admitted", "free_blocks", "end_ns"):
        assert short_run[name][: first_end + 1] == long_run[name][: first_end + 1]


def test_same_input_same_bytes():
    rng = np.random.default_rng(5)
    requests = [
        {"arrival_ns": int(a), "prompt": int(p), "out": int(o)}
        for a, p, o in zip(rng.integers(0, 10**6, 50), rng.integers(1, 90, 50), rng.integers(1, 30, 50), strict=True)
    ]
    config = BASIC | {"long_prefill_token_threshold": 16}
    first = run_kernel(requests, config, StepTime(1000, 10, 10))
    second = run_kernel(requests, config, StepTime(1000, 10, 10))
    for name in ("rows", "step_rows", "gap_rows"):
        assert first[name].tobytes() == second[name].tobytes()
    assert first["preemptions"] != [0] * 50


@st.composite
def what_ifs(draw):
    """Policies that vLLM does not have, on everything that they are modelled with."""
    requests, config = draw(scenarios())
    swap_ns_per_token = draw(st.sampled_from([None, None, 0, 40]))
    config |= {"victim": draw(st.sampled_from(["newest", "fewest_computed"])), "swap_ns_per_token": swap_ns_per_token}
    if swap_ns_per_token is not None:
        config |= {"enable_prefix_caching": False, "spec": None}
    return [r for r in requests if r["prompt"] < config["max_model_len"]], config


@settings(max_examples=600)
@given(what_ifs(), STEP_TIMES, st.integers(1, 20))
def test_kernel_is_the_naive_model_under_policies_that_vllm_has_not(scenario, step_time, longer):
    requests, config = scenario
    requests = [r | {"out": r["out"] * longer, "max_tokens": r["out"] * longer} for r in requests]
    theirs = run_naive(requests, config, step_time, 600, ID_BLOCK_TOKENS)
    ours = run_kernel(requests, config, step_time, 600, ID_BLOCK_TOKENS)

    assert {name: ours[name] for name in COMPARED} == {name: theirs[name] for name in COMPARED}
    same_bytes(ours, run_kernel(requests, config, step_time, 600, ID_BLOCK_TOKENS, windows=()))
    if config["swap_ns_per_token"] is not None:
        assert ours["rows"]["num_recomputed"].sum() == 0, "what is swapped is not computed again"
    if ours["outcome"] == "done":
        assert ours["num_free_blocks"] == config["num_blocks"] - 1


def test_preempting_for_ever_ends():
    """A request larger than the pool, let in by its first chunk: vLLM starts it over for ever."""
    requests = [{"arrival_ns": 0, "prompt": 400, "out": 5}]
    config = BASIC | {"async_scheduling": False, "max_num_batched_tokens": 128}
    run = run_kernel(requests, config, StepTime(1000, 0, 0), max_steps=10**9, windows=())
    assert run["outcome"] == "livelock"
    assert run["unfinished"] == [0]


def test_cancel_stops_the_replay():
    rows = np.zeros(1, kernel.REQUEST)
    rows["prompt_tokens"] = rows["num_known"] = rows["output_tokens"] = rows["max_tokens"] = 10
    limit = limits(BASIC, tracks_blocks=False)
    outcome, steps, *_ = kernel.replay(
        rows,
        np.zeros(1, kernel.ENGINE),
        *kernel_blocks(rows, Beginnings(*np.zeros((4, 1), np.int64)), limit),
        np.zeros(1, np.int64),
        limit,
        StepTime(1, 1, 1),
        NO_NOISE,
        np.zeros((0, 2), np.int64),
        NO_CAPS,
        True,
        100,
        np.ones(1, np.uint8),
    )
    assert outcome == kernel.CANCELLED
    assert len(steps) == 0


@settings(max_examples=EXAMPLES)
@given(scenarios(), STEP_TIMES, st.integers(1, 40))
def test_sleep_changes_nothing(scenario, step_time, longer):
    """Requests that just decode are counted, not visited; that leaves the same rows."""
    requests, config = scenario
    requests = [r | {"out": r["out"] * longer} for r in requests if r["prompt"] < config["max_model_len"]]
    requests = [r | {"max_tokens": r["out"] + r["priority"]} for r in requests]
    one_by_one = run_kernel(requests, config, step_time, 2000, ID_BLOCK_TOKENS)
    asleep = run_kernel(requests, config, step_time, 2000, ID_BLOCK_TOKENS, windows=())
    same_bytes(one_by_one, asleep)


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(("num_blocks", "caches", "budget"), [(5_000, False, 512), (300, False, 300), (300, True, 64)])
def test_sleep_changes_nothing_in_traffic(is_async, num_blocks, caches, budget):
    """Batches of dozens, chunked prompts, and a pool that runs short again and again."""
    rng = np.random.default_rng(3)
    lengths = zip(
        np.cumsum(rng.exponential(5e7, 250)), rng.integers(1, 900, 250), rng.integers(1, 300, 250), strict=True
    )
    requests = [
        {"arrival_ns": int(a), "prompt": int(p), "out": int(o), "max_tokens": int(o) + i % 2, "ids": [i % 3] * (i % 30)}
        for i, (a, p, o) in enumerate(lengths)
    ]
    config = BASIC | {"max_num_batched_tokens": budget, "max_num_seqs": 48, "num_blocks": num_blocks, "block_size": 16}
    config |= {"async_scheduling": is_async, "enable_prefix_caching": caches}
    step_time = StepTime(8_000_000, 60_000, 20_000, 0.0, 3.25)
    one_by_one = run_kernel(requests, config, step_time)
    same_bytes(one_by_one, run_kernel(requests, config, step_time, windows=()))
    assert one_by_one["outcome"] == "done"
    assert (sum(one_by_one["preemptions"]) > 0) == (num_blocks == 300)


@pytest.mark.parametrize("is_async", [True, False])
def test_a_prompt_that_takes_the_budget_wakes_those_behind_it(is_async):
    """The adaptive cap grows as requests finish, beyond a budget that is smaller than what it is computed from."""
    requests = [{"arrival_ns": 0, "prompt": 200, "out": 5}]
    requests += [{"arrival_ns": 0, "prompt": 1, "out": out} for out in (8, 30, 30, 30)]
    config = BASIC | {"max_num_batched_tokens": 40, "max_num_scheduled_tokens": 10, "async_scheduling": is_async}
    config |= {"long_prefill_token_threshold": 1, "long_prefill_token_threshold_adaptive": True}
    one_by_one = run_kernel(requests, config, StepTime(1000, 10, 10))
    same_bytes(one_by_one, run_kernel(requests, config, StepTime(1000, 10, 10), windows=()))
    assert [0, 10] in [entry for batch in one_by_one["steps"]["batch"] for entry in batch], "nobody else is served"


def test_a_first_token_in_the_first_steps_is_no_gap():
    """One token a step: the step that brings the first token looks like a decode."""
    requests = [{"arrival_ns": 0, "prompt": 2, "out": 3}]
    config = BASIC | {"max_num_batched_tokens": 2, "max_num_scheduled_tokens": 1, "max_num_seqs": 1}
    run = run_kernel(requests, config, StepTime(1, 0, 0), windows=())
    assert run["step_rows"]["num_gaps"].tolist() == [0, 0, 1, 1]


@settings(max_examples=400)
@given(scenarios(), STEP_TIMES, st.lists(st.integers(0, 60), max_size=6, unique=True), st.integers(1, 20))
def test_a_window_records_the_events_of_its_steps_and_changes_nothing(scenario, step_time, borders, longer):
    requests, config = scenario
    requests = [r | {"out": r["out"] * longer} for r in requests if r["prompt"] < config["max_model_len"]]
    requests = [r | {"max_tokens": r["out"]} for r in requests]
    borders_ns = [border * 500 for border in sorted(borders)[: len(borders) // 2 * 2]]
    windows = tuple(zip(borders_ns[::2], borders_ns[1::2], strict=True))
    whole = run_kernel(requests, config, step_time, 2000, ID_BLOCK_TOKENS)
    windowed = run_kernel(requests, config, step_time, 2000, ID_BLOCK_TOKENS, windows=windows)

    same_bytes(whole, windowed)
    sched_ns = whole["step_rows"]["sched_ns"][whole["events"]["step"]]
    is_inside = np.zeros(len(sched_ns), bool)
    for first_ns, end_ns in windows:
        is_inside |= (first_ns <= sched_ns) & (sched_ns < end_ns)
    assert windowed["events"].tolist() == whole["events"][is_inside].tolist()


@pytest.mark.parametrize("windows", [(), WHOLE_REPLAY])
def test_noise_stretches_each_step_by_its_kind(windows):
    trace = trace_of((0.0, 100, 20), (0.0, 100, 20))
    config = EngineConfig(max_num_batched_tokens=64, max_num_seqs=8, async_scheduling=False)
    noise = np.array([[2.0, 4.0], [3.0, 3.0], [1.0, 1.0]])

    run = replay(trace, config, StepTime(1000, 0, 0), noise=noise, windows_ns=windows)

    has_prefill = run.steps["prefill_tokens"] > 0
    expected = np.where(has_prefill, 3000, np.where(np.arange(len(run.steps)) % 2, 4000, 2000))
    np.testing.assert_array_equal(run.steps["end_ns"] - run.steps["start_ns"], expected)


def same_bytes(one: dict, other: dict) -> None:
    assert (one["outcome"], one["end_ns"], one["num_free_blocks"]) == (
        other["outcome"],
        other["end_ns"],
        other["num_free_blocks"],
    )
    for name in ("step_rows", "shared_gaps", "gap_rows", "rows"):
        assert one[name].tobytes() == other[name].tobytes(), name


@settings(max_examples=200)
@given(scenarios(), STEP_TIMES)
def test_counting_blocks_is_enough_until_somebody_is_preempted(scenario, step_time):
    """Without shared prefixes the count and the identities agree, or the count gives up and says so."""
    requests, config = scenario
    requests = [r | {"ids": None} for r in requests if r["prompt"] < config["max_model_len"]]
    counted = run_kernel(requests, config, step_time, 600, tracks_blocks=False)
    followed = run_kernel(requests, config, step_time, 600, tracks_blocks=True)
    if counted["outcome"] == "needs_blocks":
        assert config["enable_prefix_caching"]
        assert sum(followed["preemptions"]) > 0
    elif config["enable_prefix_caching"]:
        assert {name: counted[name] for name in COMPARED} == {name: followed[name] for name in COMPARED}


def token_times(run):
    return [[run["steps"]["end_ns"][step] for step in steps] for steps in run["token_step"]]


def gaps_of(run):
    """All gaps as the kernel keeps them: counts by length, and a list of the others."""
    regular = np.repeat(run["shared_gaps"]["gap_ns"], run["shared_gaps"]["count"]).tolist()
    return sorted(regular + run["gap_rows"]["gap_ns"].tolist())
