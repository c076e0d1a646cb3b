"""What Kafka and outbox.topic list of topics, and what Kafka knows of partitions that acknowledge nothing.

Any number of topics are read in one request each. A client that gives no reply is replaced: it may wait for one broker
that has died while every other is alive, and one that has lost all its brokers may never connect again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import psycopg
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, PartitionMetadata, ResourceType

from outbox.statements import Statements
from outbox.wire import DEFAULT_MAX_MESSAGE_BYTES
from outbox_relay.publisher.errors import KafkaUnavailableError, Unpublishable
from outbox_relay.publisher.kafka import readable
from outbox_relay.publisher.lease import ROW_WAIT_MS
from outbox_relay.publisher.lease import STATEMENTS as LANE_STATEMENTS
from outbox_relay.publisher.records import Topic
from outbox_relay.text.logs import Log

STATEMENTS = Statements("outbox_relay/publisher/topics.sql")
TIMEOUT_S = 2.0
"""For so long Kafka may take to reply."""
LIMIT_TIMEOUT_S = 0.02
"""Further time for each topic whose size limit is read: a busy broker takes 6 ms for one (300 of them took 1.8 s)."""
MOST_UNANSWERED = 5
"""Questions about partitions in a row without a reply, one in 3 s, after which a new client asks."""

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


class _Listed(NamedTuple):
    """What Kafka's metadata list of a topic.

    `leaderless`: its partitions that have no leader. `reduced`: by partition, where not all replicas are in sync, how
    many are, and how many there are.
    """

    partitions: int
    leaderless: frozenset[int]
    reduced: Mapping[int, tuple[int, int]]


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
    was alive). When that one dies the client waits for it until it reads its metadata again, which takes minutes. Two
    threads may make a client at the same time: the second one stays.
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
        names = list(names)
        illegal = {name: _illegal(name) for name in names if not _LEGAL.fullmatch(name)}
        found: dict[str, Topic | Unpublishable] = {**illegal}
        asked = [name for name in names if name not in found]
        if not asked:
            return found
        admin = self._admin = self._admin or self._open()
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
        seen = _listed(admin, asked)
        found: dict[str, Topic | Unpublishable] = {
            name: one for name, one in seen.items() if isinstance(one, Unpublishable)
        }
        listed = {name: one for name, one in seen.items() if isinstance(one, _Listed)}
        if listed:
            configured = self._configured(admin, listed)
            registered = _registered(conn, listed, configured)
            _note_counts(conn, listed, registered)
            for name, one in listed.items():
                found[name] = _topic(name, one, configured.get(name, _UNREADABLE), registered.get(name))
        return found

    def _configured(self, admin: AdminClient, names: Collection[str]) -> dict[str, _Configured]:
        settings: dict[str, _Configured] = {}
        for name, answer in _configurations(admin, names).items():
            if isinstance(answer, _Configured):
                settings[name] = answer
            elif _is_no_answer(answer):
                # A new topic would be registered with a limit that nobody gave it.
                raise KafkaUnavailableError(f"no limits of topics: {readable(answer)}") from answer
            elif name not in self._unreadable:  # not every relay may describe configurations
                self._unreadable.add(name)
                log.warning("configuration of a topic is not readable", topic=name, error=readable(answer))
        return settings


def _topic(
    name: str, listed: _Listed, configured: _Configured, row: _Registered | None
) -> Topic | Unpublishable:
    """Return a topic as it is to be published to, or why nothing can be."""
    if row is None:
        return Unpublishable(
            "TOPIC_LOCKED",
            f"topic {name!r} cannot be registered while another transaction changes outbox.topic; "
            "end that transaction: COMMIT, or pg_terminate_backend(pid)",
        )
    if row.pause is not None:
        text = f"topic {name!r} is {row.pause}; to go on: outbox topic resume {name}"
        return Unpublishable("TOPIC_PAUSED", text)
    if row.pinned > listed.partitions:
        return Unpublishable(
            "PARTITIONS_MISSING",
            f"topic {name!r} is pinned to {row.pinned} partitions, Kafka has {listed.partitions}; "
            f"add partitions in Kafka, or see: outbox topic alter --help",
        )
    least = configured.least_insync or 0  # it may not be read
    short = frozenset(number for number, one in listed.reduced.items() if lacks_replicas(*one, least))
    limit = min(row.limit, configured.limit)
    return Topic(
        name, row.pinned, row.selector, limit, row.skip_ahead, configured.needs_key, listed.leaderless, short
    )


def _registered(
    conn: psycopg.Connection[Any], listed: Mapping[str, _Listed], configured: Mapping[str, _Configured]
) -> dict[str, _Registered]:
    """Return what outbox.topic says, after adding the topics that are not there yet."""
    known = _rows(conn, list(listed))
    if missing := [name for name in listed if name not in known]:
        rows = [(name, listed[name].partitions, configured.get(name, _UNREADABLE).limit) for name in missing]
        if not _pin(conn, rows):
            # One of them is being registered: the others do not wait for it.
            rows = [row for row in rows if _pin(conn, [row])]
        for name, count, limit in rows:
            log.info("topic registered", topic=name, partitions=count, max_message_bytes=limit)
        known |= _rows(conn, missing)
    return known


def _note_counts(
    conn: psycopg.Connection[Any], listed: Mapping[str, _Listed], registered: Mapping[str, _Registered]
) -> None:
    """Write down the counts that have changed in Kafka; what has grown is an alarm, and moves no key.

    A relay that dies before it leaves this to the next look-up of any relay. Two relays that read different counts
    (a broker that lags behind) write one after the other, and agree at the next look-up.
    """
    counts = {name: listed[name].partitions for name in registered}
    changed = {name: count for name, count in counts.items() if count != registered[name].seen}
    if not changed:
        return
    _change(
        conn, "seen", {"names": [*changed], "partitions": [*changed.values()]}
    )  # else at the next look-up
    for name, count in changed.items():
        if count > registered[name].pinned:
            log.warning("topic has grown", topic=name, pinned=registered[name].pinned, in_kafka=count)


def _listed(admin: AdminClient, names: list[str]) -> dict[str, _Listed | Unpublishable]:
    seen: dict[str, _Listed | Unpublishable] = {}
    answers = admin.describe_topics(
        TopicCollection(names), include_authorized_operations=True, request_timeout=TIMEOUT_S
    )
    for name, answer in answers.items():
        try:
            described = answer.result(2 * TIMEOUT_S)
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
                seen[name] = _Listed(len(listed), leaderless, reduced)
            else:
                text = f"topic {name!r}: the relay's Kafka user may not write to it; grant it the operation Write"
                seen[name] = Unpublishable("TOPIC_AUTHORIZATION_FAILED", text)
        except (KafkaException, TimeoutError) as failure:
            if _is_no_answer(failure):
                raise KafkaUnavailableError(f"no metadata of topics: {readable(failure)}") from failure
            seen[name] = _refused(name, failure.args[0])
    return seen


def _configurations(admin: AdminClient, names: Collection[str]) -> dict[str, _Configured | Exception]:
    """Read how topics are configured, or why that is not known."""
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    timeout = TIMEOUT_S + LIMIT_TIMEOUT_S * len(resources)
    found: dict[str, _Configured | Exception] = {}
    for resource, answer in admin.describe_configs(resources, request_timeout=timeout).items():
        try:
            entries = answer.result(2 * timeout)
            # A batch that is larger than a segment is refused as well: RECORD_LIST_TOO_LARGE.
            limit = min(int(entries[key].value) for key in ("max.message.bytes", "segment.bytes"))
            is_compacted = "compact" in entries["cleanup.policy"].value
            least = int(entries["min.insync.replicas"].value)
            found[str(resource.name)] = _Configured(limit, is_compacted, least)
        except (KafkaException, KeyError, ValueError, TimeoutError) as error:
            found[str(resource.name)] = error
    return found


def _may_write(operations: Collection[AclOperation] | None) -> bool:
    """Whether a topic can be written with these rights (KIP-430).

    Asked, because a refused write ends the producer with all that it has on the wire, of other topics as well. A broker
    that does not state rights leaves them out, or out of them even the one by which it has described the topic.
    """
    return not operations or AclOperation.DESCRIBE not in operations or AclOperation.WRITE in operations


def _is_no_answer(error: Exception) -> bool:
    """Whether no broker has answered. librdkafka's own codes are negative."""
    return isinstance(error, TimeoutError) or (isinstance(error, KafkaException) and error.args[0].code() < 0)


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


