"""`outbox tail`: reads a topic's messages from Kafka."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypedDict, Unpack

import click

from outbox_relay.cli import output
from outbox_relay.cli.options import Command, bootstrap_servers_option, json_option, kafka_config_option
from outbox_relay.cli.tail import render
from outbox_relay.cli.types import Number
from outbox_relay.operations import filters
from outbox_relay.operations.tail import Tail, fits, tag_expression
from outbox_relay.text import formatting


class TailOptions(TypedDict):
    """The options of `outbox tail`."""

    topic: str
    key: str | None
    tag: str
    from_beginning: bool
    count: int | None
    timeout: float | None
    bootstrap_servers: str
    kafka: dict[str, str]
    as_json: bool


@click.command("tail", cls=Command)
@click.argument("topic")
@click.option(
    "--from-beginning/--from-end",
    "from_beginning",
    default=False,
    help="Begin with the oldest message that Kafka has, or with the next one that comes. [default: --from-end]",
)
@click.option("--key", metavar="TEXT", help="Only this key: UTF-8, or base64:… for bytes.")
@click.option(
    "--tag",
    metavar="EXPRESSION",
    default="*",
    show_default=True,
    help="Only messages with one of these tags: 'paid', or 'paid || shipped'.",
)
@click.option("--count", type=click.IntRange(1), metavar="N", help="End after so many messages.")
@click.option(
    "--timeout",
    type=Number(0.1, 86_400),
    metavar="SECONDS",
    help="End when no message that fits has come for so long; with --count that is a failure.",
)
@bootstrap_servers_option
@kafka_config_option
@json_option
def tail(**options: Unpack[TailOptions]) -> None:
    """Read a topic's messages from Kafka, until Ctrl-C.

    Shows what a consumer gets that reads committed messages only: partition, offset, key, headers and body. Bytes that
    are not printable UTF-8 are shown as base64:…. It joins no consumer group and changes nothing.

    \b
    Examples:
      outbox tail orders                                      what comes from now on
      outbox tail orders --from-beginning --timeout 5         what is there
      outbox tail orders --from-beginning --key o-1 --count 1
      outbox tail orders --tag 'paid || shipped' --json | jq .body

    With --json one line for each message. Exit codes: 0 ended; 1 Kafka cannot be read, or fewer than --count messages
    came within --timeout; 2 wrong options.
    """
    with _ending_well():
        _read(options)


def _read(options: TailOptions) -> None:
    key = None if options["key"] is None else filters.key(options["key"])
    tags = tag_expression(options["tag"])
    count, timeout = options["count"], options["timeout"]
    topic, beginning = options["topic"], options["from_beginning"]
    reader = Tail(options["bootstrap_servers"], options["kafka"], topic, from_beginning=beginning)
    try:
        place = "beginning" if beginning else "end; what is there already: --from-beginning"
        click.echo(
            f"reading {topic}, {formatting.many(reader.partitions, 'partition')}, from the {place} (Ctrl-C ends)",
            err=True,
        )
        shown, last = 0, time.monotonic()
        for record in reader.records():
            if record is not None and fits(record, key, tags):
                if options["as_json"]:
                    output.emit_json_line(render.document(record))
                else:
                    click.echo("\n".join(render.lines(record)))
                sys.stdout.flush()
                shown, last = shown + 1, time.monotonic()
                if shown == count:
                    return
            elif timeout is not None and time.monotonic() - last > timeout:
                break
            elif record is None and _reader_is_gone():
                return
    finally:
        reader.close()
    if count is not None:
        raise click.ClickException(
            f"{formatting.many(shown, 'message')} of {count} came; none that fits within {timeout:g} s"
        )


def _reader_is_gone() -> bool:
    """Notice that the program at the other end of a pipe ended: else a topic without traffic keeps this one alive."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


@contextmanager
def _ending_well() -> Iterator[None]:
    """End with 0 on Ctrl-C, and when the reader of a pipe has seen enough (`outbox tail … | head`)."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(0)
    except BrokenPipeError:
        # Python flushes once more when it ends, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
