"""A transition needs the permission of whoever's code runs, as well as of whoever acts.

Code of a stranger runs while another role acts: as an index expression under ANALYZE, as a trigger of a table that
references another one, in a function with its owner's rights. The stranger is an ordinary producer; the group is bound
to a role of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql
from psycopg.errors import InsufficientPrivilege

from tests.support.logins import Logins
from tests.support.plain_inserts import Connection, connect, insert

STATE = "SELECT state FROM outbox.message WHERE id = %s"


class Bound:
    """A half message of a bound group, an innocent one, and a stranger with a schema of its own."""

    def __init__(self, dsn: str, logins: Logins) -> None:
        self.owner = connect(dsn)
        self.member = logins.connect("outbox_producer")
        self.member_name = logins.newest
        self.stranger = logins.connect("outbox_producer")
        self.name = logins.newest
        self.owner.execute(
            "INSERT INTO outbox.producer_group (name, role) VALUES ('bound', %s)", [self.member_name]
        )
        self.owner.execute(sql.SQL("CREATE SCHEMA theirs AUTHORIZATION {}").format(sql.Identifier(self.name)))
        self.owner.execute("GRANT USAGE ON SCHEMA theirs TO PUBLIC")
        self.half = self._half("bound")
        self.open = self._half(None)

    def _half(self, group: str | None) -> int:
        insert(self.owner, "t", "k", b"x", state="UNKNOWN", producer_group=group or "open")
        row = self.owner.execute("SELECT max(id) FROM outbox.message").fetchone()
        assert row is not None
        return int(row[0])

    def decider(
        self, name: str, *, id_: int, rights: str = "INVOKER", conn: Connection | None = None
    ) -> None:
        (conn or self.stranger).execute(
            f"""
            CREATE FUNCTION theirs.{name}() RETURNS void LANGUAGE plpgsql SECURITY {rights} AS $$
            BEGIN
                UPDATE outbox.message SET state = 'COMMITTED', remark = 'mine' WHERE id = {id_} AND state = 'UNKNOWN';
            END $$
            """
        )

    def state(self, id_: int) -> str:
        row = self.owner.execute(STATE, [id_]).fetchone()
        assert row is not None
        return str(row[0])


@pytest.fixture
def bound(database: str, logins: Logins) -> Iterator[Bound]:
    made = Bound(database, logins)
    yield made
    for conn in (made.member, made.stranger):
        conn.close()
    made.owner.execute("DROP SCHEMA theirs CASCADE")
    made.owner.close()


def index_expression(bound: Bound) -> str:
    """Let an index of the stranger decide when somebody else computes it."""
    bound.stranger.execute(
        f"""
        CREATE FUNCTION theirs.f(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
        BEGIN IF session_user <> '{bound.name}' THEN PERFORM theirs.decide(); END IF; RETURN i; END $$;
        CREATE TABLE theirs.t (i int); CREATE INDEX t_f ON theirs.t (theirs.f(i));
        INSERT INTO theirs.t SELECT generate_series(1, 100)
        """
    )
    return "ANALYZE theirs.t"


def reindexed(bound: Bound) -> str:
    index_expression(bound)
    return "REINDEX INDEX theirs.t_f"


def cascade(bound: Bound) -> str:
    """Let a trigger of the stranger's table decide when a row that it references is deleted."""
    bound.owner.execute(
        "CREATE TABLE public.customer (id int PRIMARY KEY); INSERT INTO public.customer VALUES (1)"
    )
    bound.owner.execute(
        sql.SQL("GRANT REFERENCES, SELECT ON public.customer TO {}").format(sql.Identifier(bound.name))
    )
    bound.stranger.execute(
        """
        CREATE TABLE theirs.t (id int REFERENCES public.customer ON DELETE CASCADE);
        INSERT INTO theirs.t VALUES (1);
        CREATE FUNCTION theirs.fires() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN PERFORM theirs.decide(); RETURN OLD; END $$;
        CREATE TRIGGER t BEFORE DELETE ON theirs.t FOR EACH ROW EXECUTE FUNCTION theirs.fires()
        """
    )
    return "DELETE FROM public.customer"


@pytest.mark.parametrize("trap", [index_expression, reindexed, cascade])
def test_code_of_a_stranger_decides_nothing_of_a_bound_group_while_a_superuser_acts(
    bound: Bound, trap: object
) -> None:
    bound.decider("decide", id_=bound.half)
    with pytest.raises(InsufficientPrivilege, match="is of producer group 'bound'"):
        bound.stranger.execute("SELECT theirs.decide()")
    assert callable(trap)
    statement = trap(bound)
    with pytest.raises(InsufficientPrivilege, match=f"may not be changed by code of {bound.name}, while"):
        bound.owner.execute(statement)
    assert bound.state(bound.half) == "UNKNOWN"
    # The innocent: its member decides.
    bound.member.execute("UPDATE outbox.message SET state = 'COMMITTED' WHERE id = %s", [bound.half])
    assert bound.state(bound.half) == "COMMITTED"


def test_autovacuum_is_refused_as_analyze_is_and_goes_on(bound: Bound) -> None:
    bound.decider("decide", id_=bound.half)
    statement = index_expression(bound)
    with contextlib.suppress(psycopg.Error):
        bound.owner.execute(statement)
    bound.stranger.execute("DROP INDEX theirs.t_f")
    bound.owner.execute(statement)
    assert bound.state(bound.half) == "UNKNOWN"


def test_an_operators_transition_is_not_made_by_code_of_a_stranger(bound: Bound) -> None:
    bound.stranger.execute(
        f"""
        CREATE FUNCTION theirs.decide() RETURNS void LANGUAGE sql AS
        'UPDATE outbox.message SET state = ''EXHAUSTED'', remark = ''mine'' WHERE id = {bound.open}'
        """
    )
    with pytest.raises(InsufficientPrivilege, match="may not be changed by code"):
        bound.owner.execute(index_expression(bound))
    assert bound.state(bound.open) == "UNKNOWN"


def test_a_function_with_its_owners_rights_decides_what_owner_and_caller_may_decide(bound: Bound) -> None:
    bound.decider("decide", id_=bound.half, rights="DEFINER")
    with pytest.raises(InsufficientPrivilege, match="may not be changed by code of") as raised:
        bound.member.execute("SELECT theirs.decide()")
    assert f"GRANT {bound.member_name} TO {bound.name}" in str(raised.value.diag.message_hint)
    bound.owner.execute(
        sql.SQL("GRANT {} TO {}").format(sql.Identifier(bound.member_name), sql.Identifier(bound.name))
    )
    bound.member.execute("SELECT theirs.decide()")
    assert bound.state(bound.half) == "COMMITTED"


@pytest.mark.parametrize("rights", ["DEFINER", "INVOKER"])
def test_a_function_of_the_schemas_owner_decides_for_its_callers(bound: Bound, rights: str) -> None:
    bound.decider("decide", id_=bound.half, rights=rights, conn=bound.owner)
    with pytest.raises(InsufficientPrivilege, match="is of producer group 'bound'"):
        bound.stranger.execute("SELECT theirs.decide()")
    bound.member.execute("SELECT theirs.decide()")
    assert bound.state(bound.half) == "COMMITTED"


def test_a_group_that_is_not_bound_is_decided_by_any_function_of_a_producer(bound: Bound) -> None:
    bound.decider("decide", id_=bound.open, rights="DEFINER")
    bound.member.execute("SELECT theirs.decide()")
    assert bound.state(bound.open) == "COMMITTED"


def test_set_role_is_the_acting_role(database: str, bound: Bound) -> None:
    with connect(database) as conn:
        conn.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(bound.member_name)))
        conn.execute("UPDATE outbox.message SET state = 'COMMITTED' WHERE id = %s", [bound.half])
    assert bound.state(bound.half) == "COMMITTED"
