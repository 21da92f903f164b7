"""A step log: how long engine steps took for how much work."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from traces.receipt import Receipt


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server log says about the server itself; None where it does not say."""

    vllm_version: str | None = None
    """For instance "0.32.0"."""
    max_num_batched_tokens: int | None = None
    """Today's flag, tokens."""
    max_num_seqs: int | None = None
    """Today's flag, requests."""
    long_prefill_token_threshold: int | None = None
    """Today's flag, tokens."""
    max_model_len: int | None = None
    """Tokens."""
    block_size: int | None = None
    """Tokens per KV block."""
    num_gpu_blocks: int | None = None
    """KV blocks, the null block included."""
    async_scheduling: bool | None = None
    """Whether the engine scheduled asynchronously."""
    enable_prefix_caching: bool | None = None
    """Whether prefix caching was on."""


FACT_TYPES = {"vllm_version": str, "async_scheduling": bool, "enable_prefix_caching": bool}
"""Facts that are no whole numbers."""


def facts_of_table(metadata: Mapping[bytes, bytes] | None) -> ServerFacts:
    """Read what the recorder left in its files' metadata.

    Parameters
    ----------
    metadata : mapping of bytes, optional
        Of the table; `server_facts` is a JSON object by the names of `ServerFacts`, others are passed over.

    Returns
    -------
    ServerFacts
        Empty where the metadata have none.

    Raises
    ------
    ValueError
        The entry is something else.
    """
    text = (metadata or {}).get(b"server_facts")
    if text is None:
        return ServerFacts()
    stated = json.loads(text)
    if not isinstance(stated, dict):
        raise ValueError("not a JSON object")
    known = {name: stated[name] for name in ServerFacts.__dataclass_fields__ if stated.get(name) is not None}
    for name, value in known.items():
        kind = FACT_TYPES.get(name, int)
        if type(value) is not kind:
            raise ValueError(f"{name} is {value!r}, not {kind.__name__}")
    return ServerFacts(**known)


@dataclass(frozen=True, slots=True, eq=False)
class StepLog:
    """k engine steps in the order they ran; every array is (k,) and write-locked."""

    step_s: npt.NDArray[np.float64]
    """Time of the step, seconds."""
    num_prefill_reqs: npt.NDArray[np.int64]
    """Requests that computed prompt tokens (vLLM's "context requests")."""
    prefill_tokens: npt.NDArray[np.int64]
    """Prompt tokens computed (vLLM's "context tokens")."""
    num_decode_reqs: npt.NDArray[np.int64]
    """Requests that decoded (vLLM's "generation requests")."""
    source_row: npt.NDArray[np.int64]
    """Data row or line of the file, counted from 0."""
    kv_decode_tokens: npt.NDArray[np.float64] | None = None
    """Context tokens that the decoding requests read, summed; None when the log does not say."""
    kv_usage: npt.NDArray[np.float64] | None = None
    """Share of KV blocks in use, 0–1; None when the log does not say."""
    prefill_attention: npt.NDArray[np.float64] | None = None
    """Sum over prefilling requests of chunk·(context before it + chunk/2), token²; None when unknown."""
    kv_prefill_tokens: npt.NDArray[np.float64] | None = None
    """Tokens of context that prefilling requests had before their chunk, summed; None when unknown."""
    weight: npt.NDArray[np.float64] | None = None
    """How many real steps a row stands for; None = one each."""
    num_decode_tokens: npt.NDArray[np.int64] | None = None
    """Tokens computed by the decoding requests (vLLM's "generation tokens"); None when the log does not say."""
    stamp_s: npt.NDArray[np.float64] | None = None
    """When the step was logged, seconds on some clock, whole or to the millisecond; None when the log does not say."""
    facts: ServerFacts = ServerFacts()
    """What the log says about the server."""
    receipt: Receipt | None = None
    """How the file was read; None for a log that no file stands behind."""
    digest: str = field(init=False)
    """SHA-256 over all arrays, hexadecimal."""

    def __post_init__(self) -> None:
        state = hashlib.sha256()
        for values in (
            self.step_s,
            self.num_prefill_reqs,
            self.prefill_tokens,
            self.num_decode_reqs,
            self.kv_decode_tokens,
            self.kv_usage,
            self.prefill_attention,
            self.kv_prefill_tokens,
            self.weight,
            self.num_decode_tokens,
            self.stamp_s,
        ):
            if values is None:
                state.update(b"none")
            else:
                values.flags.writeable = False
                state.update(np.ascontiguousarray(values).tobytes())
        self.source_row.flags.writeable = False
        object.__setattr__(self, "digest", state.hexdigest())

    def __len__(self) -> int:
        return len(self.step_s)

    @property
    def recomputes(self) -> npt.NDArray[np.bool_]:
        """(k,) steps in which a preempted request computes its tokens again: vLLM counts it as decoding."""
        if self.num_decode_tokens is None:
            return np.zeros(len(self), np.bool_)
        return self.num_decode_tokens > self.num_decode_reqs
