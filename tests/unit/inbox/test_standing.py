"""What an error means that Kafka returns when it is asked about a member."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from outbox.inbox import kafka_offsets
from outbox.inbox.kafka_offsets import OpeningThread
from tests.support.members import member_of


@pytest.mark.parametrize(
    ("code", "is_known"),
    [
        (KafkaError.GROUP_AUTHORIZATION_FAILED, True),
        (KafkaError._UNSUPPORTED_FEATURE, True),
        (KafkaError._TIMED_OUT, None),
        (KafkaError._TRANSPORT, None),
        (KafkaError.COORDINATOR_NOT_AVAILABLE, None),
    ],
)
def test_a_broker_that_refuses_the_question_gives_no_reason_to_doubt_the_client(
    monkeypatch: pytest.MonkeyPatch, code: int, is_known: bool | None
) -> None:
    def refuses(*_: object) -> bool:
        raise KafkaException(KafkaError(code))

    monkeypatch.setattr(kafka_offsets, "_is_known", refuses)
    asker = OpeningThread(member_of("points", {"orders": "*"}), None)  # type: ignore[arg-type]
    assert asker._is_known() is is_known
