"""The recordings of the real vLLM scheduler, reproduced step by step by the kernel and by the naive model."""

import zlib
from array import array

import pytest
from goldens import SHIPPED, accepted_requests, golden_paths, read_golden, requests_of, step_time_of
from kernel_runs import run_kernel, run_naive
from test_kernel import same_bytes

pytestmark = pytest.mark.golden


@pytest.mark.parametrize("path", golden_paths(), ids=lambda path: path.name.removesuffix(".json.gz"))
@pytest.mark.parametrize("run", [run_kernel, run_naive])
def test_recording_is_reproduced_exactly(path, run):
    golden = read_golden(path)
    scenario, recorded = golden["scenario"], golden["result"]
    accepted = accepted_requests(golden)

    ours = run(
        requests_of(golden),
        scenario["config"],
        step_time_of(scenario),
        scenario["max_steps"],
        scenario["id_block_tokens"],
    )

    assert (ours["outcome"], ours["end_ns"]) == (recorded["outcome"], recorded["end_ns"])
    columns = in_recorded_form(ours["steps"], accepted, scenario["detail"])
    for name, column in recorded["steps"].items():
        if name != "drafts":  # per request; their sum is compared through the step times
            assert columns[name] == column, name
    compare_requests(ours, recorded, accepted, scenario["detail"])
    assert [accepted[i] for i in ours["unfinished"]] == recorded["unfinished"]


@pytest.mark.parametrize("path", golden_paths(), ids=lambda path: path.name.removesuffix(".json.gz"))
def test_sleep_changes_nothing(path):
    golden = read_golden(path)
    scenario = golden["scenario"]
    arguments = (
        requests_of(golden),
        scenario["config"],
        step_time_of(scenario),
        scenario["max_steps"],
        scenario["id_block_tokens"],
    )
    same_bytes(run_kernel(*arguments), run_kernel(*arguments, windows=()))


def in_recorded_form(steps: dict, accepted: list[int], detail: str) -> dict:
    """Our steps with the recording's request numbers, and its checksums where it has no details."""
    batches = [[[accepted[i], tokens] for i, tokens in batch] for batch in steps["batch"]]
    columns = dict(steps)
    if detail == "full":
        columns["batch"] = batches
        for name in ("preempted", "finished"):
            columns[name] = [[accepted[i] for i in step] for step in steps[name]]
        columns["admitted"] = [[[accepted[i], *rest] for i, *rest in step] for step in steps["admitted"]]
    else:
        columns["scheduled"] = [len(batch) for batch in batches]
        columns["tokens"] = [sum(tokens for _, tokens in batch) for batch in batches]
        columns["preempted"] = [len(step) for step in steps["preempted"]]
        columns["hit_tokens"] = [sum(hit for _, hit, _ in step) for step in steps["admitted"]]
        columns["batch_crc"] = [
            zlib.crc32(array("i", [value for pair in batch for value in pair]).tobytes()) for batch in batches
        ]
    return columns


def compare_requests(ours: dict, recorded: dict, accepted: list[int], detail: str) -> None:
    per_request = recorded["requests"]
    assert ours["preemptions"] == [per_request["preemptions"][i] for i in accepted]
    if detail == "full":
        assert ours["token_step"] == [per_request["token_step"][i] for i in accepted]
    else:
        end_ns = ours["steps"]["end_ns"]
        times = [array("q", [end_ns[step] for step in steps]) for steps in ours["token_step"]]
        assert [zlib.crc32(t.tobytes()) for t in times] == [per_request["token_ns_crc"][i] for i in accepted]
        assert [len(t) for t in times] == [per_request["num_tokens"][i] for i in accepted]


def test_a_stranger_is_judged_too():
    """The handful shipped with the tests covers every rule that has a switch."""
    configs = [read_golden(path)["scenario"]["config"] for path in SHIPPED.glob("*.json.gz")]
    assert len(configs) >= 10
    assert {config["async_scheduling"] for config in configs} == {True, False}
    assert {config["enable_prefix_caching"] for config in configs} == {True, False}
    assert {config["policy"] for config in configs} == {"fcfs", "priority"}
    assert any(config["spec"] for config in configs)
    assert any(config["watermark"] for config in configs)
    assert any(not config["enable_chunked_prefill"] for config in configs)
