"""Each command works as a login that has the role which its help names, and no other."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from outbox import Message, Outbox
from outbox_relay.cli.main import main
from outbox_relay.cli.roles import NONE_NEEDED, OWNER, ROLES
from tests.support.checker_process import CheckerProcess
from tests.support.command_tree import leaves
from tests.support.encrypted_bodies import MASTER, encryption
from tests.support.held_keys import hold_key, write_key
from tests.support.inbox_stage import InboxStage
from tests.support.logins import Logins
from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import connect, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.scraping import scrape
from tests.support.waiting import wait_until

NO_RIGHT = ("permission denied", "42501", "must be owner")
PARKED = """
    INSERT INTO outbox.inbox_parked (group_id, message_id, born_on, topic_id, part, off, digest, order_key, key, body,
        header_names, header_values, published_at, state, attempts, fingerprint, error, failed_at)
    SELECT g.id, gen_random_uuid(), current_date, t.id, 0, n, convert_to('d' || n, 'UTF8'),
           convert_to('k' || n, 'UTF8'), 'k', 'secret', '{}', '{}', now(), 'dead', 1, 'ValueError', 'it failed', now()
    FROM outbox.consumer_group g, outbox.inbox_topic t, generate_series(1, 3) n RETURNING id
"""


FINDS = ("checker check", "db check", "status --check", "doctor", "failover scan")
"""Commands that end with 1 for what they find here: fsync is off, messages were never in the database."""
SECRETS = {
    "OUTBOX_TEST_MASTER": f"m2:{b64encode(bytes(32)).decode()} m1:{b64encode(MASTER).decode()}",
    "OUTBOX_CALLBACK_SECRET": "x" * 32,
}


class Stage(NamedTuple):
    """A database in use, and what commands may name of it."""

    dsn: str
    brokers: str
    words: Mapping[str, str]


KAFKA = "--bootstrap-servers {brokers}"
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "db check": ("",),
    "db partitions": ("",),
    "topic create": (f"{{topic}}-new --partitions 1 --replication-factor 1 {KAFKA}",),
    "topic register": (f"{{unregistered}} {KAFKA}",),
    "topic alter": (f"{{topic}} --max-message-bytes 900000 {KAFKA}",),
    "topic repartition": (f"{{grown}} --to 6 --dry-run {KAFKA}", f"{{grown}} --to 6 {KAFKA}"),
    "topic pause": ("{topic} --reason r --timeout 0",),
    "topic resume": ("{topic}",),
    "topic on-growth": ("{topic} alarm",),
    "topic ls": ("",),
    "topic show": ("{topic}", f"{{topic}} {KAFKA}"),
    "group set": (
        "shop --check-after 1min",
        "new --type NORMAL",
        "asked --callback-url https://shop.example.com/",
    ),
    "group ls": ("",),
    "group show": ("shop",),
    "relay ls": ("",),
    "checker check": ("",),
    "status": ("", KAFKA, "--check"),
    "doctor": ("", KAFKA),
    "message send": ("{topic} --key k --body b",),
    "message ls": ("", "--topic {topic} --status COMMITTED", "--biz-id b", "--key k"),
    "message show": ("{committed}", "{half}"),
    "message cancel": ("{delayed} --reason r --wait 0",),
    "holds ls": ("", "--topic {topic} --error MESSAGE_TOO_LARGE --older-than 1h"),
    "holds show": ("{held}",),
    "holds dead": ("{later_1} --reason r --wait 0", "--topic {topic} --reason r --wait 0"),
    "holds skip": (
        "{later_2} --reason r --wait 0",
        "--expired --topic {topic} --reason r --wait 0",
        "--topic {topic} --reason r --wait 0",
    ),
    "holds release": ("{later_1} --reason r --wait 0", "--all"),
    "failover ls": ("",),
    "failover scan": (f"--since 1h {KAFKA}",),
    "dlq ls": ("", "--group {points}", "--retrying"),
    "dlq summary": ("",),
    "dlq show": ("{letter_1}",),
    "dlq export": ("",),
    "dlq discard": ("{letter_2} --yes",),
    "dlq redrive": ("{letter_1}", "--group {points} --yes"),
    "dlq hold": ("",),
    "consumers ls": ("", KAFKA),
    "consumers show": ("{points}", f"{{points}} {KAFKA}"),
    "consumers bind": ("{points} outbox_consumer", "unheard outbox_consumer"),
    "consumers unbind": ("{points}",),
    "consumers pause": ("{points} --reason r", "{points} --topic {topic} --reason r"),
    "consumers resume": ("{points}",),
    "consumers delete": ("unheard --reason r --yes",),
    "consumers reset": (f"{{points}} {{topic}} --to first --yes {KAFKA}",),
    "consumers replay": ("{points} --topic {topic} --from 1h --yes --source {etl}",),
    "key ls": ("", "--subject customer/1"),
    "key destroy": ("customer/1 --yes",),
    "key renew": ("customer/2",),
    "key rewrap": ("--master-key env:OUTBOX_TEST_MASTER",),
    "inbox ls": (f"{KAFKA}", "--without-kafka"),
    "tx ls": ("", "--overdue", "--group shop"),
    "tx show": ("{half}",),
    "tx explain": ("{half}",),
    "tx check": ("{half}",),
    "tx commit": ("{half} --reason r", "--all --group paid --state UNKNOWN --reason r --yes"),
    "tx rollback": ("{half_2} --reason r", "--all --group unpaid --state UNKNOWN --reason r --yes"),
    "history ls": ("", "--without-warehouse --older-than 0s"),
}
"""What each command is called with here; a new command needs an entry, or a test of its own below."""

TESTED_APART = {
    "relay run": "test_relay_checker_and_metrics_work_and_show_figures",
    "checker run": "test_relay_checker_and_metrics_work_and_show_figures",
    "relay drain": "test_relay_checker_and_metrics_work_and_show_figures",
    "console": "tests/integration/console",
    "metrics serve": "test_relay_checker_and_metrics_work_and_show_figures",
    "etl run": "tests/spark/test_roles_of_exports.py",
    "etl backfill": "tests/spark/test_roles_of_exports.py",
    "etl status": "tests/spark/test_roles_of_exports.py",
    "etl reconcile": "tests/spark/test_roles_of_exports.py",
    "db upgrade": "tests/integration/database",
    "db debezium": "tests/integration/database",
    "inbox drop": "tests/integration/inbox/test_inbox_drop.py",
    "history drop": "tests/integration/retention/test_history_command.py",
}

BESIDES = [
    ("doctor --half-message 5", ("outbox_operator", "outbox_producer")),
    ("message cancel {delayed_2} --reason r --wait 0", ("outbox_checker",)),
    ("tx check {half_3}", ("outbox_checker",)),
    ("tx commit {half_3} --reason r", ("outbox_checker",)),
    ("dlq show {letter_3} --body", ("outbox_consumer",)),
    *(
        (f"{words} {KAFKA}", (role,))
        for words in ("status", "doctor")
        for role in ("outbox_relay", "outbox_checker", "outbox_etl", "outbox_operator")
    ),
    ("db partitions --ensure 3", ("outbox_relay",)),
    *(("history ls", (role,)) for role in ("outbox_etl", "outbox_relay")),
]
"""Further calls that the documentation promises to other roles."""


@pytest.fixture
def stage(database: str, bootstrap_servers: str, topic: str, logins: Logins, make_topic: Any) -> Stage:
    unregistered = make_topic()
    words = {
        "topic": topic,
        "unregistered": unregistered,
        "grown": make_topic(),
        "brokers": bootstrap_servers,
    }
    for name in (topic, words["grown"]):
        succeed("topic", "register", name, OUTBOX_DSN=database, OUTBOX_BOOTSTRAP_SERVERS=bootstrap_servers)
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    admin.create_partitions([NewPartitions(words["grown"], 6)])[words["grown"]].result(30)
    words["etl"] = logins.make("outbox_etl").replace(" ", "\x00")
    inbox = InboxStage(database, bootstrap_servers)
    words["points"] = inbox.group
    inbox.produce_numbered(topic, 4)
    with inbox.consumer(topic), RelayProcess(database, bootstrap_servers), connect(database) as conn:
        for name in ("committed", "other"):
            words[name] = str(send(conn, topic, name).id)
        inbox.wait_applied(4)
        wait_published(conn)
    inbox.close()
    with connect(database) as conn:
        words["held"] = str(write_key(conn, topic, "held"))
        hold_key(conn, int(words["held"]))
        for name in ("delayed", "delayed_2", "later_1", "later_2"):
            words[name] = str(send(conn, topic, name, deliver_at=datetime.now(UTC) + timedelta(hours=1)).id)
        for name in ("half", "half_2", "half_3", "paid", "unpaid"):
            group = "shop" if name.startswith("half") else name
            with conn.transaction():
                half = Outbox(producer_group=group).prepare(conn, Message(topic, key=name, body=b"x"))
            words[name] = str(half.id)
        letters = conn.execute(PARKED).fetchall()
        words |= {f"letter_{number}": str(row[0]) for number, row in enumerate(letters, 1)}
        encrypting = Outbox(codecs={topic: encryption()})
        for key in ("1", "2"):
            with conn.transaction():
                encrypting.send(conn, Message(topic, key=key, body=b"x"))
    return Stage(database, bootstrap_servers, words)


def send(conn: psycopg.Connection[Any], topic: str, key: str, **options: Any) -> Any:
    with conn.transaction():
        return Outbox().send(conn, Message(topic, key=key, body=b"x", **options))


def refusals(stage: Stage, call: str, dsn: str) -> list[str]:
    """Run a command; return what shows that a right was missing, or that it ended by a defect."""
    words = [
        word.format_map(stage.words).replace("\x00", " ") for word in call.format_map({**stage.words}).split()
    ]
    ran = outbox(*words, OUTBOX_DSN=dsn, **SECRETS)
    may_fail = call.startswith(FINDS)
    said = [line for line in (ran.out + ran.err).splitlines() if any(text in line for text in NO_RIGHT)]
    wrong = [f"exit code {ran.code}: {ran.err}{ran.out}"] if ran.code > may_fail else []
    return [f"{call}: {line}" for line in [*said, *wrong]]


def test_every_command_has_a_role_and_its_help_names_it() -> None:
    commands = {" ".join(path): command for path, command in leaves(main)}
    assert set(commands) == set(ROLES)
    opened = {words for words, role in ROLES.items() if role != NONE_NEEDED}
    assert opened == set(ARGUMENTS) | set(TESTED_APART)
    for words, role in ROLES.items():
        said = " ".join(outbox(*words.split(), "--help").out.split())
        assert (f"Needs {role}" if role == OWNER else f"Needs the role {role}") in said or not role, words


def test_each_command_works_as_the_role_that_its_help_names(stage: Stage, logins: Logins) -> None:
    as_role = {role: logins.make(role) for role in set(ROLES.values()) if role.startswith("outbox_")}
    found = [
        refusal
        for words, calls in ARGUMENTS.items()
        for arguments in calls
        for refusal in refusals(stage, f"{words} {arguments}", as_role[ROLES[words]])
    ]
    for call, roles in BESIDES:
        dsn = logins.make(roles[0])
        with connect(stage.dsn) as admin:
            for role in roles[1:]:
                admin.execute(f'GRANT {role} TO "{logins.newest}"'.encode())
        found += [f"as {roles}: {refusal}" for refusal in refusals(stage, call, dsn)]
    assert not found, "\n".join(found)


def test_a_login_without_a_role_is_told_the_grant(stage: Stage, logins: Logins) -> None:
    dsn = logins.make("pg_monitor")
    database = stage.dsn.rpartition("/")[2]
    for words, calls in ARGUMENTS.items():
        call = f"{words} {calls[0]}".format_map(stage.words).split()
        ran = outbox(*call, OUTBOX_DSN=dsn, **SECRETS)
        said = " ".join((ran.err + ran.out).split())
        expected = (
            f'user "{logins.newest}" has not the right in database "{database}"; '
            f'expected the role {ROLES[words]}: GRANT {ROLES[words]} TO "{logins.newest}"'
        )
        assert (ran.code, expected in said) == (1, True), f"{words}: {said}"


def test_doctor_goes_on_after_what_it_may_not_read(stage: Stage, logins: Logins) -> None:
    operator = logins.make("outbox_operator")
    ran = outbox("doctor", "--half-message", "1", "--json", OUTBOX_DSN=operator)
    checks = {check["name"]: check for check in ran.json["checks"]}
    assert checks["now"]["level"] in ("ok", "FAILED")
    assert checks["half message"]["level"] == "FAILED"
    assert f'GRANT outbox_operator, outbox_producer TO "{logins.newest}"' in checks["half message"]["repair"]


def test_the_logs_of_relay_and_checker_name_the_grant(stage: Stage, logins: Logins) -> None:
    def names_the_grant(process: RelayProcess, role: str) -> bool:
        expected = f'expected the role {role}: GRANT {role} TO "{logins.newest}"'
        return any(str(event.get("hint", "")).endswith(expected) for event in list(process.events))

    def grant(role: str) -> None:
        with connect(stage.dsn) as admin:
            admin.execute(f'GRANT {role} TO "{logins.newest}"'.encode())

    with RelayProcess(logins.make("outbox_reader"), stage.brokers) as relay:
        wait_until(lambda: names_the_grant(relay, "outbox_relay"), "the relay's log names the GRANT")
        grant("outbox_relay")
        relay.wait_for("lanes taken")
    with CheckerProcess(logins.make("outbox_reader"), "--http", "0") as checker:
        wait_until(lambda: names_the_grant(checker, "outbox_checker"), "the checker's log names the GRANT")
        grant("outbox_checker")
        port = int(checker.wait_for("serving")["port"])
        wait_until(lambda: scrape(port).get(("outbox_check_turns_failed", "shop")) == 0, "turns succeed")


def figures_of(process: RelayProcess) -> set[str]:
    """Return the names of what it shows."""
    return {name[0] for name in scrape(int(process.wait_for("serving")["port"]))}


def test_relay_checker_and_metrics_work_and_show_figures(stage: Stage, logins: Logins) -> None:
    services = [
        RelayProcess(logins.make("outbox_relay"), stage.brokers, "--http", "0"),
        CheckerProcess(logins.make("outbox_checker"), "--http", "0"),
        RelayProcess(
            logins.make("outbox_reader"),
            stage.brokers,
            "--http",
            "0",
            service="metrics",
            action=("serve", "--log-format", "json"),
        ),
    ]
    relay, checker, metrics = services
    operator = logins.make("outbox_operator")
    with relay, checker, metrics:
        for service in (relay, metrics):
            wait_until(
                partial(lambda one: "outbox_partitions_ahead" in figures_of(one), service),
                "it shows what it reads in the database",
            )
        port = int(checker.wait_for("serving")["port"])
        wait_until(lambda: scrape(port).get(("outbox_check_turns_failed", "shop")) == 0, "turns succeed")
        succeed("relay", "drain", "--all", OUTBOX_DSN=operator)
        for service in services:
            assert not [line for line in service.lines if any(text in line for text in NO_RIGHT)]
