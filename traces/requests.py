"""A request trace: when each request arrived and how many tokens it brought and drew."""

import hashlib
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from traces.receipt import Receipt


@dataclass(frozen=True, slots=True, eq=False)
class PrefixHashes:
    """What the prompts have in common: equal leading ids mean equal leading tokens."""

    ids: npt.NDArray[np.int64]
    """(m,) ids of all requests, one request after the other; from 0 on, as a reader numbers them."""
    offsets: npt.NDArray[np.int64]
    """(n + 1,) request i has ids[offsets[i]:offsets[i + 1]]."""
    block_tokens: int
    """Prompt tokens that one id stands for; a request's last id may stand for fewer."""
    known: "SharedPrefixes | None" = field(default=None, repr=False)
    """What `shared` gives, where that is known already."""

    def __post_init__(self) -> None:
        self.ids.flags.writeable = False
        self.offsets.flags.writeable = False

    @property
    def shared(self) -> "SharedPrefixes":
        """Which leading ids other requests have as well; found when it is first asked for, and kept."""
        if self.known is None:
            object.__setattr__(self, "known", _shared_prefixes(self.ids, self.offsets))
        assert self.known is not None
        return self.known


@dataclass(frozen=True, slots=True, eq=False)
class SharedPrefixes:
    """The leading ids that requests have in common, as the way of every request through the tree of all of them.

    A branch ends where those who share its last id go on with different ones. So two requests begin with the same k ids
    exactly where both are on the same branch at the k-th.
    """

    branch: npt.NDArray[np.int64]
    """(s,) branches in the order in which a request takes them, one request after the other."""
    until: npt.NDArray[np.int64]
    """(s,) with how many of its ids a request leaves the branch: for another one, or because its next id is not shared
    (in the trace that this was found in, if this is a part of it)."""
    offsets: npt.NDArray[np.int64]
    """(n + 1,) request i takes branch[offsets[i]:offsets[i + 1]]."""

    def __post_init__(self) -> None:
        for values in (self.branch, self.until, self.offsets):
            values.flags.writeable = False

    @property
    def num_ids(self) -> npt.NDArray[np.int64]:
        """(n,) how many leading ids of a request another one has as well."""
        return np.where(np.diff(self.offsets) > 0, np.append(self.until, 0)[self.offsets[1:] - 1], 0)

    def at(self, index: npt.NDArray[np.intp]) -> "SharedPrefixes":
        """Return the same for some of the requests: what they share with others, they share still."""
        branch, offsets = _rows_at(self.offsets, index, self.branch)
        return SharedPrefixes(branch, _rows_at(self.offsets, index, self.until)[0], offsets)


def _shared_prefixes(ids: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]) -> SharedPrefixes:
    """Follow the requests, id by id, for as long as somebody goes the same way."""
    length = np.diff(offsets)
    text, bounds = ids.tobytes(), (offsets * ids.itemsize).tolist()
    lists = [text[begin:end] for begin, end in pairwise(bounds)]
    # Lists that begin alike stand side by side; sorting them once is far faster than sorting ids, place by place.
    row = np.array(sorted(range(len(lists)), key=lists.__getitem__), np.int64)
    node, branch = np.zeros(len(row), np.int64), np.full(len(row), -1)
    taken = [(row[:0], row[:0], row[:0])]
    depth = num_branches = 0
    while len(row):
        has_next = length[row] > depth
        before, content = node[has_next], ids[offsets[row[has_next]] + depth]
        is_first = (np.diff(before, prepend=-1) != 0) | (np.diff(content, prepend=0) != 0)
        way = np.cumsum(is_first) - 1
        is_shared, before = np.bincount(way) > 1, before[is_first]
        is_new = is_shared & ((np.bincount(before, is_shared)[before] > 1) | (depth == 0))
        branch_of_way = np.where(is_shared, branch[has_next][is_first], -1)
        branch_of_way[is_new] = num_branches + np.arange(is_new.sum())
        num_branches += int(is_new.sum())
        next_branch = np.full(len(row), -1)
        next_branch[has_next] = branch_of_way[way]
        leaves, goes_on = (branch >= 0) & (next_branch != branch), next_branch >= 0
        taken.append((row[leaves], branch[leaves], np.full(leaves.sum(), depth)))
        row, node, branch = row[goes_on], way[goes_on[has_next]], next_branch[goes_on]
        depth += 1
    row, branch, until = (np.concatenate(parts) for parts in zip(*taken, strict=True))
    order = np.argsort(row, kind="stable")
    num_taken = np.bincount(row, minlength=len(length))
    return SharedPrefixes(branch[order], until[order], np.concatenate([[0], np.cumsum(num_taken)]))


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """Words that a column has for n requests, such as model or tenant; targets can speak of them, a replay not."""

    name: str
    """The column."""
    words: tuple[str, ...]
    """The different ones; "" where the file has none."""
    codes: npt.NDArray[np.int32]
    """(n,) position in `words`."""

    def __post_init__(self) -> None:
        self.codes.flags.writeable = False


