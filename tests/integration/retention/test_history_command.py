"""`outbox history drop` drops what is complete, final, exported, verified and old, and names what keeps the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest

from outbox_relay.retention.removal import AlreadyRunningError, only_removal
from tests.support.full_partitions import WIDTH, History, table
from tests.support.outbox_command import Ran, outbox, succeed
from tests.support.plain_inserts import connect, decide, insert
from tests.support.publications import value
from tests.support.stopped_lanes import set_aside
from tests.support.waiting import wait_until


@pytest.fixture
def history(database: str) -> Iterator[History]:
    """Two full ranges of ids, published, and a third one that has begun."""
    history = History(database)
    history.fill(0)
    history.fill(1)
    history.fill(2)
    yield history
    history.close()


def drop(history: History, *arguments: str, older_than: str = "0s", wait: str = "30s") -> Ran:
    options = ["--older-than", older_than, "--wait", wait, "--json", *arguments]
    return outbox("history", "drop", *options, OUTBOX_DSN=history.dsn)


def outcomes(ran: Ran) -> list[str]:
    """What became of each range, with the names of the reasons."""
    return [
        " ".join([part["outcome"], *(reason["name"] for reason in part["reasons"])])
        for part in ran.json["partitions"]
    ]


def newest_xid(history: History) -> int:
    return int(value(history.conn, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"))


def certify_all(history: History) -> None:
    """Certify what is there, when all transactions of other tests that are as old have ended."""
    top = newest_xid(history)

    def ended() -> bool:
        return bool(
            value(history.conn, "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint >= %s", [top])
        )

    wait_until(ended, f"transactions below {top} have ended")
    history.certify(hi=top)


@pytest.mark.feature("S-35", "H-03")
def test_exported_verified_old_history_is_dropped_with_publications_and_events(
    history: History,
) -> None:
    certify_all(history)
    ran = drop(history)
    assert ran.code == 0
    assert outcomes(ran) == ["dropped", "dropped", "kept current", "kept current"]
    assert ran.json["targets"] == ["lake"]
    assert all("p000000000000001" not in name and "p000000000001001" not in name for name in history.tables())
    assert value(history.conn, "SELECT min(id) FROM outbox.message") == 2_001
    assert value(history.conn, "SELECT min(lo) FROM outbox.publication") == 2_001
    insert(history.conn, "t", "k", b"on")
    again = drop(history)
    assert (again.code, outcomes(again)) == (0, ["kept current", "kept current"])


def test_a_dry_run_and_a_list_say_the_same_and_change_nothing(history: History) -> None:
    certify_all(history)
    tables = history.attached()
    ran = drop(history, "--dry-run")
    assert (ran.code, outcomes(ran)[:2]) == (0, ["droppable", "droppable"])
    assert outcomes(succeed("history", "ls", "--json", OUTBOX_DSN=history.dsn)) == outcomes(ran)
    shown = succeed("history", "ls", OUTBOX_DSN=history.dsn).out
    assert "message_p000000000000001" in shown
    assert history.attached() == tables


@pytest.mark.feature("H-03")
def test_what_changed_within_the_retention_is_kept_and_that_is_no_refusal(history: History) -> None:
    certify_all(history)
    history.conn.execute("UPDATE outbox.message SET born_at = born_at - interval '40 days' WHERE id <= 1000")
    history.conn.execute("UPDATE outbox.publication SET published_at = published_at - interval '29 days'")
    ran = drop(history, older_than="30d")
    assert (ran.code, outcomes(ran)[:2]) == (0, ["kept young", "kept young"])
    history.conn.execute("UPDATE outbox.publication SET published_at = published_at - interval '2 days'")
    assert outcomes(drop(history, older_than="30d"))[:2] == ["dropped", "kept young"]


def _exhausted(history: History) -> None:
    _undecided(history)
    history.conn.execute("UPDATE outbox.message SET state = 'EXHAUSTED' WHERE state = 'UNKNOWN'")


def _undecided(history: History) -> None:
    history.go_to(500)
    insert(history.conn, "t", "h", b"half", state="UNKNOWN", producer_group="g")
    history.go_to(2_100)


def _dead(history: History) -> None:
    set_aside(history.conn, 5)


def _waiting(history: History) -> None:
    history.conn.execute(
        "INSERT INTO outbox.waiting (id, message_id, reason) "
        "SELECT id, message_id, 'parked' FROM outbox.message WHERE id = 5"
    )


def _checking(history: History) -> None:
    history.conn.execute(
        "INSERT INTO outbox.pending_check (id, message_id, producer_group, due_at, asked_by) "
        "SELECT id, message_id, 'g', clock_timestamp() + interval '1 minute', 'checker' "
        "FROM outbox.message WHERE id = 5"
    )


def _unpublished(history: History) -> None:
    history.go_to(500)
    insert(history.conn, "t", "k", b"late")
    history.go_to(2_100)


def _incomplete(history: History) -> None:
    history.conn.execute(f"DROP TABLE {table('event')}")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_undecided, "undecided"),
        (_exhausted, "undecided"),
        (_dead, "dead"),
        (_waiting, "waiting"),
        (_checking, "checking"),
        (_unpublished, "unpublished"),
        (_incomplete, "incomplete"),
    ],
)
def test_what_is_not_final_is_refused_by_name_and_the_others_go(
    history: History, spoil: Callable[[History], None], reason: str
) -> None:
    spoil(history)
    certify_all(history)
    tables = [name for name in history.attached() if name.endswith("000001")]
    ran = drop(history)
    assert ran.code == 1
    assert outcomes(ran)[:2] == [f"refused {reason}", "dropped"]
    assert ran.json["refused"] == 1
    assert [name for name in history.attached() if name.endswith("000001")] == tables
    assert reason in outbox("history", "drop", "--older-than", "0s", OUTBOX_DSN=history.dsn).out


def test_the_next_drop_may_begin_before_the_session_of_the_last_one_has_ended(database: str) -> None:
    with connect(database) as first, connect(database) as second:
        for conn in (first, second, first):
            with only_removal(conn):
                pass
        with (
            only_removal(first),
            pytest.raises(AlreadyRunningError, match="is at work"),
            only_removal(second),
        ):
            pass


def test_a_transaction_that_could_still_insert_keeps_its_range(database: str) -> None:
    with closing(History(database)) as history, psycopg.connect(database) as writer:
        insert(writer, "t", "k", b"late")
        history.fill(1)
        history.fill(2)
        history.certify(hi=newest_xid(history))
        ran = drop(history, wait="0s")
        assert (ran.code, outcomes(ran)[0]) == (1, "refused open")
        # Whichever is the oldest on the server: another test's may be.
        assert "still runs and may insert (pid " in ran.json["partitions"][0]["reasons"][0]["detail"]
        writer.commit()
        assert outcomes(drop(history))[:2] == ["refused unpublished", "dropped"]


def test_the_newest_transaction_of_all_keeps_the_range_that_it_has_a_place_in(database: str) -> None:
    with closing(History(database)) as history, psycopg.connect(database) as first:
        first.execute("SELECT pg_current_xact_id()")
        with psycopg.connect(database) as newest:
            # No transaction with a higher xid has ended, so no snapshot counts it among those that run.
            insert(newest, "t", "k", b"late")
            first.execute("SELECT setval('outbox.position', %s, false)", [WIDTH + 1])
            insert(first, "t", "k", b"beyond")
            first.rollback()
            assert outcomes(drop(history, wait="0s"))[0] == "refused open"


def test_a_transaction_that_began_when_the_range_was_full_keeps_nothing(history: History) -> None:
    certify_all(history)
    with psycopg.connect(history.dsn) as writer:
        writer.execute("SELECT pg_current_xact_id()")
        assert outcomes(drop(history))[:2] == ["dropped", "dropped"]


def test_publications_of_older_messages_that_stay_are_needed(history: History) -> None:
    history.go_to(500)
    half = insert(history.conn, "t", "h", b"half", state="UNKNOWN", producer_group="g")
    history.go_to(1_500)
    assert decide(history.conn, half, "COMMITTED") == 1
    history.publish(1)
    history.go_to(2_100)
    _dead(history)
    certify_all(history)
    ran = drop(history)
    assert outcomes(ran)[:2] == ["refused dead", "refused needed"]
    history.conn.execute("UPDATE outbox.message SET state = 'SKIPPED' WHERE state = 'DEAD'")
    certify_all(history)
    assert outcomes(drop(history))[:2] == ["dropped", "dropped"]


def test_idempotency_keys_go_with_their_messages_and_not_before(history: History) -> None:
    history.conn.execute(
        "INSERT INTO outbox.idempotency (producer_group, key, digest, id, message_id, born_at) "
        "SELECT 'g', id::text, '', id, message_id, clock_timestamp() - interval '1 hour' * (id % 2) "
        "FROM outbox.message"
    )
    _dead(history)
    history.conn.execute("UPDATE outbox.message SET born_at = born_at - interval '1 day'")
    history.conn.execute("UPDATE outbox.publication SET published_at = published_at - interval '1 day'")
    history.conn.execute("UPDATE outbox.message SET decided_at = born_at")
    history.conn.execute("UPDATE outbox.event SET happened_at = happened_at - interval '1 day'")
    certify_all(history)
    ran = drop(history, older_than="30min")
    assert outcomes(ran)[:2] == ["refused dead", "dropped"]
    assert ran.json["idempotency_keys"] == 5
    left = history.conn.execute("SELECT id FROM outbox.idempotency WHERE id > 1000 AND id <= 2000").fetchall()
    assert [row[0] % 2 for row in left] == [0] * 5
    assert value(history.conn, "SELECT count(*) FROM outbox.idempotency WHERE id <= 1000") == 10


def test_checks_left_over_from_decided_messages_are_tidied_away(history: History) -> None:
    _checking(history)
    history.conn.execute("UPDATE outbox.pending_check SET due_at = clock_timestamp() - interval '1 minute'")
    certify_all(history)
    ran = drop(history)
    assert (ran.code, ran.json["pending_checks"]) == (0, 1)
    assert value(history.conn, "SELECT count(*) FROM outbox.pending_check") == 0


def test_a_view_that_depends_on_a_partition_is_named_and_the_partition_put_back(history: History) -> None:
    history.conn.execute(f"CREATE VIEW public.mine AS SELECT id FROM {table('message')}")
    certify_all(history)
    attached = [name for name in history.attached() if name.endswith("000001")]
    ran = drop(history)
    assert (ran.code, outcomes(ran)[:2]) == (1, ["refused depended_on", "dropped"])
    assert "mine" in ran.json["partitions"][0]["reasons"][0]["detail"]
    assert [name for name in history.attached() if name.endswith("000001")] == attached


def test_a_table_detached_by_hand_is_left_alone(history: History) -> None:
    history.conn.execute(f"ALTER TABLE outbox.message DETACH PARTITION {table('message')}")
    certify_all(history)
    assert outcomes(drop(history))[:2] == ["kept detached_by_hand", "dropped"]
    assert history.state("message") == "detached"


@pytest.mark.parametrize("role", ["outbox_etl", "outbox_relay", "outbox_reader"])
def test_only_the_owner_may_drop_and_anybody_who_reads_may_look(history: History, role: str) -> None:
    certify_all(history)
    dsn = psycopg.conninfo.make_conninfo(history.dsn, options=f"-c role={role}")
    ran = outbox("history", "drop", "--older-than", "0s", OUTBOX_DSN=dsn)
    assert ran.code == 1
    assert f"{role!r} may not drop partitions" in ran.err
    looked = outbox("history", "drop", "--older-than", "0s", "--dry-run", "--json", OUTBOX_DSN=dsn)
    assert outcomes(looked)[:2] == ["droppable", "droppable"]
    assert outcomes(succeed("history", "ls", "--json", OUTBOX_DSN=dsn)) == outcomes(looked)


def test_one_run_at_a_time(history: History) -> None:
    with connect(history.dsn) as other:
        other.execute("SELECT outbox.take_turn('history')")
        ran = drop(history)
        assert ran.code == 1
        assert "another `outbox history drop` is at work" in ran.err
    wait_until(lambda: "is at work" not in drop(history).err, "a turn ends with its session")


def test_a_default_partition_forbids_it_and_is_named(history: History) -> None:
    history.conn.execute("CREATE TABLE outbox.rest PARTITION OF outbox.message DEFAULT")
    assert "DEFAULT partition" in drop(history).err


@pytest.mark.parametrize(
    ("option", "text"), [("--older-than", "soon"), ("--older-than", "30"), ("--wait", "long")]
)
def test_a_duration_that_is_none_is_refused_with_what_is_one(
    history: History, option: str, text: str
) -> None:
    ran = outbox("history", "drop", "--older-than", "0s", option, text, OUTBOX_DSN=history.dsn)
    assert ran.code == 2
    assert f"{option} {text!r} is not a duration" in ran.err
