"""What outlives one run of a page: sessions for a tab that is loaded anew, and results of long work."""

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from math import inf
from typing import Generic, TypeVar

T = TypeVar("T")

MOST_KEPT = 32
"""Values; beyond, the one that was quiet longest goes."""
KEPT_S = 3600.0
"""How long one is kept after it was last put there, seconds."""
LOOK_S = 0.1
"""How often one who waits for another's work looks again."""


class Kept(Generic[T]):
    """Values by what they stand on, or by the secret of whom they belong to, where only that one can name it.

    Parameters
    ----------
    clock : callable
        Seconds, growing.
    size_of : callable
        Bytes of a value, where they matter.
    most_bytes : float
        Of all values together; the newest is kept whatever its size.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        size_of: Callable[[T], int] = lambda value: 0,
        most_bytes: float = inf,
    ) -> None:
        self._clock, self._size_of, self._most_bytes, self._lock = clock, size_of, most_bytes, threading.Lock()
        self._values: OrderedDict[Hashable, tuple[float, T]] = OrderedDict()
        self._being_made: set[Hashable] = set()

    def put(self, key: Hashable, value: T) -> None:
        """Keep a value from now on."""
        with self._lock:
            self._values[key] = (self._clock(), value)
            self._values.move_to_end(key)
            while len(self._values) > 1 and (len(self._values) > MOST_KEPT or self._num_bytes() > self._most_bytes):
                self._values.popitem(last=False)

    def get(self, key: Hashable) -> T | None:
        """Find a value; None when there is none any more."""
        with self._lock:
            oldest_s = self._clock() - KEPT_S
            while self._values and next(iter(self._values.values()))[0] < oldest_s:
                self._values.popitem(last=False)
            found = self._values.get(key)
        return None if found is None else found[1]

    def made_once(self, key: Hashable, make: Callable[[], T], while_waiting: Callable[[], None]) -> T:
        """Find a value, or make it; who asks while another makes it waits, and makes it where that one gave up.

        Parameters
        ----------
        key : hashable
        make : callable
        while_waiting : callable
            Called again and again; may raise to give up.
        """
        while True:
            with self._lock:
                is_mine = key not in self._values and key not in self._being_made
                if is_mine:
                    self._being_made.add(key)
            if is_mine:
                break
            if (found := self.get(key)) is not None:
                return found
            while_waiting()
            time.sleep(LOOK_S)
        try:
            value = make()
            self.put(key, value)
            return value
        finally:
            with self._lock:
                self._being_made.discard(key)

    def _num_bytes(self) -> int:
        """Bytes of all values."""
        return sum(self._size_of(value) for _, value in self._values.values())


def is_secret(value: object) -> bool:
    """Whether a tab's word can be its secret: 128 bits that it drew, and not some default that others say too."""
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{32}", value) is not None