@dataclass(frozen=True, slots=True)
class Selection:
    """A part of a trace, in the order in which it is taken: spread, window, words, sample, rate."""

    spread_seed: int | None = None
    """Seed of the spreading of coarse stamps; None = arrivals stay as they are."""
    window_s: tuple[float, float | None] | None = None
    """From when until when, seconds since the first arrival, the end excluded; None = all, an end of None = the end."""
    keep: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(column, words): only requests with one of these words, for every column named."""
    share: float = 1.0
    """Share of the requests that is kept, above 0, at most 1; whole sessions where the trace tells them."""
    sample_seed: int = 0
    """Seed of the sample."""
    rate: float = 1.0
    """Arrivals come so many times faster, above 0."""


WHOLE = Selection()
"""The trace as it is."""


@dataclass(frozen=True, slots=True, eq=False)
class RequestTrace:
    """n requests ordered by arrival; two traces are the same when their `digest` is."""

    arrival_s: npt.NDArray[np.float64]
    """(n,) seconds since the first arrival, never decreasing; ties keep the order of the file."""
    prompt_tokens: npt.NDArray[np.int64]
    """(n,) tokens in the prompt, at least 1."""
    output_tokens: npt.NDArray[np.int64]
    """(n,) tokens generated, at least 1."""
    source_row: npt.NDArray[np.int64]
    """(n,) data row of the file, counted from 0."""
    priority: npt.NDArray[np.int64] | None = None
    """(n,) lower runs first; None when the trace does not say."""
    max_tokens: npt.NDArray[np.int64] | None = None
    """(n,) most output tokens asked for; fewer came where a stop token ended it. None when the trace does not say."""
    prefix_hashes: PrefixHashes | None = None
    """Which prompts share a prefix; None when the trace does not say."""
    receipt: Receipt | None = None
    """How the file was read; None for a trace that no file stands behind."""
    labels: tuple[Labels, ...] = ()
    """Columns by which requests can be chosen or judged."""
    selection: Selection = WHOLE
    """Which part of the file this is."""
    digest: str = field(init=False)
    """SHA-256 over everything that a replay or a target sees, hexadecimal."""

    def __post_init__(self) -> None:
        state = hashlib.sha256()
        for values in (self.arrival_s, self.prompt_tokens, self.output_tokens, self.priority, self.max_tokens):
            if values is None:
                state.update(b"none")
            else:
                values.flags.writeable = False
                state.update(np.ascontiguousarray(values).tobytes())
        if self.prefix_hashes is not None:
            state.update(self.prefix_hashes.ids.tobytes() + self.prefix_hashes.offsets.tobytes())
            state.update(str(self.prefix_hashes.block_tokens).encode())
        for labels in self.labels:
            words, place = np.unique(np.array(labels.words), return_inverse=True)
            state.update("\0".join((labels.name, *words)).encode() + place[labels.codes].astype(np.int64).tobytes())
        self.source_row.flags.writeable = False
        object.__setattr__(self, "digest", state.hexdigest())

    def __len__(self) -> int:
        return len(self.arrival_s)

    def at(self, index: npt.NDArray[np.intp]) -> "RequestTrace":
        """The requests at `index`, with the arrivals they had."""
        return replace(
            self,
            arrival_s=self.arrival_s[index],
            prompt_tokens=self.prompt_tokens[index],
            output_tokens=self.output_tokens[index],
            source_row=self.source_row[index],
            priority=None if self.priority is None else self.priority[index],
            max_tokens=None if self.max_tokens is None else self.max_tokens[index],
            prefix_hashes=None if self.prefix_hashes is None else _hashes_at(self.prefix_hashes, index),
            labels=tuple(replace(labels, codes=labels.codes[index]) for labels in self.labels),
        )

    @property
    def span_s(self) -> float:
        """Seconds from the first arrival to the last; 0 for an empty trace."""
        return float(self.arrival_s[-1] - self.arrival_s[0]) if len(self) else 0.0


def _hashes_at(hashes: PrefixHashes, index: npt.NDArray[np.intp]) -> PrefixHashes:
    """The ids of the requests at `index`."""
    ids, offsets = _rows_at(hashes.offsets, index, hashes.ids)
    return PrefixHashes(ids, offsets, hashes.block_tokens, hashes.known and hashes.known.at(index))


def _rows_at(
    offsets: npt.NDArray[np.int64], index: npt.NDArray[np.intp], values: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Of rows of values, one row after the other, those at `index`, and where each begins."""
    length = np.diff(offsets)[index]
    begins = np.concatenate([[0], np.cumsum(length)])
    places = np.arange(begins[-1]) + np.repeat(offsets[:-1][index] - begins[:-1], length)
    return values[places], begins
