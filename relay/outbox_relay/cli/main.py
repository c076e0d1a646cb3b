"""The `outbox` command: a lazy group, so that `outbox --help` imports no driver and no broker client."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import click

from outbox_relay.cli import configuration, roles, streams
from outbox_relay.text import former_names

DOCUMENTATION = "README.md and docs/ of the project; docs/reference/cli.md describes every command"


class LazyGroup(click.Group):
    """Loads a command when it is named; suggests the nearest name when none fits.

    Why lazy: `outbox env` runs in every shell prompt and must not pay for Kafka's client.
    """

    sections: ClassVar[dict[str, dict[str, tuple[str, str]]]] = {
        "On this machine": {
            "dev": (
                "outbox_local.dev.commands:dev",
                "Servers, schema, relay and checker in this terminal.",
            ),
            "up": ("outbox_local.stack.commands:up", "Start a local PostgreSQL and Kafka broker."),
            "env": ("outbox_local.stack.commands:env", "Print the exports that point every command at them."),
            "down": ("outbox_local.stack.commands:down", "Stop exactly what `outbox up` started."),
            "demo": (
                "outbox_local.demo.commands:demo",
                "A year of flights through the outbox, proven at the end.",
            ),
            "shop": (
                "outbox_local.shop.commands:shop",
                "A shop with three consumer groups and failures, proven at the end.",
            ),
        },
        "Set up": {
            "db": ("outbox_relay.cli.db.commands:db", "Create, upgrade and check the schema."),
            "topic": (
                "outbox_relay.cli.topic.commands:topic",
                "Create and register topics: type, partitions, size limit.",
            ),
            "group": (
                "outbox_relay.cli.group.commands:group",
                "Producer groups: how their half messages are asked about.",
            ),
            "config": (
                "outbox_relay.cli.config.commands:config",
                "Which options hold, and where each comes from.",
            ),
        },
        "Run": {
            "relay": (
                "outbox_relay.cli.relay.commands:relay",
                "Publish committed messages to Kafka; list and drain relays.",
            ),
            "checker": (
                "outbox_relay.cli.checker.commands:checker",
                "Ask the producers of undecided half messages.",
            ),
        },
        "Inspect and repair": {
            "status": (
                "outbox_relay.cli.status.commands:status",
                "Healthy, or what is wrong and which command repairs it.",
            ),
            "console": (
                "outbox_relay.cli.console.commands:console",
                "Pages for a browser: what is wrong, what fails, and what to do.",
            ),
            "doctor": (
                "outbox_relay.cli.doctor.commands:doctor",
                "Check a whole deployment, with what repairs each finding.",
            ),
            "prove": (
                "outbox_relay.cli.prove.commands:prove",
                "Kill processes on your own servers, and check that every promise is kept.",
            ),
            "metrics": (
                "outbox_relay.cli.metrics.commands:metrics",
                "Metrics for Prometheus, alert rules, and a dashboard for Grafana.",
            ),
            "message": (
                "outbox_relay.cli.message.commands:message",
                "Send messages, find them, show one's life, cancel.",
            ),
            "holds": (
                "outbox_relay.cli.holds.commands:holds",
                "What cannot be published, why; release it, give it up, set it aside.",
            ),
            "failover": (
                "outbox_relay.cli.failover.commands:failover",
                "After a fail-over or a restore: what Kafka has and the database lost.",
            ),
            "dlq": (
                "outbox_relay.cli.dlq.commands:dlq",
                "Dead letters of consumer groups: find, try again, discard.",
            ),
            "consumers": (
                "outbox_relay.cli.consumers.commands:consumers",
                "Consumer groups: members, positions, lag.",
            ),
            "key": (
                "outbox_relay.cli.key.commands:key",
                "Keys of encrypted bodies: destroy, to erase; renew; wrap again.",
            ),
            "inbox": (
                "outbox_relay.cli.inbox.commands:inbox",
                "Days of a consumer's inbox: drop what Kafka cannot deliver again.",
            ),
            "tail": ("outbox_relay.cli.tail.commands:tail", "Read a topic's messages from Kafka."),
            "tx": ("outbox_relay.cli.tx.commands:tx", "List, explain, check and decide half messages."),
        },
        "Archive": {
            "etl": (
                "outbox_relay.cli.etl.commands:etl",
                "Export the history into a warehouse, and prove it complete.",
            ),
            "history": (
                "outbox_relay.cli.history.commands:history",
                "Drop what is exported, verified and old.",
            ),
        },
    }
    sources: ClassVar[dict[str, tuple[str, str]]] = {
        name: source for commands in sections.values() for name, source in commands.items()
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands in the order in which a newcomer needs them."""
        return [name for name in self.sources if self._is_here(name)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command, or None without one of that name."""
        if cmd_name not in self.sources or not self._is_here(cmd_name):
            return None
        module, _, attribute = self.sources[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        roles.name_roles(command, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table above, importing none of them."""
        for title, commands in self.sections.items():
            if here := [(name, text) for name, (_, text) in commands.items() if self._is_here(name)]:
                with formatter.section(title):
                    formatter.write_dl(here, col_max=12)

    def _is_here(self, name: str) -> bool:
        """Return whether the package of a command is installed: the container image has no servers and examples."""
        return importlib.util.find_spec(self.sources[name][0].partition(".")[0]) is not None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Turn `help COMMAND` into its `--help`, and an unknown command into an error that names the nearest one."""
        if args[0] == "help":
            if not args[1:]:
                click.echo(ctx.get_help())
                ctx.exit()
            args = [*args[1:], "--help"]
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            if args[0] in self.sources:
                text = f"{args[0]!r} runs servers and examples on a developer's machine; this image leaves it out."
                raise click.UsageError(text, ctx) from None
            if args[0] in former_names.GROUPS:
                raise click.UsageError(former_names.told(args), ctx) from None
            here = self.list_commands(ctx)
            near = difflib.get_close_matches(args[0], here, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" Commands: {', '.join(here)}."
            raise click.UsageError(f"No such command {args[0]!r}.{hint}", ctx) from None

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line; with `--json`, errors are one line of JSON on standard error.

        Raises:
            SystemExit: with the exit code: 0 done, 1 refused or failed, 2 wrong options or values.
        """
        given = list(sys.argv[1:] if args is None else args)
        if not standalone_mode:
            return super().main(given, prog_name, complete_var, standalone_mode, **extra)
        if not _wants_json(given):
            with streams.complete_output(lambda text: click.echo(f"Error: {text}", err=True)):
                return super().main(given, prog_name, complete_var, standalone_mode, **extra)
        with streams.complete_output(lambda text: _fail(text, "failed", 1)):
            try:
                code = super().main(given, prog_name, complete_var, False, **extra)
            except click.ClickException as error:
                _fail(error.format_message(), "usage" if error.exit_code == 2 else "failed", error.exit_code)
            except click.Abort:
                _fail("aborted", "failed", 1)
            sys.exit(code if isinstance(code, int) else 0)


def _wants_json(args: Sequence[str]) -> bool:
    """Tell before anything is parsed, because parsing is what may fail."""
    return "--json" in args or os.environ.get("OUTBOX_JSON", "").lower() in {
        "1",
        "true",
        "yes",
        "on",
        "t",
        "y",
    }


def _fail(text: str, kind: str, code: int) -> NoReturn:
    click.echo(json.dumps({"error": text, "kind": kind}, ensure_ascii=not streams.takes_any_text()), err=True)
    sys.exit(code)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "OUTBOX"},
    epilog=f"Documentation: {DOCUMENTATION}",
)
@click.version_option(package_name="outbox-kafka")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="OUTBOX_CONFIG",
    show_envvar=True,
    metavar="FILE",
    help="TOML file with options: outbox config --help.",
)
@click.pass_context
def main(ctx: click.Context, *, config: Path | None) -> None:
    """A transactional outbox on PostgreSQL that speaks Kafka.

    \b
    First steps:
      outbox up                                     a PostgreSQL and a Kafka broker on this machine
      eval "$(outbox env)"                          point every command at them
      outbox db upgrade                             create the schema
      outbox topic create orders                    create a topic
      outbox relay run                              publish, in a terminal of its own
      outbox message send orders --body hello       send a message in a transaction
      outbox tail orders --from-beginning           read it from Kafka
      outbox status                                 healthy, or what is wrong

    \b
    Every command takes its servers from options or from the environment:
      OUTBOX_DSN                    PostgreSQL, such as postgresql://user@host:5432/shop
      OUTBOX_BOOTSTRAP_SERVERS      Kafka, such as localhost:9092
    """
    if config is not None:
        configuration.use(ctx, config)


if __name__ == "__main__":
    main()
