"""What is behind `--http`: `/livez`, `/readyz` and `/metrics` of a command that runs for long."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from itertools import chain
from typing import Self

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from outbox.probes import MakePage, Page, ProbeCheck, ProbeServer, probe
from outbox_relay.monitoring.catalogue import Families
from outbox_relay.text.errors import OperatorError
from outbox_relay.text.logs import Log

log = Log("http")

PATHS = ("/livez", "/readyz", "/metrics")


class AddressError(OperatorError):
    """The server cannot listen at the address of `--http`."""


class Monitoring(Collector):
    """What a process offers to a monitoring system."""

    def __init__(self) -> None:
        self.live: list[Callable[[], Iterable[ProbeCheck]]] = []
        self.ready: list[Callable[[], Iterable[ProbeCheck]]] = []
        self.metrics: list[Callable[[Families], None]] = []
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Return nothing: metrics are not read when this is registered."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return what the process noted."""
        families = Families()
        for add in self.metrics:
            add(families)
        return families.made()

    def page(self, accept: str) -> Page:
        """Return the metrics in the format that is asked for."""
        encode, kind = choose_encoder(accept)
        return Page(HTTPStatus.OK, kind, encode(self.registry))


class MonitoringServer(ProbeServer):
    """Serves between `with` and the end of its block.

    Args:
        host: an address of this machine.
        port: 0: the system chooses one.
        monitoring: what the process offers.
        livez: host and port of a listener for `/livez` alone.

    Raises from `with`:
        AddressError: an address is taken, or not of this machine.
    """

    def __init__(
        self, host: str, port: int, monitoring: Monitoring, *, livez: tuple[str, int] | None = None
    ) -> None:
        live = probe(lambda: chain.from_iterable(ask() for ask in monitoring.live))
        ready = probe(lambda: chain.from_iterable(ask() for ask in monitoring.ready))
        pages = dict(zip(PATHS, (live, ready, monitoring.page), strict=True))
        super().__init__(host, port, pages, livez=livez)

    def __enter__(self) -> Self:
        super().__enter__()
        log.info("serving", host=self._address[0], port=self.port, paths=" ".join(PATHS))
        if self._livez is not None:
            log.info("serving", host=self._livez[0], port=self.livez_port, paths=PATHS[0])
        return self

    def _listen(self, address: tuple[str, int], pages: Mapping[str, MakePage]) -> None:
        try:
            super()._listen(address, pages)
        except (OSError, UnicodeError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or error
            option = "--http" if pages is self._pages else "--livez"
            raise AddressError(
                f"{option}: cannot listen at {address[0]} port {address[1]}: {reason}\n"
                "Give another port, or an address of this machine; 0 lets the system choose a port."
            ) from None
