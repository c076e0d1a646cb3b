"""Acknowledgements of Kafka that relays of this process learn later: what they sent is in Kafka, and not recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from outbox_relay.publisher.core.streams import Producer
from outbox_relay.publisher.core.values import Item
from outbox_relay.publisher.hands.wires import Wires


@contextmanager
def withheld_acknowledgements() -> Iterator[None]:
    """Let no relay of this process learn of an acknowledgement before the end of the block."""

    def none(wires: Wires) -> list[tuple[list[Item], Producer]]:
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Wires, "take_acknowledged", none)
        yield
