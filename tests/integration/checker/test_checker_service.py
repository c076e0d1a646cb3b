"""`outbox checker run`: every group is asked as it is registered, and none delays another."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from functools import partial

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from outbox import Message, Outbox
from outbox.callbacks import CallbackReceiver, Secrets
from outbox.checking import Listeners
from tests.support.callback_peer import SECRET, Line, Peer, Question, answering, reply
from tests.support.checker_process import CheckerProcess, Groups
from tests.support.logins import Logins
from tests.support.outbox_command import outbox as command
from tests.support.waiting import wait_until


def by_http(peer: Peer, path: str = "/outbox") -> dict[str, str]:
    return {"kind": "http", "url": peer.url(path)}


@pytest.mark.feature("S-40", "S-44", "S-45")
def test_a_group_with_a_url_is_asked_and_its_answers_decide(database: str, groups: Groups) -> None:
    def serve(line: Line) -> None:
        while (question := line.read()) is not None:
            state = "COMMIT" if int(question.json["biz_id"]) % 2 else "ROLLBACK"
            line.write(reply(question, json.dumps({"state": state, "remark": "per ledger"}).encode()))

    with Peer(serve) as peer, CheckerProcess(database, ports=(peer.port,)) as checker:
        groups.register("shop", by_http(peer))
        halves = groups.prepare("shop", 10)
        groups.wait_for("shop", {"COMMITTED": 5, "ROLLED_BACK": 5})
    birth, check, decision = groups.events(halves[1])
    assert birth[2] == "UNKNOWN"
    assert check[:2] == ("check", "COMMIT")
    assert decision[2] == "COMMITTED"
    assert f":{checker.pid} " in decision[3]
    assert decision[3].startswith("checker:shop@")
    assert decision[4] == "check 1 answered COMMIT: per ledger"


def test_a_group_with_a_query_is_asked_by_it(database: str, groups: Groups) -> None:
    groups.conn.execute("CREATE TABLE payment (id text PRIMARY KEY, state text)")
    groups.conn.execute("INSERT INTO payment VALUES ('0', 'paid'), ('1', 'failed')")
    query = "SELECT state = 'paid' FROM payment WHERE id = %(biz_id)s"
    groups.register("shop", {"kind": "sql", "query": query})
    groups.prepare("shop", 3)
    with CheckerProcess(database):
        groups.wait_for("shop", {"COMMITTED": 1, "ROLLED_BACK": 1, "UNKNOWN": 1})
        wait_until(lambda: groups.checks("shop") >= 2, "the third is asked about again")
        groups.conn.execute("INSERT INTO payment VALUES ('2', 'paid')")
        groups.wait_for("shop", {"COMMITTED": 2, "ROLLED_BACK": 1})


def test_a_host_outside_the_allow_list_is_a_failed_check(database: str, groups: Groups) -> None:
    with Peer(answering()) as peer, CheckerProcess(database):
        groups.register("shop", by_http(peer), max_checks=2)
        (half,) = groups.prepare("shop")
        groups.wait_for("shop", {"EXHAUSTED": 1})
    assert peer.connections == 0
    checks = [event for event in groups.events(half) if event[0] == "check"]
    assert [answer for _, answer, *_ in checks] == ["UNKNOWN", "UNKNOWN"]
    assert f"127.0.0.1:{peer.port} is not in the allow-list" in checks[0][4]


@pytest.mark.feature("S-46", "S-56")
def test_twenty_groups_are_asked_while_one_hangs_one_fails_and_one_floods(
    database: str, groups: Groups
) -> None:
    with Peer(answering()) as peer:

        def serve(line: Line) -> None:
            while (question := line.read()) is not None:
                if question.target == "/hangs":
                    peer.stopping.wait(120)
                    return
                if question.target == "/raises":
                    return
                state = b'{"state": "UNKNOWN"}' if question.target == "/floods" else b'{"state": "COMMIT"}'
                line.write(reply(question, state))

        peer.serve = serve
        names = [f"g{number}" for number in range(20)]
        for name in ("hangs", "raises", "floods", *names):
            # A group that waited for one that hangs would do so for longer than this test waits for it.
            timeout = "120 s" if name == "hangs" else "3 s"
            groups.register(name, by_http(peer, f"/{name}"), max_checks=1000, check_timeout=timeout)
        groups.prepare("floods", 3000)
        groups.prepare("hangs", 50)
        groups.prepare("raises", 50)
        with CheckerProcess(database, ports=(peer.port,)):
            wait_until(lambda: groups.checks("floods") > 100, "the flood is under way")
            for turn in (1, 2, 3):
                for name in names:
                    groups.prepare(name)
                for name in names:
                    groups.wait_for(name, {"COMMITTED": turn})
            assert groups.checks("hangs") == 0, "the first calls hang still"
            assert groups.checks("floods") > 100, "the flood goes on"
            assert groups.states("hangs") == {"UNKNOWN": 50}
            wait_until(lambda: groups.alarm("raises", "failing"), "who fails is told")


def test_a_changed_callback_is_followed_while_it_runs(database: str, groups: Groups) -> None:
    with Peer(answering(body=b'{"state": "UNKNOWN"}')) as old, Peer(answering()) as new:
        groups.register("shop", by_http(old))
        with CheckerProcess(database, ports=(old.port, new.port)):
            groups.prepare("shop")
            wait_until(lambda: groups.checks("shop"), "the old one is asked")
            groups.register("shop", by_http(new))
            groups.wait_for("shop", {"COMMITTED": 1})


def test_the_role_of_a_checker_suffices(database: str, groups: Groups) -> None:
    user = f"checker_{groups.conn.info.dbname}"
    groups.conn.execute(f"CREATE ROLE {user} LOGIN PASSWORD 'of-a-test' IN ROLE outbox_checker")
    try:
        dsn = make_conninfo(database, user=user, password="of-a-test")
        with Peer(answering()) as peer, CheckerProcess(dsn, ports=(peer.port,)):
            groups.register("shop", by_http(peer))
            groups.prepare("shop", 3)
            groups.wait_for("shop", {"COMMITTED": 3})
            groups.register("own", None, max_age="0.1 s")
            groups.prepare("own", 3)
            wait_until(lambda: groups.alarm("own", "silent"), "nobody answers for it")
            groups.register("query", {"kind": "sql", "query": "SELECT true"})
            groups.prepare("query", 3)
            groups.wait_for("query", {"COMMITTED": 3})
            groups.register(
                "nobody", {"kind": "sql", "query": "SELECT true", "dsn_env": "OUTBOX_CALLBACK_DSN_NONE"}
            )
            groups.prepare("nobody", 3)
            wait_until(lambda: groups.alarm("nobody", "no_checker"), "the alarm is raised")
    finally:
        groups.conn.execute(f"DROP ROLE {user}")


def test_only_the_groups_named_are_looked_after(database: str, groups: Groups) -> None:
    with Peer(answering()) as peer, CheckerProcess(database, "--group", "mine", ports=(peer.port,)):
        for name in ("mine", "other"):
            groups.register(name, by_http(peer))
            groups.prepare(name, 5)
        groups.wait_for("mine", {"COMMITTED": 5})
        groups.prepare("mine", 5)
        groups.wait_for("mine", {"COMMITTED": 10})
    assert groups.states("other") == {"UNKNOWN": 5}


def test_the_body_and_the_secret_are_in_no_log(database: str, groups: Groups) -> None:
    with Peer(answering(body=b"{}")) as peer:
        options = ("--log-level", "debug")
        with CheckerProcess(database, *options, ports=(peer.port,)) as checker:
            groups.register("shop", by_http(peer))
            with groups.conn.transaction():
                Outbox(producer_group="shop").prepare(groups.conn, Message(topic="t", body=b"card 4111"))
            wait_until(lambda: groups.checks("shop") >= 3, "it is asked about some times")
            checker.terminate()
            assert checker.wait() == 0
    assert "4111" not in checker.output()
    assert SECRET not in checker.output()


@pytest.mark.feature("S-42")
def test_a_running_local_transaction_is_left_alone(database: str, groups: Groups) -> None:
    """Held for longer than checks and age allow; asked about, and decided, only after it."""
    with Peer(answering()) as peer, ExitStack() as stack:
        groups.register("shop", by_http(peer), max_checks=1, max_age="1 s")
        (half,) = groups.prepare("shop", check_after=0.5)
        with psycopg.connect(database) as local:
            local.execute("SELECT FROM outbox.message WHERE id = %s FOR UPDATE", [half.id])
            stack.enter_context(CheckerProcess(database, ports=(peer.port,)))
            (other,) = groups.prepare("shop", check_after=0.5)
            wait_until(lambda: len(groups.events(other)) > 1, "its neighbour is decided")
            wait_until(
                lambda: (
                    groups.conn.execute(
                        "SELECT born_at < now() - interval '3 s' FROM outbox.message WHERE id = %s", [half.id]
                    ).fetchone()
                    == (True,)
                ),
                "it is past its age",
            )
            assert len(groups.events(half)) == 1
        wait_until(lambda: len(groups.events(half)) > 1, "it is decided")


def test_check_tells_whether_each_group_can_be_asked(database: str, groups: Groups) -> None:
    groups.register("bad", {"kind": "http", "url": "https://127.0.0.1/"})
    groups.register("good", {"kind": "http", "url": "http://127.0.0.1:8000/x"})
    groups.register("query", {"kind": "sql", "query": "SELECT true FROM pg_am WHERE amname = %(biz_id)s"})
    groups.register("wrong", {"kind": "sql", "query": "SELECT state FROM payment WHERE id = %(biz_id)s"})
    allowed = (
        *("--allow-callback", "127.0.0.1:8000", "--allow-network", "127.0.0.0/8"),
        *("--callback-dsn", database),
    )
    ran = command("checker", "check", *allowed, "--json", OUTBOX_DSN=database, OUTBOX_CALLBACK_SECRET=SECRET)
    assert ran.code == 1
    assert [(one["group"], one["kind"], one["problem"] is None) for one in ran.json] == [
        ("bad", "http", False),
        ("good", "http", True),
        ("query", "sql", True),
        ("wrong", "sql", False),
    ]
    assert ran.json[3]["problem"] == 'its query cannot run: relation "payment" does not exist'
    assert "--allow-callback 127.0.0.1" in ran.json[0]["problem"]
    ran = command("checker", "check", *allowed, "--group", "query", OUTBOX_DSN=database)
    assert ran.code == 0
    ran = command("checker", "check", "--allow-network", "all", OUTBOX_DSN=database)
    assert ran.code == 2


def test_the_receiver_and_the_checker_fit_together(database: str, groups: Groups) -> None:
    """The peer answers by the library's own receiver: both ends as an application and an operator have them."""
    listeners = Listeners()
    listeners.register(lambda view: view.biz_id == "1", checker="payment")
    receiver = CallbackReceiver(listeners, Secrets(SECRET))

    async def serve_one(question: Question) -> list[dict[str, object]]:
        sent: list[dict[str, object]] = []

        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": question.body}

        async def send(event: dict[str, object]) -> None:
            sent.append(event)

        headers = [(name.encode(), value.encode()) for name, value in question.headers.items()]
        scope = {"type": "http", "method": question.method, "path": question.target, "headers": headers}
        await receiver(scope, receive, send)  # type: ignore[arg-type]  # object instead of Any
        return sent

    def serve(line: Line) -> None:
        while (question := line.read()) is not None:
            start, body = asyncio.run(serve_one(question))
            head = "".join(f"{n.decode()}: {v.decode()}\r\n" for n, v in start["headers"])  # type: ignore[attr-defined]
            text = body["body"]
            assert isinstance(text, bytes)
            line.write(f"HTTP/1.1 {start['status']} X\r\n{head}\r\n".encode() + text)

    with Peer(serve) as peer, CheckerProcess(database, ports=(peer.port,)):
        groups.register("shop", by_http(peer))
        groups.prepare("shop", 2, checker="payment")
        groups.wait_for("shop", {"COMMITTED": 1, "ROLLED_BACK": 1})
        groups.prepare("shop", 1, checker="nobody")
        wait_until(lambda: groups.alarm("shop", "no_checker"), "the alarm is raised")


