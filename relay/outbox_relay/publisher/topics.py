"""Reads topics from Kafka and from outbox.topic: any number of them in one request each."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import psycopg
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, ResourceType

from outbox.statements import Statements
from outbox.wire import DEFAULT_MAX_MESSAGE_BYTES
from outbox_relay.publisher.errors import KafkaUnavailableError, Unpublishable
from outbox_relay.publisher.kafka import readable
from outbox_relay.publisher.lease import ROW_WAIT_MS
from outbox_relay.publisher.lease import STATEMENTS as LANE_STATEMENTS
from outbox_relay.publisher.probe import lacks_replicas
from outbox_relay.publisher.records import Topic
from outbox_relay.text.logs import Log

STATEMENTS = Statements("outbox_relay/publisher/topics.sql")
METADATA_TIMEOUT_S = 2.0
LIMIT_TIMEOUT_S = 0.02
"""Further time for each topic whose size limit is read: a busy broker takes 6 ms for one (300 of them took 1.8 s)."""

# Kafka's rule. A name of another form is never sent: one that is too long makes the broker drop the connection.
_LEGAL = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}")
_SHOWN = 80

log = Log("topics")


class _Registered(NamedTuple):
    """A row of outbox.topic; `seen` is the count that Kafka had when a relay read it last, `pause` why it is paused."""

    pinned: int
    selector: str | None
    limit: int
    seen: int | None
    pause: str | None
    skip_ahead: bool


class _InKafka(NamedTuple):
    """What Kafka's metadata say of a topic."""

    partitions: int
    """How many it has."""
    leaderless: frozenset[int]
    """Those of them that have no leader."""
    reduced: dict[int, tuple[int, int]]
    """By partition, where not all replicas are in sync: how many are, and how many there are."""

    def short_of(self, least: int | None) -> frozenset[int]:
        """Return the partitions with fewer in-sync replicas than this; none where it may not be read."""
        if least is None:
            return frozenset()
        return frozenset(number for number, one in self.reduced.items() if lacks_replicas(*one, least))


class _Configured(NamedTuple):
    """What the configuration of a topic in Kafka refuses.

    That is record batches of more bytes, records without a key, and fewer in-sync replicas.
    """

    limit: int
    needs_key: bool
    least_insync: int | None


_UNREADABLE = _Configured(DEFAULT_MAX_MESSAGE_BYTES, needs_key=False, least_insync=None)


