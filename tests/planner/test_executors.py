"""Where replays run makes no difference to what comes out, and says clearly when it cannot be used."""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from test_search import SLO, SPACE, STEP_TIME, TODAY, plan
from traces_by_hand import chat_trace

from planner import executors
from planner.errors import NoCluster
from planner.executors import executor_at
from planner.plan_file import save_plan, write_plan
from planner.search import recommend
from planner.versions import differences, versions

ROOT = Path(executors.__file__).parents[1]
START_S = 60
"""A scheduler and its workers import a lot before they answer."""


def planned(executor, **options):
    """The plan file of a small search: equal text is equal bytes."""
    trace = chat_trace(120)
    found = recommend(
        trace, STEP_TIME, TODAY, SLO, default_flags=(8192, 1024), space=SPACE, executor=executor, **options
    )
    return write_plan(save_plan(found, trace, STEP_TIME))


def test_threads_and_processes_give_the_same_bytes():
    context = multiprocessing.get_context("spawn")
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(5) as five, ProcessPoolExecutor(2, context) as processes:
        alone = planned(one)
        assert planned(five) == alone
        assert planned(processes) == alone
    with executor_at("") as here:
        assert planned(here) == alone


def test_a_failed_replay_gives_the_others_up():
    """With one worker nothing else can have begun: every other future is cancelled."""
    submitted = []

    class Watching(ThreadPoolExecutor):
        def submit(self, *arguments, **options):
            submitted.append(super().submit(*arguments, **options))
            return submitted[-1]

    def fail(num_done, num_planned, newest):
        if num_done == 8:
            raise ZeroDivisionError

    with Watching(1) as executor, pytest.raises(ZeroDivisionError):
        plan(executor=executor, on_progress=fail)
    assert sum(future.cancelled() for future in submitted) >= len(submitted) - 10 > 0


def test_versions_that_differ_are_named():
    here = versions()
    assert differences(here, here) == ""
    assert differences(here, replace(here, numba="0.1")) == f"numba 0.1 there, {here.numba} here"
    assert len(here.planner) == 12


@dataclass
class Cluster:
    """A scheduler and its workers, processes of their own on loopback."""

    address: str
    scheduler: subprocess.Popen
    workers: list[subprocess.Popen]


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen]:
    """One process of Dask that finds this planner."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "dask", *arguments, "--no-dashboard"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@contextmanager
def scheduler() -> Iterator[tuple[str, subprocess.Popen]]:
    """A scheduler without workers, ready to answer."""
    port = free_port()
    with started("scheduler", "--host", "127.0.0.1", "--port", str(port)) as process:

        def answers() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        wait_until(answers)
        yield f"tcp://127.0.0.1:{port}", process


@contextmanager
def ready_cluster() -> Iterator[Cluster]:
    """A scheduler with two workers."""
    distributed = pytest.importorskip("distributed")
    worker = ("--no-nanny", "--nthreads", "1", "--host", "127.0.0.1")
    with (
        scheduler() as (address, process),
        started("worker", address, *worker) as one,
        started("worker", address, *worker) as other,
    ):
        with distributed.Client(address, timeout=START_S, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=START_S)
        yield Cluster(address, process, [one, other])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """For tests that leave it as it is."""
    with ready_cluster() as cluster:
        yield cluster


@pytest.fixture
def doomed_cluster() -> Iterator[Cluster]:
    """For a test that kills some of it."""
    with ready_cluster() as cluster:
        yield cluster


@pytest.mark.cluster
def test_a_cluster_gives_the_same_bytes_although_a_worker_is_killed(doomed_cluster):
    cluster = doomed_cluster

    with executor_at(None) as here:
        alone = planned(here)

    def kill(num_done, num_planned, newest):
        if num_done == 5:
            assert num_planned > 20, "there is a lot left to do"
            cluster.workers[0].send_signal(signal.SIGKILL)
            cluster.workers[0].wait()

    with executor_at(cluster.address) as there:
        assert planned(there, on_progress=kill) == alone
    assert cluster.workers[0].returncode == -signal.SIGKILL
    assert cluster.workers[1].poll() is None


@pytest.mark.cluster
def test_a_trace_is_sent_once(cluster):
    trace = chat_trace(30)
    with executor_at(cluster.address) as there:
        futures = [there.submit(len, one) for one in (trace, chat_trace(30)) for _ in range(40)]
        assert {future.result() for future in futures} == {30}
        sent = [key for key in there.client.who_has() if key.startswith("trace-")]
        assert sent == [f"trace-{trace.digest}"], "the digest tells that it is the same trace"
        assert there.submit(len, chat_trace(400_000)).result() == 400_000  # 13 MB, and no warning: it would be an error


@pytest.mark.cluster
def test_workers_with_other_versions_are_refused(cluster):
    there = versions()
    with executor_at(cluster.address) as executor, pytest.raises(NoCluster) as fault:
        executors._check_versions(executor.client, cluster.address, replace(there, numba="0.1"))
    assert str(fault.value).count(f"numba {there.numba} there, 0.1 here") == 2
    assert "Install the same versions" in str(fault.value)


@pytest.mark.cluster
def test_a_worker_that_joins_later_is_checked_as_well(cluster):
    with executor_at(cluster.address) as executor:
        executor.here = replace(versions(), python="3.0.0")
        with pytest.raises(NoCluster, match="has other versions: python"):
            executor.submit(id, 1).result()


@pytest.mark.cluster
def test_a_scheduler_without_workers_is_said(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(executors, "PATIENCE_S", 1)
    with scheduler() as (address, _), pytest.raises(NoCluster, match="has no workers"), executor_at(address):
        pass


@pytest.mark.cluster
def test_a_scheduler_that_goes_away_is_said(doomed_cluster):
    def stop(num_done, num_planned, newest):
        doomed_cluster.scheduler.kill()

    with pytest.raises(NoCluster, match="went away"), executor_at(doomed_cluster.address) as there:
        planned(there, on_progress=stop)


def test_an_unreachable_scheduler_is_said_within_seconds(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(executors, "PATIENCE_S", 1)
    began = time.monotonic()
    with pytest.raises(NoCluster) as fault, executor_at(f"tcp://127.0.0.1:{free_port()}"):
        pass
    assert time.monotonic() - began < 10 * executors.PATIENCE_S
    assert "no Dask scheduler answers there" in str(fault.value)
    assert "Leave the scheduler out to run on this machine." in str(fault.value)


@pytest.mark.parametrize("address", ["nonsense", "tcp://"])
def test_what_is_no_address_is_said(address):
    pytest.importorskip("distributed")
    with pytest.raises(NoCluster, match="no Dask scheduler answers"), executor_at(address):
        pass


def test_without_dask_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(NoCluster, match=r"pip install '\.\[cluster\]'"), executor_at("tcp://127.0.0.1:8786"):
        pass
