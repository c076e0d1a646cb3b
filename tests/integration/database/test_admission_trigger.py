"""The trigger on INSERT acts with the owner's rights in the writer's session: the writer's settings change no rule."""

from __future__ import annotations

from itertools import product
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from tests.support.logins import Logins
from tests.support.plain_inserts import connect

CONDITIONS = """
    SELECT tgrelid::regclass::text, tgname FROM pg_trigger
    WHERE tgrelid IN (SELECT 'outbox.message'::regclass UNION SELECT name FROM outbox.partition)
        AND tgtype & 4 <> 0 AND (tgqual IS NOT NULL OR tgname <> 'message_admission')
"""
"""Triggers on INSERT (4) other than the one that all rows pay for, and a WHEN, which is read from text each time."""
SHADOWED = """
    CREATE TABLE hostile.called (name text);
    CREATE FUNCTION hostile.note(what text) RETURNS void LANGUAGE sql AS
        $$ INSERT INTO hostile.called VALUES (what || ' as ' || current_user) $$;
    CREATE FUNCTION hostile.equal(text, text) RETURNS boolean LANGUAGE plpgsql AS
        $$ BEGIN PERFORM hostile.note('='); RETURN true; END $$;
    CREATE OPERATOR hostile.= (LEFTARG = text, RIGHTARG = text, FUNCTION = hostile.equal);
    CREATE OPERATOR hostile.<> (LEFTARG = text, RIGHTARG = text, FUNCTION = hostile.equal);
    CREATE FUNCTION hostile.has_function_privilege(name, regprocedure, text) RETURNS boolean LANGUAGE plpgsql AS
        $$ BEGIN PERFORM hostile.note('has_function_privilege'); RETURN true; END $$;
    CREATE FUNCTION hostile.has_function_privilege(name, oid, text) RETURNS boolean LANGUAGE plpgsql AS
        $$ BEGIN PERFORM hostile.note('has_function_privilege'); RETURN true; END $$;
    CREATE FUNCTION hostile.current_setting(text) RETURNS text LANGUAGE plpgsql AS
        $$ BEGIN PERFORM hostile.note('current_setting'); RETURN 'none'; END $$;
    GRANT USAGE ON SCHEMA hostile TO PUBLIC;
    GRANT INSERT ON hostile.called TO PUBLIC;
"""


def test_an_insert_of_a_message_pays_for_one_trigger_without_a_condition(database: str) -> None:
    with connect(database) as conn:
        conn.execute("SELECT outbox.add_partition(1000)")
        assert conn.execute(CONDITIONS).fetchall() == []


def test_what_the_writers_search_path_names_is_not_called(logins: Logins, database: str) -> None:
    with (
        connect(database) as admin,
        psycopg.connect(logins.make("outbox_producer"), autocommit=True) as writer,
    ):
        admin.execute("CREATE SCHEMA hostile")
        admin.execute(SHADOWED)
        writer.execute("SET search_path = hostile, pg_catalog")
        with pytest.raises(psycopg.errors.CheckViolation) as refused:
            writer.execute("INSERT INTO outbox.message (topic, headers, lane) VALUES ('t', '[1]', 0)")
        assert refused.value.diag.constraint_name == "message_headers_are_text"
        writer.execute("INSERT INTO outbox.message (topic, lane) VALUES ('t', 0)")
        writer.execute(
            "INSERT INTO outbox.message (topic, state, producer_group) VALUES ('t', 'UNKNOWN', 'g')"
        )
        assert admin.execute("SELECT DISTINCT name FROM hostile.called").fetchall() == []


@pytest.mark.parametrize("id_", [1, 4711, 2**47, 2**48 - 1])
def test_a_message_id_carries_the_id_and_differs_each_time(database: str, id_: int) -> None:
    with connect(database) as conn:
        made = [
            row[0]
            for row in conn.execute(
                "SELECT outbox.new_message_id(%s) FROM generate_series(1, 1000)", [id_]
            ).fetchall()
        ]
        assert len(set(made)) == 1000
        assert {each.version for each in made} == {8}
        assert {each.int >> 80 for each in made} == {id_}
        assert {each.variant for each in made} == {"specified in RFC 4122"}
        assert conn.execute("SELECT outbox.id_of(%s)", [made[0]]).fetchone() == (id_,)
        pid = conn.info.backend_pid
        assert {each.int >> 64 & 0xFFF for each in made} == {pid & 0xFFF}
        assert {each.int >> 52 & 0x3FF for each in made} == {pid >> 12}
        # Each random bit is set in some and not in others; random() of PostgreSQL 14 has only 48.
        seen = [set(bits) for bits in zip(*(f"{each.int & (2**52 - 1):052b}" for each in made), strict=True)]
        assert all(bits == {"0", "1"} for bits in seen[:48])
        assert all(
            bits == ({"0", "1"} if conn.info.server_version >= 150000 else {"0"}) for bits in seen[48:]
        )


