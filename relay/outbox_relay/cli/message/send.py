"""`outbox message send`: writes one message by the library, in a transaction of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, TypedDict, Unpack

import click
import psycopg

from outbox import Message, Outbox
from outbox.errors import InvalidMessageError, OutboxError
from outbox_relay.cli import output
from outbox_relay.cli.options import Command, dsn_option, json_option
from outbox_relay.database import connections, schema
from outbox_relay.operations import filters, topics
from outbox_relay.operations.names import did_you_mean
from outbox_relay.operations.status import STATEMENTS
from outbox_relay.text.errors import OperatorError, OptionError


class SendOptions(TypedDict):
    """The options of `outbox message send`."""

    topic: str
    key: str | None
    body: str | None
    body_file: str | None
    headers: tuple[str, ...]
    tags: tuple[str, ...]
    producer_group: str | None
    dsn: str
    as_json: bool


@click.command("send", cls=Command)
@click.argument("topic")
@click.option(
    "--key", metavar="TEXT", help="The record's key: UTF-8, or base64:… for bytes. One key keeps its order."
)
@click.option("--body", metavar="TEXT", help="The body, sent as UTF-8. [default: empty]")
@click.option(
    "--body-file", metavar="FILE", help="Read the body from this file, byte by byte; - is standard input."
)
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A record header; repeatable.")
@click.option("--tag", "tags", multiple=True, metavar="TEXT", help="A tag; repeatable.")
@click.option("--group", "producer_group", metavar="NAME", help="The producer group that sends it.")
@dsn_option
@json_option
def send(**options: Unpack[SendOptions]) -> None:
    """Send one message, in a transaction of its own.

    It is stored when this command returns, and a relay publishes it. In an application the message joins the
    transaction of your business rows instead: see docs/reference/library.md.

    \b
    Examples:
      outbox message send orders --body hello
      outbox message send orders --key o-1 --tag paid --body '{"state": "paid"}'
      outbox message send orders --key o-1 --body-file order.json --header source=import
      date | outbox message send orders --body-file -

    The topic must be registered (outbox topic create TOPIC). Needs no more than the role outbox_producer.
    """
    message = _message(options)
    with connections.connect(options["dsn"], autocommit=False) as conn:
        schema.require_current(conn)
        _require_topic(conn, message.topic)
        try:
            receipt = Outbox(producer_group=options["producer_group"]).send(conn, message)
        except OutboxError as error:
            raise OptionError(str(error)) from None
        conn.commit()
        runs = _relay_runs(conn)
    if options["as_json"]:
        output.emit_json(
            {
                "id": receipt.id,
                "message_id": str(receipt.message_id),
                "topic": receipt.topic,
                "relay_runs": runs,
            }
        )
    else:
        click.echo(f"message {receipt.id} is stored for topic {receipt.topic}")
        click.echo(f"what becomes of it:  outbox message show {receipt.id}")
        click.echo(f"read it from Kafka:  outbox tail {receipt.topic} --from-beginning")
    if runs is False:
        click.echo(
            "no relay has taken lanes yet: one that was just started does so within seconds; to start one: "
            "outbox relay run",
            err=True,
        )


def _message(options: SendOptions) -> Message:
    """Make the message.

    Raises:
        OptionError: an option is wrong, or the library refuses the message; with what is allowed.
    """
    if options["body"] is not None and options["body_file"] is not None:
        raise OptionError("--body and --body-file contradict each other: give one of them")
    headers: dict[str, str | bytes | None] = {}
    for text in options["headers"]:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise OptionError(f"--header {text!r} is not a header; expected NAME=VALUE")
        if name in headers:
            raise OptionError(f"--header {name} is given twice; the outbox keeps one value per name")
        headers[name] = value
    key = options["key"]
    try:
        return Message(
            options["topic"],
            key=None if key is None else filters.key(key),
            body=_body(options),
            headers=headers or None,
            tags=options["tags"],
        )
    except InvalidMessageError as error:
        raise OptionError(str(error)) from None


def _body(options: SendOptions) -> bytes:
    path = options["body_file"]
    if path is None:
        return (options["body"] or "").encode()
    if path == "-":
        return sys.stdin.buffer.read()
    return Path(path).read_bytes()


def _require_topic(conn: connections.Connection, name: str) -> None:
    """Refuse a topic that nobody registered: where Kafka lacks it, too, the message would wait for it.

    Raises:
        OperatorError: with the nearest names, and the commands that make or register the topic.
    """
    if topics.find(conn, name) is None:
        names = [topic.name for topic in topics.everything(conn)]
        raise OperatorError(
            f"topic {name!r} is not registered. {did_you_mean(name, names)}\n"
            f"create it: outbox topic create {name}; or register one that Kafka has: outbox topic register {name}"
        )


def _relay_runs(conn: psycopg.Connection[Any]) -> bool | None:
    """Whether a relay holds a lane; None where this role may not see that."""
    try:
        row = conn.execute(STATEMENTS["relay_runs"]).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        return None
    return bool(row and row[0])
