"""The options of `outbox tx`: filters of half messages, the reason of a decision, how long to wait for a lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from outbox_relay.cli.options import add_options
from outbox_relay.cli.types import Choice, Number
from outbox_relay.operations import filters
from outbox_relay.operations.half_messages import STATES, HalfMessageFilter

F = TypeVar("F", bound=Callable[..., Any])

FILTERS: tuple[Callable[[Any], Any], ...] = (
    click.option("--group", "producer_group", metavar="NAME", help="The producer group."),
    click.option(
        "--state",
        type=Choice(STATES),
        metavar="STATE",
        help="UNKNOWN: undecided. EXHAUSTED: checks or age used up, left to an operator. [default: both]",
    ),
    click.option("--overdue", is_flag=True, help="Due for more than 10 s, and no checker has come to it."),
    click.option("--topic", metavar="NAME", help="The topic."),
    click.option("--tag", metavar="TEXT", help="One of its tags."),
    click.option("--index-key", metavar="TEXT", help="One of its index keys."),
    click.option("--transaction-id", metavar="TEXT", help="The application's name for its transaction."),
    click.option("--checker", metavar="NAME", help="The checker that it names."),
    click.option("--biz-type", metavar="TEXT", help="What kind of business it is about."),
    click.option("--biz-id", metavar="TEXT", help="Which piece of business it is about."),
    click.option("--since", metavar="TIME", help="Born at or after: 30s, 10min, 2h, 3d ago, or an ISO time."),
    click.option(
        "--until", metavar="TIME", help="Born before; as --since: `--until 1h` is older than an hour."
    ),
)


def filter_options(command: F) -> F:
    """Add the filters of half messages."""
    return add_options(command, FILTERS)


def read_filter(options: dict[str, Any], after: int | None = None) -> HalfMessageFilter:
    """Read the filters.

    Raises:
        FilterError: a time cannot be read, or the two of them leave nothing between them.
    """
    state = options["state"]
    since, until = filters.period(options["since"], options["until"])
    return HalfMessageFilter(
        producer_group=options["producer_group"],
        states=STATES if state is None else (state.upper(),),
        overdue=options["overdue"],
        topic=options["topic"],
        tag=options["tag"],
        index_key=options["index_key"],
        transaction_id=options["transaction_id"],
        checker=options["checker"],
        biz_type=options["biz_type"],
        biz_id=options["biz_id"],
        since=since,
        until=until,
        after=after,
    )


def given(options: dict[str, Any]) -> list[str]:
    """Name the filters that were given."""
    return [
        f"--{'group' if name == 'producer_group' else name.replace('_', '-')}"
        for name, value in options.items()
        if value not in (None, False)
    ]


def reason_option(command: F) -> F:
    """Add `--reason`."""
    return click.option(
        "--reason",
        required=True,
        metavar="TEXT",
        help="Why; kept in the audit with who and when. 1 to 500 characters.",
    )(command)


def wait_option(command: F) -> F:
    """Add `--wait`."""
    return click.option(
        "--wait",
        type=Number(0, 86_400),
        default=2.0,
        show_default=True,
        metavar="SECONDS",
        help="How long to wait for a local transaction that holds the message.",
    )(command)


def deciding_options(command: F) -> F:
    """Add the options that select the half messages to decide, give the reason, and set how to proceed."""
    return add_options(
        command,
        (
            click.argument("identities", metavar="[ID…]", nargs=-1),
            reason_option,
            click.option(
                "--all",
                "everything",
                is_flag=True,
                help="All that fit --group, --state and the other filters.",
            ),
            filter_options,
            wait_option,
            click.option("--yes", is_flag=True, help="Do not ask before deciding more than one."),
        ),
    )
