"""docs/operations/roles.md: each right and each refusal that the page states is tried here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, NamedTuple

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from outbox import Message, Outbox
from outbox_migrations.api import upgrade
from tests.support.logins import Logins
from tests.support.plain_inserts import Connection, connect
from tests.support.servers import MakeDatabase

PAGE = (Path(__file__).parents[3] / "docs" / "operations" / "roles.md").read_text(encoding="utf-8")
SAID = " ".join(PAGE.split())
PARKED = """
    INSERT INTO outbox.consumer_group (name, subscription, orderly)
    VALUES ('billing', '{}', false), ('points', '{}', false);
    INSERT INTO outbox.inbox_topic (name, kafka_id) VALUES ('t', 'c/t');
    INSERT INTO outbox.inbox_parked (group_id, message_id, born_on, topic_id, part, off, digest, key, body,
        header_names, header_values, published_at, state, attempts)
    SELECT g.id, gen_random_uuid(), current_date, t.id, 0, 1, 'd', 'k', 'secret', '{}', '{}', now(), 'dead', 1
    FROM outbox.consumer_group g, outbox.inbox_topic t;
    INSERT INTO outbox.inbox_position (group_id, topic_id, part, next_off)
    SELECT g.id, t.id, 0, 5 FROM outbox.consumer_group g, outbox.inbox_topic t;
