"""`outbox shop`: RocketMQ's e-commerce example with failures switched on, proven at the end."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import click
from rich.console import Console

from outbox_local.demo.ending import end
from outbox_local.shop.failures import Failure
from outbox_local.shop.run import ShopOptions, run_shop
from outbox_local.stack.choice import AllowedOrigins
from outbox_local.stack.options import from_option, given_servers_options, state_option
from outbox_local.stack.prepare import StackOptions
from outbox_local.stack.state import state_directory
from outbox_relay.cli import output
from outbox_relay.cli.options import Command, json_option
from outbox_relay.cli.types import Number
from outbox_relay.downloads.errors import StackError

SWITCHES = {
    "crash": {Failure.CRASH_SERVICE: 1, Failure.CRASH_LOGISTICS: 1},
    "confirm": {Failure.CONFIRM: 3},
    "broker": {Failure.BROKER: 1},
}
"""What each value of --fail switches on, and how often it happens."""


@click.command(cls=Command)
@click.option(
    "--fail",
    "failures",
    type=click.Choice([*SWITCHES, "none"]),
    multiple=True,
    help="Failures to switch on; repeatable. [default: all]",
)
@click.option(
    "--orders",
    type=click.IntRange(20, 10_000),
    default=40,
    show_default=True,
    metavar="NUMBER",
    help="How many orders the customers make.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Decides who pays.")
@click.option(
    "--pause",
    type=Number(0, 60),
    default=0.1,
    show_default=True,
    metavar="SECONDS",
    help="How long each of four customers waits before an order.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="PORT",
    help="Where the page is served, on this machine. [default: any free port]",
)
@click.option(
    "--stay", is_flag=True, help="Leave the shop open for your own orders and failures, until Ctrl-C."
)
@given_servers_options(
    "Use this PostgreSQL, as a role that may create a database.",
    "Use this Kafka; then the broker cannot be made to fail.",
)
@from_option("Where servers of the shop's own may come from, as for `outbox up`.")
@state_option("Directory of the stack that is used when it runs and the broker is not made to fail.")
@json_option
def shop(
    *,
    failures: tuple[str, ...],
    orders: int,
    seed: int,
    pause: float,
    port: int,
    stay: bool,
    dsn: str,
    bootstrap_servers: str,
    origins: str,
    state: Path,
    as_json: bool,
) -> None:
    """Run a shop whose paid orders reach logistics, points and cart, with failures, and prove each effect.

    Customers order and pay over HTTP at a FastAPI service. It stores a half message, commits the payment with
    SQLAlchemy, and confirms the message; without a confirmation the checker asks it. Three consumer groups ship
    the order, credit points and empty the cart. Meanwhile the service and a consumer are killed before their
    COMMIT, confirmations are left out, and the broker is killed. Then it is proven that each paid order has
    exactly one effect of each group, and that no other order has any.

    A page of the service shows all of it live. It has a database and a topic of its own, and removes them. Exit
    codes: 0 proven, 1 not.

    \b
    Examples:
      outbox shop                          all failures, in less than a minute
      outbox shop --fail confirm           only confirmations that never come
      outbox shop --stay --port 8000       and then order and break things by hand
    """
    console = Console(stderr=as_json, highlight=False)
    signal.signal(signal.SIGTERM, end)
    if "none" in failures and len(failures) > 1:
        raise click.UsageError("--fail none: excludes other failures; give it alone")
    chosen = [name for name in (failures or SWITCHES) if name != "none"]
    options = ShopOptions(
        orders=orders,
        seed=seed,
        failures={failure: times for name in chosen for failure, times in SWITCHES[name].items()},
        pause=pause,
        port=port,
        stay=stay,
        stack_directory=state_directory(state),
        stack=StackOptions(dsn, bootstrap_servers, AllowedOrigins(origins)),
    )
    try:
        result = run_shop(options, console)
    except StackError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        output.emit_json(result.as_json())
    for line, style in result.lines():
        console.print(line, style=style or None, markup=False, soft_wrap=True)
    if not result.holds:
        sys.exit(1)
