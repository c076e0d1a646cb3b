"""A call outside is settled by who made it or by the check, with its business rows, and by nobody twice."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from outbox import AsyncOutbox, Message, Outbox
from outbox.checking import GroupChecker, ListenerAsker, Listeners
from outbox.errors import DecidedOtherwiseError, InvalidMessageError
from outbox.outside_calls import AsyncOutsideCall, OutsideCall
from tests.support.plain_inserts import connect
from tests.support.waiting import wait_until

GROUP = "payments"
STATE = "SELECT status FROM outbox.message_status WHERE message_id = %s"
Conn = psycopg.Connection[Any]
RESULTS = pytest.mark.parametrize(
    ("payment", "state", "status"), [("p", "charged", "COMMITTED"), ("q", "declined", "ROLLED_BACK")]
)


class Provider:
    """Keeps the result of each key; what is to go wrong next is raised once."""

    def __init__(self) -> None:
        self.results: dict[str, str] = {}
        self.calls: list[str] = []
        self.fails: Exception | None = None

    def charge(self, key: str) -> str:
        self.calls.append(key)
        result = self.results.setdefault(key, "charged" if key < "q" else "declined")
        failure, self.fails = self.fails, None
        if failure is not None:
            raise failure
        return result

    async def charge_later(self, key: str) -> str:
        return self.charge(key)


def settle(conn: Conn, payment: str, state: str) -> bool:
    conn.execute("UPDATE public.payment SET state = %s WHERE id = %s", [state, payment])
    return state == "charged"


def message(payment: str) -> Message:
    return Message("payments", key=payment, body=b"", transaction_id=payment, checker="charge")


@pytest.fixture
def conn(database: str) -> Any:
    with connect(database) as conn:
        conn.execute("CREATE TABLE public.payment (id text PRIMARY KEY, state text)")
        yield conn


def charging(dsn: str, provider: Provider) -> OutsideCall[Conn, str]:
    return OutsideCall(Outbox(GROUP), lambda: psycopg.connect(dsn), call=provider.charge, settle=settle)


def begin(dsn: str, charge: OutsideCall[Conn, str], payment: str) -> Any:
    with psycopg.connect(dsn) as conn:
        conn.execute("INSERT INTO public.payment VALUES (%s, 'pending')", [payment])
        return charge.prepare(conn, message(payment), check_after=0.1)


def checked(dsn: str, charge: Any) -> GroupChecker:
    listeners = Listeners()
    listeners.register(charge, checker="charge")
    return GroupChecker(dsn, GROUP, ListenerAsker(listeners))


def paid(conn: Conn, payment: str) -> Any:
    return conn.execute("SELECT state FROM public.payment WHERE id = %s", [payment]).fetchone()


@RESULTS
def test_the_result_of_a_call_decides_the_message_and_the_rows(
    database: str, conn: Conn, payment: str, state: str, status: str
) -> None:
    provider = Provider()
    charge = charging(database, provider)
    half = begin(database, charge, payment)
    assert charge.run(half) == state
    assert conn.execute(STATE, [half.message_id]).fetchone() == (status,)
    assert paid(conn, payment) == (state,)
    assert charge.run(half) == state, "once more is as good as once"


@RESULTS
def test_a_check_settles_the_rows_of_a_call_whose_answer_was_lost(
    database: str, conn: Conn, payment: str, state: str, status: str
) -> None:
    provider = Provider()
    charge = charging(database, provider)
    half = begin(database, charge, payment)
    provider.fails = TimeoutError("no answer")
    with pytest.raises(TimeoutError):
        charge.run(half)
    assert (paid(conn, payment), conn.execute(STATE, [half.message_id]).fetchone()) == (
        ("pending",),
        ("UNKNOWN",),
    )
    checker = checked(database, charge)

    def settled() -> bool:
        checker.run_once()
        return conn.execute(STATE, [half.message_id]).fetchone() == (status,)

    wait_until(settled, "it is asked about")
    checker.stop()
    assert paid(conn, payment) == (state,)
    assert provider.calls == [payment, payment]


def test_an_asynchronous_call_is_settled_by_itself_and_by_the_check(database: str, conn: Conn) -> None:
    provider = Provider()

    async def settle_later(conn: psycopg.AsyncConnection[Any], payment: str, state: str) -> bool:
        await conn.execute("UPDATE public.payment SET state = %s WHERE id = %s", [state, payment])
        return state == "charged"

    class Transaction:
        async def __aenter__(self) -> psycopg.AsyncConnection[Any]:
            self._conn = await psycopg.AsyncConnection.connect(database)
            return await self._conn.__aenter__()

        async def __aexit__(self, *error: Any) -> None:
            await self._conn.__aexit__(*error)

    charge = AsyncOutsideCall(
        AsyncOutbox(GROUP), Transaction, call=provider.charge_later, settle=settle_later
    )
    halves = {}

    async def pay() -> None:
        for payment in ("p-1", "p-2"):
            async with Transaction() as own:
                await own.execute("INSERT INTO public.payment VALUES (%s, 'pending')", [payment])
                halves[payment] = await charge.prepare(own, message(payment), check_after=0.1)
        assert await charge.run(halves["p-1"]) == "charged"

    asyncio.run(pay())
    checker = checked(database, charge)
    checker.start()
    wait_until(lambda: paid(conn, "p-2") == ("charged",), "the other one is settled by the check")
    checker.stop()
    states = [conn.execute(STATE, [half.message_id]).fetchone() for half in halves.values()]
    assert states == [("COMMITTED",), ("COMMITTED",)]


def test_what_an_operator_rolled_back_is_not_written(database: str, conn: Conn) -> None:
    provider, outbox = Provider(), Outbox(GROUP)
    charge = OutsideCall(outbox, lambda: psycopg.connect(database), call=provider.charge, settle=settle)
    half = begin(database, charge, "p")
    with psycopg.connect(database) as own:
        outbox.rollback(own, half, remark="the customer left")
    with pytest.raises(DecidedOtherwiseError, match="the customer left"):
        charge.run(half)
    assert paid(conn, "p") == ("pending",)


def test_a_message_without_transaction_id_is_refused_before_anything_is_written(
    database: str, conn: Conn
) -> None:
    charge = OutsideCall(Outbox(GROUP), lambda: psycopg.connect(database), call=str, settle=settle)
    with pytest.raises(InvalidMessageError, match="transaction_id: missing"):
        charge.prepare(conn, Message("payments", body=b""))
    assert conn.execute("SELECT count(*) FROM outbox.message").fetchone() == (0,)
