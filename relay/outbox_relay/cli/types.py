"""Types of options that click lacks: finite numbers, choices as the documentation writes them, shards, brokers."""

from __future__ import annotations

import math
import re
from typing import Any

import click

from outbox_relay.publisher.shard import Shard, ShardError

ALLOWED_BROKERS = "expected HOST:PORT, or several with commas between them, such as localhost:9092"

# librdkafka also takes a protocol in front. A host may be an IPv6 address in brackets.
_BROKER = re.compile(r"(?:[A-Za-z_]+://)?(?:\[[0-9A-Fa-f:.]+\]|[^\s:,/\[\]]+):(?P<port>[0-9]{1,5})", re.ASCII)


class Number(click.FloatRange):
    """A finite number within bounds: NaN passes every comparison of `click.FloatRange`, and infinity open ones."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the number.

        Raises:
            click.BadParameter: the value is not a finite number within the bounds.
        """
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number; expected {self.expected}", param, ctx)
        if (self.min is not None and number < self.min) or (self.max is not None and number > self.max):
            self.fail(f"{value} is out of range; expected {self.expected}", param, ctx)
        return number

    @property
    def expected(self) -> str:
        """The bounds in words."""
        if self.min is not None and self.max is not None:
            return f"{self.min:g} to {self.max:g}"
        return f"{self.min:g} or more" if self.min is not None else "a finite number"


class Choice(click.Choice[str]):
    """One of some words, in either case; errors list them in the case in which they are documented."""

    def __init__(self, choices: tuple[str, ...]) -> None:
        super().__init__(choices, case_sensitive=False)

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Return what is allowed."""
        return f"{value!r} is not one of {', '.join(self.choices)}."


class ShardType(click.ParamType[Shard]):
    """A shard, as I/N."""

    name = "shard"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Shard:
        """Read the shard.

        Raises:
            click.BadParameter: the value names no shard.
        """
        try:
            return value if isinstance(value, Shard) else Shard.parse(str(value))
        except ShardError as error:
            self.fail(str(error), param, ctx)


def check_brokers(value: str) -> str:
    """Check the form of `--bootstrap-servers`, before anything waits for a server that cannot exist.

    Raises:
        click.BadParameter: an address has no port, or one beyond 65535.
    """
    for address in value.split(","):
        found = _BROKER.fullmatch(address.strip())
        if found is None or not 0 < int(found["port"]) <= 65_535:
            raise click.BadParameter(f"{address.strip()!r} is not a broker's address; {ALLOWED_BROKERS}")
    return value
