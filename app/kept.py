"""What sessions leave behind for a while, so that a tab which is loaded anew finds its work again."""

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

MOST_KEPT = 32
"""Sessions; beyond, the one that was quiet longest goes."""
KEPT_S = 4 * 3600.0
"""How long one is kept after it was last heard of, seconds."""


class Kept(Generic[T]):
    """Values by the secret of the tab that they belong to; nobody gets one who cannot name its secret.

    Parameters
    ----------
    clock : callable
        Seconds, growing.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._values: OrderedDict[str, tuple[float, T]] = OrderedDict()

    def put(self, secret: str, value: T) -> None:
        """Keep a value from now on."""
        with self._lock:
            self._values[secret] = (self._clock(), value)
            self._values.move_to_end(secret)
            while len(self._values) > MOST_KEPT:
                self._values.popitem(last=False)

    def get(self, secret: str) -> T | None:
        """Find the value of a tab; None when there is none any more."""
        with self._lock:
            oldest_s = self._clock() - KEPT_S
            while self._values and next(iter(self._values.values()))[0] < oldest_s:
                self._values.popitem(last=False)
            found = self._values.get(secret)
        return None if found is None else found[1]


def is_secret(value: object) -> bool:
    """Whether a tab's word can be its secret: 128 bits that it drew, and not some default that others say too."""
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{32}", value) is not None