class TopicLookup:
    """Reads topics; safe to use from several threads, each with a connection of its own.

    An admin client sends these requests to the broker that it holds for the controller (with KRaft some broker that
    was alive). When that one dies the client waits for it until it reads its metadata again, which takes minutes, with
    every other broker alive. So a client that gives no answer is replaced. Two threads may make one at the same time:
    the second client of the two stays.
    """

    def __init__(self, open_admin: Callable[[], AdminClient]) -> None:
        self._open = open_admin
        self._admin: AdminClient | None = None
        self._unreadable: set[str] = set()

    def read(self, conn: psycopg.Connection[Any], names: Iterable[str]) -> dict[str, Topic | Unpublishable]:
        """Return each topic, or why nothing can be published to it; register those that are not registered.

        Raises:
            KafkaUnavailableError: no broker replies.
        """
        found: dict[str, Topic | Unpublishable] = {}
        asked = []
        for name in names:
            if _LEGAL.fullmatch(name):
                asked.append(name)
            else:
                found[name] = _illegal(name)
        if not asked:
            return found
        admin = self._admin
        if admin is None:
            admin = self._admin = self._open()
        try:
            return found | self._look_up(admin, conn, asked)
        except KafkaUnavailableError:
            if self._admin is admin:
                self._admin = None
            raise

    def rest(self) -> None:
        """Let go of the client and its threads, until the next topic is read."""
        self._admin = None

    def _look_up(
        self, admin: AdminClient, conn: psycopg.Connection[Any], asked: list[str]
    ) -> dict[str, Topic | Unpublishable]:
        found: dict[str, Topic | Unpublishable] = {}
        partitions: dict[str, int] = {}
        in_kafka: dict[str, _InKafka] = {}
        for name, seen in _partitions_in_kafka(admin, asked).items():
            if isinstance(seen, _InKafka):
                partitions[name], in_kafka[name] = seen.partitions, seen
            else:
                found[name] = seen
        if not partitions:
            return found
        settings = self._settings_in_kafka(admin, partitions)
        registered = self._registered(
            conn, partitions, {name: known.limit for name, known in settings.items()}
        )
        self._note_counts(conn, partitions, registered)
        for name in partitions.keys() - registered.keys():
            found[name] = _locked(name)
        for name, (pinned, selector, limit, _, pause, skip_ahead) in registered.items():
            if pause is not None:
                text = f"topic {name!r} is {pause}; to go on: outbox topic resume {name}"
                found[name] = Unpublishable("TOPIC_PAUSED", text)
            elif pinned > partitions[name]:
                found[name] = Unpublishable(
                    "PARTITIONS_MISSING",
                    f"topic {name!r} is pinned to {pinned} partitions, Kafka has {partitions[name]}; "
                    f"add partitions in Kafka, or see: outbox topic alter --help",
                )
            else:
                known = settings.get(name, _UNREADABLE)
                found[name] = Topic(
                    name,
                    pinned,
                    selector,
                    min(limit, known.limit),
                    skip_ahead,
                    needs_key=known.needs_key,
                    leaderless=in_kafka[name].leaderless,
                    short=in_kafka[name].short_of(known.least_insync),
                )
        return found

    def _settings_in_kafka(self, admin: AdminClient, names: Iterable[str]) -> dict[str, _Configured]:
        settings: dict[str, _Configured] = {}
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        timeout = METADATA_TIMEOUT_S + LIMIT_TIMEOUT_S * len(resources)
        answers = admin.describe_configs(resources, request_timeout=timeout)
        for resource, answer in answers.items():
            name = str(resource.name)
            try:
                entries = answer.result(2 * timeout)
                # A batch that is larger than a segment is refused as well: RECORD_LIST_TOO_LARGE.
                limit = min(int(entries[key].value) for key in ("max.message.bytes", "segment.bytes"))
                settings[name] = _Configured(
                    limit,
                    "compact" in entries["cleanup.policy"].value,
                    int(entries["min.insync.replicas"].value),
                )
            except (KafkaException, KeyError, ValueError, TimeoutError) as error:
                if _is_no_answer(error):
                    # A new topic would be registered with a limit that nobody gave it.
                    raise KafkaUnavailableError(f"no limits of topics: {readable(error)}") from error
                # Not every relay may describe configurations.
                if name not in self._unreadable:
                    self._unreadable.add(name)
                    log.warning("configuration of a topic is not readable", topic=name, error=readable(error))
        return settings

    def _registered(
        self, conn: psycopg.Connection[Any], partitions: dict[str, int], limits: dict[str, int]
    ) -> dict[str, _Registered]:
        """Return what outbox.topic says, after adding the topics that are not there yet."""
        names = list(partitions)
        known = _rows(conn, names)
        if missing := [name for name in names if name not in known]:
            counts = [partitions[name] for name in missing]
            taken = [limits.get(name, DEFAULT_MAX_MESSAGE_BYTES) for name in missing]
            rows = list(zip(missing, counts, taken, strict=True))
            if not _pin(conn, rows):
                # One of them is being registered: the others do not wait for it.
                rows = [row for row in rows if _pin(conn, [row])]
            for name, count, limit in rows:
                log.info("topic registered", topic=name, partitions=count, max_message_bytes=limit)
            known |= _rows(conn, missing)
        return known

    def _note_counts(
        self, conn: psycopg.Connection[Any], partitions: dict[str, int], registered: dict[str, _Registered]
    ) -> None:
        """Write down the counts that have changed in Kafka; what has grown is an alarm, and moves no key.

        A relay that dies before it leaves this to the next look-up of any relay. Two relays that read different counts
        (a broker that lags behind) write one after the other, and agree at the next look-up.
        """
        changed = [name for name, row in registered.items() if row.seen != partitions[name]]
        if not changed:
            return
        counts = [partitions[name] for name in changed]
        _change(conn, "seen", {"names": changed, "partitions": counts})  # else at the next look-up
        for name in changed:
            if partitions[name] > registered[name].pinned:
                log.warning(
                    "topic has grown", topic=name, pinned=registered[name].pinned, in_kafka=partitions[name]
                )


