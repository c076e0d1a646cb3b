"""The calls of a core that directed scripts are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outbox_relay.publisher.core.values import Limits, Page, Row, Scope
from outbox_relay.publisher.snapshot import BEGINNING, Snapshot
from tests.support.core_search.leader import partition_of
from tests.support.core_search.schedules import SMALL


def core_of(
    made: Any, holds: Mapping[Scope, int] | None = None, limits: Limits = SMALL, *, is_unclean: bool = False
) -> Any:
    """Make a core that knows the topics a, b, s and t0 to t11."""
    counts = {"a": 2, "b": 1, "s": 1} | {f"t{number}": 1 for number in range(12)}
    skip_ahead = frozenset("s")
    return made(
        BEGINNING,
        holds or {},
        counts,
        partition_of,
        skip_ahead=skip_ahead,
        limits=limits,
        is_unclean=is_unclean,
    )


def row_of(
    id_: int, topic: str = "b", key: str = "b1", *, is_faulty: bool = False, in_doubt: bool = False
) -> Row:
    """Make a row of one byte; its id is its position and its content, too."""
    return Row(id_, id_, topic, key, 1, is_faulty, False, in_doubt, id_)


def give(core: Any, kind: str, *rows: Row, **more: Any) -> None:
    """Read until the core asks for a kind of read, and give it rows; the tails before it are empty.

    Raises:
        TypeError: It never asks.
    """
    for _turn in range(12):
        read = core.next_read()
        if read.kind == kind:
            break
        core.add(Page(read, (), Snapshot(5, 5), is_flushed=True))
    else:
        raise TypeError(f"The core asks for no {kind}")
    core.add(Page(read, rows, **{"snapshot": Snapshot(5, 5), "is_flushed": True, **more}))


def write_all(core: Any) -> Any:
    """Write what there is to write. Return the write, or None."""
    write = core.next_write()
    if write is not None:
        core.written(write)
    return write


def sends(core: Any) -> list[int]:
    """Return the ids of what is sent now."""
    return [item.row.id for item, _ in core.to_send()]
