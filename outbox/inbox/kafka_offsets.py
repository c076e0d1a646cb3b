"""What Kafka knows of a member, and of its partitions: its offsets of the group, and where their logs begin and end.

A thread of its own asks, so that nothing that Kafka owes holds up the thread that fetches. It asks about all partitions
at once, and each is answered for itself: one without a leader, or with a broker that is silent, is reported, and the
others are opened.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
    Uuid,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from outbox.inbox.core.openings import Opening, Question, Standing, Unanswered
from outbox.inbox.keeper import Keeper
from outbox.inbox.repeats import QuietLog
from outbox.inbox.settings import Member
from outbox.inbox.starts import ConsumeFrom, Known

log = logging.getLogger("outbox.inbox")
REPLY_TIME = 5.0
"""Seconds for one reply of Kafka."""
NO_LEADER = "it has no leader"
SILENT = f"its broker did not reply within {REPLY_TIME:g} s"
_NONE_AT_THAT_TIME = -1
_Asked = Mapping[int, Future[Any]]
"""The replies that are awaited, by partition."""
_REFUSALS = frozenset(
    {
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.UNSUPPORTED_VERSION,
        KafkaError._UNSUPPORTED_FEATURE,
    }
)
_CONNECTING = ("bootstrap.servers", "security.", "sasl.", "ssl.")


class UnidentifiedTopicError(Exception):
    """The brokers have no ids of topics."""


class OpeningThread(threading.Thread):
    """Asks Kafka, and hands what it replies to the keeper; the thread that polls gets the rest back."""

    def __init__(self, member: Member, keeper: Keeper) -> None:
        super().__init__(name="outbox-consumer-offsets", daemon=True)
        self._member, self._keeper, self._quiet = member, keeper, QuietLog(log)
        self._questions: queue.SimpleQueue[Sequence[Question] | None] = queue.SimpleQueue()
        """An empty list asks for the standing of the member."""

    def ask(self, questions: Sequence[Question]) -> None:
        """Ask these next; any thread may call this."""
        self._questions.put(questions)

    def ask_standing(self) -> None:
        """Ask next whether Kafka knows the member; any thread may call this."""
        self._questions.put(())

    def end(self) -> None:
        """Ask the thread to end after the questions that it waits for."""
        self._questions.put(None)

    def run(self) -> None:
        """Ask until the end is asked for."""
        while (questions := self._questions.get()) is not None:
            if not questions:
                self._keeper.results.put(Standing(self._is_known()))
                continue
            try:
                failed = self._ask(questions)
            except Exception as error:
                if not isinstance(error, KafkaException | TimeoutError):
                    log.exception("the offsets of group %s", self._member.group)
                failed = {str(error): list(questions)}
            for reason, each in failed.items():
                self._keeper.results.put(Unanswered(each, reason))

    def _is_known(self) -> bool | None:
        try:
            return _is_known(self._member, self._quiet)
        except Exception as error:  # noqa: BLE001  (whatever it is, the question has to have an answer)
            log.debug("Kafka: whether group %s has this member: %s", self._member.group, error)
            return True if _is_refusal(error) else None

    def _ask(self, questions: Sequence[Question]) -> dict[str, list[Question]]:
        """Ask about all of these at once; return those that Kafka has not answered, by reason."""
        failed: defaultdict[str, list[Question]] = defaultdict(list)
        asked = []
        for each in _ask_groups(self._member, questions, self._quiet):
            try:
                each.ask_offsets(self._member.settings.consume_from)
            except (KafkaException, TimeoutError, UnidentifiedTopicError) as error:
                failed[str(error)].append(each.question)
            else:
                asked.append(each)
        for each in asked:
            opening, reasons = each.opening(self._member.settings.consume_from)
            if opening.known:
                self._keeper.ask(opening)
            for part, reason in reasons.items():
                failed[reason].append(Question(opening.topic, (part,), opening.ticket))
        return failed


def _new_admin(member: Member, quiet: QuietLog) -> AdminClient:
    """Make a client for one question: one that is kept may lose its brokers (docs/adr/0019)."""
    config = {name: value for name, value in member.settings.kafka.items() if name.startswith(_CONNECTING)}
    return AdminClient(config, logger=quiet)


def _is_known(member: Member, quiet: QuietLog) -> bool:
    """Return whether Kafka knows the member, or none of its topics, so that it cannot have joined.

    Raises:
        KafkaException, TimeoutError: Kafka is away, or refuses.
    """
    admin = _new_admin(member, quiet)
    topics = admin.describe_topics(TopicCollection(sorted(member.subscription)), request_timeout=REPLY_TIME)
    existing = [_exists(found) for found in topics.values()]  # all are waited for
    if not any(existing):
        return True
    # Not before a broker has replied: librdkafka (2.16) may end the process when it searches for the coordinator of a
    # group while the last connection is lost.
    described = admin.describe_consumer_groups([member.group], request_timeout=REPLY_TIME)
    try:
        members = described[member.group].result(2 * REPLY_TIME).members
    except KafkaException as error:
        if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
            raise
        members = []
    return any(each.client_id == member.name for each in members)


def _is_refusal(error: Exception) -> bool:
    """Return whether a broker replied and does not state it, to this user or at all: no reason to doubt the client."""
    return isinstance(error, KafkaException) and error.args[0].code() in _REFUSALS


def _exists(described: Future[Any]) -> bool:
    try:
        described.result(2 * REPLY_TIME)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise
        return False
    return True


def _ask_groups(member: Member, questions: Sequence[Question], quiet: QuietLog) -> list[_AskedTopic]:
    """Ask what each topic is, and for the offsets of the group in it.

    Raises:
        KafkaException: Kafka is away, or refuses.
    """
    admin = _new_admin(member, quiet)
    topics = sorted({each.topic for each in questions})
    described = admin.describe_topics(TopicCollection(topics), request_timeout=REPLY_TIME)
    cluster = admin.list_topics(topics[0], timeout=REPLY_TIME).cluster_id
    return [_AskedTopic(admin, member.group, each, cluster, described[each.topic]) for each in questions]


class _AskedTopic:
    """What was asked about the partitions of one question."""

    def __init__(
        self, admin: AdminClient, group: str, question: Question, cluster: str | None, described: Future[Any]
    ) -> None:
        self.question = question
        self._admin, self._group, self._cluster, self._described = admin, group, cluster, described
        self._kafka_id = ""
        self._committed: dict[int, int] = {}
        self._parts: set[int] = set()
        """Whose ends were asked for: of all partitions, if the group has no offset in the topic."""
        self._lows: _Asked = {}
        self._highs: _Asked = {}
        self._times: _Asked = {}

    def ask_offsets(self, begins: ConsumeFrom) -> None:
        """Receive the group's offsets, and ask for those of the log, where a partition has a leader.

        Raises:
            KafkaException, TimeoutError: Nothing is known of the topic, or of the group.
            UnidentifiedTopicError: Kafka states no id of the topic.
        """
        topic = self._described.result(REPLY_TIME)
        self._kafka_id = id_of(topic.name, topic.topic_id)
        leads = {each.id for each in topic.partitions if each.leader is not None}
        everywhere = {each.id for each in topic.partitions} | {*self.question.parts}
        self._committed = self._received_committed(everywhere)
        self._parts = {*self.question.parts} if self._committed else everywhere
        asked = self._parts & leads
        self._lows = self._offsets(asked, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        self._highs = self._offsets(asked, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        if begins.milliseconds is not None and not self._committed:
            self._times = self._offsets(asked, OffsetSpec.for_timestamp(begins.milliseconds))

    def _received_committed(self, parts: Iterable[int]) -> dict[int, int]:
        places = [TopicPartition(self.question.topic, part) for part in sorted(parts)]
        request = [ConsumerGroupTopicPartitions(self._group, places)]
        replies = self._admin.list_consumer_group_offsets(
            request, require_stable=True, request_timeout=REPLY_TIME
        )
        found = replies[self._group].result(2 * REPLY_TIME).topic_partitions
        for each in found:
            if each.error is not None:
                raise KafkaException(each.error)
        return {each.partition: each.offset for each in found if each.offset >= 0}

    def _offsets(self, parts: Iterable[int], spec: OffsetSpec) -> _Asked:
        asked = {TopicPartition(self.question.topic, part): spec for part in parts}
        if not asked:
            return {}
        replies = self._admin.list_offsets(
            asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=REPLY_TIME
        )
        return {each.partition: reply for each, reply in replies.items()}

    def opening(self, begins: ConsumeFrom) -> tuple[Opening, dict[int, str]]:
        """Return what is known, and why the partitions that are not part of it are not."""
        marks: dict[int, tuple[int, int]] = {}
        initial: dict[int, int] = {}
        reasons: dict[int, str] = {}
        for part in self._parts:
            try:
                low, high = _received(self._lows, part), _received(self._highs, part)
                initial[part] = low if begins.is_first else high
                if begins.milliseconds is not None and not self._committed:
                    at = _received(self._times, part)
                    initial[part] = high if at < 0 else at
                marks[part] = (low, high)
            except (KafkaException, TimeoutError) as error:
                reasons[part] = str(error)
        question = self.question
        # Where the first one is the beginning, a partition without a position begins there, too.
        is_known = begins.is_first or marks.keys() == self._parts
        opening = Opening(
            question.topic,
            f"{self._cluster}/{self._kafka_id}",
            {p: Known(*marks[p], self._committed.get(p)) for p in question.parts if p in marks},
            self._committed or (initial if is_known else None),
            "Kafka's offsets" if self._committed else str(begins),
            question.ticket,
        )
        return opening, {part: reasons[part] for part in question.parts if part in reasons}


def id_of(topic: str, topic_id: Uuid) -> str:
    """Return Kafka's id of a topic.

    Raises:
        UnidentifiedTopicError: It is zero: all topics of such a cluster would be one in the inbox.
    """
    if str(topic_id) == str(Uuid(0, 0)):
        raise UnidentifiedTopicError(
            f"the brokers state no id of topic {topic!r}, by which a topic that was made again is another one; "
            "expected: Kafka 2.8 or newer, or other brokers with topic ids (Metadata version 10); upgrade them"
        )
    return str(topic_id)


def _received(asked: _Asked, part: int) -> int:
    """Return an offset; -1: there is no record at or after that time.

    Raises:
        KafkaException, TimeoutError: Kafka has not stated it.
    """
    if part not in asked:
        raise TimeoutError(NO_LEADER)
    offset = int(asked[part].result(2 * REPLY_TIME).offset)
    if offset < _NONE_AT_THAT_TIME:
        raise TimeoutError(SILENT)
    return offset
