"""The app of Django: its migrations, system checks and command, in a project of its own processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import settings
from django.core.checks import CheckMessage
from django.core.management import CommandError, call_command
from django.db import connections, migrations

from outbox.adapters.django.checks import check_databases, check_schema
from outbox.adapters.django.revisions import REVISIONS
from outbox.adapters.django.upgrading import UpgradeOutbox
from outbox_migrations import api
from tests.support.django_project import alias_of, databases
from tests.support.logins import Logins
from tests.support.plain_inserts import connect
from tests.support.servers import MakeDatabase

ROOT = Path(__file__).resolve().parent.parent.parent.parent
SETTINGS = """
import json, os
DATABASES = json.loads(os.environ["SHOP_DATABASES"])
INSTALLED_APPS = ["outbox.adapters.django"]
USE_TZ = True
"""
Manage = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def manage(tmp_path: Path) -> Manage:
    """Runs `manage.py` of a project with the app."""
    (tmp_path / "shop_settings.py").write_text(SETTINGS)

    def run(*arguments: str, **aliases: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        paths = [str(tmp_path), str(ROOT), *(str(ROOT / each) for each in ("relay", "migrations"))]
        return subprocess.run(
            [sys.executable, "-m", "django", *arguments],
            env={
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "shop_settings",
                "SHOP_DATABASES": json.dumps(aliases),
                "PYTHONPATH": ":".join(paths),
            },
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_the_apps_migrations_bring_the_revisions_of_the_schema() -> None:
    assert REVISIONS[-1] == api.head()
    found = sorted(path.stem for path in (ROOT / "outbox/adapters/django/migrations").glob("0*.py"))
    versions = (ROOT / "migrations/outbox_migrations/versions").glob("v*.py")
    assert found == sorted(path.stem.removeprefix("v") for path in versions)
    assert tuple(name[:4] for name in found) == REVISIONS


def test_migrate_makes_the_schema_of_the_command(
    manage: Manage, make_database: MakeDatabase, database: str
) -> None:
    empty = make_database(migrated=False)
    ran = manage("migrate", "--no-color", default=alias_of(empty))
    assert ran.returncode == 0, ran.stderr
    assert "Applying outbox_kafka.0004_isolation... OK" in ran.stdout
    catalogue = (
        "SELECT relkind::text, relname FROM pg_class WHERE relnamespace = 'outbox'::regnamespace ORDER BY 2"
    )
    with connect(empty) as mine, connect(database) as other:
        assert mine.execute(catalogue).fetchall() == other.execute(catalogue).fetchall()
    assert api.status(empty).is_current
    assert manage("makemigrations", "--check", default=alias_of(empty)).returncode == 0


def test_migrate_finds_the_work_done_and_goes_on_from_there(
    manage: Manage, make_database: MakeDatabase
) -> None:
    for target in ("0001", "head"):
        dsn = make_database(migrated=False)
        api.upgrade(dsn, target)
        assert manage("migrate", default=alias_of(dsn)).returncode == 0
        assert api.status(dsn).is_current


def test_an_alias_without_the_outbox_gets_none(
    manage: Manage, make_database: MakeDatabase, database: str
) -> None:
    empty = make_database(migrated=False)
    lite = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    for alias in ("other", "lite"):
        ran = manage(
            "migrate", "--database", alias, default=alias_of(database), other=alias_of(empty), lite=lite
        )
        assert ran.returncode == 0, ran.stderr
    assert api.status(empty).current is None


def test_sqlmigrate_prints_what_migrate_runs(manage: Manage, make_database: MakeDatabase) -> None:
    empty = make_database(migrated=False)
    parts = [manage("sqlmigrate", "outbox_kafka", each, default=alias_of(empty)) for each in REVISIONS]
    with connect(empty) as conn:
        for part in parts:
            assert part.returncode == 0, part.stderr
            conn.execute(part.stdout)
    assert api.status(empty).is_current
    ran = manage("migrate", "outbox_kafka", default=alias_of(empty))
    assert ran.returncode == 0
    ran = manage("migrate", "outbox_kafka", "zero", default=alias_of(empty))
    assert "IrreversibleError" in ran.stderr


def test_a_migration_of_the_hosts_that_fails_takes_the_upgrade_along(make_database: MakeDatabase) -> None:
    empty = make_database(migrated=False)
    with databases(default=alias_of(empty)):
        wrapper = connections["default"]
        state = migrations.state.ProjectState()
        with pytest.raises(InterruptedError), wrapper.schema_editor(atomic=True) as editor:
            fail_after(lambda: UpgradeOutbox("0002").database_forwards("outbox_kafka", editor, state, state))
        assert api.status(empty).current is None
        with (
            pytest.raises(api.CallersConnectionError, match="is in autocommit"),
            wrapper.schema_editor(atomic=False) as editor,
        ):
            UpgradeOutbox("0002").database_forwards("outbox_kafka", editor, state, state)
    assert api.status(empty).current is None


def fail_after(work: Callable[[], object]) -> None:
    work()
    raise InterruptedError


def ids(found: list[CheckMessage]) -> list[str]:
    return [f"{each.id} {each.msg} {each.hint}" for each in found]


def test_checks_pass_where_all_is_well(manage: Manage, database: str) -> None:
    ran = manage("check", "--database", "default", "--fail-level", "WARNING", default=alias_of(database))
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
            "outbox.E002 A database with the outbox is of",
        ),
        ({"ENGINE": "django.db.backends.dummy"}, "outbox.E002 A database with the outbox is of"),
        ({"CONN_MAX_AGE": 60}, "outbox.W001 DATABASES['default'] keeps connections"),
        ({"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True}, None),
        ({"OPTIONS": {"prepare_threshold": 5}}, "outbox.W002 DATABASES['default'] prepares statements"),
    ],
)
def test_a_setting_that_loses_messages_is_found(changed: dict[str, Any], expected: str | None) -> None:
    with databases(default={**alias_of("dbname=x"), **changed}):
        found = ids(check_databases())
    assert len(found) == (expected is not None)
    assert expected is None or found[0].startswith(expected)


def test_aliases_of_the_outbox_are_checked(settings_of_outbox: Callable[[Any], None]) -> None:
    with databases(default=alias_of("dbname=x")):
        settings_of_outbox(["default", "missing"])
        assert ids(check_databases()) == [
            "outbox.E001 OUTBOX_DATABASES names 'missing', which is not in DATABASES. Name some of 'default'."
        ]
        settings_of_outbox("default")
        assert ids(check_databases())[0].startswith("outbox.E001 OUTBOX_DATABASES is 'default'. Give a list")


@pytest.fixture
def settings_of_outbox(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    return lambda aliases: monkeypatch.setattr(settings, "OUTBOX_DATABASES", aliases, raising=False)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        ("DROP SCHEMA outbox CASCADE", "outbox.W003 The outbox schema in DATABASES['default'] is missing"),
        (
            "UPDATE outbox.schema_version SET version_num = '0001'",
            "is 0001, this version needs 0004. Run: manage.py",
        ),
        ("UPDATE outbox.schema_version SET version_num = '0005', oldest_software = '0005'", "outbox.E003"),
        ("UPDATE outbox.schema_version SET version_num = '0005'", None),
    ],
)
def test_a_schema_of_another_revision_is_found(database: str, damage: str, expected: str | None) -> None:
    with psycopg.connect(database) as conn:
        conn.execute(damage)
    with databases(default=alias_of(database)):
        assert check_schema(databases=None) == []
        assert check_schema(databases=["other"]) == []
        found = ids(check_schema(databases=["default"]))
    assert len(found) == (expected is not None)
    assert all(expected in each for each in found if expected is not None)


@pytest.mark.parametrize("role", ["pg_monitor", "outbox_consumer", "outbox_producer"])
def test_a_user_without_the_right_to_send_is_found(logins: Logins, role: str) -> None:
    with databases(default=alias_of(logins.make(role))):
        found = ids(check_schema(databases=["default"]))
    assert [each[:11] for each in found] == ([] if role == "outbox_producer" else ["outbox.E004"])
    assert all("GRANT outbox_producer" in each for each in found)


def test_the_command_runs_on_the_database_of_an_alias(manage: Manage, make_database: MakeDatabase) -> None:
    dsns = [make_database(migrated=False) for _ in range(2)]
    aliases = dict(zip(("default", "other"), map(alias_of, dsns), strict=True))
    for alias, dsn in zip(aliases, dsns, strict=True):
        chosen = [] if alias == "default" else ["--database", alias]
        assert api.status(dsn).current is None
        ran = manage("outbox", *chosen, "db", "upgrade", "--json", **aliases)
        assert json.loads(ran.stdout)["from"] is None, ran.stderr
        assert api.status(dsn).is_current
        again = manage("outbox", *chosen, "nonsense", **aliases)
        assert (again.returncode, "No such command 'nonsense'" in again.stderr) == (2, True)


def test_the_command_called_by_code_raises_what_failed(database: str) -> None:
    with databases(default=alias_of(database)):
        call_command("outbox", "topic", "ls")
        with pytest.raises(CommandError, match="outbox nonsense failed"):
            call_command("outbox", "nonsense")
        with pytest.raises(CommandError, match="'missing' is not in DATABASES"):
            call_command("outbox", "status", database="missing")
