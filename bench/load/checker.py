"""The checker under test: the service of `outbox checker run` in a process of its own, with askers that answer at once.

Of the groups that nobody is well in, one hangs for ever, one raises, and one answers UNKNOWN about very many.
"""

from __future__ import annotations

import os
import ssl
import threading
import time
from array import array
from multiprocessing.connection import Connection

from outbox.checking import Answer, LocalTransactionState
from outbox.records import MessageView
from outbox_relay.calls.allow_list import AllowList
from outbox_relay.checker.askers.registered import Askers, RegisteredAsker, Registration
from outbox_relay.checker.service import Checker, CheckerOptions

HANGS, RAISES, FLOODS = SICK = ("hangs", "raises", "floods")


class Scripted:
    """Answers for one group, and notes how late it was asked."""

    place = "this process"

    def __init__(self, group: str, check_after: float, delays: array[float]) -> None:
        self._group, self._check_after, self._delays = group, check_after, delays

    def problem(self, deadline: float) -> str | None:
        """Nothing is wrong."""
        return None

    def missing(self, view: MessageView) -> str | None:
        """Somebody can always be asked."""
        return None

    def ask(self, view: MessageView, deadline: float) -> Answer:
        """Hang, raise or answer, as the group's name says."""
        if self._group == HANGS:
            threading.Event().wait()
        if self._group == RAISES:
            raise RuntimeError("the service of this group is broken")
        if self._group == FLOODS:
            return Answer(LocalTransactionState.UNKNOWN)
        self._delays.append(time.time() - view.born_at.timestamp() - self._check_after)
        return Answer(LocalTransactionState.COMMIT)

    def close(self) -> None:
        """Nothing to close."""


class ScriptedAskers(Askers):
    """Makes them for whatever the database says."""

    def __init__(self, check_after: float) -> None:
        super().__init__(None, AllowList.read((), ()), {}, ssl.create_default_context())
        self._check_after = check_after
        self.delays: array[float] = array("d")

    def make(self, group: str, registration: Registration) -> RegisteredAsker | None:
        return Scripted(group, self._check_after, self.delays)


def check(pipe: Connection, dsn: str, check_after: float) -> None:
    """Job of a worker: say "ready", run a checker until told to stop, send how late healthy groups were asked.

    The delays are seconds from the moment a check was due to the moment it was asked, packed.
    """
    askers = ScriptedAskers(check_after)
    checker = Checker(CheckerOptions(dsn), askers)
    threading.Thread(target=checker.run, daemon=True).start()
    pipe.send("ready")
    pipe.recv()
    pipe.send(askers.delays.tobytes())
    pipe.close()
    os._exit(0)  # an orderly end would wait for the one that hangs
