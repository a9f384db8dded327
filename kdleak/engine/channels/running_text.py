"""What a debugger prints while nobody asked it anything, within bounded memory."""

from __future__ import annotations

import threading
from collections import deque
from typing import Deque

LIMIT = 1 << 20


class RunningText:
    """Collects text from any thread until it is taken; the oldest goes when it gets too much.

    Args:
        limit: characters kept.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._parts: Deque[str] = deque()
        self._size = 0
        self._dropped = 0
        self._lock = threading.Lock()

    def write(self, text: str) -> None:
        """Append text."""
        if not text:
            return
        with self._lock:
            self._parts.append(text)
            self._size += len(text)
            while self._size > self._limit and len(self._parts) > 1:
                gone = len(self._parts.popleft())
                self._size -= gone
                self._dropped += gone
            if self._size > self._limit:
                cut = self._size - self._limit
                self._parts[0] = self._parts[0][cut:]
                self._size -= cut
                self._dropped += cut

    def take(self) -> str:
        """All text since the last time, with LF line ends; says how much was left out."""
        with self._lock:
            text = "".join(self._parts)
            dropped, self._dropped = self._dropped, 0
            self._parts.clear()
            self._size = 0
        text = text.replace("\r\n", "\n")
        return f"[{dropped} characters left out]\n{text}" if dropped else text
