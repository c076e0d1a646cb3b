"""A whole run of the shop: servers, processes, customers, failures, proof; and what is left behind."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from outbox_local.demo.claims import Claim
from outbox_local.demo.outcome import claim_lines
from outbox_local.demo.venue import Furnishing, Venue, venue
from outbox_local.shop.customers import Customers, visits
from outbox_local.shop.failures import SQL, Failure
from outbox_local.shop.play import Run, Shopping
from outbox_local.stack.choice import AllowedOrigins
from outbox_local.stack.ports import Reservation
from outbox_local.stack.prepare import StackOptions
from outbox_relay.proving.children import ChildError
from outbox_relay.text.errors import OperatorError

SHOP = Furnishing("outbox_shop", "orders", "TRANSACTION", SQL["create"])


class ShopError(OperatorError):
    """The options of a run contradict one another."""


@dataclass(frozen=True, slots=True)
class ShopOptions:
    """What is asked of a run."""

    orders: int
    seed: int
    failures: Mapping[Failure, int]
    pause: float
    port: int
    stay: bool
    stack_directory: Path
    stack: StackOptions


@dataclass(frozen=True, slots=True)
class ShopResult:
    """What a run reports at its end."""

    claims: Mapping[str, Claim]
    orders: Mapping[str, int]
    """How many ended in each state, as the shop replied."""
    asked_again: int
    seconds: float
    logs: Path | None
    """Where the logs of the processes are; None when they were removed."""

    @property
    def holds(self) -> bool:
        """Whether every claim holds."""
        return all(claim.holds for claim in self.claims.values())

    def as_json(self) -> dict[str, Any]:
        """The same for machines."""
        return {
            "proven": self.holds,
            "orders": dict(self.orders),
            "asked_again": self.asked_again,
            "claims": {name: {**asdict(claim), "holds": claim.holds} for name, claim in self.claims.items()},
            "seconds": round(self.seconds, 1),
            "logs": str(self.logs) if self.logs else None,
        }

    def lines(self) -> list[tuple[str, str]]:
        """Lines to print, each with a style of rich."""
        states = ", ".join(f"{count} {state}" for state, count in self.orders.items())
        lines = [("", ""), (f"orders: {states}; the customers repeated {self.asked_again} requests", "")]
        for claim in self.claims.values():
            lines += claim_lines(claim)
        lines.append(("", ""))
        if self.holds:
            lines.append((f"PROVEN in {self.seconds:.0f} s", "bold green"))
        else:
            lines.append((f"NOT PROVEN; logs: {self.logs}", "bold red"))
        return lines


def run_shop(options: ShopOptions, console: Console) -> ShopResult:
    """Run the shop and prove it. Logs are removed at the end, unless something has failed."""
    began = time.monotonic()
    stack = options.stack
    own = Failure.BROKER in options.failures or options.stay
    if Failure.BROKER in options.failures:
        if stack.bootstrap_servers:
            raise ShopError(
                "--fail broker: kills the broker, and that of --bootstrap-servers is not the shop's own\n"
                "leave out --bootstrap-servers and OUTBOX_BOOTSTRAP_SERVERS, or choose the failures: --fail crash"
            )
        if stack.origins is AllowedOrigins.AUTO:
            stack = replace(stack, origins=AllowedOrigins.EMBEDDED)
    directory = Path(tempfile.mkdtemp(prefix="outbox-shop-"))
    keeps_logs = False

    def report(line: str) -> None:
        if not line.startswith("fetching"):
            console.print(line, markup=False, soft_wrap=True)

    try:
        with venue(
            options.stack_directory, stack, keep=False, report=report, furnishing=SHOP, own=own
        ) as place:
            customers, claims = _play(options, place, directory, console)
        result = ShopResult(
            claims, _counted(customers.journal), customers.asked_again, time.monotonic() - began, directory
        )
        keeps_logs = not result.holds
        return result if keeps_logs else replace(result, logs=None)
    except ChildError:
        keeps_logs = True
        raise
    finally:
        if not keeps_logs:
            shutil.rmtree(directory, ignore_errors=True)


def _play(
    options: ShopOptions, place: Venue, directory: Path, console: Console
) -> tuple[Customers, Mapping[str, Claim]]:
    def tell(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    port = Reservation(options.port)
    planned = visits(options.orders, options.seed)
    shopping = Shopping(planned, options.failures, port.port, directory, options.pause)
    with Run(shopping, place, tell) as performance:
        tell(f"starting the shop, relay, checker and three consumers; logs in {directory}")
        performance.open()
        customers = performance.serve()
        if options.stay:
            performance.prove(customers.journal)
            tell("all orders are handled; the shop stays open until Ctrl-C")
            with contextlib.suppress(KeyboardInterrupt):
                performance.stay()
        performance.stop_all_but_the_page()
        claims = performance.prove(customers.journal)
        performance.close()
    port.release()
    return customers, claims


def _counted(journal: Mapping[str, str]) -> dict[str, int]:
    return {state: sum(found == state for found in journal.values()) for state in ("paid", "declined", "new")}
