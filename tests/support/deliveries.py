"""Deliveries that a session does not learn of: the messages arrive, and their acknowledgements are lost."""

from __future__ import annotations

from outbox_relay.publisher.batch import Slot
from outbox_relay.publisher.session import Session


def learn_nothing_of(session: Session, topic: str = "") -> None:
    """Let no acknowledgement of a topic, or of any, be learned of the present producer."""
    publisher = session._publisher
    make = publisher._new_slot

    def deaf(slots: dict[tuple[str, int], Slot], name: str, partition: int) -> Slot:
        slot = make(slots, name, partition)
        if topic in {"", name}:
            slot.offsets = []  # its deliveries are appended to another list
        return slot

    publisher._new_slot = deaf  # type: ignore[method-assign]
