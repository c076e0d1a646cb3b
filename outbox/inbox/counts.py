"""What a member has done since it was started, counted by its threads."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Literal

Result = Literal["applied", "discarded", "refused", "parked", "dead", "gone"]
IN_A_ROW = 3
"""So many transactions without a message that was dealt with: a lock or a lost connection passes sooner."""
RetryResult = Literal["applied", "discarded", "failed", "dead"]


class MessageCounts:
    """Messages and retries by what became of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: Counter[str] = Counter(applied=0, discarded=0, refused=0, parked=0, dead=0, gone=0)
        self._erased = 0
        self._retries: Counter[str] = Counter(applied=0, discarded=0, failed=0, dead=0)
        self._interruptions, self._interrupted_by = 0, ""

    def message(self, result: Result, count: int = 1) -> None:
        """Count messages that were delivered and need nothing more."""
        with self._lock:
            self._messages[result] += count
            self._interruptions = 0

    def retry(self, result: RetryResult) -> None:
        """Count a retry that has ended."""
        with self._lock:
            self._retries[result] += 1
            self._interruptions = 0

    def interrupted(self, by: str) -> None:
        """Count a transaction that PostgreSQL ended, or refused, with what ended it."""
        with self._lock:
            self._interruptions += 1
            self._interrupted_by = by

    @property
    def trouble(self) -> str | None:
        """Why no message is dealt with: what ended the last of several transactions in a row; None: messages are."""
        with self._lock:
            return self._interrupted_by if self._interruptions >= IN_A_ROW else None

    def erased(self) -> None:
        """Count a message whose key was destroyed; it is counted as discarded as well, once that is committed."""
        with self._lock:
            self._erased += 1

    @property
    def erasures(self) -> int:
        """How often a body was found erased."""
        with self._lock:
            return self._erased

    @property
    def messages(self) -> dict[str, int]:
        """Messages by result."""
        with self._lock:
            return dict(self._messages)

    @property
    def retries(self) -> dict[str, int]:
        """Retries by result."""
        with self._lock:
            return dict(self._retries)
