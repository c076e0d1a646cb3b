"""The options of `outbox relay run` by which it pushes alarms."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from outbox.callbacks.signing import Secrets
from outbox.errors import ConfigurationError
from outbox_relay.alarms.delivery import Webhook
from outbox_relay.alarms.service import AlarmService
from outbox_relay.calls.address import HttpCallback
from outbox_relay.calls.allow_list import AllowList
from outbox_relay.checker.askers.registered import trust
from outbox_relay.checker.callback import CallbackError, read_callback
from outbox_relay.cli.options import add_options
from outbox_relay.operations.status import late_topics
from outbox_relay.text import durations

F = TypeVar("F", bound=Callable[..., Any])

SECRET_VARIABLE = "OUTBOX_ALARM_SECRET"  # noqa: S105  (the name of a variable)

_OPTIONS = (
    click.option(
        "--alarm-webhook",
        metavar="URL",
        envvar="OUTBOX_ALARM_WEBHOOK",
        show_envvar=True,
        help="Where alarms are sent to, signed with the secret in OUTBOX_ALARM_SECRET or --alarm-secret-file.",
    ),
    click.option(
        "--alarm-secret-file",
        type=click.Path(exists=True, dir_okay=False),
        envvar="OUTBOX_ALARM_SECRET_FILE",
        show_envvar=True,
        metavar="FILE",
        help="File with the secret that the receiver shares.",
    ),
    click.option(
        "--alarm-allow-network",
        "alarm_networks",
        multiple=True,
        envvar="OUTBOX_ALARM_ALLOW_NETWORK",
        show_envvar=True,
        metavar="CIDR",
        help="Network of addresses that are not public and may receive alarms all the same; repeatable.",
    ),
    click.option(
        "--alarm-backlog-age",
        metavar="DURATION",
        envvar="OUTBOX_ALARM_BACKLOG_AGE",
        show_envvar=True,
        help="Raise an alarm when a message has waited for so long to be published, such as 5min. [default: never]",
    ),
    click.option(
        "--alarm-every",
        metavar="DURATION",
        default="5s",
        show_default=True,
        envvar="OUTBOX_ALARM_EVERY",
        show_envvar=True,
        help="How often causes are searched for; dead and late messages less often where that takes long.",
    ),
)


def alarm_options(command: F) -> F:
    """Add `--alarm-webhook` and what belongs to it."""
    return add_options(command, _OPTIONS)


def alarm_service(dsn: str, options: dict[str, Any]) -> AbstractContextManager[object]:
    """Return what pushes alarms while the relay runs; nothing does without `--alarm-webhook`.

    Raises:
        click.UsageError: an option cannot be used, or the secret is missing.
        DurationError: a duration cannot be read.
    """
    url = options["alarm_webhook"]
    if url is None:
        if options["alarm_backlog_age"] is not None:
            raise click.UsageError("--alarm-backlog-age needs --alarm-webhook")
        return nullcontext()
    try:
        receiver = read_callback({"kind": "http", "url": url})
        assert isinstance(receiver, HttpCallback)  # noqa: S101  (by its kind)
        networks = AllowList.read((), options["alarm_networks"]).networks
        file = options["alarm_secret_file"]
        secret = os.environ.get(SECRET_VARIABLE, "") if file is None else Path(file).read_text("utf-8")
        secrets = Secrets.from_text(secret)
    except CallbackError as error:
        raise click.UsageError(f"--alarm-webhook: {error}") from error
    except ConfigurationError as error:
        raise click.UsageError(
            f"--alarm-webhook needs {SECRET_VARIABLE} or --alarm-secret-file: {error}"
        ) from error
    except ValueError as error:
        raise click.UsageError(f"--alarm-allow-network: {error}") from error
    age = options["alarm_backlog_age"]
    limit = None if age is None else durations.duration("--alarm-backlog-age", age)
    return AlarmService(
        dsn,
        # The operator names the host on the command line; its addresses are checked as those of callbacks.
        Webhook(receiver, secrets, AllowList(frozenset({(receiver.host, receiver.port)}), networks), trust()),
        None if limit is None else partial(late_topics, limit=limit.total_seconds()),
        every=max(durations.duration("--alarm-every", options["alarm_every"]).total_seconds(), 0.2),
    )
