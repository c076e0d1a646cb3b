"""The `outbox` command: a lazy group, so that `outbox --help` imports no driver and no broker client."""

from __future__ import annotations

import difflib
import importlib
from typing import ClassVar

import click


class LazyGroup(click.Group):
    """Loads a command when it is named; suggests the nearest name when none fits.

    Why lazy: `outbox env` runs in every shell prompt and must not pay for Kafka's client.
    """

    sources: ClassVar[dict[str, tuple[str, str]]] = {
        "up": ("outbox_relay.commands.stack:up", "Start a local PostgreSQL and Kafka broker."),
        "down": ("outbox_relay.commands.stack:down", "Stop exactly what `outbox up` started."),
        "env": (
            "outbox_relay.commands.stack:env",
            "Print the exports that point every command at the stack.",
        ),
        "db": ("outbox_relay.commands.db:db", "Create, upgrade and check the schema."),
        "topic": ("outbox_relay.commands.topic:topic", "Register topics: type, partitions, size limit."),
        "relay": ("outbox_relay.commands.relay:relay", "Publish committed messages to Kafka."),
        "checker": (
            "outbox_relay.commands.checker:checker",
            "Ask the producers of half messages that nobody decided.",
        ),
        "status": (
            "outbox_relay.commands.status:status",
            "Backlog, oldest age and rates, per topic and lane.",
        ),
        "message": ("outbox_relay.commands.message:message", "Find messages and show one's whole life."),
        "tx": ("outbox_relay.commands.tx:tx", "List, explain, check and decide half messages."),
        "group": (
            "outbox_relay.commands.group:group",
            "Producer groups: how their half messages are asked about.",
        ),
        "etl": (
            "outbox_relay.commands.etl:etl",
            "Export the history into a warehouse, and prove it complete.",
        ),
        "history": ("outbox_relay.commands.history:history", "Drop what is exported, verified and old."),
        "demo": (
            "outbox_relay.commands.demo:demo",
            "A year of flights through the outbox, proven at the end.",
        ),
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands in the order a newcomer meets them."""
        return list(self.sources)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command, or None when there is none of that name."""
        if cmd_name not in self.sources:
            return None
        module, _, attribute = self.sources[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table above, importing none of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.sources.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Turn an unknown command into an error that names the nearest one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            near = difflib.get_close_matches(args[0], self.sources, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" Commands: {', '.join(self.sources)}."
            raise click.UsageError(f"No such command {args[0]!r}.{hint}", ctx) from None


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "OUTBOX"}
)
@click.version_option(package_name="outbox-kafka")
def main() -> None:
    """A transactional outbox on PostgreSQL that speaks Kafka.

    \b
    A first walk:
      outbox up                     a PostgreSQL and a Kafka broker on this machine
      eval "$(outbox env)"          point every command at them
      outbox db upgrade             create the schema
      outbox relay run              publish what your transactions commit
      outbox status                 see what waits and how old it is
    """


if __name__ == "__main__":
    main()
