"""What may happen to consumers in `inbox_model`, and which safeguards they have."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Inbox:
    """How often each thing may happen, and the safeguards; their defaults are what the product does."""

    messages: int = 3
    pumps: int = 1
    failures: int = 1
    deaths: int = 0
    moves: int = 0
    """How often a running member is given the partition again, and reads from the stored offset."""
    rewinds: int = 0
    timeouts: int = 0
    """How often PostgreSQL ends a transaction of a member that does not go on."""
    early_commits: int = 0
    """How often a handler commits the transaction that it was given, and fails then."""
    drops: int = 0
    """How often the rows of the inbox are dropped; all messages are of one day."""
    gathers: bool = False
    """Whether a member may park several messages behind others in one transaction."""
    gathers_held: bool = True
    """Whether it does that only if it finds the key held."""
    gathers_in_order: bool = True
    """Whether it parks them in the order of the key."""
    has_inbox: bool = True
    waits_for_takers: bool = True
    """Whether a member waits for the transaction that has inserted the row of its message."""
    reads_held: bool = True
    locks_held: bool = True
    """Whether a member that finds its key held keeps that row locked until it has parked its message."""
    parks_with_inbox: bool = True
    stores_when: str = "parked"
    """When a failed message counts as done: it is "parked", or has merely "failed"."""
    pump_takes: str = "retry"
    """Which rows a pump takes: the one in state "retry", or "any" that is not locked."""
    pump_deletes: str = "with effect"
    """When the parked row goes: "with effect", or "later" in a transaction of its own."""
    pump_releases: str = "with effect"
    """When the next row follows: "with effect", or "later" in a transaction of its own."""
    pump_reads: str = "locked"
    """When a pump reads what else is parked: with the held key "locked", or "before" that."""
    pump_marks: bool = True
    """Whether the parked row is dead in the transaction of a pump, until it is deleted."""
    has_floor: bool = True
    floor_first: bool = True
    """Whether the floor is committed before the rows are dropped."""
    drop_waits: bool = True
    """Whether the drop waits for transactions that have read the floor and not inserted their row yet."""
    parks_above_floor: bool = True
    """Whether a message that failed before the floor was raised is set aside, and not forgotten, after it."""
    replays: str = ""
    """What an operator replays, once: "missing" messages, which the group has skipped, or "again" what it has read."""
    replayed: int = 0
    """How many messages from the first on: the group begins behind those that are "missing"."""
    replay_waits: bool = True
    """Whether a replay waits for transactions that may have found the key free, before its first message may run."""
    replay_holds: bool = True
    """Whether a replay holds the key."""
    replay_inserts: bool = True
    """Whether a replay inserts rows of the inbox."""
    replay_notes: str = "with rows"
    """When a replay notes how far it is: "with rows" that it parks, or "later" in a transaction of its own."""
