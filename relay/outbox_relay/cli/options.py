"""What all commands share: options with their environment twins, and groups whose errors help."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from outbox_relay.cli import configuration, roles
from outbox_relay.cli.types import Number, check_brokers
from outbox_relay.text.errors import OperatorError, OptionError
from outbox_relay.text.masking import mask_text
from outbox_relay.text.waiting import TELL

NO_DATABASE = (
    'no database given: use --dsn, or set OUTBOX_DSN, or start a local one: outbox up; eval "$(outbox env)"'
)
NO_BROKER = (
    "no Kafka broker given: use --bootstrap-servers, or set OUTBOX_BOOTSTRAP_SERVERS, "
    'or start a local one: outbox up; eval "$(outbox env)"'
)

F = TypeVar("F", bound=Callable[..., Any])


def add_options(command: F, options: Sequence[Callable[[Any], Any]]) -> F:
    """Give a command these options, listed in its help in this order."""
    for option in reversed(options):
        command = option(command)
    return command


LEAST_ALIKE = 0.7
"""How alike an unknown option and its suggestion have to be; click's own 0.6 offers --dsn for --yes."""


class Command(click.Command):
    """A command whose refusals are one clear message, never a traceback.

    The exit code is 2 for wrong options and values, and 1 for everything else.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options; refuse text that is not UTF-8, which neither PostgreSQL nor Kafka could be given."""
        configuration.apply(ctx)
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            near = difflib.get_close_matches(
                error.option_name, error.possibilities or (), n=3, cutoff=LEAST_ALIKE
            )
            raise click.NoSuchOption(error.option_name, possibilities=near, ctx=ctx) from None
        for param in self.params:
            if not isinstance(param.type, click.Path) and _undecodable(ctx.params.get(param.name or "")):
                raise click.BadParameter("the text is not valid UTF-8", ctx, param)
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; turn what a user can repair into an error message."""
        if "log_format" not in ctx.params:
            TELL.set(_once())
        with roles.needed(ctx):
            return self._invoke(ctx)

    def _invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            text = advice(error)
            if text is None:
                raise
            if isinstance(error, OptionError):
                raise click.UsageError(text, ctx) from error
            raise click.ClickException(text) from error


def _once() -> Callable[[str], None]:
    """Return what shows a line on standard error, and not again."""
    shown: set[str] = set()

    def tell(text: str) -> None:
        if text not in shown:
            shown.add(text)
            click.echo(text, err=True)

    return tell


def _undecodable(value: Any) -> bool:
    """Find the stand-ins with which Python marks bytes of arguments and of the environment that are not UTF-8."""
    if isinstance(value, str):
        return any("\ud800" <= letter <= "\udfff" for letter in value)
    if isinstance(value, dict):
        return any(map(_undecodable, (*value.keys(), *value.values())))
    return isinstance(value, tuple | list) and any(map(_undecodable, value))


class CommandGroup(click.Group):
    """A group that lists its commands in the order of their definition, and suggests the nearest when none fits."""

    command_class = Command
    group_class = type

    def __init__(
        self,
        *args: Any,
        first: tuple[str, ...] = (),
        absent: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._first, self._absent = first, absent or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands, those named by `first` before the others."""
        return [
            *(name for name in self._first if name in self.commands),
            *(name for name in self.commands if name not in self._first),
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with the whole first sentence of their help."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, self.commands[name].get_short_help_str(limit=1_000))
                    for name in self.list_commands(ctx)
                ]
            )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Turn an unknown subcommand into an error that names the nearest one."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchOption:
            raise
        except click.UsageError:
            if args[0] in self._absent:
                raise click.UsageError(f"No such command {args[0]!r}: {self._absent[args[0]]}", ctx) from None
            near = difflib.get_close_matches(args[0], self.commands, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Commands: {', '.join(self.commands)}."
            raise click.UsageError(f"No such command {args[0]!r}. {hint}", ctx) from None


def advice(error: Exception) -> str | None:
    """Return what a user can do about an error, or None when it is a defect that needs its traceback."""
    if isinstance(error, OperatorError):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f"cannot use {error.filename}: {error.strerror}"
    # By name, so that `outbox env` does not load the driver to ask.
    if type(error).__module__.partition(".")[0] == "psycopg":
        sqlstate = getattr(error, "sqlstate", None)
        repair = roles.repair(error)
        return (
            f"PostgreSQL: {mask_text(str(error).strip())}"
            + (f" (SQLSTATE {sqlstate})" if sqlstate else "")
            + (f"\n{repair}" if repair else "")
        )
    return None


def _need_dsn(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if not value and not ctx.resilient_parsing:
        raise click.UsageError(NO_DATABASE, ctx)
    return value


def _need_bootstrap_servers(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if not value and not ctx.resilient_parsing:
        raise click.UsageError(NO_BROKER, ctx)
    return _form_of_brokers(ctx, param, value)


def _form_of_brokers(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    return check_brokers(value) if value and not ctx.resilient_parsing else value


def dsn_option(command: F) -> F:
    """Add `--dsn`: the database, as a URL or as key=value pairs."""
    return click.option(
        "--dsn",
        envvar="OUTBOX_DSN",
        show_envvar=True,
        metavar="DSN",
        callback=_need_dsn,
        help="PostgreSQL: postgresql://user@host:5432/database, or 'host=… dbname=…'.",
    )(command)


def bootstrap_servers_option(command: F) -> F:
    """Add `--bootstrap-servers`: the Kafka brokers to ask first."""
    return click.option(
        "--bootstrap-servers",
        envvar="OUTBOX_BOOTSTRAP_SERVERS",
        show_envvar=True,
        metavar="HOST:PORT,…",
        callback=_need_bootstrap_servers,
        help="Kafka brokers to ask first.",
    )(command)


def optional_bootstrap_servers_option(command: F) -> F:
    """Add `--bootstrap-servers` to a command that can do without a broker."""
    return click.option(
        "--bootstrap-servers",
        envvar="OUTBOX_BOOTSTRAP_SERVERS",
        show_envvar=True,
        metavar="HOST:PORT,…",
        callback=_form_of_brokers,
        help="Kafka brokers to ask first; without them Kafka is not read.",
    )(command)


def _settings(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for text in value:
        name, equals, setting = text.partition("=")
        if not name.strip() or not equals:
            # Not repeated in the error: the text may be half of a password.
            raise click.BadParameter("give NAME=VALUE, such as security.protocol=SASL_SSL", ctx, param)
        settings[name.strip()] = setting.strip()
    return settings


def kafka_config_option(command: F) -> F:
    """Add `--kafka-config NAME=VALUE`: settings of the Kafka client, for security above all."""
    return click.option(
        "--kafka-config",
        "kafka",
        multiple=True,
        envvar="OUTBOX_KAFKA_CONFIG",
        show_envvar=True,
        metavar="NAME=VALUE",
        callback=_settings,
        help="Setting of librdkafka, such as security.protocol=SASL_SSL; repeatable (in the environment: "
        "separated by spaces).",
    )(command)


def limit_option(command: F) -> F:
    """Add `--limit`: how many rows a list has at most."""
    return click.option(
        "--limit",
        type=click.IntRange(1, 100_000),
        metavar="N",
        default=20,
        show_default=True,
        help="How many at most.",
    )(command)


def timeout_option(text: str) -> Callable[[F], F]:
    """Return `--timeout`: how long a command waits for relays; its text states what becomes of them after it."""
    return click.option(
        "--timeout",
        type=Number(0, 86_400),
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help=text,
    )


def json_option(command: F) -> F:
    """Add `--json`: the same facts for machines."""
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        envvar="OUTBOX_JSON",
        show_envvar=True,
        help="Print JSON for machines.",
    )(command)


def log_options(command: F) -> F:
    """Add `--log-format` and `--log-level`."""
    command = click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        show_default=True,
        envvar="OUTBOX_LOG_LEVEL",
        show_envvar=True,
        help="Least level that is logged.",
    )(command)
    return click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        envvar="OUTBOX_LOG_FORMAT",
        show_envvar=True,
        help="Format of the log lines on standard error.",
    )(command)
