"""One session of `outbox dev`, from the servers to their end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from outbox_local.dev.claim import Running, claim
from outbox_local.dev.outset import bring_schema, bring_topics
from outbox_local.dev.processes import ProcessError, Processes
from outbox_local.dev.screen import Screen
from outbox_local.dev.servers import Servers, serving
from outbox_local.stack.api import STOPPING
from outbox_local.stack.prepare import StackOptions
from outbox_relay.downloads.errors import StackError

CHECK_S = 0.2
"""Seconds between two checks of processes and servers."""
LOOPBACK_NETWORKS = ("127.0.0.0/8", "::1/128")
"""Where a service under development is called back."""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Session:
    """What is asked of a session."""

    directory: Path
    options: StackOptions
    topics: tuple[str, ...]
    callbacks: tuple[str, ...]
    """Hosts that the checker may call."""
    config: Path | None


def run_session(session: Session, screen: Screen) -> None:
    """Run a session until it is asked to end; one that runs in the directory already is described instead.

    Raises:
        StackError: servers could not be had, or are down; or another session runs and this one asks for more.
        OperatorError: schema or topics could not be had, or the relay or the checker ended by itself.
    """
    with claim(session.directory) as claimed:
        if isinstance(claimed, Running):
            _describe(claimed, session, screen)
            return
        with serving(session.directory, session.options, report=screen.report) as servers:
            bring_schema(servers.dsn, screen.report)
            bring_topics(servers.dsn, servers.bootstrap_servers, session.topics, screen.report)
            environment = _environment(servers)
            with (
                Processes(
                    _commands(session, screen), _for_processes(session, environment), screen
                ) as processes,
                _signals() as (end, at_once),
            ):
                processes.start()
                claimed.write(environment)
                screen.announce("running; Ctrl-C ends all of it and keeps the data", environment)
                try:
                    while not end.wait(CHECK_S) and not screen.broken.is_set():
                        servers.require()
                        processes.tend()
                except ProcessError:
                    servers.require_settled()
                    raise
                finally:
                    screen.report(STOPPING)
                    processes.stop(at_once)
                    claimed.write({})
        screen.report("stopped")


def _describe(running: Running, session: Session, screen: Screen) -> None:
    where = f"outbox dev runs already in {session.directory}"
    if session.options.fresh or session.topics or session.callbacks:
        raise StackError(
            f"{where}, as process {running.pid}, and takes no more options\n"
            'make a topic next to it: eval "$(outbox env)"; outbox topic create NAME\n'
            "other options: end it first, with Ctrl-C in its terminal"
        )
    screen.announce(
        where if running.environment else f"{where}, and is starting", running.environment, running.pid
    )


def _environment(servers: Servers) -> dict[str, str]:
    found = {"OUTBOX_DSN": servers.dsn, "OUTBOX_BOOTSTRAP_SERVERS": servers.bootstrap_servers}
    return found if servers.directory is None else {**found, "OUTBOX_STATE": str(servers.directory)}


def _for_processes(session: Session, environment: dict[str, str]) -> dict[str, str]:
    networks = (os.environ.get("OUTBOX_ALLOW_NETWORK", ""), *LOOPBACK_NETWORKS)
    config = {} if session.config is None else {"OUTBOX_CONFIG": str(session.config)}
    # These are servers of one developer: registered queries may run by the same login.
    queries = os.environ.get("OUTBOX_CALLBACK_DSN") or environment["OUTBOX_DSN"]
    return {
        **environment,
        **config,
        "OUTBOX_ALLOW_NETWORK": " ".join(networks).strip(),
        "OUTBOX_CALLBACK_DSN": queries,
    }


def _commands(session: Session, screen: Screen) -> dict[str, list[str]]:
    callbacks = [word for host in session.callbacks for word in ("--allow-callback", host)]
    form = ["--log-format", screen.log_format]
    return {
        "relay": ["relay", "run", *form],
        "checker": ["checker", "run", *callbacks, *form],
        "console": ["console", "--port", "0", *form],
    }


@contextmanager
def _signals() -> Iterator[tuple[threading.Event, threading.Event]]:
    """Yield two events: the first signal sets one, to end in order, and the next the other, to end at once.

    The handlers stay: a signal while the servers stop shall not interrupt that.
    """
    end, at_once = threading.Event(), threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        (at_once if end.is_set() else end).set()

    for number in ENDING:
        signal.signal(number, handle)
    yield end, at_once
