"""A consumer as a process, that kills itself at a step of its work, for the tests of crashes.

Its argument is JSON: what `ConsumerProcess` states, and `dies`: the step at which it dies, with the message whose
body is `body`. It prints a line when it runs, and one for each message before the listener writes.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from typing import Any

import psycopg

from outbox import Message, Outbox
from outbox.inbox import (
    FIRST,
    ConsumedMessage,
    ConsumeResult,
    DelaySchedule,
    PushConsumer,
    followers,
    threads,
)
from outbox.inbox.handling import Handled, ListenerFailedError
from outbox.inbox.poller import Poller
from tests.support.inbox_stage import apply
from tests.support.waiting import wait_until

OPTIONS: dict[str, Any] = json.loads(sys.argv[1])
DIES: str = OPTIONS["dies"]
BODY: bytes = OPTIONS["body"].encode()
OUTBOX = Outbox(producer_group=OPTIONS["group"])
LATER = ConsumeResult.RECONSUME_LATER
AHEAD = "after the row of the next one"
CONSUMERS: list[PushConsumer] = []


def report(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def die() -> None:
    """End as by a power cut."""
    os.kill(os.getpid(), signal.SIGKILL)


class Connection(psycopg.Connection[Any]):
    """Dies before or after the commit of the message's effect."""

    at_commit = False

    def commit(self) -> None:
        self.dies("before commit")
        super().commit()
        self.dies("after commit")
        self.at_commit = False

    def dies(self, step: str) -> None:
        if self.at_commit and step == DIES:
            die()


def listener(conn: psycopg.Connection[Any], message: ConsumedMessage) -> ConsumeResult:
    assert message.body is not None
    report(message.body.decode())
    chosen = message.body == BODY
    if chosen and DIES == "before the write":
        die()
    if chosen and DIES == "in the retry":
        if message.reconsume_times:
            die()
        raise ValueError("fails once, and then kills")
    result = apply(conn, message, OPTIONS["member"])
    if OPTIONS["sends_to"]:
        OUTBOX.send(conn, Message(OPTIONS["sends_to"], key=message.key, body=message.body))
    if chosen and DIES == "after the write":
        die()
    if chosen and DIES == AHEAD:
        wait_until(lambda: CONSUMERS[0]._assignments.wait(0.1), "another message is in memory")
    if chosen and DIES == "stops":
        signal.pause()
    if (
        chosen
        and ("park" in DIES or "followers" in DIES or DIES == "after a half")
        and not message.reconsume_times
    ):
        raise ValueError("to be parked")
    if (
        OPTIONS["fails"]
        and int(message.body.rpartition(b":")[2]) % 10 == OPTIONS["fails"]
        and not message.reconsume_times
    ):
        raise ValueError("fails once")
    if isinstance(conn, Connection):
        conn.at_commit = chosen
    return result


def batch_listener(conn: psycopg.Connection[Any], messages: list[ConsumedMessage]) -> list[ConsumeResult]:
    """Apply all of them; the chosen one comes last, so that others are written before the process dies."""
    ordered = sorted(messages, key=lambda message: message.body == BODY)
    results = {message.offset: listener(conn, message) for message in ordered}
    if DIES in ("after the rest", "after a report") and len(messages) > 1:
        return [LATER if message.body == BODY else results[message.offset] for message in messages]
    return [results[message.offset] for message in messages]


def patch_batches() -> None:
    """Die between two transactions of one batch."""
    from outbox.inbox import delivery_threads

    handle, state = vars(delivery_threads)["handle_batch"], {"failed": False}

    def handling_batch(*given: Any) -> Any:
        try:
            outcome = handle(*given)
        except ListenerFailedError:
            state["failed"] = True
            raise
        if state["failed"] and DIES == "after a half":
            die()
        if outcome.failed and DIES == "after a report":
            die()
        if outcome.done and state.get("reported") and DIES == "after the rest":
            die()
        state["reported"] = bool(outcome.failed)
        return outcome

    vars(delivery_threads)["handle_batch"] = handling_batch


def patch() -> None:
    """Die at steps that are not the listener's."""
    from outbox.inbox import delivery_threads

    accept, commit, park = Poller._accept, Poller._commit, vars(delivery_threads)["park"]

    def accepting(self: Poller, record: Any) -> None:
        accept(self, record)
        if record.value() == BODY and DIES == "after the fetch":
            die()

    def committing(self: Poller, offsets: Any, *, waits: bool) -> None:
        if any(each.offset > int(OPTIONS["from"]) for each in offsets) and DIES == "before Kafka's offset":
            die()
        commit(self, offsets, waits=waits)

    def parking(*given: Any) -> Handled:
        if DIES == "before the park":
            die()
        handled: Handled = park(*given)
        if DIES == "after the park":
            die()
        return handled

    def parking_followers(*given: Any) -> list[bool]:
        if DIES == "before the followers":
            die()
        parked: list[bool] = park_followers(*given)
        if DIES == "after the followers":
            die()
        return parked

    def running(*given: Any) -> Any:
        result = run(*given)
        if DIES == "before the commit of the followers":
            die()
        return result

    def checking(conn: Any, xid: str) -> None:
        conn.dies("before commit")
        check_and_commit(conn, xid)
        conn.dies("after commit")
        conn.at_commit = False

    def committing_ahead(conn: Any, *given: Any) -> Any:
        chosen = conn.at_commit
        conn.dies("before commit")
        conn.at_commit = False
        sent = commit_and_take(conn, *given)
        for step in ("after commit", AHEAD):
            if chosen and step == DIES:
                if step != "after commit":
                    assert sent.receive()
                die()
        return sent

    check_and_commit = vars(delivery_threads)["check_and_commit"]
    vars(delivery_threads)["check_and_commit"] = checking
    commit_and_take = vars(delivery_threads)["commit_and_take"]
    vars(delivery_threads)["commit_and_take"] = committing_ahead
    Poller._accept = accepting  # type: ignore[method-assign]
    Poller._commit = committing  # type: ignore[method-assign]
    vars(delivery_threads)["park"] = parking
    park_followers, run = vars(delivery_threads)["park_followers"], vars(followers)["run"]
    vars(delivery_threads)["park_followers"], vars(followers)["run"] = parking_followers, running


def main() -> None:
    """Consume until SIGTERM."""
    if DIES:  # the version before has other modules
        patch()
        patch_batches()
    threads.MARGIN = 1.0
    batch = OPTIONS["batch"]
    several = {"batch": batch, "linger": 0.5, "orderly": False, "workers": 1} if batch else {}
    consumer = PushConsumer(
        OPTIONS["group"],
        {OPTIONS["topic"]: OPTIONS["tags"]},
        batch_listener if batch else listener,
        dsn=lambda: Connection.connect(OPTIONS["dsn"], application_name="outbox consumer"),
        kafka=OPTIONS["kafka"],
        consume_from=FIRST,
        retry_workers=1,
        delays=DelaySchedule.of(
            [0.05] * 5, **({"never_retry": [ValueError]} if OPTIONS["never_retries"] else {})
        ),
        timeout=OPTIONS["timeout"],
        **{"orderly": True, "workers": 1 if DIES == AHEAD else 3, **several},
    )
    CONSUMERS.append(consumer)
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    faulthandler.register(signal.SIGUSR1)
    report("runs")
    consumer.run()


if __name__ == "__main__":
    main()
