"""Waits until all relays publish by a change of the registry, and reports each that does."""

from __future__ import annotations

import time
from typing import Any

import click
import psycopg

from outbox_relay.operations import registry_changes
from outbox_relay.operations.registry_changes import RelayProgress
from outbox_relay.text import formatting
from outbox_relay.text.errors import OperatorError

ASK_EVERY_S = 0.1


def follow(
    conn: psycopg.Connection[Any], topic: str, timeout: float, done: str, again: str, *, is_quiet: bool
) -> list[RelayProgress]:
    """Wait for all relays; return them.

    Args:
        conn: an autocommit connection.
        topic: whose change it is.
        timeout: seconds.
        done: what a relay has done then, such as "gone over".
        again: the command that goes on waiting.
        is_quiet: report no relay.

    Raises:
        OperatorError: some have not in time; names them.
    """
    number = registry_changes.generation(conn)
    until = time.monotonic() + timeout
    told: set[str] = set()
    while True:
        relays = registry_changes.relays(conn, number, topic)
        left = [relay for relay in relays if not relay.has_applied]
        for relay in relays:
            if relay.has_applied and relay.owner not in told and not is_quiet:
                click.echo(f"{formatting.printable(relay.owner)} has {done}", err=True)
        told |= {relay.owner for relay in relays if relay.has_applied}
        if not left:
            return relays
        if time.monotonic() >= until:
            raise OperatorError(
                f"the registry is changed, but within {timeout:g} s these relays have not {done}: "
                f"{formatting.printable('; '.join(map(_condition, left)))}\n"
                "they do so by themselves once their messages of the topic are acknowledged; see: outbox holds ls, "
                f"outbox relay ls\nto wait on: {again}"
            )
        time.sleep(ASK_EVERY_S)


def _condition(relay: RelayProgress) -> str:
    lanes = f"lanes {formatting.cell(relay.lanes)}" if relay.lanes else "no lanes"
    if relay.lease_seconds > 0:
        return f"{relay.owner} ({lanes})"
    return (
        f"{relay.owner} ({lanes}; its lease ended {formatting.seconds(-relay.lease_seconds)} ago and no other relay "
        "took them: continue or end that process)"
    )
