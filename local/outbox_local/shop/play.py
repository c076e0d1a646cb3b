"""One run of the shop: its processes are started, started again when a failure kills them, and stopped at the end.

The service and the consumers are restarted after SIGKILL. A process that ends otherwise has failed, and so has the run.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from outbox_local.demo import journal
from outbox_local.demo.claims import Claim
from outbox_local.demo.pages import Pages
from outbox_local.demo.venue import Venue
from outbox_local.shop.customers import Customers, Visit
from outbox_local.shop.failures import SQL, Failure, note, open_database, switch_on
from outbox_local.shop.names import GROUPS, SHOP_GROUP
from outbox_local.shop.proof import prove_shop, read_facts
from outbox_local.stack.api import Stack
from outbox_local.stack.ports import listens
from outbox_relay.downloads.errors import StackError
from outbox_relay.operations import groups
from outbox_relay.proving.children import Child, ChildError, Children
from outbox_relay.proving.reader import READY, ReaderWork

STEP_S = 0.05
PATIENCE_S = 60.0
"""How long nothing may go on before the run stops waiting; the proof then lists what is missing."""
START_S = 40.0
STOP_S = 20.0
BROKER_AWAY_S = 2.0
RESTARTED = "started again"
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Shopping:
    """What is asked of a run."""

    visits: list[Visit]
    failures: Mapping[Failure, int]
    """How often each is switched on."""
    port: int
    directory: Path
    """For logs, and for what the stock consumer reads."""
    pause: float
    """Seconds between the visits of a customer."""


class Run:
    """The processes of a run, inside `with`."""

    def __init__(self, shopping: Shopping, venue: Venue, tell: Tell) -> None:
        self._shopping, self._venue, self._tell = shopping, venue, tell
        environment = {**venue.environment, "OUTBOX_CALLBACK_SECRET": secrets.token_hex(32)}
        self._children = Children(shopping.directory, environment)
        self._conn = open_database(venue.dsn)
        self._running: dict[str, Child] = {}
        self._pages: Pages | None = None
        self._readings = 0
        self._broker_back: float | None = None
        """When the broker is started again."""
        self._broker_loss_planned = Failure.BROKER in shopping.failures

    def __enter__(self) -> Run:
        self._children.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._conn.close()
        self._children.__exit__(None, None, None)

    def open(self) -> None:
        """Register the producer group with its callback, start everything, and wait until the shop serves."""
        port = self._shopping.port
        settings = {
            "message_type": "TRANSACTION",
            "check_after": timedelta(seconds=1),
            "check_interval": timedelta(seconds=1),
            "callback": {"kind": "http", "url": f"http://127.0.0.1:{port}/outbox/"},
        }
        groups.change(self._conn, SHOP_GROUP, settings)
        for failure, times in self._shopping.failures.items():
            if failure is not Failure.BROKER:
                switch_on(self._conn, failure, times)
        for name in ("service", "relay", "checker", *GROUPS):
            self._start(name)
        deadline = time.monotonic() + START_S
        while not listens(port):
            self._tend()
            if time.monotonic() > deadline:
                raise ChildError(
                    f"the shop does not serve within {START_S:.0f} s; see {self._shopping.directory}"
                )
            time.sleep(STEP_S)
        self._tell(f"the shop is open: http://127.0.0.1:{port}")
        self._pages = Pages(self._children, self._tell)

    def serve(self) -> Customers:
        """Serve the planned visits, with the failures, until everything that is paid has had its effects."""
        customers = Customers(self._shopping.port, self._shopping.visits, self._shopping.pause)
        try:
            last, progress = time.monotonic(), -1
            while not (customers.finished() and self._broker_back is None and self._converged()):
                self._tend()
                if self._broker_loss_planned and customers.served * 2 >= len(self._shopping.visits):
                    self._broker_loss_planned = False
                    self._lose_broker()
                now = self._progress() + customers.served
                if now != progress:
                    last, progress = time.monotonic(), now
                if time.monotonic() - last > PATIENCE_S:
                    self._tell(f"nothing has happened for {PATIENCE_S:.0f} s")
                    break
                time.sleep(STEP_S)
        finally:
            customers.close()
        return customers

    def stay(self) -> None:
        """Leave the shop open, with the switches of its page, until Ctrl-C."""
        while True:
            self._tend()
            if self._conn.execute(SQL["take_failure"], {"name": Failure.BROKER}).fetchone():
                try:
                    self._lose_broker()
                except StackError as error:
                    self._note("switch", str(error))
            time.sleep(STEP_S)

    def read_topic(self) -> list[str]:
        """Read the topic with a stock consumer, from its beginning to its end; return the order of each record."""
        self._readings += 1
        path = self._shopping.directory / f"records-{self._readings}.jsonl"
        reading = ReaderWork(self._venue.topic, self._venue.partitions, str(path))
        name = f"reader {self._readings}"
        reader = self._children.start(name, "-m", "outbox_local.demo.consumer", reading.as_argument())
        deadline = time.monotonic() + START_S
        while not reader.has_said(READY):
            if not reader.running or time.monotonic() > deadline:
                raise ChildError(f"the stock consumer does not read:\n{reader.last_lines()}")
            time.sleep(STEP_S)
        reader.ask_to_stop()
        reader.wait(STOP_S)
        return [record.key or "" for record in journal.records(path)]

    def prove(self, replies: Mapping[str, str]) -> dict[str, Claim]:
        """Compare everything with what the shop replied to its customers, and show the result on the page."""
        facts, records = read_facts(self._conn), self.read_topic()
        claims = prove_shop(facts, replies, records, self._shopping.failures)
        for claim in reversed(claims.values()):
            note(self._conn, "proof" if claim.holds else "offence", f"{claim.text} ({claim.checked})")
        return claims

    def stop_all_but_the_page(self) -> None:
        """Stop relay, checker and consumers as an operator would: after that, no effect can follow."""
        self._stop([name for name in self._running if name != "service"])

    def close(self) -> None:
        """Stop what still runs."""
        self._stop(list(self._running))

    def _stop(self, names: list[str]) -> None:
        ended = [self._running.pop(name) for name in names]
        for child in ended:
            child.ask_to_stop()
        for child in ended:
            child.wait(STOP_S)

    def _start(self, name: str) -> None:
        port, topic = str(self._shopping.port), self._venue.topic
        arguments = {
            "service": ("outbox_local.shop.service", topic, port),
            "relay": ("outbox_relay.cli.main", "relay", "run"),
            "checker": (
                *("outbox_relay.cli.main", "checker", "run", "--allow-callback", f"127.0.0.1:{port}"),
                *("--allow-network", "127.0.0.0/8"),
            ),
        }
        module = arguments.get(name, ("outbox_local.shop.consumers", name, topic))
        self._running[name] = self._children.start(name, "-m", *module)

    def _tend(self) -> None:
        """Start again what was killed, and the broker when its time has come; raises ChildError for other ends."""
        if self._pages is not None:
            self._pages.announce()
        for name, child in list(self._running.items()):
            if child.was_killed and name in ("service", *GROUPS):
                self._start(name)
                self._note("restart", f"{name} was {RESTARTED}")
            elif not child.running:
                raise ChildError(f"{name} ended before its time:\n{child.last_lines()}")
        if self._broker_back is not None and time.monotonic() > self._broker_back:
            self._stack().start_kafka()
            self._broker_back = None
            self._note("broker-back", "the broker was started again, on its data")

    def _lose_broker(self) -> None:
        self._stack().kill_kafka()
        self._broker_back = time.monotonic() + BROKER_AWAY_S
        self._note("broker-lost", "the broker was killed")

    def _stack(self) -> Stack:
        if self._venue.stack is None:
            raise StackError("the broker is not the shop's own: leave out --bootstrap-servers")
        return self._venue.stack

    def _note(self, kind: str, text: str) -> None:
        note(self._conn, kind, text)
        self._tell(text)

    def _converged(self) -> bool:
        row = self._conn.execute(SQL["converged"]).fetchone()
        return row is not None and bool(row[0])

    def _progress(self) -> int:
        row = self._conn.execute(SQL["progress"]).fetchone()
        return 0 if row is None else int(row[0])
