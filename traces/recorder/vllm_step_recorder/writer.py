"""How it is recorded: a queue that never waits, and a thread that keeps the files on disk whole.

A file under its own name is always a complete Parquet file: every flush writes the current file anew under a temporary
name, syncs it and renames it over the old one. A killed server loses what came after the last flush, no more.
"""

import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .rows import REQUEST_SCHEMA, STEP_SCHEMA, Requests, Steps, Taken, take

logger = logging.getLogger("vllm.step_recorder")

FOLDER = "STEP_RECORDER_DIR"
FLUSH = "STEP_RECORDER_FLUSH_SECONDS"
ROTATE = "STEP_RECORDER_ROTATE_ROWS"
FACTS = b"server_facts"
"""Key of the file's metadata: `server_facts` as JSON."""

MAX_PENDING = 20_000
"""Steps that may wait for the thread; more are counted and lost, so that memory stays bounded."""
NUM_AT_ONCE = 200
"""Steps read before the thread lets the server's own thread run, so that no token waits for it."""
TICK_S = 0.25


@dataclass(frozen=True)
class Settings:
    """What the environment says."""

    folder: Path
    """Where the files go; made where it is absent."""
    flush_s: float = 10.0
    """Seconds between two flushes: what a killed server loses."""
    rotate_rows: int = 100_000
    """Rows after which a new file begins; also the memory it takes, about 130 bytes a row."""


def settings_from(environment: Mapping[str, str]) -> Settings:
    """Read the settings.

    Raises
    ------
    ValueError
        A setting is no positive number.
    """
    flush_s = _positive(environment, FLUSH, Settings.flush_s)
    return Settings(Path(environment[FOLDER]), flush_s, int(_positive(environment, ROTATE, Settings.rotate_rows)))


def _positive(environment: Mapping[str, str], name: str, default: float) -> float:
    """A number of at least 1."""
    text = environment.get(name, str(default))
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value < float("inf"):
        raise ValueError(f"{name} is {text!r}; allowed: a number of at least 1 (default {default:g})")
    return value


class Recorder:
    """Records one engine into `steps-….parquet` and `requests-….parquet`."""

    def __init__(self, settings: Settings, engine_index: int = 0) -> None:
        settings.folder.mkdir(parents=True, exist_ok=True)
        self.settings = settings
        self.num_lost = 0
        """Steps that came while the queue was full."""
        self._pending: deque[Taken] = deque()
        self._steps, self._requests = Steps(), Requests()
        start = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        # Process ids are alike in containers that share a folder.
        name = f"{start}-{os.urandom(3).hex()}-engine{engine_index:03d}"
        self._step_file = _RollingFile(settings, f"steps-{name}", STEP_SCHEMA)
        self._request_file = _RollingFile(settings, f"requests-{name}", REQUEST_SCHEMA)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="step-recorder", daemon=True)

    def put(self, scheduler: Any, iteration: Any) -> None:
        """Take one step's statistics; never waits, never raises."""
        if self._stop.is_set():
            return
        if len(self._pending) < MAX_PENDING:
            self._pending.append(take(scheduler, iteration))
        else:
            self.num_lost += 1

    def start(self, facts: Mapping[str, Any]) -> None:
        """Begin to write; `facts` go into every file."""
        for file in (self._step_file, self._request_file):
            file.facts = dict(facts)
        if not self._thread.is_alive():
            self._thread.start()

    def close(self) -> None:
        """Write what is left and end; the recorder takes nothing more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        """The thread: a fault ends the recording, never the server."""
        try:
            flushed_s = time.monotonic()
            while not self._stop.wait(TICK_S):
                self._read_pending()
                if time.monotonic() - flushed_s >= self.settings.flush_s:
                    self._flush()
                    flushed_s = time.monotonic()
            self._read_pending()
            self._flush()
        except Exception:
            self._stop.set()
            self._pending.clear()
            logger.exception("Step recorder stopped; the server goes on.")

    def _read_pending(self) -> None:
        """Turn what is waiting into rows."""
        num_read = 0
        while self._pending:
            taken = self._pending.popleft()
            row = self._steps.row(taken) if taken.scheduler is not None else None
            if row is not None:
                self._step_file.add(row)
            if taken.iteration is not None:
                for request in self._requests.rows(taken.iteration):
                    self._request_file.add(request)
            num_read += 1
            if num_read % NUM_AT_ONCE == 0:
                time.sleep(0)

    def _flush(self) -> None:
        """Bring both files up to date."""
        self._step_file.num_lost = self.num_lost
        self._step_file.flush()
        self._request_file.flush()


class _RollingFile:
    """Rows of one kind, in numbered files."""

    def __init__(self, settings: Settings, name: str, schema: pa.Schema) -> None:
        self.facts: dict[str, Any] = {}
        self.num_lost = 0
        self._settings, self._name, self._schema = settings, name, schema
        self._number, self._num_rows = 1, 0
        self._rows: list[tuple[Any, ...]] = []
        self._batches: list[pa.RecordBatch] = []

    def add(self, row: tuple[Any, ...]) -> None:
        """One row, in the order of the schema."""
        self._rows.append(row)
        self._num_rows += 1
        if self._num_rows >= self._settings.rotate_rows:
            self.flush()
            self._batches, self._number, self._num_rows = [], self._number + 1, 0

    def flush(self) -> None:
        """Write the current file anew, where rows came."""
        if not self._rows:
            return
        columns = zip(*self._rows, strict=True)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, self._schema, strict=True)]
        self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._rows = []
        metadata = {FACTS: json.dumps(self.facts).encode(), b"num_lost_steps": str(self.num_lost).encode()}
        table = pa.Table.from_batches(self._batches).replace_schema_metadata(metadata)
        write_whole(table, self._settings.folder / f"{self._name}-{self._number:05d}.parquet")


def write_whole(table: pa.Table, path: Path) -> None:
    """Write a Parquet file that is complete or not there, also after a crash."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    with open(unfinished, "wb") as file:
        pq.write_table(table, file, compression="zstd")
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
