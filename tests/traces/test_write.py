import numpy as np
import pytest

from traces.read import read_trace
from traces.requests import PrefixHashes, RequestTrace, Selection
from traces.selection import select
from traces.workload import CHAT_WITH_LONG_PROMPTS, make_trace
from traces.write import to_parquet

WITH_EVERYTHING = RequestTrace(
    arrival_s=np.array([0.0, 0.25, 0.25]),
    prompt_tokens=np.array([40, 33, 8]),
    output_tokens=np.array([2, 3, 4]),
    source_row=np.arange(3),
    priority=np.array([0, 5, -1]),
    max_tokens=np.array([2, 8, 4]),
    prefix_hashes=PrefixHashes(np.array([0, 1, 2, 0, 1, 3, 0]), np.array([0, 3, 6, 7]), 16),
)

CHAT = make_trace(CHAT_WITH_LONG_PROMPTS)


@pytest.mark.parametrize(
    "trace",
    [WITH_EVERYTHING, CHAT, select(CHAT, Selection(window_s=(60.0, 120.0)))],
    ids=["everything", "chat", "a minute"],
)
def test_parquet_reads_back_to_the_same_requests(trace: RequestTrace) -> None:
    assert read_trace(to_parquet(trace), "again.parquet").digest == trace.digest
