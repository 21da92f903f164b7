"""What holds for the whole suite, and what it says at its end."""

from collections import Counter
from pathlib import Path

from hypothesis import settings

# How long an example takes says more about the machine than about the code: files of tests run side by side.
settings.register_profile("machine_may_be_busy", deadline=None)
settings.load_profile("machine_may_be_busy")

FEATURES = {
    "asynchronous": lambda c: c["async_scheduling"],
    "synchronous": lambda c: not c["async_scheduling"],
    "prefix caching": lambda c: c["enable_prefix_caching"],
    "priority": lambda c: c["policy"] == "priority",
    "speculative decoding": lambda c: bool(c["spec"]),
    "threshold": lambda c: c["long_prefill_token_threshold"] > 0,
    "adaptive threshold": lambda c: c["long_prefill_token_threshold_adaptive"],
    "reservation": lambda c: c["scheduler_reserve_full_isl"],
    "watermark": lambda c: c["watermark"] > 0,
    "chunked prefill off": lambda c: not c["enable_chunked_prefill"],
    "active seqs": lambda c: c["max_num_active_seqs"] is not None,
    "scheduled tokens": lambda c: c["max_num_scheduled_tokens"] is not None,
    "block size not 16": lambda c: c["block_size"] != 16,
}


def pytest_configure(config):
    """Compile the kernel once, before the processes that run the tests would all do it, into one cache at once."""
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        from planner.replay import warm_up

        warm_up()


def pytest_terminal_summary(terminalreporter):
    """Recordings of the real scheduler that the kernel reproduced exactly, by feature."""
    reproduced = {
        report.nodeid.rpartition("run_kernel-")[2].rstrip("]")
        for report in terminalreporter.getreports("passed")
        if "test_recording_is_reproduced_exactly[run_kernel-" in report.nodeid
    }
    if not reproduced:
        return
    from goldens import golden_paths, read_golden

    configs = [
        read_golden(path)["scenario"]["config"]
        for path in golden_paths()
        if Path(path).name.removesuffix(".json.gz") in reproduced
    ]
    counts = Counter(name for config in configs for name, has in FEATURES.items() if has(config))
    listed = ", ".join(f"{name} {count}" for name, count in counts.items())
    terminalreporter.write_line(f"vLLM recordings reproduced exactly: {len(configs)} ({listed})")
