"""The options of `outbox topic`: names, types, selectors and Kafka settings, checked as they are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from outbox import validation
from outbox.errors import OutboxError
from outbox.operations.topics import MessageType
from outbox.partitioning.selectors import BUILT_IN
from outbox_relay.cli.types import Choice

Decorator = Callable[[Any], Any]

MOST_BYTES = 2_147_483_647


def type_option(default: str | None) -> Decorator:
    """Add `--type`: what may be sent to the topic."""
    return click.option(
        "--type",
        "message_type",
        type=Choice(tuple(str(kind) for kind in MessageType)),
        metavar="TYPE",
        default=default,
        show_default=default is not None,
        help="What may be sent: NORMAL (no order key), FIFO (with one), DELAY (deliver_at), TRANSACTION (half "
        "messages), MIXED (all).",
    )


def named_selector(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuse an empty name: the relay could not find it."""
    if value is not None and (not value.strip() or "\0" in value):
        raise click.BadParameter(
            f"{value!r} names no selector; built in are {', '.join(BUILT_IN)}", ctx, param
        )
    return value


def selector_option(text: str) -> Decorator:
    """Add `--selector`."""
    return click.option("--selector", metavar="NAME", callback=named_selector, help=text)


SELECTOR_HELP = (
    f"Default message queue selector: {', '.join(BUILT_IN)}, or the name of a custom one that every producer "
    "registers. [default: murmur2 of the order key]"
)


def skip_ahead_option(*, default: bool | None) -> Decorator:
    """Add `--skip-ahead` and `--no-skip-ahead`."""
    return click.option(
        "--skip-ahead/--no-skip-ahead",
        default=default,
        help="Let a message that cannot be published hold no others of its order key: they come before it, or without "
        "it. Not for FIFO. [default: it holds them]"
        if default is not None
        else "Whether a message that cannot be published holds no others of its order key; see: outbox topic create.",
    )


def require_no_order(message_type: str, *, skip_ahead: bool) -> None:
    """Refuse --skip-ahead for a FIFO topic, before anything is made."""
    if skip_ahead and message_type.upper() == MessageType.FIFO:
        raise click.UsageError(
            "--skip-ahead: not with --type FIFO, whose messages keep their order; leave one of the two out"
        )


def legal_name(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Check Kafka's rule for topic names."""
    try:
        return validation.topic_name(value)
    except OutboxError as error:
        raise click.BadParameter(str(error), ctx, param) from None


topic_argument = click.argument("name", callback=legal_name)


def kafka_settings(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    """Read `NAME=VALUE` settings of a topic."""
    pairs = dict(text.partition("=")[::2] for text in value)
    for name, setting in pairs.items():
        if not name or not setting:
            raise click.BadParameter(
                f"{name}={setting}: give NAME=VALUE, such as retention.ms=604800000", ctx, param
            )
    return pairs
