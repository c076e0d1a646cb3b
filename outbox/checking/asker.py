"""Askers: who is asked what a local transaction came to; here, the listeners of this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from inspect import isawaitable
from typing import Any, Protocol

from outbox.checking.answers import Answer, FailedAnswer, LocalTransactionState, answer_of, answer_of_error
from outbox.checking.listeners import Listeners, check_of
from outbox.errors import ConfigurationError, OutboxError
from outbox.records import MessageView

WHERE = "checkLocalTransactionState"
"""How RocketMQ names the call in the remark of a check that raised."""


class NoCheckerError(OutboxError, LookupError):
    """The application replied that it has no listener for the message."""


class Asker(Protocol):
    """Asks about one half message; called by several threads at once."""

    def missing(self, view: MessageView) -> str | None:
        """Why no listener can be asked about this message, or None. Such a message uses up no check. Must not block."""

    # An asker may have a third method, `unable() -> str | None`: why it can ask about no message at all, as long as
    # that is so (no secret, an unusable callback). Its checker then claims nothing, so that another one may ask.

    def ask(self, view: MessageView, deadline: float) -> Answer:
        """Ask, and return before `deadline` (`time.monotonic()` seconds); a later result is thrown away.

        A call that does not return keeps its thread. Where asking fails, return a `FailedAnswer`.

        Raises:
            NoCheckerError: no listener can be asked, as was only found out now; like
                `missing`. Anything else that is raised counts as a `FailedAnswer`.
        """


def why_unable(asker: Asker | None) -> str | None:
    """Return why an asker can ask about no message at all, or None."""
    unable = getattr(asker, "unable", None)
    return None if unable is None else unable()


class ListenerAsker:
    """Asks the listeners that this process has registered, found by the names in the message.

    A listener is an object with `check_local_transaction(view)` (RocketMQ 4.x) or `check(view)` (5.x), or a callable;
    what it returns is read by `outbox.checking.answers.answer_of`. It may be a coroutine function.
    """

    def __init__(self, listeners: Listeners, *, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Ask `listeners`; coroutines run on `loop`, the application's, or else each on a loop of its own.

        With `loop`, they may use what belongs to it, as a pool of connections. It must go on running meanwhile:
        `GroupChecker.start()` leaves it free, `run_once()` called on it would not.
        """
        self._listeners = listeners
        self._loop = loop

    def missing(self, view: MessageView) -> str | None:
        """That no listener is registered for this message, or that two are."""
        try:
            found = self._listeners.find(view)
        except ConfigurationError as two:  # asking either of them would be a guess
            return str(two)
        return self._listeners.explain_missing(view) if found is None else None

    def ask(self, view: MessageView, deadline: float) -> Answer:
        """Call the listener; an exception is UNKNOWN with RocketMQ's remark."""
        try:
            answer = self._call(view)
            if isawaitable(answer):
                answer = self._await(answer, deadline)
        except Exception as error:  # noqa: BLE001  (whatever the application raises is an answer: UNKNOWN)
            return answer_of_error(WHERE, error)
        return answer_of(answer)

    async def ask_here(self, view: MessageView) -> Answer:
        """Call the listener in the event loop that runs, without a deadline; else as `ask`."""
        try:
            answer = self._call(view)
            if isawaitable(answer):
                answer = await answer
        except Exception as error:  # noqa: BLE001  (whatever the application raises is an answer: UNKNOWN)
            return answer_of_error(WHERE, error)
        return answer_of(answer)

    def _call(self, view: MessageView) -> Any:
        """Return what the listener returns, which may have to be awaited."""
        call = check_of(self._listeners.find(view))
        if call is None:
            return FailedAnswer(LocalTransactionState.UNKNOWN, "the listener has no check to call")
        return call(view)

    def _await(self, answer: Awaitable[Any], deadline: float) -> Any:
        """Run a coroutine until the deadline and cancel it then, so that it does not keep its thread."""
        seconds = max(deadline - time.monotonic(), 0.0)

        async def until() -> Any:
            async with asyncio.timeout(seconds):
                return await answer

        if self._loop is None:
            return asyncio.run(until())
        return asyncio.run_coroutine_threadsafe(until(), self._loop).result(seconds + 1.0)
