"""Who may make which transition: by role, as a login of its own and behind SET ROLE from a superuser's login.

Behind SET ROLE a trigger with the owner's rights sees the owner as current_user and the superuser as session_user; only
the setting "role" tells who acts.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.errors import CheckViolation, InsufficientPrivilege

from outbox import Message, Outbox
from tests.support.logins import Logins
from tests.support.plain_inserts import Connection, connect, insert
from tests.support.stopped_lanes import set_aside, stop_lane

CHANGE = "UPDATE outbox.message SET state = %s, remark = 'why' WHERE id = %s"
STATE = "SELECT state FROM outbox.message WHERE id = %s"
BEHIND = pytest.mark.parametrize("behind", [False, True], ids=["login", "set_role"])


def born(conn: Connection, state: str, group: str | None = "orders") -> int:
    """Write a message, bring it into a state as its rightful owners do, and return its id."""
    half = state in ("UNKNOWN", "EXHAUSTED")
    delayed = {"deliver_at": "2999-01-01"} if state == "delayed" else {}
    insert(conn, "t", "k", b"x", state="UNKNOWN" if half else "COMMITTED", producer_group=group, **delayed)
    id_ = int(one(conn, "SELECT max(id) FROM outbox.message"))
    if state == "EXHAUSTED":
        conn.execute(CHANGE, [state, id_])
    elif state in ("stopped", "in doubt"):
        stop_lane(conn, id_, in_doubt=state == "in doubt")
    elif state == "DEAD":
        set_aside(conn, id_)
    return id_


def one(conn: Connection, statement: str, values: Any = None) -> Any:
    row = conn.execute(statement, values).fetchone()
    assert row is not None
    return row[0]


FORBIDDEN = {
    "outbox_producer": [
        ("UNKNOWN", "EXHAUSTED"),
        ("EXHAUSTED", "COMMITTED"),
        ("EXHAUSTED", "ROLLED_BACK"),
        ("stopped", "DEAD"),
        ("in doubt", "SKIPPED"),
        ("DEAD", "COMMITTED"),
        ("DEAD", "SKIPPED"),
    ],
    "outbox_checker": [
        ("in doubt", "SKIPPED"),
        ("stopped", "DEAD"),
        ("DEAD", "COMMITTED"),
        ("DEAD", "SKIPPED"),
    ],
    "outbox_relay": [
        ("UNKNOWN", "COMMITTED"),
        ("EXHAUSTED", "COMMITTED"),
        ("stopped", "DEAD"),
        ("in doubt", "SKIPPED"),
    ],
    "outbox_consumer": [("UNKNOWN", "COMMITTED"), ("stopped", "DEAD")],
    "outbox_etl": [("UNKNOWN", "COMMITTED"), ("stopped", "DEAD")],
    "outbox_reader": [("UNKNOWN", "COMMITTED"), ("stopped", "DEAD")],
}
ALLOWED = {
    "outbox_producer": [("UNKNOWN", "COMMITTED"), ("UNKNOWN", "ROLLED_BACK"), ("delayed", "CANCELLED")],
    "outbox_checker": [
        ("UNKNOWN", "COMMITTED"),
        ("UNKNOWN", "ROLLED_BACK"),
        ("UNKNOWN", "EXHAUSTED"),
        ("EXHAUSTED", "COMMITTED"),
    ],
    "outbox_operator": [
        ("UNKNOWN", "COMMITTED"),
        ("EXHAUSTED", "COMMITTED"),
        ("EXHAUSTED", "ROLLED_BACK"),
        ("delayed", "CANCELLED"),
        ("stopped", "DEAD"),
        ("in doubt", "SKIPPED"),
        ("DEAD", "COMMITTED"),
        ("DEAD", "SKIPPED"),
    ],
}


@BEHIND
@pytest.mark.parametrize("role", FORBIDDEN)
def test_a_role_makes_no_transition_that_is_not_its_own(logins: Logins, role: str, behind: bool) -> None:
    with connect(logins.dsn) as owner, logins.connect(role, behind=behind) as conn:
        for before, after in FORBIDDEN[role]:
            id_ = born(owner, before)
            was = one(owner, STATE, [id_])
            with pytest.raises(InsufficientPrivilege):
                conn.execute(CHANGE, [after, id_])
            assert one(owner, STATE, [id_]) == was, (before, after)


@BEHIND
@pytest.mark.parametrize("role", ALLOWED)
def test_a_role_makes_the_transitions_that_are_its_own(logins: Logins, role: str, behind: bool) -> None:
    with connect(logins.dsn) as owner, logins.connect(role, behind=behind) as conn:
        for before, after in ALLOWED[role]:
            id_ = born(owner, before)
            assert conn.execute(CHANGE, [after, id_]).rowcount == 1
            assert one(owner, STATE, [id_]) == after


FORBIDDEN_TO_OPERATORS = [
    "SELECT body FROM outbox.message",
    "SELECT headers FROM outbox.message",
    "DELETE FROM outbox.message",
    "UPDATE outbox.message SET body = 'y'",
    "UPDATE outbox.message SET xid = '1'",
    "INSERT INTO outbox.message (topic) VALUES ('t')",
    "INSERT INTO outbox.event (id, message_id, kind, actor) VALUES (1, gen_random_uuid(), 'transition', 'me')",
    "UPDATE outbox.lane SET stopped_message = gen_random_uuid()",
    "UPDATE outbox.lane SET retrying_at = NULL",
    "UPDATE outbox.lease SET leased_until = clock_timestamp()",
    "DELETE FROM outbox.lease",
    "INSERT INTO outbox.publication (epoch) VALUES (1)",
    "DELETE FROM outbox.topic",
    "CREATE TABLE outbox.mine ()",
]


def test_an_operator_reads_no_bodies_and_writes_nothing_else(logins: Logins) -> None:
    with logins.connect("outbox_operator") as conn:
        for statement in FORBIDDEN_TO_OPERATORS:
            with pytest.raises(InsufficientPrivilege):
                conn.execute(statement.encode())
        conn.execute("UPDATE outbox.lane SET retry_requested_at = NULL")
        conn.execute("UPDATE outbox.lease SET is_draining = true")


def test_a_producer_cannot_ask_a_lane_to_be_retried(logins: Logins) -> None:
    """That privilege is what the guards know an operator by."""
    with logins.connect("outbox_producer") as conn, pytest.raises(InsufficientPrivilege):
        conn.execute("UPDATE outbox.lane SET retry_requested_at = clock_timestamp()")


@pytest.mark.parametrize(("outbox_actor", "begins"), [(None, ""), ("shop-7", "shop-7 (")])
def test_the_audit_names_the_role_and_the_login_behind_it(
    logins: Logins, outbox_actor: str | None, begins: str
) -> None:
    with connect(logins.dsn) as owner, logins.connect("outbox_producer", behind=True) as conn:
        id_ = born(owner, "UNKNOWN")
        if outbox_actor is not None:
            conn.execute("SELECT set_config('outbox.actor', %s, false)", [outbox_actor])
        conn.execute(CHANGE, ["COMMITTED", id_])
        actor = one(owner, "SELECT actor FROM outbox.event WHERE to_state = 'COMMITTED'")
        login = one(owner, "SELECT session_user")
        assert actor == f"{begins}{logins.newest}, login {login}{')' if begins else ''}"


def test_no_name_of_a_role_hides_it_from_the_audit(database: str) -> None:
    with psycopg.connect(database) as conn:
        login = one(conn, "SELECT session_user")
        for role, reported in product(("none/", "no", "none/none"), ("", "ne", "/", "none", "none/")):
            conn.execute(sql.SQL("CREATE ROLE {} IN ROLE outbox_producer").format(sql.Identifier(role)))
            conn.execute("SELECT set_config('outbox.actor', %s, true)", [reported])
            conn.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
            acting = f"{role}, login {login}"
            assert one(conn, "SELECT outbox.actor()") == (f"{reported} ({acting})" if reported else acting)
            conn.rollback()  # roles belong to the whole cluster


@pytest.mark.parametrize("state", ["COMMITTED", "ROLLED_BACK", "delayed"])
def test_a_remark_changes_only_with_its_state(logins: Logins, state: str) -> None:
    with connect(logins.dsn) as owner, logins.connect("outbox_producer") as conn:
        id_ = born(owner, state if state == "delayed" else "UNKNOWN")
        if state != "delayed":
            conn.execute(CHANGE, [state, id_])
        for who in (conn, owner):
            with pytest.raises(CheckViolation, match="its remark changes only together with its state"):
                who.execute("UPDATE outbox.message SET remark = 'forged' WHERE id = %s", [id_])
            # The same again is no change.
            who.execute("UPDATE outbox.message SET state = state, remark = remark WHERE id = %s", [id_])


def test_an_undecided_message_may_say_why_it_is(logins: Logins) -> None:
    with connect(logins.dsn) as owner, logins.connect("outbox_producer") as conn:
        id_ = born(owner, "UNKNOWN")
        conn.execute("UPDATE outbox.message SET remark = 'the listener raised' WHERE id = %s", [id_])
        assert one(owner, "SELECT remark FROM outbox.message WHERE id = %s", [id_]) == "the listener raised"
        assert one(owner, "SELECT count(*) FROM outbox.event WHERE id = %s", [id_]) == 1


# Groups that are bound to a role -------------------------------------------------------------------------


def bind(owner: Connection, group: str, role: str | None) -> None:
    owner.execute(
        "INSERT INTO outbox.producer_group (name, role) VALUES (%s, %s) "
        "ON CONFLICT (name) DO UPDATE SET role = EXCLUDED.role",
        [group, role],
    )


@BEHIND
def test_a_bound_groups_messages_are_decided_by_its_role_only(logins: Logins, behind: bool) -> None:
    with (
        connect(logins.dsn) as owner,
        logins.connect("outbox_producer", behind=behind) as shop,
    ):
        bind(owner, "shop", logins.newest)
        with logins.connect("outbox_producer", behind=behind) as other:
            for before, after in [
                ("UNKNOWN", "COMMITTED"),
                ("UNKNOWN", "ROLLED_BACK"),
                ("delayed", "CANCELLED"),
            ]:
                id_ = born(owner, before, "shop")
                with pytest.raises(InsufficientPrivilege, match="producer group 'shop'") as caught:
                    other.execute(CHANGE, [after, id_])
                assert "outbox group show 'shop'" in str(caught.value.diag.message_hint)
                assert shop.execute(CHANGE, [after, id_]).rowcount == 1
            with pytest.raises(InsufficientPrivilege, match="producer group 'shop'"):
                other.execute(
                    "UPDATE outbox.message SET remark = 'x' WHERE id = %s", [born(owner, "UNKNOWN", "shop")]
                )
            # A group that is not bound, or not registered, is everybody's, as before.
            bind(owner, "free", None)
            for group in ("free", "unheard-of"):
                assert other.execute(CHANGE, ["COMMITTED", born(owner, "UNKNOWN", group)]).rowcount == 1


def test_checkers_and_operators_decide_for_bound_groups(logins: Logins) -> None:
    with connect(logins.dsn) as owner:
        bind(owner, "shop", "outbox_etl")
        for role in ("outbox_checker", "outbox_operator"):
            with logins.connect(role) as conn:
                assert conn.execute(CHANGE, ["COMMITTED", born(owner, "UNKNOWN", "shop")]).rowcount == 1


def test_a_group_bound_to_a_role_that_is_gone_is_left_to_operators(logins: Logins) -> None:
    with connect(logins.dsn) as owner, logins.connect("outbox_producer") as producer:
        bind(owner, "shop", "no such role")
        id_ = born(owner, "UNKNOWN", "shop")
        with pytest.raises(InsufficientPrivilege, match="producer group 'shop'"):
            producer.execute(CHANGE, ["COMMITTED", id_])
        with logins.connect("outbox_operator") as operator:
            assert operator.execute(CHANGE, ["COMMITTED", id_]).rowcount == 1


def test_the_library_decides_for_a_bound_group_as_its_role(logins: Logins) -> None:
    outbox = Outbox(producer_group="shop")
    with connect(logins.dsn) as owner, psycopg.connect(logins.make("outbox_producer")) as conn:
        bind(owner, "shop", logins.newest)
        half = outbox.prepare(conn, Message("t", body=b"x"))
        conn.commit()
        assert outbox.commit(conn, half).state == "COMMITTED"


# Triggers ------------------------------------------------------------------------------------------------


def test_the_guards_act_whatever_session_replication_role_says(database: str) -> None:
    """As replica, the change would keep its old xid and position: no relay would find it."""
    with connect(database) as conn:
        id_ = born(conn, "UNKNOWN")
        before = one(conn, "SELECT position FROM outbox.message WHERE id = %s", [id_])
        conn.execute("SET session_replication_role = replica")
        conn.execute(CHANGE, ["COMMITTED", id_])
        assert one(conn, "SELECT position FROM outbox.message WHERE id = %s", [id_]) > before
        assert one(conn, "SELECT count(*) FROM outbox.event WHERE to_state = 'COMMITTED'") == 1
        with pytest.raises(CheckViolation, match="cannot be born DEAD"):
            conn.execute("INSERT INTO outbox.message (topic, state) VALUES ('t', 'DEAD')")


def test_every_partition_has_the_guards_that_always_act(database: str) -> None:
    with connect(database) as conn:
        conn.execute("SELECT outbox.add_partition(1000)")
        found = conn.execute(
            "SELECT t.tgrelid::regclass::text, t.tgname, t.tgenabled::text FROM pg_trigger t "
            "WHERE t.tgname IN ('message_admission', 'message_caller', 'message_transition')"
        ).fetchall()
        assert {enabled for _, _, enabled in found} == {"A"}
        partitions = one(conn, "SELECT count(*) FROM outbox.partition")
        assert len(found) == 3 * (partitions + 1)
