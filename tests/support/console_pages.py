"""A console that serves one database in this process, and a browser without eyes: cookies, forms, and nothing else."""

from __future__ import annotations

import html
import http.client
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from outbox_relay.console.access import Access, AccessOptions
from outbox_relay.console.app import Console, ConsoleOptions
from outbox_relay.console.kafka import KafkaView
from outbox_relay.console.pages import Pages
from outbox_relay.console.reader import Reader
from outbox_relay.console.server import listen, server_of
from tests.support.plain_inserts import Connection
from tests.support.waiting import wait_until

PATHS = ("/", "/failing", "/messages", "/topics", "/half-messages", "/groups", "/warehouse")
DEAD_LETTER = """
    WITH grouped AS (
        INSERT INTO outbox.consumer_group (name, subscription, orderly) VALUES (%(group)s, '{"orders": "*"}', true)
        ON CONFLICT (name) DO UPDATE SET orderly = true RETURNING id
    ), topic AS (
        INSERT INTO outbox.inbox_topic (name, kafka_id) VALUES (%(topic)s, 'c/' || %(topic)s)
        ON CONFLICT (kafka_id) DO UPDATE SET name = EXCLUDED.name RETURNING id
    )
    INSERT INTO outbox.inbox_parked (group_id, message_id, born_on, topic_id, part, off, digest, key, order_key,
        header_names, header_values, published_at, state, attempts, due_at, fingerprint, error, failed_at, body)
    SELECT g.id, gen_random_uuid(), '2026-11-01', t.id, 0, 7, 'd', convert_to(%(key)s, 'UTF8'),
        convert_to(%(key)s, 'UTF8'), '{}', '{}', now(), %(state)s, 3, %(due)s, %(failure)s, %(error)s,
        now() - interval '5 minutes', 'secret'
    FROM grouped g, topic t RETURNING id
"""
HELD = """
    INSERT INTO outbox.inbox_held_key (group_id, topic_id, order_key)
    SELECT p.group_id, p.topic_id, p.order_key FROM outbox.inbox_parked p WHERE p.id = %s ON CONFLICT DO NOTHING
"""


def dead_letter(
    conn: Connection, failure: str, *, group: str = "points", key: str = "k", topic: str = "orders"
) -> int:
    """Write a dead letter as a member leaves it; return its id."""
    values = {
        "group": group,
        "topic": topic,
        "key": key,
        "failure": failure,
        "error": f"Traceback\n{failure}",
    }
    [(id_,)] = conn.execute(DEAD_LETTER, {**values, "state": "dead", "due": None}).fetchall()
    conn.execute(HELD, [id_])
    return int(id_)


@dataclass
class Reply:
    """What the console sent."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def fields(self) -> dict[str, str]:
        """The hidden fields of its form."""
        found = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', self.text)
        return {html.unescape(name): html.unescape(value) for name, value in found}

    @property
    def shown(self) -> str:
        """Its text as a reader has it."""
        return html.unescape(re.sub(r"<[^>]*>", " ", self.text))


@dataclass
class Browser:
    """One person's."""

    port: int
    cookies: dict[str, str] = field(default_factory=dict)

    def get(self, path: str, **headers: str) -> Reply:
        """Ask for a page."""
        return self._ask("GET", path, None, headers)

    def post(self, path: str, fields: Mapping[str, Any], **headers: str) -> Reply:
        """Send a form."""
        return self._ask("POST", path, urlencode(fields), headers)

    def act(self, path: str, reason: str = "told to") -> Reply:
        """Ask for the form of an act, and send it."""
        form = self.get(path)
        assert form.status == 200, form.shown
        return self.post(path.partition("?")[0], {**form.fields, "reason": reason})

    def _ask(self, method: str, path: str, body: str | None, given: Mapping[str, str]) -> Reply:
        headers = {name.replace("_", "-"): value for name, value in given.items()}
        if self.cookies:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if body is not None:
            headers.setdefault("Content-Type", "application/x-www-form-urlencoded")
        conn = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            conn.request(method, path, body, headers)
            response = conn.getresponse()
            for name, value in response.getheaders():
                if name.lower() == "set-cookie":
                    cookie, _, rest = value.partition("=")
                    self.cookies[cookie] = rest.partition(";")[0]
            found = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, found, response.read().decode())
        finally:
            conn.close()


@dataclass
class Served:
    """A console that runs, and what it reads with."""

    port: int
    reader: Reader
    console: Console

    @property
    def is_reading(self) -> bool:
        """Whether a page is read again and again."""
        return self.console.is_reading

    def browser(self) -> Browser:
        """Return the browser of another person."""
        return Browser(self.port)

    @contextmanager
    def open_page(self, name: str = "now") -> Iterator[list[str]]:
        """Have a live page open; yield the lines of its stream as they come."""
        conn = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        conn.request("GET", f"/live/{name}")
        response = conn.getresponse()
        assert response.status == 200
        lines: list[str] = []

        def read() -> None:
            try:
                while line := response.readline():
                    lines.append(line.decode().rstrip("\n"))
            except (OSError, ValueError, AttributeError):  # closed meanwhile
                pass

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            yield lines
        finally:
            if conn.sock is not None:
                conn.sock.shutdown(2)
            reader.join(10)
            conn.close()


@contextmanager
def served(
    dsn: str,
    *,
    people: AccessOptions | None = None,
    is_read_only: bool = False,
    bootstrap_servers: str | None = None,
    port: int = 0,
    **others: Any,
) -> Iterator[Served]:
    """Serve the console of a database, at a port that the system chooses or at this; `others` are Access's."""
    reader = Reader(dsn)
    kafka = None if bootstrap_servers is None else KafkaView(bootstrap_servers, {})
    access = Access(people or AccessOptions(), "tester", **others)
    with listen("127.0.0.1", port) as listener:
        port = listener.getsockname()[1]
        console = Console(reader, Pages(reader, kafka), access, ConsoleOptions(is_read_only=is_read_only))
        server = server_of(console)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            wait_until(lambda: server.started, "the console serves")
            yield Served(port, reader, console)
        finally:
            server.should_exit = True
            thread.join()
            reader.close()
