"""Days of the inbox for tests: messages that were born long ago, Kafka without their records, and the command."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.support.inbox_stage import InboxStage
from tests.support.outbox_command import Ran, outbox

DAY_S = 86_400.0
AGO = 20
"""Days since the messages were born whose day is dropped."""
OLD = f"to_char((now() AT TIME ZONE 'UTC')::date - {AGO}, 'YYYYMMDD')"


def born(days_ago: int = AGO) -> float:
    """A moment so many days ago."""
    return time.time() - days_ago * DAY_S


def produce_old(inbox: InboxStage, topic: str, count: int = 5, *, days_ago: int = AGO) -> list[str]:
    """Produce messages of one key into partition 0 that were born long ago; return their ids."""
    ids = [inbox.produce(topic, "old", str(number), born_at=born(days_ago)) for number in range(count)]
    inbox.flush()
    return ids


def delete_records(inbox: InboxStage, topic: str, before: int, partition: int = 0) -> None:
    """Let Kafka's log start at this offset, as its retention does."""
    admin = AdminClient({"bootstrap.servers": inbox.bootstrap_servers, "log_level": 0})
    for deleted in admin.delete_records([TopicPartition(topic, partition, before)]).values():
        deleted.result(30)


def has_old_day(inbox: InboxStage) -> bool:
    """Whether the partition of the old day is there."""
    return bool(inbox.count("pg_class", f"relname = 'inbox_d' || {OLD}"))


def run(inbox: InboxStage, command: str, *options: str, older_than: str = "0s", dsn: str = "") -> Ran:
    """Run `outbox inbox` with JSON; the retention is no time, so that rows that were just written are old enough."""
    return outbox(
        "inbox",
        command,
        *("--json", "--older-than", older_than, "--dsn", dsn or inbox.dsn),
        *(() if "--without-kafka" in options else ("--bootstrap-servers", inbox.bootstrap_servers)),
        *options,
    )


def old_day(ran: Ran, days_ago: int = AGO) -> dict[str, Any]:
    """What a command printed of a day."""
    assert ran.out, ran.err
    name = time.strftime("%Y-%m-%d", time.gmtime(born(days_ago)))
    [found] = [day for day in ran.json["days"] if day["day"] == name]
    return dict(found)


def reasons(ran: Ran) -> list[str]:
    """Why the old day has to stay."""
    return [reason["name"] for reason in old_day(ran)["reasons"]]
