"""Optional columns of a request trace: priorities, output limits, words, and what the prompts have in common."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from traces.requests import Labels, PrefixHashes

BLOCK_TOKENS = (512, 16, 32, 64, 128, 256, 1024, 2048, 1, 2, 4, 8)
"""Block lengths that traces use, tokens; the first that explains the lists is taken (512 is Mooncake's own)."""


def priorities(column: pa.ChunkedArray, name: str) -> tuple[npt.NDArray[np.int64] | None, str]:
    """Priorities as whole numbers, or None; with what the user must know."""
    try:
        values = pc.cast(column, pa.int64())
    except pa.ArrowException:
        return None, f"column {name!r} is not used: a priority is a whole number, lower runs first"
    if values.null_count:
        return None, f"column {name!r} is not used: {values.null_count:,} rows have no priority"
    text = f'column {name!r} is read as priority, lower runs first; it acts under the scheduling policy "priority"'
    return values.to_numpy().astype(np.int64), text


def output_limits(
    column: pa.ChunkedArray, name: str, output_tokens: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64] | None, str]:
    """Output limits as whole numbers, or None; with what the user must know."""
    why = None
    try:
        values = pc.cast(column, pa.int64())
    except pa.ArrowException:
        why = "a limit is a whole number"
    else:
        if values.null_count:
            why = f"{values.null_count:,} rows have no limit"
        elif (values.to_numpy() < output_tokens).any():
            why = "some rows have more output tokens than their limit"
    if why is not None:
        return None, f"column {name!r} is not used: {why}; every request is taken to end on its length limit"
    limits = values.to_numpy().astype(np.int64)
    num_stopped = int((limits > output_tokens).sum())
    return limits, f"column {name!r} is read as max_tokens: {num_stopped:,} requests end before it, on a stop token"


def words_of(column: pa.ChunkedArray, name: str) -> Labels:
    """A column of words; what is absent is ""."""
    words = pc.fill_null(pc.cast(column.combine_chunks(), pa.string()), "").dictionary_encode()
    return Labels(name, tuple(words.dictionary.to_pylist()), words.indices.to_numpy().astype(np.int32))


def prefix_hashes(
    column: pa.ChunkedArray, name: str, prompt_tokens: npt.NDArray[np.int64], block: pa.ChunkedArray | None = None
) -> tuple[PrefixHashes | None, str]:
    """Prefix hashes with the block length that is stated or that their number implies, or None; with what to know.

    Parameters
    ----------
    column : pa.ChunkedArray
        n lists of ids; an absent list says nothing about its request.
    name : str
        The column's name, for messages.
    prompt_tokens : (n,) int64
    block : pa.ChunkedArray, optional
        n block lengths, where the file states them.

    Source
    ------
    Mooncake traces have an id per started block of 512 tokens, vLLM's timed_trace one per started block of 16.
    """
    lists = column.combine_chunks()
    num_ids = np.nan_to_num(pc.list_value_length(lists).to_numpy(zero_copy_only=False)).astype(np.int64)
    block_tokens = _block_tokens(num_ids, prompt_tokens, BLOCK_TOKENS if block is None else _stated(block))
    ids = lists.flatten()
    if block_tokens is None or ids.null_count or pa.types.is_nested(ids.type):
        why = "some ids are missing" if ids.null_count else "the number of ids fits no block length"
        return None, f"column {name!r} is not used ({why}): prefix reuse is not modelled, so TTFT is an upper bound"
    codes = ids.dictionary_encode().indices.to_numpy().astype(np.int64) if len(ids) else np.zeros(0, np.int64)
    offsets = np.concatenate([[0], np.cumsum(num_ids)]).astype(np.int64)
    text = f"column {name!r} is read as prefix hashes, one per {block_tokens} prompt tokens"
    return PrefixHashes(codes, offsets, block_tokens), text


def _stated(block: pa.ChunkedArray) -> tuple[int, ...]:
    """Return the one block length that a file states, or none."""
    stated = block.drop_null().unique()
    if len(stated) != 1 or not pa.types.is_integer(stated.type):
        return ()
    return tuple(length for length in stated.to_pylist() if length > 0)


def _block_tokens(
    num_ids: npt.NDArray[np.int64], prompt_tokens: npt.NDArray[np.int64], possible: tuple[int, ...]
) -> int | None:
    """The block length under which every list has an id per started, or per full, block of its prompt."""
    stated = num_ids > 0
    num_ids, prompt_tokens = num_ids[stated], prompt_tokens[stated]
    for block_tokens in possible:
        started, full = -(-prompt_tokens // block_tokens), prompt_tokens // block_tokens
        if (num_ids == started).all() or (num_ids == full).all():
            return block_tokens
    return None


def reuse_share(hashes: PrefixHashes, prompt_tokens: npt.NDArray[np.int64]) -> float:
    """Share of all prompt tokens, 0–1, that begin a prompt that began alike before: what an endless cache saves.

    vLLM saves less: whole blocks only, never a prompt's last token, nothing that was evicted.
    """
    num_ids = np.diff(hashes.offsets)
    place = np.arange(len(hashes.ids)) - np.repeat(hashes.offsets[:-1], num_ids)
    tokens = np.clip(np.repeat(prompt_tokens, num_ids) - place * hashes.block_tokens, 0, hashes.block_tokens)
    is_new = np.zeros(len(hashes.ids), np.bool_)
    is_new[np.unique(hashes.ids, return_index=True)[1]] = True
    # Alike from the beginning on: a known id after a new one is no prefix.
    num_new = np.concatenate([[0], np.cumsum(is_new)])
    is_prefix = num_new[1:] == np.repeat(num_new[hashes.offsets[:-1]], num_ids)
    return float(tokens[is_prefix].sum() / prompt_tokens.sum())
