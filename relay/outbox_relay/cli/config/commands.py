"""`outbox config`: which options a command would run with, where each comes from, and whether the file fits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import click
from click.core import ParameterSource

from outbox_relay.cli import configuration, output
from outbox_relay.cli.options import CommandGroup, json_option
from outbox_relay.database.connections import masked
from outbox_relay.text.masking import MASK, mask_text, mask_url

HIDDEN = ("secret", "password", "token", "body", "master-key")
"""Options with such a name are never shown, unless they name a file."""
SHOWN = {
    *(
        "acks",
        "client.id",
        "client.rack",
        "debug",
        "linger.ms",
        "partitioner",
        "retries",
        "log_level",
        "cleanup.policy",
    ),
    *(
        "batch.size",
        "compression.codec",
        "compression.level",
        "compression.type",
        "enable.idempotence",
        "max.in.flight",
    ),
    *(
        "security.protocol",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.kerberos.service.name",
    ),
    *(
        "sasl.oauthbearer.method",
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.scope",
        "min.insync.replicas",
    ),
    *("enable.ssl.certificate.verification", "ssl.endpoint.identification.algorithm", "ssl.cipher.suites"),
    *("broker.address.family", "socket.keepalive.enable", "socket.nagle.disable", "group.instance.id"),
    *("spark.driver.memory", "spark.executor.memory", "spark.executor.cores", "spark.executor.instances"),
}
NUMBERS_AND_PATHS = (".ms", ".bytes", ".kbytes", ".messages", ".location", ".partitions")
"""Settings of the form NAME=VALUE that hold no secret, and ends of such names; no other value is shown."""


@click.group(cls=CommandGroup)
def config() -> None:
    """Options from the command line, the environment and a file: what holds, and why.

    \b
    OUTBOX_CONFIG, or `outbox --config FILE COMMAND`, names a TOML file:
      dsn = "postgresql://outbox@db1/shop"     for every command
      [relay.run]                              for one command
      http = "9464"
    """


@config.command("show")
@click.argument("command", nargs=-1, required=True, metavar="COMMAND …")
@json_option
@click.pass_context
def show(ctx: click.Context, *, command: tuple[str, ...], as_json: bool) -> None:
    """Show the options that a command would run with now, and the origin of each.

    Of settings such as --kafka-config NAME=VALUE only values that are known to be harmless are shown; others, passwords
    and secrets are shown as asterisks.

    \b
    Examples:
      outbox config show relay run
      outbox --config outbox.toml config show checker run
    """
    rows = list(_rows(_context(ctx, command)))
    if as_json:
        output.emit_json(rows)
        return
    output.table(
        ("option", "value", "origin"),
        [(row["option"], row["value"], row["origin"]) for row in rows],
        text=("value", "origin"),
    )


@config.command("check")
@click.pass_context
def check(ctx: click.Context) -> None:
    """Check every table and key of the file against the commands.

    A command refuses a wrong key of its own table when it starts; this finds all of them before. Exit code 2: the file
    does not fit.
    """
    file = configuration.used(ctx)
    if file is None:
        raise click.UsageError("no file to check: set OUTBOX_CONFIG, or outbox --config FILE config check")
    root = ctx.find_root().command
    assert isinstance(root, click.Group)  # noqa: S101  (it has this command)
    number = 0
    for path, command, _ in file.tables(root):
        file.options(command, path)
        number += 1
    click.echo(f"{file.path} fits: tables of {number} commands")


def _context(ctx: click.Context, words: tuple[str, ...]) -> click.Context:
    """Return a context of a command as if it was called without options; nothing is run."""
    found = ctx.find_root()
    for word in words:
        group = found.command
        inner = group.get_command(found, word) if isinstance(group, click.Group) else None
        if inner is None:
            raise click.UsageError(
                f"`outbox {' '.join(words)}` is not a command; expected one that takes options, such as: relay run"
            )
        found = inner.make_context(word, [], parent=found, resilient_parsing=True)
    if isinstance(found.command, click.Group):
        raise click.UsageError(
            f"`outbox {' '.join(words)}` is a group; name one of its commands: "
            f"{', '.join(found.command.list_commands(found))}"
        )
    return found


def _rows(ctx: click.Context) -> Iterator[dict[str, Any]]:
    for param in ctx.command.params:
        if not isinstance(param, click.Option) or not param.expose_value:
            continue
        value, source = param.consume_value(ctx, {})
        name = max(param.opts, key=len)
        yield {
            "option": name,
            "value": _shown(
                name, value if source != ParameterSource.DEFAULT else ctx.params[param.name or ""]
            ),
            "origin": _origin(ctx, param, source),
        }


def _origin(ctx: click.Context, param: click.Option, source: ParameterSource) -> str:
    if source == ParameterSource.ENVIRONMENT:
        if isinstance(param.envvar, str) and param.envvar in os.environ:
            return f"environment {param.envvar}"
        variable = f"{ctx.auto_envvar_prefix}_{param.name}".upper()
        return f"environment {variable}"
    if source == ParameterSource.DEFAULT_MAP:
        file = configuration.used(ctx)
        return f"file {file.path if file else ''}"
    return "default"


def _shown(name: str, value: Any) -> str:
    if value is None or value in ((), {}, []):
        return ""
    if isinstance(value, list | tuple):
        return ", ".join(_shown(name, each) for each in value)
    if isinstance(value, dict):
        return ", ".join(_shown(name, f"{key}={each}") for key, each in value.items())
    text = str(value)
    if any(word in name for word in HIDDEN) and not name.endswith("-file"):
        return MASK
    if name.endswith(("dsn", "--source")):
        return masked(text)
    key, equals, _ = text.partition("=")
    if equals:
        known = key.strip().lower()
        is_harmless = known in SHOWN or known.endswith(NUMBERS_AND_PATHS)
        return mask_text(text) if is_harmless else f"{key}={MASK}"
    return mask_url(text) if "webhook" in name else mask_text(text)
