"""Askers by group: made from what the operator registered in the database and what this process was given.

A callback that cannot be used (stored by hand, no secret in the environment) makes an asker that reports so: the group
gets the alarm `no_checker` with the reason, and no check is used up until it is repaired.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from outbox.checking import Answer
from outbox.checking.asker import Asker
from outbox.errors import ConfigurationError
from outbox.records import MessageView
from outbox_relay.calls.allow_list import AllowList
from outbox_relay.checker.askers.http import HttpAsker, find_secrets
from outbox_relay.checker.askers.sql import SqlAsker
from outbox_relay.checker.callback import CallbackError, SqlCallback, read_callback


class Registration(NamedTuple):
    """How a group is asked; `callback` is JSON text, None: the group's own application asks itself."""

    callback: str | None = None
    workers: int = 4

    @classmethod
    def read(cls, callback: Mapping[str, Any], workers: int) -> Registration:
        """Take what the database holds; the text is in one form, so that registrations can be compared."""
        return cls(json.dumps(callback, sort_keys=True, ensure_ascii=False), workers)

    @property
    def kind(self) -> str:
        """How it is asked, for people: http, sql or in process."""
        return "in process" if self.callback is None else str(json.loads(self.callback).get("kind"))


class RegisteredAsker(Asker, Protocol):
    """An asker by a registered callback; it holds connections."""

    @property
    def place(self) -> str:
        """Where it asks, for people."""

    def problem(self, deadline: float) -> str | None:
        """Return why the group cannot be asked from here, or None; asks nothing."""

    def close(self) -> None:
        """Close the idle ones."""


@dataclass(frozen=True, slots=True)
class UnusableCallback:
    """Stands for a callback that cannot be used."""

    why: str
    place: str = ""

    def problem(self, deadline: float) -> str | None:
        """Return why."""
        return self.why

    def unable(self) -> str | None:
        """Return why."""
        return self.why

    def missing(self, view: MessageView) -> str | None:
        """Return why."""
        return self.why

    def ask(self, view: MessageView, deadline: float) -> Answer:
        """Never called."""
        raise CallbackError(self.why)

    def close(self) -> None:
        """Nothing to close."""


class Askers:
    """Makes askers.

    Args:
        callback_dsn: the login by which queries run that name no variable; None: they are refused.
        allowed: hosts and networks that may be called.
        environment: where secrets and the addresses of other databases are found.
        tls: how servers are verified.
    """

    def __init__(
        self,
        callback_dsn: str | None,
        allowed: AllowList,
        environment: Mapping[str, str],
        tls: ssl.SSLContext,
    ) -> None:
        self._dsn, self._allowed, self._environment, self._tls = callback_dsn, allowed, environment, tls

    def make(self, group: str, registration: Registration) -> RegisteredAsker | None:
        """Make a group's asker; None: the group is not asked from here."""
        if registration.callback is None:
            return None
        try:
            callback = read_callback(json.loads(registration.callback))
            if isinstance(callback, SqlCallback):
                return SqlAsker(callback, self._dsn, self._environment, connections=registration.workers)
            secrets = find_secrets(group, self._environment)
            return HttpAsker(
                group, callback, secrets, self._allowed, self._tls, connections=registration.workers
            )
        except (CallbackError, ConfigurationError) as error:
            return UnusableCallback(f"its callback cannot be used: {error}")


def trust(ca_file: str | None = None) -> ssl.SSLContext:
    """Verify servers by the system's authorities, and by those of a file besides.

    Raises:
        OSError: the file cannot be read, or holds no certificate (`ssl.SSLError`).
    """
    context = ssl.create_default_context()
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context