def _partitions_in_kafka(admin: AdminClient, names: list[str]) -> dict[str, _InKafka | Unpublishable]:
    seen: dict[str, _InKafka | Unpublishable] = {}
    answers = admin.describe_topics(
        TopicCollection(names), include_authorized_operations=True, request_timeout=METADATA_TIMEOUT_S
    )
    for name, answer in answers.items():
        try:
            described = answer.result(2 * METADATA_TIMEOUT_S)
            listed = described.partitions
            if described.is_internal:
                text = f"topic {name!r} is Kafka's own; send to a topic that is not"
                seen[name] = Unpublishable("TOPIC_EXCEPTION", text)
            elif _may_write(described.authorized_operations):
                leaderless = frozenset(one.id for one in listed if one.leader is None)
                reduced = {
                    one.id: (len(one.isr), len(one.replicas))
                    for one in listed
                    if len(one.isr) < len(one.replicas)
                }
                seen[name] = _InKafka(len(listed), leaderless, reduced)
            else:
                text = f"topic {name!r}: the relay's Kafka user may not write to it; grant it the operation Write"
                seen[name] = Unpublishable("TOPIC_AUTHORIZATION_FAILED", text)
        except (KafkaException, TimeoutError) as failure:
            if _is_no_answer(failure):
                raise KafkaUnavailableError(f"no metadata of topics: {readable(failure)}") from failure
            seen[name] = _refused(name, failure.args[0])
    return seen


def _may_write(operations: Collection[AclOperation] | None) -> bool:
    """Whether a topic can be written with these rights (KIP-430).

    Asked, because a refused write ends the producer with all that it has on the wire, of other topics as well. A broker
    that does not state rights leaves them out, or out of them even the one by which it has described the topic.
    """
    return not operations or AclOperation.DESCRIBE not in operations or AclOperation.WRITE in operations


def _is_no_answer(error: Exception) -> bool:
    """Whether no broker has answered. librdkafka's own codes are negative."""
    if isinstance(error, KafkaException):
        return bool(error.args[0].code() < 0)
    return isinstance(error, TimeoutError)


def _rows(conn: psycopg.Connection[Any], names: list[str]) -> dict[str, _Registered]:
    rows = conn.execute(STATEMENTS["topics"], {"names": names}, prepare=True).fetchall()
    return {name: _Registered(*row) for name, *row in rows}


def _change(conn: psycopg.Connection[Any], statement: str, values: dict[str, Any]) -> bool:
    """Write to outbox.topic; return False if an open transaction of somebody else holds what it needs.

    A change of a topic holds the row of outbox.topic_generation to the end of its transaction, which may be hours.
    """
    try:
        with conn.transaction():
            conn.execute(LANE_STATEMENTS["lock_timeout"], {"ms": str(ROW_WAIT_MS)})
            conn.execute(STATEMENTS[statement], values)
    except psycopg.errors.LockNotAvailable:
        log.info("topics are locked by another transaction", topics=values["names"])
        return False
    return True


def _pin(conn: psycopg.Connection[Any], rows: list[tuple[str, int, int]]) -> bool:
    names, counts, limits = map(list, zip(*rows, strict=True))
    return _change(conn, "pin", {"names": names, "partitions": counts, "limits": limits})


def _locked(name: str) -> Unpublishable:
    text = (
        f"topic {name!r} cannot be registered while another transaction changes outbox.topic; "
        "end that transaction: COMMIT, or pg_terminate_backend(pid)"
    )
    return Unpublishable("TOPIC_LOCKED", text)


def _illegal(name: str) -> Unpublishable:
    shown = repr(name) if len(name) <= _SHOWN else f"{name[:_SHOWN]!r}… ({len(name)} characters)"
    return Unpublishable(
        "TOPIC_EXCEPTION",
        f"{shown} is not a valid topic name; expected 1 to 249 letters, digits, '.', '_' or '-'",
    )


def _refused(name: str, error: KafkaError) -> Unpublishable:
    repair = (
        f"; create it with: outbox topic create {name}"
        if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        else ""
    )
    return Unpublishable(error.name(), f"topic {name!r}: {error.str()}{repair}")