def test_an_operator_reads_no_body_with_the_rights_of_the_checker(
    database: str, groups: Groups, logins: Logins
) -> None:
    """Rows name queries, roles and variables; which login runs them is the process's to say."""
    groups.conn.execute(
        "CREATE TABLE payment (id text PRIMARY KEY, state text); GRANT SELECT ON payment TO PUBLIC"
    )
    groups.conn.execute("INSERT INTO payment VALUES ('0', 'paid')")
    groups.conn.execute("INSERT INTO outbox.message (topic, key, body) VALUES ('salaries', 'k', 'secret')")
    spying = "SELECT convert_from(body, 'UTF8') FROM outbox.message WHERE topic = 'salaries'"
    deeper = f"SELECT set_config('role', 'none', true) || ({spying})"
    groups.register(
        "shop", {"kind": "sql", "query": "SELECT state = 'paid' FROM payment WHERE id = %(biz_id)s"}
    )
    groups.register("plain", {"kind": "sql", "query": spying})
    groups.register("role", {"kind": "sql", "query": deeper, "role": "outbox_checker"})
    groups.register("variable", {"kind": "sql", "query": spying, "dsn_env": "OUTBOX_DSN"})
    groups.register("other", {"kind": "sql", "query": spying, "dsn_env": "DATABASE_URL"})
    spies = ("plain", "role", "variable", "other")
    for name in ("shop", *spies):
        groups.prepare(name)
    checker, asks = logins.make("outbox_checker"), logins.make("pg_monitor")
    variables = {"DATABASE_URL": checker}
    with CheckerProcess(checker, variables={"OUTBOX_CALLBACK_DSN": "", **variables}):
        for name in ("shop", "plain", "role"):
            wait_until(partial(groups.alarm, name, "no_checker"), f"{name} cannot be asked")
            assert "--callback-dsn" in (groups.alarm(name, "no_checker") or "")
    with CheckerProcess(checker, variables={"OUTBOX_CALLBACK_DSN": asks, **variables}):
        groups.wait_for("shop", {"COMMITTED": 1})
        for name in spies[:2]:
            wait_until(partial(groups.checks, name), f"{name} was asked about")
        for name in spies[2:]:
            wait_until(partial(groups.alarm, name, "no_checker"), f"{name} cannot be asked")
            assert "OUTBOX_CALLBACK_DSN_" in (groups.alarm(name, "no_checker") or "")
    said = groups.conn.execute(
        "SELECT remark FROM outbox.pending_check UNION SELECT reason FROM outbox.event "
        "UNION SELECT detail FROM outbox.alarm"
    ).fetchall()
    assert any("permission denied" in str(row[0]) or "InsufficientPrivilege" in str(row[0]) for row in said)
    assert not [row for row in said if "text" in str(row[0]) or "secret" in str(row[0])]
    assert groups.states("plain") == groups.states("role") == groups.states("other") == {"UNKNOWN": 1}
