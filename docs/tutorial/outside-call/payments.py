"""Payments: a card company charges, and Kafka hears of it, also when this process dies during the call."""

import json
import os
import sys
import urllib.request
from typing import Any

import psycopg
from outbox import Message, Outbox
from outbox.checking import GroupChecker, ListenerAsker, Listeners
from outbox.outside_calls import OutsideCall

DSN = os.environ["OUTBOX_DSN"]
PROVIDER = os.environ.get("PROVIDER_URL", "http://127.0.0.1:8990")
Connection = psycopg.Connection[Any]


def connect() -> Connection:
    return psycopg.connect(DSN)


def charge_card(payment: str) -> str:
    with connect() as conn:
        row = conn.execute("SELECT amount FROM payments WHERE id = %s", [payment]).fetchone()
    assert row is not None
    request = urllib.request.Request(
        PROVIDER, json.dumps({"amount": row[0]}).encode(), {"Idempotency-Key": payment}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return str(json.load(response)["state"])


def write_payment(conn: Connection, payment: str, state: str) -> bool:
    conn.execute("UPDATE payments SET state = %s WHERE id = %s", [state, payment])
    return state == "charged"


charge = OutsideCall(Outbox("payments"), connect, call=charge_card, settle=write_payment)
listeners = Listeners()
listeners.register(charge, checker="charge")


def pay(payment: str, amount: int) -> None:
    with connect() as conn:
        conn.execute("INSERT INTO payments VALUES (%s, %s, 'pending')", [payment, amount])
        message = Message("payments", key=payment, body=b"charged", transaction_id=payment, checker="charge")
        half = charge.prepare(conn, message)
    print(payment, "is pending", flush=True)
    print(payment, "is", charge.run(half), flush=True)


def check() -> None:
    checker = GroupChecker(DSN, "payments", ListenerAsker(listeners))
    checker.start()
    input("Asked about payments that were left. Enter ends it.\n")
    checker.stop()


if __name__ == "__main__":
    with connect() as conn:
        conn.execute("CREATE TABLE IF NOT EXISTS payments (id text PRIMARY KEY, amount int, state text)")
    if sys.argv[1] == "pay":
        pay(sys.argv[2], int(sys.argv[3]))
    else:
        check()
