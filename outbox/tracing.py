"""What a library for traces does for senders and consumers; `outbox.opentelemetry` is the one that is built in.

Nothing here imports it, so an application that traces nothing loads and calls nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol
from uuid import UUID

from outbox.message import Message


class Consumed(Protocol):
    """What a trace shows of a message that a listener gets: neither its key nor its body."""

    @property
    def message_id(self) -> UUID: ...  # noqa: D102
    @property
    def topic(self) -> str: ...  # noqa: D102
    @property
    def partition(self) -> int: ...  # noqa: D102
    @property
    def offset(self) -> int: ...  # noqa: D102
    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]: ...  # noqa: D102
    @property
    def reconsume_times(self) -> int: ...  # noqa: D102


Failed = Callable[[str], None]
"""Marks a span as failed by a listener that raised nothing; gets the type of the failure."""


class Tracing(Protocol):
    """Carries a trace from `send` to the listener."""

    def created(self, message: Message) -> Message:
        """Return the message with the headers of the trace that runs now; the same message without one."""
        ...

    def processing(
        self, group: str, messages: Sequence[Consumed], *, is_batch: bool
    ) -> AbstractContextManager[Failed]:
        """Make a span for the messages of one call of a listener, current while it runs."""
        ...

    def received(self, group: str, messages: Sequence[Consumed], began_ns: int) -> None:
        """Make a span of a call that returns messages to the application, below the current one.

        Args:
            group: the consumer group.
            messages: what it returns, one at least.
            began_ns: when it began, in nanoseconds since 1970.
        """
        ...
