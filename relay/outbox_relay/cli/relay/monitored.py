"""What `outbox relay run --http` serves: the relays of the process, and the figures of their databases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack

from outbox_relay.cli.monitoring import serve
from outbox_relay.database.rights import needing
from outbox_relay.monitoring.figures import Figures, observe_figures
from outbox_relay.monitoring.relays import observe_relays
from outbox_relay.monitoring.server import Monitoring
from outbox_relay.operations.consumer_lag import KafkaOffsets
from outbox_relay.publisher.opening import RelayOptions
from outbox_relay.publisher.service import Relay
from outbox_relay.publisher.several import Relays
from outbox_relay.publisher.vitals import Vitals
from outbox_relay.text import logs

RELAY_ROLE = "outbox_relay"
FIGURES_FROM = 0
"""The lane whose owner offers the figures of the database."""


def monitored(
    stack: ExitStack,
    http: tuple[str, int] | None,
    livez: tuple[str, int] | None,
    databases: Mapping[str, RelayOptions],
    service: Relay | Relays,
) -> None:
    """Serve until the stack is closed.

    Args:
        stack: ends what is started here.
        http: where to listen.
        livez: where to listen for `/livez` alone.
        databases: the options of each relay by the name of its database.
        service: the relay, or the relays.

    Raises:
        AddressError: the server cannot listen there.
        click.UsageError: `livez` without `http`.
    """

    def vitals() -> Mapping[str, Vitals]:
        return service.vitals() if isinstance(service, Relays) else {next(iter(databases)): service.vitals}

    def owns(name: str) -> Callable[[], bool]:
        return lambda: FIGURES_FROM in vitals()[name].lanes

    monitoring = Monitoring()
    observe_relays(monitoring, vitals)
    all_figures = []
    for name, options in databases.items():
        # Its threads log with the fields of this block, and name the role that the login lacks.
        with (
            logs.context(**({"database": name} if len(databases) > 1 else {})),
            needing(RELAY_ROLE, options.dsn),
        ):
            figures = Figures(name, options.dsn, KafkaOffsets(options.bootstrap_servers, options.kafka))
        observe_figures(monitoring, figures, offered=owns(name))
        all_figures.append(figures)
    serve(stack, monitoring, http, livez)
    for figures in all_figures:
        stack.enter_context(figures)