def test_a_message_id_has_its_layout_whatever_the_process_and_the_random_number(database: str) -> None:
    """The expression of the function, with literals in place of the process id and of random()."""
    with connect(database) as conn:
        row = conn.execute(
            "SELECT pg_get_function_sqlbody('outbox.new_message_id(bigint)'::regprocedure)"
        ).fetchone()
        assert row is not None
        expression = row[0].removeprefix("RETURN ")
        assert (expression.count("pg_backend_pid()"), expression.count("random()")) == (2, 1)
        for id_, pid, number in product(
            [1, 2**47, 2**48 - 1],
            [1, 4095, 4096, 2**21 + 5, 2**22 - 1],  # the largest of Linux
            [0.0, 2.0**-52, 0.5, 1 - 2.0**-48, 1 - 2.0**-52, 1 - 2.0**-53],  # the last: had it 53 bits
        ):
            literal = expression.replace("pg_backend_pid()", f"{pid}").replace(
                "random()", f"{number!r}::float8"
            )
            made = conn.execute(f"SELECT {literal} FROM (VALUES ({id_}::bigint)) AS given (id)").fetchone()
            low = 2 << 62 | (pid >> 12) << 52 | int(number * 2**52)
            expected = UUID(int=id_ << 80 | 8 << 76 | (pid & 0xFFF) << 64 | low)
            assert made == (expected,), (id_, pid, number)
            assert (expected.version, expected.variant) == (8, "specified in RFC 4122")


IN_AN_APPLICATION = """
    CREATE FUNCTION app.send(headers jsonb, producer_group text, deliver_before timestamptz) RETURNS void
    LANGUAGE sql SECURITY DEFINER AS $$
        INSERT INTO outbox.message (topic, lane, headers, producer_group, deliver_before) VALUES ('t', 0, $1, $2, $3)
    $$;
    GRANT USAGE ON SCHEMA app TO PUBLIC
"""


@pytest.mark.parametrize("trusted", ["owner", "login", "neither"])
@pytest.mark.parametrize(
    ("values", "rule"),
    [
        (("[1]", None, None), "message_headers_are_text"),
        (("{}", "halves", None), "message_type_is_the_groups"),
        (("{}", None, "10000-01-01 UTC"), "message_deliver_before_is_later"),
    ],
)
def test_in_a_function_with_its_owners_rights_the_logins_trust_counts(
    logins: Logins, database: str, trusted: str, values: tuple[str | None, ...], rule: str
) -> None:
    with connect(database) as admin, logins.connect("outbox_producer") as owner:
        grant = sql.SQL("GRANT outbox_trusted_producer TO {}")
        admin.execute(
            "INSERT INTO outbox.producer_group (name, message_type) VALUES ('halves', 'TRANSACTION')"
        )
        admin.execute(sql.SQL("CREATE SCHEMA app AUTHORIZATION {}").format(sql.Identifier(logins.newest)))
        if trusted == "owner":
            admin.execute(grant.format(sql.Identifier(logins.newest)))
        owner.execute(IN_AN_APPLICATION)
        with logins.connect("outbox_producer") as login:
            if trusted == "login":
                admin.execute(grant.format(sql.Identifier(logins.newest)))
                assert login.execute("SELECT app.send(%s, %s, %s)", values).rowcount == 1
                return
            with pytest.raises(psycopg.errors.CheckViolation) as refused:
                login.execute("SELECT app.send(%s, %s, %s)", values)
            assert refused.value.diag.constraint_name == rule


def test_a_trusted_writers_null_is_not_a_state(database: str) -> None:
    with connect(database) as owner, pytest.raises(psycopg.errors.CheckViolation) as refused:
        owner.execute("INSERT INTO outbox.message (topic, lane, state) VALUES ('t', 0, NULL)")
    assert refused.value.diag.constraint_name == "message_state_is_a_birth"


@pytest.mark.parametrize("off_after", [(), ("tags",), ("tags", "index_keys")])
def test_rules_do_not_change_with_the_writers_way_to_read_strings(
    logins: Logins, off_after: tuple[str, ...]
) -> None:
    """PL/pgSQL reads a string when a session reaches it for the first time, as the session's setting has it."""
    wrong = {"tags": "{a|b}", "index_keys": '{"a b"}', "traceparent": "x"}
    rules = {"tags": "tags_are_separable", "index_keys": "index_keys_are_separable"}

    def refuse(writer: psycopg.Connection, column: str) -> None:
        insert = sql.SQL("INSERT INTO outbox.message (topic, {}) VALUES ('t', %s)").format(
            sql.Identifier(column)
        )
        with pytest.raises(psycopg.errors.CheckViolation) as refused:
            writer.execute(insert, [wrong[column]])
        rule = rules.get(column, "traceparent_is_w3c")
        assert refused.value.diag.constraint_name == f"message_{rule}"

    with logins.connect("outbox_producer") as writer:
        for column in off_after:
            refuse(writer, column)
        writer.execute("SET standard_conforming_strings = off")
        writer.execute("INSERT INTO outbox.message (topic) VALUES ('t')")
        for column in wrong:
            refuse(writer, column)
        unusual = {"tags": '{"a b"}', "index_keys": '{NULLs,"s"}', "headers": '{"ce": "\\\\"}'}
        writer.execute(
            "INSERT INTO outbox.message (topic, tags, index_keys, headers) VALUES ('t', %s, %s, %s::jsonb)",
            [*unusual.values()],
        )