"""
Outcome = Literal["allowed", "refused", "nothing"]


class Claim(NamedTuple):
    """A part of a sentence of the page, and a statement that shows it."""

    said: str
    login: str
    statement: str
    outcome: Outcome


def _all(said: str, logins: str, statement: str, outcome: Outcome) -> list[Claim]:
    return [Claim(said, login, statement, outcome) for login in logins.split()]


SERVICES = "outbox_relay outbox_checker outbox_etl"
BODY = "SELECT body FROM outbox.message"
COMMIT = "UPDATE outbox.message SET state = 'COMMITTED' WHERE id = {half}"
COMMIT_BOUND = "UPDATE outbox.message SET state = 'COMMITTED' WHERE id = {bound}"
SEND = "INSERT INTO outbox.message (topic, key, producer_group) VALUES ('t', 'k', 'payments')"
STATED = (
    "INSERT INTO outbox.message (topic, key, producer_group, lane) "
    "VALUES ('t', 'k', 'payments', outbox.lane_of('t', NULL, 'k', 0))"
)
PARKED_BODIES = (
    "SELECT body FROM outbox.inbox_parked p JOIN outbox.consumer_group g ON g.id = p.group_id WHERE name = "
)
PARKED_BODY = f"{PARKED_BODIES}'billing'"
OTHERS_FIND = "other consumers find no position, inbox, parked body"
ALL_BUT = "all but keys and what consumers have parked"
OF_BILLING = "(SELECT id FROM outbox.consumer_group WHERE name = 'billing')"
CLAIMS = [
    *_all("everything but bodies, headers", "outbox_reader outbox_operator", BODY, "refused"),
    *_all(
        "everything but bodies, headers",
        "outbox_reader outbox_operator",
        "SELECT headers FROM outbox.message",
        "refused",
    ),
    *_all(
        "everything but bodies, headers",
        "outbox_reader outbox_operator",
        "SELECT body FROM outbox.inbox_parked",
        "refused",
    ),
    *_all(
        "everything but bodies, headers",
        "outbox_reader",
        "SELECT status, topic, key FROM outbox.message_status",
        "allowed",
    ),
    Claim("keys of encryption | nothing", "outbox_reader", "SELECT id FROM outbox.subject_key", "refused"),
    Claim("keys of encryption | nothing", "outbox_reader", COMMIT, "refused"),
    Claim(
        "the same, and wrapped keys", "outbox_operator", "SELECT wrapped FROM outbox.subject_key", "allowed"
    ),
    *_all("decides, cancels", "outbox_operator outbox_checker", COMMIT_BOUND, "allowed"),
    Claim(
        "registers topics and groups",
        "outbox_operator",
        "INSERT INTO outbox.topic (name, partitions) VALUES ('n', 1)",
        "allowed",
    ),
    Claim("resets positions", "outbox_operator", "UPDATE outbox.inbox_position SET next_off = 0", "allowed"),
    Claim("discards dead letters", "outbox_operator", "DELETE FROM outbox.inbox_parked", "allowed"),
    Claim("destroys keys", "outbox_operator", "SELECT outbox.destroy_keys('customer/1')", "allowed"),
    *_all("bodies; all but keys", SERVICES, BODY, "allowed"),
    *_all(
        "all but keys and what consumers have parked",
        SERVICES,
        "SELECT id FROM outbox.subject_key",
        "refused",
    ),
    *_all(
        "all but keys and what consumers have parked",
        SERVICES,
        "SELECT body FROM outbox.inbox_parked",
        "refused",
    ),
    *_all("decides nothing", "outbox_relay outbox_etl", COMMIT, "refused"),
    Claim(
        "the checker cannot publish",
        "outbox_checker",
        "INSERT INTO outbox.publication (epoch) VALUES (1)",
        "refused",
    ),
    *_all(
        "certificates, which alone",
        "outbox_relay outbox_checker outbox_operator outbox_producer",
        "INSERT INTO outbox.certificate DEFAULT VALUES",
        "refused",
    ),
    Claim(
        "states and keys of messages; no bodies",
        "outbox_producer",
        "SELECT state, key FROM outbox.message",
        "allowed",
    ),
    Claim("states and keys of messages; no bodies", "outbox_producer", BODY, "refused"),
    Claim("keys of encryption |", "outbox_producer", "SELECT wrapped FROM outbox.subject_key", "allowed"),
    Claim("Producers trust each other unless", "outbox_producer", COMMIT, "allowed"),
    Claim("only members of that role", "outbox_producer", COMMIT_BOUND, "refused"),
    Claim("only members of that role", "member", COMMIT_BOUND, "allowed"),
    Claim("send in its name", "outbox_producer", SEND, "refused"),
    Claim("send in its name", "member", SEND, "allowed"),
    Claim(
        "register the name first with another type",
        "outbox_producer",
        "INSERT INTO outbox.producer_group (name, message_type) VALUES ('theirs', 'NORMAL')",
        "allowed",
    ),
    Claim(
        "the operator repairs it",
        "outbox_operator",
        "UPDATE outbox.producer_group SET message_type = 'MIXED' WHERE name = 'payments'",
        "allowed",
    ),
    Claim(
        "or change a callback",
        "outbox_producer",
        "UPDATE outbox.producer_group SET callback = NULL",
        "refused",
    ),
    Claim(
        "cannot read or change a body", "outbox_producer", "UPDATE outbox.message SET body = 'x'", "refused"
    ),
    Claim(
        "publish what was not committed",
        "outbox_producer",
        "INSERT INTO outbox.publication (epoch) VALUES (1)",
        "refused",
    ),
    Claim(
        "lock half messages of groups that are not bound",
        "outbox_producer",
        "SELECT id FROM outbox.message WHERE id = {half} FOR UPDATE",
        "allowed",
    ),
    Claim(
        "It can add keys of encryption",
        "outbox_producer",
        "INSERT INTO outbox.subject_key (id, subject, wrapped, master_id) VALUES (gen_random_uuid(), 's', 'w', 'm')",
        "allowed",
    ),
    Claim("Consumers trust each other unless", "outbox_consumer", f"{PARKED_BODIES}'points'", "allowed"),
    Claim("other consumers find no position, inbox, parked body", "outbox_consumer", PARKED_BODY, "nothing"),
    Claim("other consumers find no position, inbox, parked body", "consumer_member", PARKED_BODY, "allowed"),
    Claim(
        "other consumers find no position",
        "outbox_consumer",
        "SELECT next_off FROM outbox.inbox_position WHERE group_id = {billing}",
        "nothing",
    ),
    Claim(
        "and write none",
        "outbox_consumer",
        "UPDATE outbox.inbox_position SET next_off = 9 WHERE group_id = {billing}",
        "nothing",
    ),
    Claim(
        "and write none",
        "outbox_consumer",
        "INSERT INTO outbox.inbox (group_id, message_id, born_on, topic_id, part, off, digest) "
        "VALUES ({billing}, gen_random_uuid(), current_date, 1, 0, 1, 'd')",
        "refused",
    ),
    Claim("sends in the name of any group", "trusted", STATED, "allowed"),
    Claim("sends in the name of any group", "outbox_producer", STATED, "refused"),
]


@pytest.fixture
def words(database: str, logins: Logins) -> dict[str, Any]:
    """A database with a bound and an unbound group of either kind, and a login for each name of a claim."""
    found: dict[str, Any] = {}
    with connect(database) as conn:
        conn.execute("INSERT INTO outbox.topic (name, partitions) VALUES ('t', 1)")
        conn.execute(
            "INSERT INTO outbox.message (topic, key, body, headers) VALUES ('t', 'k', 'secret', '{}')"
        )
        for name, group in (("half", "orders"), ("bound", "payments")):
            with conn.transaction():
                found[name] = Outbox(producer_group=group).prepare(conn, Message("t", key="k", body=b"x")).id
        conn.execute(PARKED)
        conn.execute(
            "INSERT INTO outbox.subject_key (id, subject, wrapped, master_id) "
            "VALUES (gen_random_uuid(), 'customer/1', 'w', 'm')"
        )
        row = conn.execute(f"SELECT {OF_BILLING}").fetchone()
        found["billing"] = row and row[0]
        found["member"] = logins.make("outbox_producer")
        conn.execute(
            "INSERT INTO outbox.producer_group (name, message_type, role) VALUES ('payments', 'MIXED', %s)",
            [logins.newest],
        )
        found["consumer_member"] = logins.make("outbox_consumer")
        conn.execute("UPDATE outbox.consumer_group SET role = %s WHERE name = 'billing'", [logins.newest])
        found["trusted"] = logins.make("outbox_producer")
        conn.execute(f'GRANT outbox_trusted_producer TO "{logins.newest}"'.encode())
    return found


def outcome_of(conn: Connection, statement: str) -> Outcome:
    try:
        with conn.transaction(force_rollback=True):
            return "allowed" if conn.execute(statement.encode()).rowcount else "nothing"
    except psycopg.errors.InsufficientPrivilege:
        return "refused"


def test_each_right_and_each_refusal_of_the_page_is_true(words: dict[str, Any], logins: Logins) -> None:
    wrong = []
    dsns: dict[str, str] = {}
    for claim in CLAIMS:
        assert claim.said in SAID, claim.said
        if claim.login not in dsns:
            dsns[claim.login] = words.get(claim.login) or logins.make(claim.login)
        with connect(dsns[claim.login]) as conn:
            found = outcome_of(conn, claim.statement.format_map(words))
        if found != claim.outcome:
            wrong.append(f"{claim.login}: {claim.statement}: {found}, not {claim.outcome} ({claim.said!r})")
    assert not wrong, "\n".join(wrong)


def test_the_statements_of_the_page_make_the_logins(database: str, logins: Logins) -> None:
    block = re.search(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    names = re.findall(r"CREATE ROLE (\w+)", block[1])
    unique = {name: f"{name}_{abs(hash(database)) % 10**8}" for name in names}
    text = re.sub(r"\b(" + "|".join(names) + r")\b", lambda found: unique[found[1]], block[1])
    with connect(database) as conn:
        conn.execute("CREATE TABLE payments (id text)")
        text = text.replace("DATABASE shop", f'DATABASE "{conn.info.dbname}"')
        try:
            conn.execute(text.encode())
            for name, role in re.findall(r"GRANT (outbox_\w+) TO (\w+)", text):
                assert conn.execute("SELECT pg_has_role(%s, %s, 'USAGE')", [role, name]).fetchone() == (True,)
        finally:
            for name in unique.values():
                conn.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())


@pytest.mark.parametrize("may_create", [True, False])
def test_an_upgrade_needs_create_on_the_database_and_no_superuser(
    make_database: MakeDatabase, may_create: bool
) -> None:
    assert "It needs CREATE on the database" in SAID
    dsn = make_database(migrated=False)
    made = Logins(dsn)
    try:
        owner = made.make("pg_monitor")
        with connect(dsn) as admin:
            name = admin.info.dbname
            if may_create:
                admin.execute(f'GRANT CREATE ON DATABASE "{name}" TO "{made.newest}"'.encode())
        owner = make_conninfo(owner)
        if may_create:
            upgrade(owner)
            with connect(owner) as conn:
                assert conn.execute("SELECT count(*) FROM outbox.message").fetchone() == (0,)
        else:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                upgrade(owner)
    finally:
        made.drop()


def test_the_page_is_short() -> None:
    assert len(PAGE.split()) <= 900
