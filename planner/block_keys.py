"""Which KV blocks hold the same content: one number a block, equal exactly where content and prefix are equal."""

from typing import Any

import numpy as np
import numpy.typing as npt

from planner.kernel import KEY, NODE, number_blocks

Integers = npt.NDArray[np.int64]


def block_keys(
    num_tokens: Integers,
    ids: Integers,
    bounds: Integers,
    id_block_tokens: int,
    num_shared_tokens: Integers,
    block_size: int,
) -> tuple[Integers, npt.NDArray[Any]]:
    """Number the full KV blocks of every request.

    Parameters
    ----------
    num_tokens : (n,) int64
        Most tokens each request ever holds.
    ids : (m,) int64
        Content: equal leading ids mean equal leading tokens.
    bounds : (n, 2) int64
        Request i has ids[bounds[i, 0]:bounds[i, 1]].
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
    num_shared = np.minimum(num_shared_tokens // block_size, num_blocks)
    flat = np.full(int(num_blocks.sum()), -1, np.int64)
    num_nodes = int((bounds[:, 1] - bounds[:, 0]).sum())
    nodes = np.zeros(2 << num_nodes.bit_length(), NODE)  # at most half of it is taken
    num_keys = number_blocks(flat, first_key, num_shared, ids, bounds, id_block_tokens, block_size, nodes)
    keys = np.zeros(max(len(flat), num_keys), KEY)
    keys["key"][: len(flat)] = flat
    return first_key, keys
