"""A consumer group that is bound to a role: what other consumers of the database can do to it, and to other groups.

The stranger is a login with the role outbox_consumer. Rows of a bound group are hidden from it: what it reads, changes
or deletes is nothing, and what it inserts is refused. One that starts a consumer of the group is told so.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg import sql

from tests.support.inbox_stage import Connection, InboxStage
from tests.support.locks import wait_for_waiting
from tests.support.logins import Logins
from tests.support.outbox_command import succeed

TABLES = {
    "consumer_group": ("name, subscription, orderly", "('other', '{}', false)", "dead_letter_topic = 'evil'"),
    "consumer_member": (
        "group_id, member, subscription, orderly",
        "({id}, 'evil', '{{}}', false)",
        "orderly = true",
    ),
    "consumer_pause": (
        "group_id, topic, reason",
        "({id}, 'evil', 'evil')",
        "resumed_at = now(), resumed_by = 'evil'",
    ),
    "inbox": (
        "group_id, message_id, born_on, topic_id, part, off, digest",
        "({id}, gen_random_uuid(), current_date, 1, 0, 99, 'd')",
        None,
    ),
    "inbox_position": (
        "group_id, topic_id, part, next_off",
        "({id}, 1, 7, 99)",
        "next_off = next_off + 1000000",
    ),
    "inbox_held_key": ("group_id, topic_id, order_key", "({id}, 1, 'evil')", "since = since"),
    "inbox_parked": (
        (
            "group_id, message_id, born_on, topic_id, part, off, digest, body, header_names, header_values, "
            "published_at, state, attempts"
        ),
        "({id}, gen_random_uuid(), current_date, 1, 0, 99, 'd', 'evil', '{{}}', '{{}}', now(), 'dead', 1)",
        "body = 'evil', state = 'retry', due_at = now()",
    ),
    "inbox_run": (
        "group_id, topic_id, part, off, message_id, born_on, is_retry, member",
        "({id}, 1, 0, 99, gen_random_uuid(), current_date, false, 'evil')",
        "runs = runs + 1",
    ),
    "inbox_replay": (
        "group_id, topic_id, selection, source, again, orderly, published_before",
        "({id}, 1, '{{}}', 'evil', true, false, now())",
        "finished_at = now()",
    ),
}
"""The tables whose rows belong to groups: an insert for a group, and a change."""
OF_GROUPS = sorted(set(TABLES) - {"consumer_group"})
DELETED = ("consumer_member", "inbox_held_key", "inbox_parked", "inbox_run")
"""Tables from which a consumer may delete rows."""


class Groups:
    """A group of which each table has a row: bound to the role of its owner, and another one beside it that is not."""

    def __init__(self, inbox: InboxStage, logins: Logins) -> None:
        self.conn, self.dsn, self.name = inbox.conn, inbox.dsn, inbox.group
        self.owner = logins.make("outbox_consumer")
        self.role = logins.newest
        self.ids = {name: self._make(name) for name in (self.name, "innocent")}

    def _make(self, name: str) -> int:
        self.conn.execute(
            "INSERT INTO outbox.consumer_group (name, subscription, orderly) VALUES (%s, '{}', false)", [name]
        )
        self.conn.execute(
            "INSERT INTO outbox.inbox_topic (name, kafka_id) VALUES ('t', 'c/t') ON CONFLICT DO NOTHING"
        )
        [(number,)] = self.conn.execute(
            "SELECT id FROM outbox.consumer_group WHERE name = %s", [name]
        ).fetchall()
        for table in OF_GROUPS:
            self.insert(self.conn, table, int(number))
        return int(number)

    def bind(self) -> None:
        """Bind the group of the test, by the command."""
        succeed("consumers", "bind", self.name, self.role, "--dsn", self.dsn)

    def insert(self, conn: Connection, table: str, number: int) -> None:
        """Insert a row of a group."""
        columns, values, _ = TABLES[table]
        conn.execute(f"INSERT INTO outbox.{table} ({columns}) VALUES {values.format(id=number)}".encode())

    def rows(self, table: str, name: str) -> list[tuple[object, ...]]:
        """All that a table has of a group, read by a superuser."""
        column = "id" if table == "consumer_group" else "group_id"
        query = f"SELECT * FROM outbox.{table} WHERE {column} = {self.ids[name]} ORDER BY 1, 2, 3"
        return self.conn.execute(query.encode()).fetchall()


@pytest.fixture
def groups(inbox: InboxStage, logins: Logins) -> Groups:
    return Groups(inbox, logins)


@pytest.fixture
def stranger(logins: Logins, groups: Groups) -> Iterator[Connection]:
    """A consumer of another application, after the group was bound."""
    groups.bind()
    with logins.connect("outbox_consumer") as conn:
        yield conn


def _changes(table: str) -> list[str]:
    change = TABLES[table][2]
    found = [] if change is None else [f"UPDATE outbox.{table} SET {change}"]
    return found + ([f"DELETE FROM outbox.{table}"] if table in DELETED else [])


@pytest.mark.parametrize("table", TABLES)
def test_a_stranger_reads_rows_of_its_own_groups_only(
    groups: Groups, stranger: Connection, table: str
) -> None:
    column = "id" if table == "consumer_group" else "group_id"
    query = sql.SQL("SELECT {}, t::text FROM {} t").format(
        sql.Identifier(column), sql.Identifier("outbox", table)
    )
    assert {row[0] for row in stranger.execute(query).fetchall()} == {groups.ids["innocent"]}
    assert groups.rows(table, groups.name), "the table has a row of the bound group, too"


@pytest.mark.parametrize("table", TABLES)
def test_what_a_stranger_changes_is_of_its_own_groups_only(
    groups: Groups, stranger: Connection, table: str
) -> None:
    before = groups.rows(table, groups.name)
    for statement in _changes(table):
        assert stranger.execute(statement.encode()).rowcount == 1, (
            f"{statement}: the row of the innocent group"
        )
    assert groups.rows(table, groups.name) == before


@pytest.mark.parametrize("table", OF_GROUPS)
def test_a_stranger_inserts_no_row_of_a_bound_group(groups: Groups, stranger: Connection, table: str) -> None:
    before = groups.rows(table, groups.name)
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security policy") as refused:
        groups.insert(stranger, table, groups.ids[groups.name])
    assert table in str(refused.value)
    assert groups.rows(table, groups.name) == before


@pytest.mark.parametrize("table", TABLES)
def test_a_stranger_locks_no_row_of_a_bound_group(groups: Groups, stranger: Connection, table: str) -> None:
    if not _changes(table):
        return  # a row is locked by those only who may change it
    with stranger.transaction():
        locked = stranger.execute(f"SELECT FROM outbox.{table} FOR UPDATE".encode()).fetchall()
        assert len(locked) == 1
        column = "id" if table == "consumer_group" else "group_id"
        query = f"SELECT FROM outbox.{table} WHERE {column} = {groups.ids[groups.name]} FOR UPDATE NOWAIT"
        with groups.conn.transaction():
            assert groups.conn.execute(query.encode()).fetchall()


@pytest.mark.parametrize("partition", ["inbox_default", "inbox_d"])
def test_nobody_reaches_a_partition_of_the_inbox_by_its_own_name(
    groups: Groups, stranger: Connection, partition: str
) -> None:
    if partition == "inbox_d":  # one that was made after the policies
        assert stranger.execute("SELECT outbox.ensure_inbox_partition(current_date + 5)").fetchone() == (
            True,
        )
        row = groups.conn.execute("SELECT 'inbox_d' || to_char(current_date + 5, 'YYYYMMDD')").fetchone()
        assert row is not None
        partition = row[0]
    table = sql.Identifier("outbox", partition)
    for statement in ("SELECT FROM {}", "INSERT INTO {} SELECT * FROM outbox.inbox", "DELETE FROM {}"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for table inbox_d"):
            stranger.execute(sql.SQL(statement).format(table))


def test_a_stranger_does_not_bind_unbind_or_join_by_a_setting(groups: Groups, stranger: Connection) -> None:
    for statement in (
        "UPDATE outbox.consumer_group SET role = NULL",
        "INSERT INTO outbox.consumer_group (name, subscription, orderly, role) VALUES ('x', '{}', false, 'x')",
    ):
        with pytest.raises(
            psycopg.errors.InsufficientPrivilege, match="permission denied for table consumer_group"
        ):
            stranger.execute(statement.encode())
    stranger.execute("SET row_security = off")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
        stranger.execute("SELECT body FROM outbox.inbox_parked")


def test_an_index_function_of_a_stranger_reads_nothing_in_the_superusers_analyze(
    groups: Groups, stranger: Connection
) -> None:
    groups.conn.execute(
        sql.SQL("GRANT CREATE ON SCHEMA public TO {}").format(sql.Identifier(stranger.info.user))
    )
    for statement in (
        "CREATE TABLE public.loot (body bytea)",
        """CREATE FUNCTION public.peek() RETURNS bigint LANGUAGE sql VOLATILE AS
           'INSERT INTO public.loot SELECT body FROM outbox.inbox_parked; SELECT 1::bigint'""",
        """CREATE FUNCTION public.seemingly(n bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS
           'BEGIN RETURN public.peek(); END'""",
        "CREATE TABLE public.trap (n bigint)",
        "CREATE INDEX ON public.trap (public.seemingly(n))",
        "TRUNCATE public.loot",
        "INSERT INTO public.trap VALUES (1)",
        "TRUNCATE public.loot",
    ):
        stranger.execute(statement.encode())
    groups.conn.execute(
        "UPDATE outbox.inbox_parked SET body = 'secret' WHERE group_id = %s", [groups.ids[groups.name]]
    )
    groups.conn.execute("ANALYZE public.trap")
    found = {bytes(body) for (body,) in stranger.execute("SELECT body FROM public.loot").fetchall()}
    assert found <= {b"evil"}, "only the body of the innocent group's message"


def test_members_of_the_role_and_operators_see_the_group_and_readers_no_bodies(
    groups: Groups, stranger: Connection, logins: Logins
) -> None:
    mine, both = groups.ids[groups.name], set(groups.ids.values())
    with psycopg.connect(groups.owner, autocommit=True) as conn:
        assert conn.execute("SELECT body FROM outbox.inbox_parked WHERE group_id = %s", [mine]).fetchall()
    for role in ("outbox_operator", "outbox_reader"):
        with logins.connect(role) as conn:
            assert {
                row[0] for row in conn.execute("SELECT group_id FROM outbox.inbox_parked").fetchall()
            } == both
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied"):
                conn.execute("SELECT body FROM outbox.inbox_parked")
    # Who reads everything and consumes, too, does not get bodies of groups by the sum of both.
    with logins.connect("outbox_reader") as conn:
        groups.conn.execute(sql.SQL("GRANT outbox_consumer TO {}").format(sql.Identifier(conn.info.user)))
        assert {row[0] for row in conn.execute("SELECT group_id FROM outbox.inbox_parked").fetchall()} < both


def test_a_group_of_a_role_that_was_dropped_is_left_to_operators(
    groups: Groups, stranger: Connection, logins: Logins
) -> None:
    groups.conn.execute("UPDATE outbox.consumer_group SET role = 'gone' WHERE name = %s", [groups.name])
    with psycopg.connect(groups.owner, autocommit=True) as conn:
        assert len(conn.execute("SELECT FROM outbox.consumer_group").fetchall()) == 1
    operator = logins.make("outbox_operator")
    succeed("consumers", "unbind", groups.name, "--dsn", operator)
    assert len(stranger.execute("SELECT FROM outbox.consumer_group").fetchall()) == 2


def test_two_operators_who_bind_groups_at_once_bind_both(
    groups: Groups, stranger: Connection, logins: Logins
) -> None:
    bind = "UPDATE outbox.consumer_group SET role = %s WHERE name = %s"
    with (
        ThreadPoolExecutor(1) as pool,
        logins.connect("outbox_operator") as first,
        logins.connect("outbox_operator") as second,
    ):
        with first.transaction():
            first.execute(bind, ["outbox_etl", groups.name])
            waiting = pool.submit(second.execute, bind, ["outbox_etl", "innocent"])
            wait_for_waiting(groups.conn, "UPDATE outbox.consumer_group%")
        assert waiting.result(60).rowcount == 1
        second.execute("SET default_transaction_isolation = 'repeatable read'")
        with pytest.raises(psycopg.errors.InvalidTransactionState, match="that is repeatable read"):
            second.execute(bind, [None, groups.name])
    assert not stranger.execute("SELECT FROM outbox.inbox_parked").fetchall()
    for name in groups.ids:
        succeed("consumers", "unbind", name, "--dsn", groups.dsn)
    assert len(stranger.execute("SELECT FROM outbox.inbox_parked").fetchall()) == 2
    assert "RETURN true" in str(
        groups.conn.execute("SELECT pg_get_functiondef('outbox.sees_group'::regproc)").fetchone()
    )
