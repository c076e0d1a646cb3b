"""`outbox dlq`: dead letters are found, tried again in order, and discarded; nothing else changes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from outbox.drivers import psycopg_sync
from outbox.inbox import ConsumedMessage, ConsumeResult, DelaySchedule, plans
from outbox.inbox.failures import reported
from outbox.inbox.messages import RawRecord, Source, identify
from outbox_relay.operations import dlq
from outbox_relay.operations.messages import Row
from tests.support.inbox_stage import Connection, InboxStage, apply
from tests.support.logins import Logins
from tests.support.outbox_command import outbox, succeed
from tests.support.waiting import wait_until

ONCE = DelaySchedule.of([])


class Failing:
    """A listener that fails at some numbers until it is repaired."""

    def __init__(self, *numbers: int) -> None:
        self.repaired = threading.Event()
        self._numbers = {str(number).encode() for number in numbers}

    def __call__(self, conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        if message.body in self._numbers and not self.repaired.is_set():
            raise ValueError(f"number {message.body.decode()} is not wanted")
        return apply(conn, message)


def _ls(inbox: InboxStage, *options: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(succeed("dlq", "ls", "--json", "--dsn", inbox.dsn, *options).out)
    return found


def _listed(inbox: InboxStage) -> list[dlq.ListedLetter]:
    pages = dlq.pages(inbox.conn, dlq.DeadLetterFilter())
    return [dlq.ListedLetter(row["id"], row["failed_at"]) for page in pages for row in page]


@pytest.fixture
def held(inbox: InboxStage, topic: str) -> Iterator[tuple[InboxStage, Failing]]:
    """An orderly group that runs; key k0 is held at number 2, with 4, 6, 8 behind it."""
    listener = Failing(2)
    inbox.produce_numbered(topic, 10, keys=2)
    with inbox.consumer(topic, listener, orderly=True, delays=ONCE):
        inbox.wait_applied(6)
        wait_until(lambda: inbox.count("outbox.inbox_parked") == 4, "the key is held with its successors")
        yield inbox, listener


@pytest.mark.feature("H-40")
def test_a_redriven_dead_letter_is_applied_before_its_successors(held: tuple[InboxStage, Failing]) -> None:
    inbox, listener = held
    [row] = _ls(inbox)
    assert (row["waiting"], row["key"], row["attempts"], row["consumer_group"]) == (3, "k0", 1, inbox.group)
    listener.repaired.set()
    assert "1 dead letter" in succeed("dlq", "redrive", str(row["id"]), "--dsn", inbox.dsn).out
    inbox.wait_applied(10)
    wait_until(lambda: not inbox.count("outbox.inbox_held_key"), "the key is released")
    assert inbox.by_key() == {"k0": [0, 2, 4, 6, 8], "k1": [1, 3, 5, 7, 9]}


def test_a_dead_letter_that_fails_again_has_its_attempts_again(held: tuple[InboxStage, Failing]) -> None:
    inbox, _ = held
    [row] = _ls(inbox)
    succeed("dlq", "redrive", "--all", "--dsn", inbox.dsn)
    failed = "state = 'dead' AND attempts = 1 AND failed_at > %s"
    wait_until(
        lambda: (
            inbox.conn.execute(f"SELECT FROM outbox.inbox_parked WHERE {failed}", [row["failed_at"]]).rowcount
        ),
        "it is dead again after one attempt",
    )
    assert inbox.by_key()["k0"] == [0]


@pytest.mark.feature("H-40")
def test_discarding_a_dead_letter_lets_its_successors_go_on(held: tuple[InboxStage, Failing]) -> None:
    inbox, _ = held
    [row] = _ls(inbox)
    discarded = succeed("dlq", "discard", str(row["id"]), "--json", "--dsn", inbox.dsn).json
    assert discarded == {"discarded": [row["id"]], "left_out": []}
    inbox.wait_applied(9)
    wait_until(lambda: not inbox.count("outbox.inbox_held_key"), "the key is released")
    assert inbox.by_key() == {"k0": [0, 4, 6, 8], "k1": [1, 3, 5, 7, 9]}
    assert inbox.count("outbox.inbox") == 10, "the group keeps in mind that it has dealt with it"


@pytest.fixture
def dead(inbox: InboxStage, topic: str) -> InboxStage:
    """Three dead letters of two failures, and no member that runs."""
    with inbox.consumer(topic, Failing(1, 2), delays=ONCE):
        inbox.produce_numbered(topic, 5)
        inbox.wait_applied(3)
        inbox.produce(topic, "k", b"\xff")
        inbox.flush()
        wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'dead'") == 3, "three are dead")
    return inbox


@pytest.mark.feature("H-40")
def test_dead_letters_are_counted_by_failure_and_found_by_it(dead: InboxStage) -> None:
    counted = succeed("dlq", "summary", "--json", "--dsn", dead.dsn).json
    assert [(row["messages"], row["failure"].partition(" at ")[0]) for row in counted] == [
        (2, "ValueError"),
        (1, "UnicodeDecodeError"),
    ]
    assert len(_ls(dead, "--failure", "ValueError at tests")) == 2
    assert [len(_ls(dead, *given)) for given in (["--limit", "2"], ["--until", "1h"])] == [2, 0]
    text = succeed("dlq", "show", str(counted[1]["example"]), "--body", "--dsn", dead.dsn).out
    assert all(part in text for part in ("UnicodeDecodeError", "outbox-id", "Traceback"))


def test_what_is_exported_has_headers_and_body(dead: InboxStage) -> None:
    lines = succeed("dlq", "export", "--failure", "ValueError", "--dsn", dead.dsn).out.splitlines()
    assert sorted(json.loads(line)["body"] for line in lines) == ["1", "2"]
    assert all(json.loads(line)["headers"][0][0] == "outbox-id" for line in lines)


@pytest.mark.parametrize(
    ("given", "code", "text"),
    [
        ([], 2, "name dead letters by ids or filters, or give --all"),
        (["1", "--all"], 2, "by their ids or by filters, not by both"),
        (["--group", "g", "--all"], 2, "name dead letters by ids or filters, or give --all"),
        (["987654321"], 1, "no dead letter has the id 987654321; nothing was changed"),
        (["--since", "soon"], 2, "--since 'soon' is not a time"),
        (["--all"], 1, "3 dead letters will be"),
    ],
)
@pytest.mark.parametrize("action", ["redrive", "discard"])
def test_a_choice_that_is_unclear_changes_nothing(
    dead: InboxStage, action: str, given: list[str], code: int, text: str
) -> None:
    ended = outbox("dlq", action, *given, "--dsn", dead.dsn)
    assert (ended.code, text in ended.err) == (code, True), ended.err
    assert dead.count("outbox.inbox_parked", "state = 'dead'") == 3


def test_operators_act_and_readers_look_and_only_consumers_see_bodies(
    dead: InboxStage, logins: Logins
) -> None:
    [first, second, _] = [row["id"] for row in _ls(dead)]
    reader, operator, consumer = (
        logins.make(f"outbox_{role}") for role in ("reader", "operator", "consumer")
    )
    for dsn in (reader, operator):
        assert len(succeed("dlq", "ls", "--json", "--dsn", dsn).json) == 3
        refused = outbox("dlq", "show", str(first), "--body", "--dsn", dsn)
        assert refused.code == 1
        assert "Traceback" not in refused.err
    assert outbox("dlq", "discard", str(first), "--dsn", reader).code == 1
    succeed("dlq", "show", str(first), "--body", "--dsn", consumer)
    succeed("dlq", "redrive", str(first), "--dsn", operator)
    succeed("dlq", "discard", str(second), "--dsn", operator)
    assert dead.count("outbox.inbox_parked") == 2


def test_a_message_parked_while_its_head_is_discarded_is_the_next_retry(
    held: tuple[InboxStage, Failing],
) -> None:
    """The member has locked the held key and not committed: discarding waits, and then finds the message."""
    inbox, _ = held
    [row] = _ls(inbox)
    inbox.conn.execute("DELETE FROM outbox.inbox_parked WHERE state = 'waiting'")
    [(group, topic_id, kafka_id, name)] = inbox.conn.execute(
        "SELECT group_id, topic_id, kafka_id, name "
        "FROM outbox.inbox_parked p JOIN outbox.inbox_topic t ON t.id = topic_id"
    ).fetchall()
    record = RawRecord(name, 0, 1_000_000, b"k0", b"later", (), 1)
    delivery = identify(Source(topic_id, kafka_id), record, orderly=True)
    waits = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with (
        psycopg.connect(inbox.dsn) as member,
        psycopg.connect(inbox.dsn, autocommit=True) as operator,
        ThreadPoolExecutor(1) as pool,
    ):
        assert psycopg_sync.run(member, plans.take(group, delivery)).is_held
        psycopg_sync.run(member, plans.park_behind(group, delivery))
        discarding = pool.submit(dlq.discard, operator, _listed(inbox))
        wait_until(lambda: inbox.conn.execute(waits).rowcount, "discarding waits for the member")
        member.commit()
        assert discarding.result(30).done == [row["id"]]
    wait_until(lambda: "later" in inbox.applied("body"), "the message behind it is applied")
    wait_until(lambda: not inbox.count("outbox.inbox_held_key"), "the key is released")


def test_what_may_be_applied_already_is_redriven_by_its_id_only(inbox: InboxStage, topic: str) -> None:
    """It was born on a day of which rows were dropped: applying it is somebody's decision."""
    inbox.produce(topic, "k", "new")
    inbox.flush()
    with inbox.consumer(topic, delays=ONCE):
        inbox.wait_applied(1)
        inbox.conn.execute(
            "INSERT INTO outbox.inbox_floor (group_id, born_before) SELECT id, '2020-01-01' FROM outbox.consumer_group"
        )
        inbox.produce(topic, "k", "old", born_at=1_500_000_000)
        inbox.flush()
        wait_until(lambda: inbox.count("outbox.inbox_parked"), "it is dead")
        [row] = _ls(inbox)
        left = succeed("dlq", "redrive", "--all", "--dsn", inbox.dsn)
        assert (left.out, "1 dead letters are left out" in left.err) == ("no dead letters fit\n", True)
        assert [each["id"] for each in _ls(inbox)] == [row["id"]]


