"""What each page shows: the operations of the commands, read in one session, as values for its template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import psycopg
from markupsafe import Markup

from outbox_relay.console import life as life_page
from outbox_relay.console import search
from outbox_relay.console.failing import Way, causes, link, ways_out
from outbox_relay.console.kafka import KafkaReading, KafkaView
from outbox_relay.console.reader import Reader, rows
from outbox_relay.operations import (
    archive,
    consumers,
    dlq,
    filters,
    groups,
    half_messages,
    health,
    message_story,
    messages,
    partitions,
    relays,
    topics,
)
from outbox_relay.operations import status as inspect_status
from outbox_relay.operations.dlq import DeadLetterFilter
from outbox_relay.operations.half_messages import STATES, HalfMessageFilter
from outbox_relay.operations.health import Problem
from outbox_relay.operations.messages import Row
from outbox_relay.operations.status import Status
from outbox_relay.text.errors import OperatorError

PageValues = dict[str, Any]
PAGE_ROWS = 50
MOST_BACKLOG = 20_000
"""Messages of the backlog that are counted: pages are read every few seconds, and to count a million takes one."""


class NotFoundError(OperatorError):
    """Nothing has the id that a path names."""


class Pages:
    """Reads pages.

    Args:
        reader: lends sessions.
        kafka: what Kafka has; None: it is not asked.
    """

    def __init__(self, reader: Reader, kafka: KafkaView | None) -> None:
        self._reader, self._kafka = reader, kafka

    def now(self, query: Mapping[str, str]) -> PageValues:
        """Read whether the outbox is healthy, and who runs."""
        with self._reader.reading() as conn:
            status = inspect_status.look(conn, most=MOST_BACKLOG)
            with conn.transaction():
                conn.execute(inspect_status.STATEMENTS["prefer_indexes"])
                [latency] = rows(conn, "latency", window=60.0)
            groups_ = consumers.groups(conn)
            kafka = self._of_kafka(conn)
            now = half_messages.now(conn)
            return {
                "problems": [_dated(conn, one, now) for one in health.problems(status)],
                "status": status,
                "held": sum(one.unpublished for one in status.holds),
                "oldest": _oldest(status),
                "undecided": sum(one.messages for one in status.unsettled if one.state == "UNKNOWN"),
                "exhausted": sum(one.messages for one in status.unsettled if one.state == "EXHAUSTED"),
                "latency": latency,
                "relays": relays.everything(conn),
                "groups": _by_group(groups_),
                "kafka": kafka,
                "lag": None
                if kafka is None or kafka.at is None
                else sum(one.messages for one in kafka.lags.values()),
                "now": now,
            }

    def failing(self, query: Mapping[str, str]) -> PageValues:
        """Read what fails, by cause."""
        with self._reader.reading() as conn:
            return {
                "causes": causes(conn, inspect_status.unsettled(conn)),
                "retrying": consumers.totals(conn).retrying,
                "now": half_messages.now(conn),
            }

    def letters(self, query: Mapping[str, str]) -> PageValues:
        """Read the dead letters of one cause, page by page."""
        group, failure = query.get("group") or None, query.get("failure") or None
        after = _number(query, "after")
        with self._reader.reading() as conn:
            which = DeadLetterFilter(group=group, failure=failure)
            found: list[Row] = []
            for page in dlq.pages(conn, which, after=after, limit=PAGE_ROWS + 1):
                found += page
            more = len(found) > PAGE_ROWS
            found = found[:PAGE_ROWS]
            return {
                "letters": found,
                "group": group,
                "failure": failure,
                "next": link("/letters", group=group, failure=failure, after=found[-1]["id"])
                if more
                else None,
            }

    def messages(self, query: Mapping[str, str]) -> PageValues:
        """Search messages, or list the newest."""
        text, status, topic = (query.get(name, "").strip() for name in ("q", "status", "topic"))
        if status and status not in filters.STATUSES:
            raise NotFoundError(f"no message has the status {status!r}; one of {', '.join(filters.STATUSES)}")
        with self._reader.reading() as conn:
            found = (
                search.by_text(conn, text)
                if text
                else [("", row) for row in search.newest(conn, status or None, topic or None)]
            )
        if [way for way, _ in found] == ["id"]:
            return {"only": found[0][1]["id"]}
        return {
            "q": text,
            "status": status,
            "topic": topic,
            "statuses": filters.STATUSES,
            "found": found,
            "most": search.MOST_FOUND,
        }

    def message(self, id_: int, *, content: bool = False) -> PageValues:
        """Read one message's life; headers and body only where they are asked for.

        Raises:
            NotFoundError: no message has the id.
        """
        with self._reader.reading("outbox_etl" if content else "outbox_reader") as conn:
            life = messages.life(conn, filters.Filters(id=id_), content=content)
            if life is None:
                raise NotFoundError(
                    f"there is no message {id_}: it was never written, its transaction was rolled back, or its "
                    "partition has been dropped"
                )
            conn.isolation_level = None
            consumed = consumers.of_message(conn, life.message)
            steps = message_story.next_steps(conn, life, consumed)
            kept = archive.read(conn, life.message)
        return {
            "id": id_,
            "life": Markup(life_page.sections(life, consumed, steps, kept, self._reader.place)),  # noqa: S704  (it escapes)
            "ways": _ways(life, consumed),
            "has_content": content,
        }

    def topics(self, query: Mapping[str, str]) -> PageValues:
        """Read the topics: rate, backlog, what is held, the lag of each group."""
        with self._reader.reading() as conn:
            status = inspect_status.look(conn, most=MOST_BACKLOG)
            registered = topics.everything(conn)
            positions = consumers.positions(conn)
            kafka = None if self._kafka is None else self._kafka.now(positions)
        names = {row["kafka_id"]: row["topic"] for row in positions}
        lags: dict[str, list[tuple[str, int, float | None]]] = {}
        for (group, kafka_id), lag in sorted(
            (() if kafka is None else kafka.lags.items()), key=lambda one: one[0]
        ):
            lags.setdefault(names.get(kafka_id, "?"), []).append((group, lag.messages, lag.oldest))
        held: dict[str, int] = {}
        for one in status.holds:
            held[one.topic] = held.get(one.topic, 0) + one.unpublished
        known = {topic.name for topic in registered}
        unknown = [name for name in (*status.topics, *(set(held) - set(status.topics))) if name not in known]
        others = [(name, status.topics.get(name), held.get(name or "", 0)) for name in unknown]
        return {
            "topics": [
                (topic, status.topics.get(topic.name), held.get(topic.name, 0)) for topic in registered
            ],
            "others": sorted(others, key=lambda one: (-one[2], one[0] or ""))[:PAGE_ROWS],
            "lags": lags,
            "counted": MOST_BACKLOG if status.backlog_is_cut else None,
            "kafka": kafka,
            "missing": _missing(registered, kafka),
        }

    def half_messages(self, query: Mapping[str, str]) -> PageValues:
        """Read half messages that somebody has to decide: by group, and a page of them."""
        group, state = query.get("group") or None, query.get("state") or None
        if state not in (None, *STATES):
            raise NotFoundError(f"no half message has the state {state!r}; one of {', '.join(STATES)}")
        overdue, after = query.get("overdue") == "yes", _number(query, "after")
        chosen = HalfMessageFilter(
            producer_group=group,
            states=STATES if state is None else (state,),
            overdue=overdue,
            after=after or None,
        )
        with self._reader.reading() as conn:
            counts = groups.half_message_counts(conn)
            found = half_messages.page(conn, chosen, PAGE_ROWS + 1)
            now = half_messages.now(conn)
        more, found = len(found) > PAGE_ROWS, found[:PAGE_ROWS]
        chosen_by = {"group": group, "state": state, "overdue": "yes" if overdue else None}
        return {
            "counts": sorted(counts.values(), key=lambda one: (-one.exhausted, -one.overdue, -one.undecided)),
            "halves": found,
            "now": now,
            "overdue_s": half_messages.OVERDUE_S,
            "group": group,
            "state": state,
            "next": link("/half-messages", **chosen_by, after=found[-1]["id"]) if more else None,
        }

    def groups(self, query: Mapping[str, str]) -> PageValues:
        """Read the groups of consumers and of producers."""
        with self._reader.reading() as conn:
            found = _by_group(consumers.groups(conn))
            kafka = self._of_kafka(conn)
            lags: dict[str, int] = {}
            for (group, _), lag in () if kafka is None else kafka.lags.items():
                lags[group] = lags.get(group, 0) + lag.messages
            return {
                "groups": found,
                "members": {name: consumers.members(conn, name) for name in list(found)[:PAGE_ROWS]},
                "pauses": {name: consumers.pauses(conn, name) for name in list(found)[:PAGE_ROWS]},
                "lags": lags,
                "kafka": kafka,
                "producers": groups.everything(conn),
                "counts": groups.half_message_counts(conn),
                "alarms": groups.alarms(conn),
            }

    def warehouse(self, query: Mapping[str, str]) -> PageValues:
        """Read what warehouses were proven to hold."""
        with self._reader.reading() as conn:
            return {
                "certificates": rows(conn, "certificates"),
                "partitions": partitions.read(conn),
            }

    def _of_kafka(self, conn: psycopg.Connection[Any]) -> KafkaReading | None:
        return None if self._kafka is None else self._kafka.now(consumers.positions(conn))


def _number(query: Mapping[str, str], name: str) -> int:
    text = query.get(name, "")
    return min(int(text), filters.LARGEST_ID) if text.isascii() and text.isdigit() else 0


def _oldest(status: Status) -> float | None:
    """Return the age of the oldest message that is not published, those that are held included."""
    ages = [status.total.oldest, *(one.age_seconds for one in status.holds)]
    return max((age for age in ages if age is not None), default=None)


def _dated(conn: psycopg.Connection[Any], problem: Problem, now: datetime) -> Problem:
    """Add the age of dead letters, which the status only counts: that of the first."""
    if problem.kind != "dead_letters":
        return problem
    first = next((page[0]["failed_at"] for page in dlq.pages(conn, DeadLetterFilter(), 1)), None)
    return replace(problem, age_seconds=None if first is None else (now - first).total_seconds())


def _by_group(found: list[Row]) -> dict[str, list[Row]]:
    named: dict[str, list[Row]] = {}
    for row in found:
        named.setdefault(row["consumer_group"], []).append(row)
    return named


def _missing(registered: list[topics.Registered], kafka: KafkaReading | None) -> set[str]:
    """Return the topics that are registered and that Kafka has not."""
    if kafka is None or kafka.at is None:
        return set()
    return {topic.name for topic in registered if topic.name not in kafka.partitions}


def _ways(life: messages.Life, consumed: list[Row]) -> list[Way]:
    """Return what can be done about one message."""
    row, found = life.message, []
    if row["status"] in STATES:
        found += [
            Way(text, link(f"/acts/{act}", id=row["id"]))
            for text, act in (("Commit", "commit"), ("Roll back", "rollback"))
        ]
        if row["status"] == "UNKNOWN":
            found.append(Way("Check now", link("/acts/check", id=row["id"])))
    if life.hold is not None:
        found += ways_out(life.hold)
    elif row["state"] == "DEAD":
        found += [
            Way("Publish it after all", link("/acts/release", id=row["id"])),
            Way("Give up", link("/acts/skip", id=row["id"])),
        ]
    elif row["waiting"] == "delayed":
        found.append(Way("Cancel it", link("/acts/cancel", id=row["id"])))
    elif row["waiting"] == "expired":
        found.append(Way("Give up", link("/acts/skip", id=row["id"])))
    for one in consumed:
        if one["state"] == "dead":
            found += [
                Way(f"{text} for {one['consumer_group']}", link(f"/acts/{act}", ids=one["parked_id"]))
                for text, act in (("Try again", "redrive"), ("Discard", "discard"))
            ]
    return found
