"""What a load generator measured: when each request's tokens reached the client."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from traces.errors import UnreadableFile

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredRequests:
    """n requests that got all their tokens, as a client saw them; every array is (n,) unless said."""

    arrival_s: Floats
    """When each was sent, seconds on the client's clock."""
    first_token_s: Floats
    """When its first token came in, same clock."""
    last_token_s: Floats
    """When its last token came in, same clock."""
    num_outputs: npt.NDArray[np.int64]
    """Tokens it got, at least 1."""
    gap_s: Floats
    """(g,) gaps between neighbouring tokens, of all requests; empty when the file has none."""
    worst_gap_s: Floats
    """Largest gap of each; NaN below two tokens or when the file has none."""


def read_measured(path: Path) -> MeasuredRequests:
    """Read a client's measurements.

    Parameters
    ----------
    path : Path
        Parquet or JSON lines with `arrival_s` and `token_s` (list of receipt times), or what
        `vllm bench serve --save-result --save-detailed` writes.

    Raises
    ------
    UnreadableFile
        Neither of these.

    Source
    ------
    vLLM 0.32, vllm/benchmarks/serve.py: `start_times`, `ttfts`, `itls` per request; a failed one has no `ttfts`.
    """
    try:
        if path.suffix == ".parquet":
            table = pq.read_table(path, columns=["arrival_s", "token_s"])
            arrival, tokens = table["arrival_s"].to_pylist(), table["token_s"].to_pylist()
        else:
            arrival, tokens = _bench_serve(json.loads(path.read_bytes()))
    except (KeyError, TypeError, ValueError) as fault:
        raise UnreadableFile(
            path.name,
            f"no measured token times ({fault}). Give what vllm bench serve --save-result --save-detailed writes, or "
            "a Parquet file with arrival_s and token_s.",
        ) from None
    served = [(float(at), np.array(times, np.float64)) for at, times in zip(arrival, tokens, strict=True) if times]
    if not served:
        raise UnreadableFile(path.name, "no request got a token.")
    return _measured([at for at, _ in served], [times for _, times in served])


def _bench_serve(result: dict[str, Any]) -> tuple[list[float], list[list[float]]]:
    """Send times and receipt times from a benchmark's result."""
    tokens = []
    for start_s, ttft_s, gaps_s in zip(result["start_times"], result["ttfts"], result["itls"], strict=True):
        tokens.append(np.cumsum([start_s + ttft_s, *gaps_s]).tolist() if ttft_s else [])
    return result["start_times"], tokens


def _measured(arrival_s: list[float], token_s: list[Floats]) -> MeasuredRequests:
    """Take the numbers out of the receipt times."""
    gaps = [np.diff(times) for times in token_s]
    return MeasuredRequests(
        arrival_s=np.array(arrival_s),
        first_token_s=np.array([times[0] for times in token_s]),
        last_token_s=np.array([times[-1] for times in token_s]),
        num_outputs=np.array([len(times) for times in token_s], np.int64),
        gap_s=np.concatenate(gaps),
        worst_gap_s=np.array([gap.max() if len(gap) else np.nan for gap in gaps]),
    )
