"""Keys, messages and steps that the tests of encrypted bodies share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from uuid import UUID, uuid4

from outbox import Message
from outbox.codecs import Codec
from outbox.codecs.encryption import Encryption, Keys, MasterKeys
from outbox.statements import Plan, Rows, Statement

T = TypeVar("T")
MASTER = bytes(range(32))
ROW = "SELECT topic, key, body, headers, message_id FROM outbox.message ORDER BY id"


def by_key(message: Message) -> str:
    """The subject of a message whose key is the number of a customer."""
    return f"customer/{message.key!s}"


def encryption(**options: Any) -> Encryption:
    """Encryption by the key of a message, in a process of its own: nothing is remembered from another one."""
    keys = {name: options.pop(name) for name in ("cache_seconds", "database", "clock") if name in options}
    return Encryption(Keys(MasterKeys({"m1": MASTER}), **keys), by_key, **options)


@dataclass
class Record:
    """What a codec may know of a message, without a consumer."""

    topic: str
    key: bytes | None
    body: bytes
    headers: dict[str, str]
    message_id: UUID = field(default_factory=uuid4)

    def header(self, name: str) -> bytes | None:
        """See `Received`."""
        value = self.headers.get(name)
        return None if value is None else value.encode()

    def but(self, **changes: Any) -> Record:
        """Return it with changes."""
        return replace(self, **changes)


def records(rows: Sequence[Sequence[Any]]) -> list[Record]:
    """Return the rows of `ROW` as a consumer would get them."""
    return [Record(topic, key, body, headers or {}, number) for topic, key, body, headers, number in rows]


class KeyTable:
    """The rows of `outbox.subject_key` in memory, for tests of what a codec computes; it knows three statements."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[str, Any, Any, Any]] = {}
        """Subject, wrapped, master id, destroyed at; by id."""

    def run(self, plan: Plan[T]) -> T:
        """Run a plan to its end."""
        rows: Rows | None = None
        try:
            while True:
                statement = next(plan) if rows is None else plan.send(rows)
                rows = self._answer(statement)
        except StopIteration as done:
            result: T = done.value
            return result

    def _answer(self, statement: Statement) -> Rows:
        params = statement.params
        if statement.text.startswith("INSERT"):
            number, subject, wrapped, master_id = params
            self.rows[str(number)] = (str(subject), wrapped, master_id, None)
            return [(UUID(str(number)),)]
        if "WHERE subject" in statement.text:
            return [
                (UUID(number), wrapped, master_id)
                for number, (subject, wrapped, master_id, destroyed) in self.rows.items()
                if subject == params[0] and destroyed is None
            ]
        found = self.rows.get(str(params[0]))
        return [] if found is None else [found]

    def destroy(self) -> None:
        """Destroy all keys."""
        self.rows = dict.fromkeys(self.rows, ("", None, None, "2026-11-25T12:00:00Z"))

    def encoded(self, codec: Codec, message: Message) -> Record:
        """Return what a consumer gets of a message."""
        assert message.body_bytes is not None
        made = self.run(codec.encode(message, message.body_bytes))
        record = Record(message.topic, message.key_bytes, made.body, dict(made.headers))
        return record if message.message_id is None else record.but(message_id=message.message_id)
