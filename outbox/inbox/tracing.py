"""Runs a listener inside a span: one for each message, or one for each batch.

It is a listener around the application's one, and around the codecs, so every way to run one is traced: a delivery, a
retry, a batch, an asynchronous listener. The loop of asynchronous listeners runs each in the context of the thread that
waits for it, so the span is current there as well.

A span ends when the listener returns, before the commit. If the process dies, or the commit fails, between any two
lines, nothing of the inbox differs: the message comes again, and makes another span.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from outbox.errors import ListenerError
from outbox.inbox.batches import BatchListener, results_of
from outbox.inbox.handling import Connection, Listener
from outbox.inbox.messages import ConsumedMessage
from outbox.inbox.results import Consumed, ConsumeResult, failure_of
from outbox.tracing import Tracing


def traced(listener: Any, tracing: Tracing, group: str, *, is_batch: bool) -> Any:
    """Return a listener that runs in a span of its message, or of its batch."""
    return _batch(listener, tracing, group) if is_batch else _single(listener, tracing, group)


def _single(listener: Listener, tracing: Tracing, group: str) -> Listener:

    def called(conn: Connection, message: ConsumedMessage) -> Consumed:
        with tracing.processing(group, [message], is_batch=False) as failed:
            result: object = listener(conn, message)
            if not isinstance(result, Consumed):
                failed(ListenerError.__name__)  # `handling` refuses it
                return cast("Consumed", result)
            _note([result], failed)
            return result

    return called


def _batch(listener: BatchListener, tracing: Tracing, group: str) -> BatchListener:

    def called(conn: Connection, messages: list[ConsumedMessage]) -> Sequence[Consumed]:
        with tracing.processing(group, messages, is_batch=True) as failed:
            results = results_of(listener(conn, messages), len(messages))
            _note(results, failed)
            return results

    return called


def _note(results: Sequence[Consumed], failed: Callable[[str], None]) -> None:
    """Note why a span failed: the first result that states a failure."""
    for result in results:
        if failure_of(result) is not None:
            failed((result if isinstance(result, ConsumeResult) else ConsumeResult.RECONSUME_LATER).value)
            return
