"""Producer groups as the library meets them: registered once, of one type, remembered."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from outbox import Message, MessageType, ProducerGroup
from outbox.errors import ConfigurationError, GroupTypeError, InvalidGroupError, InvalidMessageError
from outbox.operations.groups import MOST_CHECKS, MOST_WORKERS
from tests.contract.conftest import MakeSession
from tests.support.contract_sessions import Session, count

PAYMENT = Message("payments", key="p-7")
DEFAULTS = ProducerGroup(
    "orders",
    MessageType.MIXED,
    timedelta(seconds=6),
    timedelta(seconds=30),
    timedelta(minutes=10),
    timedelta(seconds=3),
    timedelta(hours=72),
    15,
    "ROLLBACK",
    4,
)


def test_group_is_registered_with_the_defaults(session: Session) -> None:
    assert session.register_group("orders") == DEFAULTS
    assert session.register_group("orders") == DEFAULTS
    assert session.execute("SELECT name, message_type, callback FROM outbox.producer_group") == [
        ("orders", "MIXED", None)
    ]


def test_what_is_given_changes_and_the_rest_stays(session: Session) -> None:
    session.register_group("orders", check_after=2, max_checks=5)
    changed = session.register_group(
        "orders",
        check_interval=timedelta(minutes=1),
        max_check_interval=120,
        check_timeout=0.5,
        max_age=timedelta(days=1),
        policy="EXHAUSTED",
        workers=64,
    )
    assert changed == DEFAULTS._replace(
        check_after=timedelta(seconds=2),
        check_interval=timedelta(minutes=1),
        max_check_interval=timedelta(minutes=2),
        check_timeout=timedelta(milliseconds=500),
        max_age=timedelta(days=1),
        max_checks=5,
        policy="EXHAUSTED",
        workers=64,
    )


def test_check_interval_that_is_not_given_makes_room_for_the_other(session: Session) -> None:
    longer = session.register_group("orders", check_interval=3600)
    assert (longer.check_interval, longer.max_check_interval) == (timedelta(hours=1), timedelta(hours=1))
    shorter = session.register_group("orders", max_check_interval=10)
    assert (shorter.check_interval, shorter.max_check_interval) == (
        timedelta(seconds=10),
        timedelta(seconds=10),
    )


@pytest.mark.feature("S-77")
@pytest.mark.parametrize("options", [{}, {"workers": 8}])
def test_type_of_a_registered_group_does_not_change(session: Session, options: dict[str, Any]) -> None:
    session.register_group("orders", message_type="TRANSACTION")
    with pytest.raises(
        GroupTypeError,
        match="producer group 'orders' is registered as TRANSACTION, not NORMAL; allowed: TRANSACTION",
    ):
        session.register_group("orders", message_type=MessageType.NORMAL, **options)
    assert session.register_group("orders", message_type="TRANSACTION") == DEFAULTS._replace(
        message_type=MessageType.TRANSACTION
    )


@pytest.mark.feature("S-77", "H-10")
def test_transactional_group_sends_nothing_but_half_messages(session: Session) -> None:
    session.register_group("orders", message_type="TRANSACTION")
    error = "'orders' is registered as TRANSACTION, which is not shared .* allowed: prepare"
    with pytest.raises(GroupTypeError, match=error):
        session.send(PAYMENT)
    with pytest.raises(GroupTypeError, match=error):
        session.send(PAYMENT, idempotency_key="k")
    with pytest.raises(GroupTypeError, match=error):
        session.send_many([PAYMENT, Message("other")])
    assert count(session) == 0
    session.prepare(PAYMENT)


@pytest.mark.feature("S-77")
def test_normal_group_prepares_no_half_messages(session: Session) -> None:
    session.register_group("orders", message_type="NORMAL")
    with pytest.raises(
        GroupTypeError, match=r"'orders' is registered as NORMAL, which prepares no half .* allowed: send"
    ):
        session.prepare(PAYMENT)
    assert count(session) == 0
    session.send(PAYMENT)


@pytest.mark.feature("H-10")
@pytest.mark.parametrize("registered", [True, False])
def test_mixed_group_sends_everything(session: Session, *, registered: bool) -> None:
    if registered:
        session.register_group("orders", message_type="MIXED")
    session.send(PAYMENT)
    session.prepare(PAYMENT)


def test_outbox_without_a_group_is_bound_to_none(make_session: MakeSession, session: Session) -> None:
    session.register_group("orders", message_type="TRANSACTION")
    session.commit()
    make_session().send(PAYMENT)


def test_group_is_read_with_the_topic_and_remembered(session: Session, observer: Session) -> None:
    session.send(PAYMENT)
    session.commit()
    observer.execute("ALTER TABLE outbox.producer_group RENAME TO hidden")
    session.send_many([PAYMENT, PAYMENT])


def test_registration_is_seen_by_another_outbox_at_its_next_look(
    make_session: MakeSession, session: Session
) -> None:
    other = make_session(producer_group="orders", topic_ttl=0)
    other.send(PAYMENT)
    session.register_group("orders", message_type="TRANSACTION")
    session.commit()
    with pytest.raises(GroupTypeError):
        other.send(PAYMENT)


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("", {}, "name: is empty"),
        (7, {}, "name: is int"),
        ("x" * 256, {}, "name: has 256 characters; allowed: 1 to 255 characters"),
        ("a\0", {}, "name: .* contains NUL"),
        ("bad group", {}, "name: 'bad group' is not a group's name; allowed: .* without white space"),
        ("a\x1b[2J", {}, "name: .* is not a group's name"),
        (
            "g",
            {"message_type": "FIFO"},
            "message_type: 'FIFO' is not a group's type; allowed: NORMAL, TRANSACTION, MIXED",
        ),
        ("g", {"check_after": -1}, "check_after: -1; allowed: seconds or a timedelta, 0 s to 3650 days"),
        ("g", {"check_interval": 0}, "check_interval: 0; allowed: seconds or a timedelta, 0.001 s"),
        ("g", {"check_timeout": "3s"}, "check_timeout: '3s'"),
        ("g", {"max_age": timedelta(0)}, r"max_age: datetime.timedelta\(0\)"),
        (
            "g",
            {"check_interval": 60, "max_check_interval": 30},
            "max_check_interval 0:00:30 is shorter than check_interval 0:01:00",
        ),
        ("g", {"max_checks": 0}, "max_checks: 0; allowed: a whole number from 1 to 1000000"),
        ("g", {"max_checks": 1_000_001}, "max_checks: 1000001"),
        ("g", {"check_after": 60, "max_age": 4}, "max_age 0:00:04 is not longer than check_after 0:01:00"),
        ("g", {"max_age": 6}, "max_age 0:00:06 is not longer than check_after 0:00:06"),
        ("g", {"max_checks": True}, "max_checks: True"),
        ("g", {"policy": "COMMIT"}, "policy: 'COMMIT' is not a policy; allowed: ROLLBACK, EXHAUSTED"),
        ("g", {"workers": 65}, "workers: 65; allowed: a whole number from 1 to 64"),
    ],
)
def test_group_that_cannot_be_is_refused(
    session: Session, name: Any, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidGroupError, match=text):
        session.register_group(name, **options)
    assert session.execute("SELECT count(*) FROM outbox.producer_group") == [(0,)]


@pytest.mark.feature("S-51")
def test_a_change_is_measured_by_what_is_registered(session: Session) -> None:
    session.register_group("g", check_after=60)
    with pytest.raises(InvalidGroupError, match="max_age 0:00:30 is not longer than check_after 0:01:00"):
        session.register_group("g", max_age=30)
    assert session.register_group("g", max_age=90).max_age == timedelta(seconds=90)


@pytest.mark.feature("S-51")
def test_the_table_has_the_defaults_and_the_limits_of_the_library(session: Session) -> None:
    (refused,) = session.execute(
        """
        SELECT count(*) FROM pg_constraint c
        WHERE c.conrelid = 'outbox.producer_group'::regclass AND c.contype = 'c'
            AND pg_get_constraintdef(c.oid) ~ %s
        """,
        [f"max_age > check_after|max_checks <= {MOST_CHECKS}|[[]:space:[]]|workers <= {MOST_WORKERS}"],
    )
    assert refused == (4,)
    session.execute("INSERT INTO outbox.producer_group (name) VALUES ('plain')")
    assert session.register_group("plain") == ProducerGroup("plain")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"producer_group": "a b c"}, "producer_group: 'a b c' is not a group's name"),
        ({"producer_group": "x" * 3000}, "producer_group: has 3,000 characters"),
        ({"topic_ttl": -1}, "topic_ttl: -1; allowed: seconds, 0 or more"),
        ({"topic_ttl": float("nan")}, "topic_ttl: nan; allowed"),
    ],
)
def test_an_outbox_that_cannot_work_is_refused(
    make_session: MakeSession, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        make_session(**options)


@pytest.mark.parametrize("field", ["transaction_id", "checker", "biz_type", "biz_id"])
def test_an_id_that_is_too_long_is_refused_by_name(field: str) -> None:
    with pytest.raises(InvalidMessageError, match=f"{field}: has 100,000 characters; allowed: 1 to 255"):
        Message("payments", **{field: "x" * 100_000})  # type: ignore[arg-type]