def _illegal(name: str) -> Unpublishable:
    shown = repr(name) if len(name) <= _SHOWN else f"{name[:_SHOWN]!r}… ({len(name)} characters)"
    return Unpublishable(
        "TOPIC_EXCEPTION",
        f"{shown} is not a valid topic name; expected 1 to 249 letters, digits, '.', '_' or '-'",
    )


def _refused(name: str, error: KafkaError) -> Unpublishable:
    is_missing = error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    repair = f"; create it with: outbox topic create {name}" if is_missing else ""
    return Unpublishable(error.name(), f"topic {name!r}: {error.str()}{repair}")


def lacks_replicas(insync: int, replicas: int, least: int | None) -> bool:
    """Return whether a partition has too few in-sync replicas to be written to with acks=all.

    Kafka requires no more of them than the partition has replicas, whatever its configuration requires.

    Args:
        insync: how many replicas are in sync.
        replicas: how many there are.
        least: min.insync.replicas; None where it may not be read: then one that is missing may be one too few.
    """
    return insync < (replicas if least is None else min(least, replicas))


class PartitionState(NamedTuple):
    """What the cluster knows of a partition."""

    text: str
    """In words."""
    code: str = "PARTITION_UNAVAILABLE"
    """Why it acknowledges nothing. LEADER_NOT_AVAILABLE and NOT_ENOUGH_REPLICAS park its topic."""

    @property
    def is_silent(self) -> bool:
        """Whether it lacks nothing that Kafka knows of, and acknowledges nothing."""
        return self.code == "PARTITION_UNAVAILABLE"


