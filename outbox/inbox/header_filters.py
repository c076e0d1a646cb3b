"""Header filters: which messages of a topic a consumer group subscribes to, decided by a function of its own.

The function runs in the thread that polls Kafka, before anything is decoded, once for each record that is fetched. It
gets the headers only, so that what it returns does not depend on where or when it runs.

What happens when it raises, or returns neither True nor False: it is unknown whether the message is subscribed to. To
skip it could lose it, and to deliver it could apply an effect that was never asked for. So the message is parked with
that failure, as if a listener had failed, and its key is held in an orderly group. Each retry asks the function again
(by then it may be repaired) and runs the listener, or ends the message without an effect. A message that failed in
its listener has passed the filter, and is not asked about again.

    fetched → filter raises → queued with the failure → parked (attempt 1) → … → filter again → listener, or done

The process may die between any two of them: up to `parked` the offset has not moved, so the record is fetched again;
from there on the row of `outbox.inbox_parked` is due, and stays so until the transaction that ends it is committed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from outbox.errors import InvalidSubscriptionError, ListenerError
from outbox.inbox.failures import Failure, describe
from outbox.inbox.messages import HeaderValue
from outbox.validation import exact

Headers = Mapping[str, HeaderValue]
"""The first value of each name."""
Predicate = Callable[[Headers], bool]
UNDECIDED = "header filter "
"""Begins the fingerprint of a message of which its filter could not decide."""
_LONGEST_NAME = 200
_ALLOWED = (
    "allowed: a function that is defined in a module, or HeaderFilter(name, function) with a name that is the same in "
    "all members of the group, and another one for another choice of messages"
)


class UndecidedError(Exception):
    """Carries the failure of a header filter to the code that parks the message."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.fingerprint)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class HeaderFilter:
    """A function of the headers, under the name by which members of a group compare their subscriptions."""

    name: str
    function: Predicate = field(compare=False)

    def __post_init__(self) -> None:
        """Check both.

        Raises:
            InvalidSubscriptionError: The name is not printable or has white space, or the function cannot be called.
        """
        if isinstance(self.name, str):
            object.__setattr__(self, "name", exact(self.name))
        if not _is_name(self.name):
            raise InvalidSubscriptionError(
                f"header filter: the name {self.name!r}; allowed: 1 to {_LONGEST_NAME} printable characters without "
                "white space"
            )
        if not _is_plain(self.function):
            raise InvalidSubscriptionError(
                f"header filter {self.name}: {self.function!r}; allowed: a function of the headers that returns True "
                "or False, and is not `async` and not a generator"
            )

    @classmethod
    def of(cls, function: Predicate) -> HeaderFilter:
        """Name a function by its module and its name in it.

        Raises:
            InvalidSubscriptionError: The function has no name of its own: a lambda, a function that was made by another
                one, or an object. Two of them that choose differently could have one name, and members that skip
                messages of each other would not be noticed.
        """
        if not inspect.isfunction(function) or "<" in function.__qualname__:
            raise InvalidSubscriptionError(f"header filter: {function!r} has no name of its own; {_ALLOWED}")
        return cls(f"{function.__module__}:{function.__qualname__}", function)

    def selects(self, headers: Sequence[tuple[str, HeaderValue]]) -> bool:
        """Return whether a message with these headers is subscribed to.

        Raises:
            UndecidedError: The function raised, or returned neither True nor False.
        """
        try:
            # Of several headers of one name the first one counts, so it is put in last.
            found: object = self.function(MappingProxyType(dict(reversed(headers))))
            if not isinstance(found, bool):
                raise ListenerError(f"it returned {type(found).__name__}; allowed: True or False")
        except Exception as error:
            failure = describe(error)
            fingerprint = f"{UNDECIDED}{self.name}: {failure.fingerprint}"
            raise UndecidedError(Failure(fingerprint, failure.error)) from error
        return found

    def __str__(self) -> str:
        """Return what is stored of the subscription; no tag expression has this form."""
        return f"headers by {self.name}"


def _is_name(name: object) -> bool:
    if not isinstance(name, str) or not 1 <= len(name) <= _LONGEST_NAME:
        return False
    return name.isprintable() and not any(each.isspace() for each in name)


def _is_plain(function: object) -> bool:
    """Return whether a call returns what the function decides, not a coroutine or a generator."""
    return callable(function) and not (
        inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    )
