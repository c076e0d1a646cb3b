"""The world around the core: PostgreSQL, Kafka, leaders and operators. Every choice is an action."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outbox_relay.publisher.core.values import Item, Limits
from tests.support.core_search.coordinators import Coordinators, Record
from tests.support.core_search.tables import Kind, Postgres

if TYPE_CHECKING:
    from tests.support.core_search.leader import Leader

Name = tuple[str, int]
"""Topic and partition."""
KEYS: Mapping[str, tuple[str | None, ...]] = {
    "a": ("a1", "a2"),
    "b": ("b1", None),
    "s": ("s1",),
    "n": ("n1",),
}
"""The topics and their keys. Topic s skips ahead; topic n is unknown at first."""
ALL = "*"
KIND_NAMES: tuple[Kind, ...] = ("", "poison", "fault", "delayed", "expiring")


@dataclass
class Setting:
    """What a schedule may do, and how often."""

    kinds: tuple[int, ...] = (20, 3, 2, 2, 1)
    """Weights of plain, poisoned, faulty, delayed and expiring messages."""
    floods: int = 1
    most_apart: int = 9
    """Topics that a driver tells apart; with more of them the rest is one list."""
    is_asynchronous: bool = False
    reads_back: str = ""
    """What a leader in doubt reads of Kafka: nothing, `some` records, or `all`."""
    is_sudden: bool = False
    """Nothing arrives of a leader that died, and none is replaced that lives: there is no zombie."""
    is_exactly_once: bool = False
    budget: dict[str, int] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)


class World:
    """Everything but the core."""

    def __init__(self, setting: Setting, core: Any, flags: frozenset[str] = frozenset()) -> None:
        """Begin empty.

        Args:
            setting: what may happen.
            core: the class of the core under test; a variant's is made from changed sources.
            flags: safeguards of the driver and its statements that are taken away.
        """
        self.setting, self.core, self.flags = setting, core, flags
        self.postgres = Postgres()
        self.log: list[Record] = []
        self.stuck: set[Name] = set()
        self.leaders: list[Leader] = []
        self.disturbed: set[str] = set()
        """Topics of which messages may be in Kafka twice; ALL for every topic."""
        self.faults: list[str] = []
        self.now = 0.0
        self.kafka = Coordinators(flags)
        self.is_group_lost = False
        """Kafka has forgotten the group's offset, or another environment has overwritten it."""

    @property
    def last(self) -> Leader | None:
        """Return the leader that took over last."""
        return self.leaders[-1] if self.leaders else None

    def disturb(self, *, is_again: bool = False) -> None:
        """Let messages be in Kafka twice, because a leader died, unless its successor reads back all that there is.

        Args:
            is_again: it had not settled what a former leader left. What it recorded of that hides the rest.
        """
        if is_again or not (self.setting.is_sudden and self.setting.reads_back == "all"):
            self.disturbed.add(ALL)

    @property
    def committed(self) -> list[Record]:
        """Return what a reader of committed messages gets."""
        return [record for record in self.log if record.status == "committed"]

    def append(self, item: Item, name: Name, *, status: str = "committed") -> None:
        """Let Kafka have a message, which PostgreSQL must never forget or have withdrawn."""
        uid = int(str(item.row.content))
        self.log.append(Record(uid, *name, status))
        if self.postgres.is_lossy:
            return
        msg = self.postgres.db.messages.get(item.row.id)
        if msg is None or msg.uid != uid or msg.state == "CANCELLED":
            self.faults.append("GHOST")

    def end_server(self, *, kind: str) -> None:
        """Crash PostgreSQL, fail over to the standby, or restore its tables in another cluster."""
        postgres = self.postgres
        if kind != "crash":
            system, timeline = postgres.server
            postgres.server = (system, timeline + 1) if kind == "promote" else (system + 1, 1)
        survivor = postgres.durable if kind == "crash" else postgres.standby
        gone = postgres.end(survivor, lossy=kind != "crash")
        if kind == "crash" and gone & {record.uid for record in self.log}:
            self.faults.append("GHOST")
        if kind == "restore":
            postgres.db.next_xid = 2
            postgres.flush()
        if "sessions survive a crash" not in self.flags:
            for leader in self.leaders:
                leader.travelling = None
                leader.die()
        if kind != "crash":
            self.disturbed.add(ALL)
