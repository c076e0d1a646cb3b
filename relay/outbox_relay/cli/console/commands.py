"""`outbox console`: what is wrong, since when, who waits, and what to do, in a browser."""

from __future__ import annotations

import importlib.util
import ipaddress
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from outbox.extras import install_line
from outbox_relay.cli.options import (
    Command,
    dsn_option,
    kafka_config_option,
    log_options,
    optional_bootstrap_servers_option,
)
from outbox_relay.text import logs
from outbox_relay.text.errors import OperatorError, OptionError

log = logs.Log("console")

PORT = 8642
NEEDED = ("starlette", "uvicorn", "jinja2")


def missing() -> list[str]:
    """Return the packages of the extra `console` that are not installed."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def _networks(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[Any, ...]:
    try:
        return tuple(ipaddress.ip_network(text) for text in value)
    except ValueError as error:
        raise click.BadParameter(
            f"{error}; expected an address or a network, such as 10.0.0.7", ctx, param
        ) from None


@click.command(cls=Command)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    envvar="OUTBOX_CONSOLE_HOST",
    show_envvar=True,
    metavar="ADDRESS",
    help="The address to listen at; beyond loopback it needs --token-file or --identity-header.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=PORT,
    show_default=True,
    envvar="OUTBOX_CONSOLE_PORT",
    show_envvar=True,
    help="The port to listen at; 0: the system chooses one.",
)
@click.option("--read-only", "is_read_only", is_flag=True, help="Offer no act, whatever the login may do.")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="OUTBOX_CONSOLE_TOKEN_FILE",
    show_envvar=True,
    metavar="FILE",
    help="Let people in who know the token in this file, of 16 characters or more.",
)
@click.option(
    "--identity-header",
    metavar="NAME",
    envvar="OUTBOX_CONSOLE_IDENTITY_HEADER",
    show_envvar=True,
    help="Let people in whom a proxy names in this header; with --proxy.",
)
@click.option(
    "--proxy",
    "proxies",
    multiple=True,
    callback=_networks,
    metavar="ADDRESS",
    help="A proxy whose --identity-header is believed, and no other client is let in; repeatable.",
)
@click.option(
    "--hostname",
    "hostnames",
    multiple=True,
    metavar="NAME",
    help="A name by which browsers reach it, besides localhost and addresses; repeatable.",
)
@dsn_option
@optional_bootstrap_servers_option
@kafka_config_option
@log_options
def console(
    *,
    host: str,
    port: int,
    is_read_only: bool,
    token_file: Path | None,
    identity_header: str | None,
    proxies: tuple[Any, ...],
    hostnames: tuple[str, ...],
    dsn: str,
    bootstrap_servers: str | None,
    kafka: dict[str, str],
    log_format: str,
    log_level: str,
) -> None:
    """Serve pages about this database: what is wrong, what fails, one message's life, and an operator's acts.

    Each page is live while it is open, and nothing is read while none is. What the pages may do is what the login may:
    of outbox_reader they show everything but bodies, of outbox_operator they act, too, each act with a reason that the
    audit keeps. Needs the extra `console`.

    \b
    Examples:
      outbox console
      outbox console --read-only --bootstrap-servers localhost:9092
      outbox console --host 0.0.0.0 --token-file /run/secrets/console --hostname outbox.example.com
      outbox console --host 10.0.0.5 --identity-header X-Forwarded-User --proxy 10.0.0.7
    """
    if lacking := missing():
        raise OperatorError(f"the console needs {', '.join(lacking)}: {install_line('console')}")
    if (identity_header is None) != (not proxies):
        raise click.UsageError("--identity-header and --proxy belong together: who is named, and by whom")
    if token_file is not None and identity_header is not None:
        raise click.UsageError("people come by --token-file or by --identity-header: give one of them")
    token = None if token_file is None else _token(token_file)
    if token is None and identity_header is None and not _is_loopback(host):
        raise click.UsageError(
            f"--host {host} lets other machines in: give --token-file FILE, or "
            "--identity-header NAME with --proxy ADDRESS"
        )
    logs.setup(log_format, log_level)
    _serve(
        (host, port),
        dsn,
        (bootstrap_servers, kafka),
        (token, identity_header, proxies, hostnames),
        is_read_only=is_read_only,
        is_json=log_format == "json",
    )


def _serve(
    address: tuple[str, int],
    dsn: str,
    brokers: tuple[str | None, dict[str, str]],
    people: tuple[str | None, str | None, tuple[Any, ...], tuple[str, ...]],
    *,
    is_read_only: bool,
    is_json: bool,
) -> None:
    # Here, because the help of the command needs none of them.
    from outbox_relay.console.access import Access, AccessOptions  # noqa: PLC0415
    from outbox_relay.console.app import Console, ConsoleOptions  # noqa: PLC0415
    from outbox_relay.console.kafka import KafkaView  # noqa: PLC0415
    from outbox_relay.console.pages import Pages  # noqa: PLC0415
    from outbox_relay.console.reader import Reader  # noqa: PLC0415
    from outbox_relay.console.server import listen, serve_until_signal  # noqa: PLC0415
    from outbox_relay.operations.actor import os_user  # noqa: PLC0415

    token, header, proxies, hostnames = people
    with closing(Reader(dsn)) as reader:
        with reader.reading():  # a wrong connection string, or an older schema, is named now
            pass
        kafka = None if brokers[0] is None else KafkaView(brokers[0], brokers[1])
        access = Access(AccessOptions(token, header, proxies, frozenset(hostnames)), os_user())
        with listen(*address) as listener:
            host, port = listener.getsockname()[:2]
            options = ConsoleOptions(is_read_only, f"outbox-console-{port}")
            shown = f"[{host}]" if ":" in host else host
            url = f"http://{shown}:{port}/"
            if is_json:
                log.info("the console serves", database=str(reader.place), address=url)
            else:
                click.echo(f"the console of {reader.place}: {url}")
            serve_until_signal(Console(reader, Pages(reader, kafka), access, options), listener)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _token(file: Path) -> str:
    from outbox_relay.console.access import SHORTEST_TOKEN  # noqa: PLC0415

    token = file.read_text(encoding="utf-8").strip()
    if len(token) < SHORTEST_TOKEN:
        raise OptionError(
            f"--token-file {file} holds {len(token)} characters, at least {SHORTEST_TOKEN} are expected: "
            "make one with: openssl rand -hex 24"
        )
    return token
