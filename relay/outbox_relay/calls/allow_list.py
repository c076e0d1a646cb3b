"""Which hosts and addresses may be called: the operator's allow-list, given to this process only.

A host must be listed by name, and every address that its name resolves to must be allowed: public, or inside a
network that was listed. Loopback, link-local (cloud metadata), private and other special addresses are refused
unless listed, so a name that suddenly points inwards leads nowhere. The caller connects to the very address that was
checked here: a second look-up could answer differently (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from outbox_relay.calls.address import DEFAULT_PORTS, HttpCallback, host_name

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# Not public, though Python's tables or plain routing would let some of them pass on some version: services of cloud
# hosts (Azure's 168.63.129.16, the block of 192.0.0.192), benchmarks, documentation, whichever server is near (AS112,
# AMT), segment routing, and IPv6 forms that carry another address. After IANA's registries of special addresses
# (RFC 6890); 3fff::/20 by RFC 9637, 5f00::/16 by RFC 9602.
_SPECIAL = [
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",
        "100.64.0.0/10",
        "168.63.129.16/32",
        "192.0.0.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "2001::/23",
        "2002::/16",
        "2620:4f:8000::/48",
        "3fff::/20",
        "5f00::/16",
        "fec0::/10",
    )
]


class RefusedAddressError(Exception):
    """The operator's allow-list does not permit this host or address; the text states which and why."""


@dataclass(frozen=True, slots=True)
class AllowList:
    """What the operator permits: hosts with ports (None: the scheme's own port), and networks that are not public."""

    hosts: frozenset[tuple[str, int | None]] = frozenset()
    networks: tuple[Network, ...] = ()

    @classmethod
    def read(cls, hosts: Iterable[str] = (), networks: Iterable[str] = ()) -> AllowList:
        """Read `HOST`, `HOST:PORT` or `[IPv6]:PORT`, and networks such as `10.0.0.0/8`.

        Raises:
            ValueError: naming the text that is neither.
        """
        return cls(frozenset(_host(text) for text in hosts), tuple(_network(text) for text in networks))

    def check_host(self, callback: HttpCallback) -> None:
        """Refuse a callback whose host and port are not listed.

        Raises:
            RefusedAddressError: naming what would have to be listed.
        """
        implied = callback.port == DEFAULT_PORTS[callback.scheme]
        if (callback.host, callback.port) in self.hosts or (implied and (callback.host, None) in self.hosts):
            return
        wanted = callback.host if implied and ":" not in callback.host else callback.place
        raise RefusedAddressError(f"{callback.place} is not in the allow-list (--allow-callback {wanted})")

    def check_address(self, text: str, *, plain: bool) -> Address:
        """Return the address if it may be connected to.

        Args:
            text: as the resolver gave it.
            plain: whether the connection is not encrypted; then only listed networks will do.

        Raises:
            RefusedAddressError: naming the address and why.
        """
        address = ipaddress.ip_address(text)
        inner = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        judged = inner or address
        if any(judged in network for network in self.networks if network.version == judged.version):
            return address
        if not _is_public(judged):
            raise RefusedAddressError(f"{judged} is not a public address (--allow-network lists others)")
        if plain:
            raise RefusedAddressError(f"http without TLS to {judged}, which is in no --allow-network")
        return address


def _is_public(address: Address) -> bool:
    if any(address in network for network in _SPECIAL if network.version == address.version):
        return False
    return address.is_global and not (
        address.is_multicast or address.is_reserved or address.is_unspecified or address.is_loopback
    )


def _host(text: str) -> tuple[str, int | None]:
    name, port = text.strip(), ""
    if name.startswith("["):
        name, _, port = name.partition("]")
        port = port.removeprefix(":")
    elif name.count(":") == 1:
        name, _, port = name.partition(":")
    try:
        number = int(port) if port else None
        if number is not None and not 1 <= number <= 65535:
            raise ValueError("has no port")
        if "/" in name or "*" in name:
            raise ValueError("is not a host name")
        return host_name(name), number
    except ValueError as error:
        raise ValueError(f"{text!r} is neither HOST nor HOST:PORT") from error


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text.strip())
    except ValueError as error:
        raise ValueError(f"{text!r} is not a network; expected one such as 10.0.0.0/8: {error}") from error
