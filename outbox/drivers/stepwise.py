"""Runs a plan whose logic waits for a network or a disk: each step in a thread, each statement on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple, TypeVar, cast

from outbox.statements import Plan, Rows, Statement

T = TypeVar("T")
Run = Callable[[Plan[Rows]], Awaitable[Rows]]
"""Runs a plan on the caller's connection."""


class _Done(NamedTuple):
    result: object


async def run_in_steps(run: Run, plan: Plan[T]) -> T:
    """Run a plan; the event loop is free while the plan computes or waits.

    If the task is cancelled, a step that runs in its thread runs on to its end; its statement is not executed.
    """
    step = await asyncio.to_thread(_step, lambda: next(plan))
    while not isinstance(step, _Done):
        try:
            rows = await run(_one(step))
        except Exception as error:  # noqa: BLE001  (the plan decides what becomes of it, as with every driver)
            step = await asyncio.to_thread(_step, partial(plan.throw, error))
        else:
            step = await asyncio.to_thread(_step, partial(plan.send, rows))
    return cast("T", step.result)


def _step(go: Callable[[], Statement]) -> Statement | _Done:
    try:
        return go()
    except StopIteration as done:  # which no future can carry
        return _Done(done.value)


def _one(statement: Statement) -> Plan[Rows]:
    return (yield statement)
