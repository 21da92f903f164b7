"""Optional columns of a request trace: priorities, output limits, words, and what the prompts have in common."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from traces.requests import Labels, PrefixHashes

BLOCK_TOKENS = (512, 16, 32, 64, 128, 256, 1024, 2048, 1, 2, 4, 8)
"""Block lengths that traces use, tokens; the first that explains the lists is taken (512 is Mooncake's own)."""
MADE_UP_TOKENS = 64
"""Block length of made-up common text, tokens."""


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
    seen = np.minimum(_num_seen(hashes) * hashes.block_tokens, prompt_tokens)
    return float(seen.sum() / prompt_tokens.sum())


def same_beginning(prompt_tokens: npt.NDArray[np.int64], share: float) -> PrefixHashes:
    """Have every prompt begin with the same text, its first `share` (0–1) to the nearest `MADE_UP_TOKENS`."""
    num_ids = np.rint(share * prompt_tokens / MADE_UP_TOKENS).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(num_ids)])
    return PrefixHashes(_places(offsets), offsets, MADE_UP_TOKENS)


def with_less_reuse(hashes: PrefixHashes, prompt_tokens: npt.NDArray[np.int64], share: float) -> PrefixHashes:
    """Have prompts share less with earlier ones, so that at most `share` (0–1) of all their tokens was seen before.

    Every prompt keeps the same part of what it has in common with earlier ones, from its beginning on; what comes after
    is text of its own. Who began like that text has less in common, too: the part is found by bisection, to 0.1 %.
    """
    if reuse_share(hashes, prompt_tokens) <= share:
        return hashes
    seen, low, high = _num_seen(hashes), 0.0, 1.0
    found = _cut(hashes, seen, low)
    while high - low > 1e-3:
        middle = (low + high) / 2
        tried = _cut(hashes, seen, middle)
        if reuse_share(tried, prompt_tokens) <= share:
            low, found = middle, tried
        else:
            high = middle
    return found


def _cut(hashes: PrefixHashes, seen: npt.NDArray[np.int64], part: float) -> PrefixHashes:
    """Keep a part of the ids that were seen before; what follows where some were cut is new."""
    kept = np.floor(part * seen).astype(np.int64)
    num_ids = np.diff(hashes.offsets)
    is_own = _places(hashes.offsets) >= np.repeat(np.where(kept < seen, kept, num_ids), num_ids)
    new = int(hashes.ids.max(initial=0)) + 1 + np.arange(len(hashes.ids))
    return PrefixHashes(np.where(is_own, new, hashes.ids), hashes.offsets, hashes.block_tokens)


def _num_seen(hashes: PrefixHashes) -> npt.NDArray[np.int64]:
    """How many leading ids of each request an earlier one has; a known id after a new one is no prefix."""
    is_new = np.zeros(len(hashes.ids), np.bool_)
    is_new[np.unique(hashes.ids, return_index=True)[1]] = True
    num_new = np.concatenate([[0], np.cumsum(is_new)])
    is_seen = num_new[1:] == np.repeat(num_new[hashes.offsets[:-1]], np.diff(hashes.offsets))
    before = np.concatenate([[0], np.cumsum(is_seen)])
    num_seen: npt.NDArray[np.int64] = before[hashes.offsets[1:]] - before[hashes.offsets[:-1]]
    return num_seen


def _places(offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Place of every id in the list of its request."""
    places: npt.NDArray[np.int64] = np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))
    return places
