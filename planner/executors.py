"""Where replays run: threads of this machine, or the workers of a Dask cluster. Results do not depend on it."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from planner.errors import NoCluster
from planner.versions import Versions, differences, versions
from traces.requests import RequestTrace

if TYPE_CHECKING:
    from distributed import Client

T = TypeVar("T")

ADDRESS_VARIABLE = "DASK_SCHEDULER_ADDRESS"
"""Environment variable that names a scheduler; Dask's own."""
PATIENCE_S = 5
"""How long a scheduler, and then a first worker, may take to answer."""
LOCAL = "Leave the scheduler out to run on this machine."
"""What can be done about any fault of a cluster."""


@contextmanager
def executor_at(address: str | None) -> Iterator[Executor]:
    """Threads of this machine, or the cluster whose scheduler has this address.

    Parameters
    ----------
    address : str, optional
        "tcp://HOST:8786"; None or "" for this machine.

    Raises
    ------
    NoCluster
        There is no cluster at the address, none of the same versions, or it went away while it was needed.
    """
    if not address:
        with ThreadPoolExecutor(num_threads()) as threads:
            yield threads
        return
    client = _client(address)
    try:
        here = versions()
        _check_versions(client, address, here)
        yield ClusterExecutor(client, here)
    except CancelledError as fault:
        raise NoCluster(address, f"the scheduler went away while it was needed. {LOCAL}") from fault
    finally:
        client.close()


def somewhere(executor: Executor | None) -> AbstractContextManager[Executor]:
    """The executor given, or threads of this machine."""
    return executor_at(None) if executor is None else nullcontext(executor)


def num_threads() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ClusterExecutor(Executor):
    """The workers of a cluster. A trace is sent once, as a task of its own; workers pass it on among themselves.

    Since it is a task, the scheduler can have it made again where a worker that held it is lost, like any other.
    """

    def __init__(self, client: "Client", here: Versions) -> None:
        self.client, self.here = client, here
        self._executor = client.get_executor(pure=False)
        self._traces: dict[str, Any] = {}

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Have a worker call `fn`, with the trace that lies there already."""
        shipped = [self._shipped(arg) if isinstance(arg, RequestTrace) else arg for arg in args]
        future: Future[T] = self._executor.submit(_call, self.here, fn, *shipped, **kwargs)
        return future

    def _shipped(self, trace: RequestTrace) -> Any:
        """The trace as the cluster knows it."""
        if trace.digest not in self._traces:
            import dask

            # Dask warns of large tasks: they burden its scheduler when there are many. This is one.
            with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TiB"}):
                self._traces[trace.digest] = self.client.submit(_itself, trace, key=f"trace-{trace.digest}")
        return self._traces[trace.digest]


def _itself(trace: RequestTrace) -> RequestTrace:
    """What a worker does to have a trace."""
    return trace


def _call(client_versions: Versions, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call `fn` on a worker, unless it would compute something else: workers may join at any time."""
    found = differences(client_versions, versions())
    if found:
        raise NoCluster("a worker", f"has other versions: {found}. {LOCAL}")
    return fn(*args, **kwargs)


def _client(address: str) -> "Client":
    """A connection to the scheduler."""
    try:
        from distributed import Client
    except ImportError as fault:
        raise NoCluster(address, f"needs Dask: pip install '.[cluster]'. {LOCAL}") from fault
    try:
        client = Client(address, timeout=PATIENCE_S, set_as_default=False)
    except (OSError, ValueError) as fault:
        said = f"no Dask scheduler answers there within {PATIENCE_S} s ({fault}). Start one with `dask scheduler`."
        raise NoCluster(address, f"{said} {LOCAL}") from fault
    try:
        client.wait_for_workers(1, timeout=PATIENCE_S)
    except TimeoutError as fault:
        client.close()
        raise NoCluster(
            address, f"the scheduler has no workers. Start one on each machine: `dask worker {address}`. {LOCAL}"
        ) from fault
    return client


def _check_versions(client: "Client", address: str, here: Versions) -> None:
    """Refuse a cluster with workers that would compute something else, all of them named."""
    faults = []
    for worker, there in client.run(versions, on_error="return").items():
        if isinstance(there, Versions):
            found = differences(here, there)
        else:
            found = f"the planner cannot be loaded there ({there})"
        if found:
            faults.append(f"worker {worker}: {found}")
    if faults:
        raise NoCluster(address, "; ".join(faults) + f". Install the same versions on every machine. {LOCAL}")