@pytest.mark.parametrize("action", ["redrive", "discard"])
@pytest.mark.parametrize("again", [True, False], ids=["and dies again", "and is due"])
def test_a_letter_that_another_operator_redrives_during_the_question_is_left_out(
    dead: InboxStage, monkeypatch: pytest.MonkeyPatch, action: str, again: bool
) -> None:
    """The list, then the question, then the change: between list and change one of the letters has another failure."""
    first, *others = _listed(dead)

    def confirm(*_: object, **__: object) -> bool:
        assert dlq.redrive(dead.conn, [first]).done == [first.id]
        if again:
            [(group,)] = dead.conn.execute("SELECT id FROM outbox.consumer_group").fetchall()
            with psycopg.connect(dead.dsn) as member:
                retry = psycopg_sync.run(member, plans.next_due(group))
                assert retry is not None
                member.rollback()
                psycopg_sync.run(member, plans.failed_again(retry, reported("of another cause"), ONCE))
        return True

    monkeypatch.setattr("click.confirm", confirm)
    ran = succeed("dlq", action, "--all", "--json", "--dsn", dead.dsn)
    done = {"redrive": "redriven", "discard": "discarded"}[action]
    assert sorted(ran.json[done]) == [letter.id for letter in others]
    assert ran.json["left_out"] == [{"id": first.id, "reason": "changed"}]
    assert "1 dead letters are left out: they were redriven" in ran.err
    cause = "state = 'dead' AND fingerprint = 'of another cause'" if again else "state = 'retry'"
    assert dead.count("outbox.inbox_parked", f"id = {first.id} AND {cause}") == 1


