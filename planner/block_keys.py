"""Which KV blocks hold the same content: one number a block, equal exactly where content and prefix are equal."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.kernel import KEY


def block_keys(
    num_tokens: npt.NDArray[np.int64],
    ids: Sequence[Sequence[int]],
    id_block_tokens: int,
    num_shared_tokens: npt.NDArray[np.int64],
    block_size: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Number the full KV blocks of every request.

    Parameters
    ----------
    num_tokens : (n,) int64
        Most tokens each request ever holds.
    ids : n sequences of int
        Content of each request: equal leading ids mean equal leading tokens.
    id_block_tokens : int
        Tokens per id, whatever the KV block size is.
    num_shared_tokens : (n,) int64
        How many leading tokens the ids speak of; what follows belongs to the request alone.
    block_size : int
        Tokens per KV block.

    Returns
    -------
    first_key : (n,) int64
        Row of a request's block 0 in `keys`.
    keys : (m,) KEY
        Row first_key + j has the key of block j.

    Source
    ------
    vLLM 0.32, v1/core/kv_cache_utils.py: a block's hash covers its tokens and the hash of the block before it.
    """
    num_blocks = num_tokens // block_size
    first_key = np.concatenate([[0], np.cumsum(num_blocks)[:-1]]).astype(np.int64)
    flat = np.full(int(num_blocks.sum()), -1, np.int64)
    node_of: dict[tuple[int, int], int] = {}  # (node of the ids before, id) → the number of its first block
    num_keys = 0
    for request, row in enumerate(ids):
        num_shared = min(int(num_shared_tokens[request]) // block_size, int(num_blocks[request]))
        base, node = int(first_key[request]), -1
        for depth, content in enumerate(row):
            # The blocks that end within this id; two requests share them when all ids up to here are equal.
            begin = depth * id_block_tokens // block_size
            end = (depth + 1) * id_block_tokens // block_size
            key = node_of.setdefault((node, content), num_keys)
            if key == num_keys:
                # At least one number a node, so that a node without a block of its own is told apart all the same.
                num_keys += max(end - begin, 1)
            node = key
            until = min(end, num_shared)
            if until > begin:
                flat[base + begin : base + until] = np.arange(key, key + until - begin)
            if end >= num_shared:
                break
    alone = np.flatnonzero(flat < 0)
    flat[alone] = num_keys + np.arange(len(alone))
    keys = np.zeros(max(len(flat), num_keys + len(alone)), KEY)
    keys["key"][: len(flat)] = flat
    return first_key, keys
