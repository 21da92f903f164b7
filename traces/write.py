"""A trace as a file: what was selected of one, or made up."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from traces.requests import RequestTrace


def to_parquet(trace: RequestTrace) -> bytes:
    """Write a trace as Parquet that `traces.read.read_trace` reads back; arrivals in seconds.

    Same digest, but for ids of prefixes that are not numbered in the order in which they come.
    """
    columns = {
        "arrival_s": pa.array(trace.arrival_s),
        "prompt_tokens": pa.array(trace.prompt_tokens),
        "output_tokens": pa.array(trace.output_tokens),
    }
    if trace.priority is not None:
        columns["priority"] = pa.array(trace.priority)
    if trace.max_tokens is not None:
        columns["max_tokens"] = pa.array(trace.max_tokens)
    if trace.prefix_hashes is not None:
        offsets = pa.array(trace.prefix_hashes.offsets.astype(np.int32))
        columns["hash_ids"] = pa.ListArray.from_arrays(offsets, pa.array(trace.prefix_hashes.ids))
    for labels in trace.labels:
        words = pa.array(labels.words, pa.string())
        columns[labels.name] = pa.DictionaryArray.from_arrays(pa.array(labels.codes), words)
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, compression="zstd")
    return out.getvalue()