REFUSE = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$;
    CREATE TRIGGER refuse BEFORE UPDATE OR DELETE ON outbox.inbox_parked FOR EACH ROW WHEN (OLD.id = {id})
        EXECUTE FUNCTION refuse()
"""


@pytest.mark.parametrize(
    ("body", "unchanged", "unknown", "error"),
    [
        ("RAISE 'not now';", (1, 2), (), "not now"),
        ("PERFORM pg_terminate_backend(pg_backend_pid()); RETURN OLD;", (2,), (1,), "terminating connection"),
    ],
    ids=["an error", "a lost connection"],
)
def test_discarding_that_ends_half_way_reports_what_is_done(
    dead: InboxStage, body: str, unchanged: tuple[int, ...], unknown: tuple[int, ...], error: str
) -> None:
    """One transaction for each letter: the first is committed when PostgreSQL refuses the second."""
    ids = [letter.id for letter in _listed(dead)]
    dead.conn.execute(REFUSE.format(body=body, id=ids[1]).encode())
    ran = outbox("dlq", "discard", "--all", "--yes", "--json", "--dsn", dead.dsn)
    assert (ran.code, error in ran.err) == (1, True), ran.err
    assert ran.json == {
        "discarded": ids[:1],
        "left_out": [],
        "unchanged": [ids[place] for place in unchanged],
        "unknown": [ids[place] for place in unknown],
    }
    assert [letter.id for letter in _listed(dead)] == ids[1:]
    text = outbox("dlq", "discard", "--all", "--yes", "--dsn", dead.dsn)
    assert text.code == 1
    assert "0 dead letters discarded before that, " in text.err
    assert ("1 dead letter it is not known" in text.err) == bool(unknown)


def test_redriving_that_fails_reports_that_nothing_is_done(dead: InboxStage) -> None:
    ids = [letter.id for letter in _listed(dead)]
    dead.conn.execute(REFUSE.format(body="RAISE 'not now';", id=ids[1]).encode())
    ran = outbox("dlq", "redrive", "--all", "--yes", "--json", "--dsn", dead.dsn)
    assert ran.code == 1
    assert (ran.json["redriven"], ran.json["unchanged"]) == ([], ids)
    assert dead.count("outbox.inbox_parked", "state = 'dead'") == 3


@pytest.mark.parametrize("ending", ["COMMIT", "COMMIT AND CHAIN", "ROLLBACK", "ROLLBACK AND CHAIN"])
@pytest.mark.parametrize("retries", [0, 1], ids=["delivery", "retry"])
def test_only_what_a_listener_committed_itself_is_left_out_of_a_redrive(
    inbox: InboxStage, topic: str, ending: str, retries: int
) -> None:
    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        if message.reconsume_times < retries:
            return ConsumeResult.RECONSUME_LATER
        conn.execute(ending.encode())
        return ConsumeResult.SUCCESS

    inbox.produce_numbered(topic, 1)
    with inbox.consumer(topic, listener, delays=DelaySchedule.of([0] * retries)):
        wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'dead'"), "it is dead")
    [row] = succeed("dlq", "summary", "--json", "--dsn", inbox.dsn).json
    is_committed = ending.startswith("COMMIT")
    assert row["failure"].endswith(
        "and committed its writes up to there" if is_committed else "and rolled it back"
    )
    ran = succeed("dlq", "redrive", "--all", "--json", "--dsn", inbox.dsn).json
    assert len(ran["left_out"]) == is_committed
    assert len(ran["redriven"]) == (not is_committed)


def test_keys_that_were_let_go_by_hand_are_held_again(
    inbox: InboxStage, topic: str, logins: Logins, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Connection, message: ConsumedMessage) -> ConsumeResult:
        raise ValueError(f"never {message.offset}")

    def errors() -> list[str]:
        found = [each for each in caplog.records if each.levelname == "ERROR"]
        return [each.getMessage() for each in found if "cannot be parked" in each.getMessage()]

    with inbox.consumer(topic, fail, orderly=True, delays=ONCE):
        inbox.produce_numbered_in(topic, 1)
        wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'dead'"), "it is dead")
        inbox.conn.execute("DELETE FROM outbox.inbox_held_key")
        inbox.produce_numbered_in(topic, 1)
        wait_until(errors, "the second one cannot be parked")
        operator = logins.make("outbox_operator")
        held = succeed("dlq", "hold", "--json", "--dsn", operator).json
        assert held == [{"consumer_group": inbox.group, "topic": topic, "key": "k"}]
        wait_until(lambda: inbox.count("outbox.inbox_parked") == 2, "it is parked behind the first one")
    assert inbox.count("outbox.inbox_parked", "state = 'waiting' AND error LIKE '%never 1%'") == 1
    assert all("To hold the key again: outbox dlq hold" in text for text in errors())
    assert succeed("dlq", "hold", "--dsn", operator).out == "no parked message lacks its held key\n"


def held_while_a_retry_succeeds(inbox: InboxStage) -> list[Row]:
    """Delete the held key; the retry has its row, holding waits for it, the retry takes it out and commits."""
    [letter] = _listed(inbox)
    inbox.conn.execute("DELETE FROM outbox.inbox_held_key")
    waits = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    [(group, topic_id, key)] = inbox.conn.execute(
        "SELECT DISTINCT group_id, topic_id, order_key FROM outbox.inbox_parked"
    ).fetchall()
    with (
        psycopg.connect(inbox.dsn) as member,
        psycopg.connect(inbox.dsn, autocommit=True) as operator,
        ThreadPoolExecutor(1) as pool,
    ):
        member.execute("SELECT FROM outbox.inbox_parked WHERE id = %s FOR UPDATE", [letter.id])
        holding = pool.submit(dlq.hold, operator)
        wait_until(lambda: inbox.conn.execute(waits).rowcount, "holding waits for the retry")
        psycopg_sync.run(member, plans.remove(group, topic_id, key, letter.id))
        member.commit()
        return holding.result(30)


def test_a_key_whose_retry_succeeds_meanwhile_is_not_held_again(held: tuple[InboxStage, Failing]) -> None:
    inbox, _ = held
    inbox.conn.execute("DELETE FROM outbox.inbox_parked WHERE state = 'waiting'")
    assert held_while_a_retry_succeeds(inbox) == []
    assert inbox.count("outbox.inbox_held_key") == 0, "nothing would ever release it"


def test_a_key_whose_retry_succeeds_meanwhile_is_held_for_its_next_message(
    held: tuple[InboxStage, Failing],
) -> None:
    inbox, _ = held
    assert len(held_while_a_retry_succeeds(inbox)) == 1
    assert inbox.count("outbox.inbox_held_key") == 1
