"""The recordings of the real vLLM scheduler, reproduced step by step by the kernel and by the naive model."""

import pytest
from goldens import accepted_requests, arrival_ns, features_not_simulated, golden_paths, read_golden, step_time_ns
from kernel_runs import run_kernel, run_naive

from planner.step_time import StepTime

pytestmark = pytest.mark.golden


@pytest.mark.parametrize("path", golden_paths(), ids=lambda path: path.name.removesuffix(".json.gz"))
@pytest.mark.parametrize("run", [run_kernel, run_naive])
def test_recording_is_reproduced_exactly(path, run):
    golden = read_golden(path)
    scenario, recorded = golden["scenario"], golden["result"]
    missing = features_not_simulated(scenario)
    if missing:
        pytest.skip(f"not simulated yet: {', '.join(missing)}")
    accepted = accepted_requests(golden)
    requests = [
        {
            "arrival_ns": arrival_ns(request),
            "prompt": request["prompt"],
            "out": request["out"],
            "max_tokens": request.get("max_tokens") or request["out"],
        }
        for request in (scenario["requests"][i] for i in accepted)
    ]

    ours = run(requests, scenario["config"], StepTime(*step_time_ns(scenario)), scenario["max_steps"])

    assert (ours["outcome"], ours["end_ns"]) == (recorded["outcome"], recorded["end_ns"])
    for name in ("preempted", "finished"):
        ours["steps"][name] = [[accepted[i] for i in step] for step in ours["steps"][name]]
    for name in ("batch", "admitted"):
        ours["steps"][name] = [[[accepted[i], *rest] for i, *rest in step] for step in ours["steps"][name]]
    for name, column in recorded["steps"].items():
        assert ours["steps"][name] == column, name
    per_request = recorded["requests"]
    assert ours["token_step"] == [per_request["token_step"][i] for i in accepted]
    assert ours["preemptions"] == [per_request["preemptions"][i] for i in accepted]
    assert [accepted[i] for i in ours["unfinished"]] == recorded["unfinished"]


def test_some_recordings_are_in_reach():
    covered = [path for path in golden_paths() if not features_not_simulated(read_golden(path)["scenario"])]
    assert len(covered) >= 10
