"""Holds a topic while consumer groups read its partitions, and reports how far they are."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import click
import psycopg

from outbox_relay.cli.topic import following
from outbox_relay.operations import held_move
from outbox_relay.operations.consumer_lag import KafkaOffsets
from outbox_relay.operations.group_positions import GroupPositions, GroupProgress
from outbox_relay.operations.topics import Registered
from outbox_relay.text.errors import OperatorError
from outbox_relay.text.formatting import printable

ASK_EVERY_S = 1.0


@dataclass(frozen=True)
class HeldMove:
    """What a move that waits for consumer groups is given."""

    conn: psycopg.Connection[Any]
    kafka: KafkaOffsets
    partitions: int
    groups: tuple[str, ...]
    until: float
    """On the monotonic clock."""
    is_quiet: bool

    def positions(self, topic: Registered) -> GroupPositions:
        """Return where the groups are in the topic's pinned partitions."""
        found = GroupPositions(self.kafka, topic.name, topic.partitions, self.groups)
        found.mark_ends()
        return found

    def move(self, old: Registered) -> bool:
        """Hold the topic, wait until the groups have read it, and switch; return whether this session switched.

        Raises:
            OperatorError: The groups would wait for ever, they or the relays are not done in time, or the move was
                aborted.
        """
        positions = self.positions(old)
        again = printable(held_move.command(old.name, self.partitions, self.groups))
        if old.repartition_to is None:
            positions.require_readers()
        held = held_move.hold(self.conn, old, self.partitions, self.groups)
        self._say(f"topic {old.name} is held; to put it back: outbox topic repartition {old.name} --abort")
        left = max(0.0, self.until - time.monotonic())
        following.follow(self.conn, old.name, left, "paused", again, is_quiet=self.is_quiet)
        positions.mark_ends()  # of what is there now that nothing more of the topic comes
        if self._groups_have_read(held, positions, again):
            return held_move.switch(self.conn, held)
        return False

    def _groups_have_read(self, held: Registered, positions: GroupPositions, again: str) -> bool:
        """Wait; False: another session has switched meanwhile."""
        told: dict[str, str] = {}
        while not held_move.is_switched(self.conn, held):
            found, trouble = self._ask(positions)
            for group, text in {one.group: one.text() for one in found}.items():
                if told.get(group) != text:
                    self._say(text)
                told[group] = text
            if found and all(one.is_done for one in found):
                return True
            if time.monotonic() >= self.until:
                raise OperatorError(
                    f"topic {held.name!r} is held, but these groups have not read it in time: "
                    f"{trouble or '; '.join(one.text() for one in found if not one.is_done)}\n"
                    f"to wait on: {again}\nto put it back: outbox topic repartition {held.name} --abort"
                )
            time.sleep(ASK_EVERY_S)
        return False

    def _ask(self, positions: GroupPositions) -> tuple[list[GroupProgress], str]:
        """Return what the groups have left; a broker that is away for a while ends no wait of hours."""
        try:
            return positions.read(), ""
        except OperatorError as error:
            self._say(f"{error}; trying again")
            return [], str(error)

    def _say(self, text: str) -> None:
        if not self.is_quiet:
            click.echo(text, err=True)
