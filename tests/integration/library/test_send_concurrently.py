"""One outbox serves threads and tasks at once: each on its own connection, nothing shared but the outbox."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from outbox import AsyncOutbox, Message, Outbox, Receipt

SENDERS = 20
EACH = 50


def message(sender: int, number: int) -> Message:
    """One of 20 topics and 50 keys; its body tells who sent it."""
    return Message(f"topic-{number % 20}", key=f"k-{number}", body=f"{sender}/{number}", tags=[f"t{sender}"])


def stored(dsn: str) -> set[tuple[int, str, bytes, tuple[str, ...]]]:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT id, topic, body, tags FROM outbox.message").fetchall()
    return {(id, topic, body, tuple(tags)) for id, topic, body, tags in rows}


def expected(sent: list[tuple[int, int, Receipt]]) -> set[tuple[int, str, bytes, tuple[str, ...]]]:
    return {
        (receipt.id, receipt.topic, f"{sender}/{number}".encode(), (f"t{sender}",))
        for sender, number, receipt in sent
        if number % 5
    }


@pytest.mark.feature("S-61")
def test_a_thousand_transactions_of_many_threads_share_one_outbox(database: str) -> None:
    outbox = Outbox(producer_group="orders", topic_ttl=0.001)

    def work(sender: int) -> list[tuple[int, int, Receipt]]:
        sent = []
        with psycopg.connect(database) as connection:
            for number in range(EACH):
                receipt = outbox.send(connection, message(sender, number), ordered=bool(number % 2))
                sent.append((sender, number, receipt))
                if number % 5:
                    connection.commit()
                else:
                    connection.rollback()
        return sent

    with ThreadPoolExecutor(SENDERS) as pool:
        sent = [each for sender in pool.map(work, range(SENDERS)) for each in sender]
    assert len(sent) == SENDERS * EACH
    assert stored(database) == expected(sent)


@pytest.mark.feature("S-61")
def test_a_thousand_transactions_of_many_tasks_share_one_outbox(database: str) -> None:
    outbox = AsyncOutbox(producer_group="orders", topic_ttl=0.001)

    async def work(sender: int) -> list[tuple[int, int, Receipt]]:
        sent = []
        async with await psycopg.AsyncConnection.connect(database) as connection:
            for number in range(EACH):
                receipt = await outbox.send(connection, message(sender, number), ordered=bool(number % 2))
                sent.append((sender, number, receipt))
                await (connection.commit() if number % 5 else connection.rollback())
        return sent

    async def all_of_them() -> list[tuple[int, int, Receipt]]:
        return [each for sent in await asyncio.gather(*map(work, range(SENDERS))) for each in sent]

    sent = asyncio.run(all_of_them())
    assert len(sent) == SENDERS * EACH
    assert stored(database) == expected(sent)


def test_threads_that_share_one_connection_and_transaction_get_their_own_receipts(database: str) -> None:
    outbox = Outbox()
    with psycopg.connect(database) as connection, ThreadPoolExecutor(8) as pool:

        def work(sender: int) -> list[tuple[int, int, Receipt]]:
            return [(sender, n, outbox.send(connection, message(sender, n))) for n in range(1, EACH) if n % 5]

        sent = [each for sender in pool.map(work, range(8)) for each in sender]
        connection.commit()
    assert stored(database) == expected(sent)