class PartitionProbe:
    """Describes what the cluster knows of partitions; called on a thread of its own.

    A client that gives no reply to several questions is replaced, or the relay would take Kafka for away as long as it
    asks that one (docs/adr/0019). Not at the first one: to connect may take longer than a question, and the client goes
    on with it meanwhile.

    Args:
        open_admin: makes a client.
    """

    def __init__(self, open_admin: Callable[[], AdminClient]) -> None:
        self._open = open_admin
        self._admin = open_admin()
        self._unanswered = 0

    def __call__(self, partitions: Collection[tuple[str, int]]) -> dict[tuple[str, int], PartitionState]:
        """Return, per topic and partition, the state of the partition.

        Raises:
            KafkaUnavailableError: no broker replies.
        """
        found = {}
        for topic, number in partitions:
            try:
                # Any broker answers this one; other requests of an admin client wait for a certain broker.
                cluster = self._admin.list_topics(topic, timeout=TIMEOUT_S)
            except KafkaException as error:
                self._unanswered += 1
                if self._unanswered >= MOST_UNANSWERED:
                    with suppress(KafkaException):  # a client cannot be made now: the present one stays
                        self._admin = self._open()
                        self._unanswered = 0
                raise KafkaUnavailableError(f"no metadata of topic {topic!r}: {readable(error)}") from error
            self._unanswered = 0
            metadata = cluster.topics.get(topic)
            if metadata is None:
                found[topic, number] = PartitionState("Kafka does not list this topic")
            elif metadata.error is not None:
                found[topic, number] = PartitionState(metadata.error.str())
            elif number not in metadata.partitions:
                found[topic, number] = PartitionState("Kafka does not list this partition")
            else:
                found[topic, number] = self._state(topic, metadata.partitions[number], set(cluster.brokers))
        return found

    def _state(self, topic: str, partition: PartitionMetadata, up: set[int]) -> PartitionState:
        replicas = f"replicas on brokers {_list(partition.replicas)}; brokers that are up: {_list(up)}"
        if partition.leader not in up:
            down = f"its leader, broker {partition.leader}, is down"
            text = down if partition.leader >= 0 else "it has no leader"
            return PartitionState(f"{text} ({replicas})", "LEADER_NOT_AVAILABLE")
        configured = _configurations(self._admin, [topic])[topic]
        least = configured.least_insync if isinstance(configured, _Configured) else None
        insync = len(partition.isrs)
        if lacks_replicas(insync, len(partition.replicas), least):
            text = f"in-sync replicas: {insync}, min.insync.replicas: {least or 'not readable'} ({replicas})"
            return PartitionState(text, "NOT_ENOUGH_REPLICAS")
        return PartitionState(f"its leader, broker {partition.leader}, does not acknowledge ({replicas})")


def _list(numbers: Collection[int]) -> str:
    return ", ".join(map(str, sorted(numbers))) or "none"
