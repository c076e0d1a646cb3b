"""Databases for tests: copies of one migrated template, made in tens of milliseconds."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import uuid
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from outbox_migrations.api import upgrade
from outbox_relay.downloads.cache import locked
from tests.support import hostile


class Databases:
    """Makes and drops the databases of tests on one server."""

    def __init__(self, admin_dsn: str, run: Path) -> None:
        """Take a DSN that may create databases, and the run's directory: its processes share one template."""
        self.admin_dsn, self._run = admin_dsn, run
        self.template = f"outbox_template_{uuid.uuid5(uuid.NAMESPACE_URL, f'{run} {admin_dsn}').hex[:12]}"
        self._made: list[str] = []
        self._template_is_there = False
        self._kept: psycopg.Connection | None = None

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Keep one connection for all makes and drops, for a server that nobody kills: each would take a new one."""
        with psycopg.connect(self.admin_dsn, autocommit=True) as self._kept:
            yield

    def make(self, *, migrated: bool = True) -> str:
        """Make a database and answer its DSN."""
        name = f"test_{uuid.uuid4().hex[:16]}"
        self._create(name, self._migrated_template() if migrated else "template0")
        self._made.append(name)
        return with_database(self.admin_dsn, name)

    def drop_made(self) -> None:
        """Drop what `make` made, whoever is still connected."""
        while self._made:
            self._drop(self._made.pop())

    def _migrated_template(self) -> str:
        """Make the template if this is the first process that needs it, and answer its name.

        It gets its name when it is whole, so that an interrupted migration is never taken for a template.
        """
        if self._template_is_there:
            return self.template
        with locked(self._run / f"{self.template}.lock"), self._admin() as admin:
            there = admin.execute("select from pg_database where datname = %s", [self.template]).fetchone()
            if there is None:
                part = f"{self.template}_part"
                self._drop(part)
                self._create(part, "template0")
                upgrade(with_database(self.admin_dsn, part))
                with psycopg.connect(with_database(self.admin_dsn, part)) as made:
                    made.execute(hostile.DOUBLES)
                admin.execute(
                    sql.SQL("alter database {} rename to {}").format(
                        sql.Identifier(part), sql.Identifier(self.template)
                    )
                )
        self._template_is_there = True
        return self.template

    def _create(self, name: str, template: str) -> None:
        with self._admin() as admin:
            # Since PostgreSQL 15 it would write each page of the template into the WAL, which costs twice as much.
            strategy = " strategy file_copy" if admin.info.server_version >= 150_000 else ""
            admin.execute(
                sql.SQL("create database {} template {}" + strategy).format(
                    sql.Identifier(name), sql.Identifier(template)
                )
            )

    def _drop(self, name: str) -> None:
        with self._admin() as admin:
            admin.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))

    @contextmanager
    def _admin(self) -> Iterator[psycopg.Connection]:
        if self._kept is not None and not self._kept.closed:
            yield self._kept
            return
        with psycopg.connect(self.admin_dsn, autocommit=True) as connection:
            yield connection


def spare_the_disk(admin_dsn: str) -> None:
    """Have a server that ends with the run not wait for the disk: each DROP DATABASE is a checkpoint.

    What it commits outlives the death of its processes all the same; only a crash of the machine could lose it.
    """
    with psycopg.connect(admin_dsn, autocommit=True) as admin:
        admin.execute("alter system set fsync = off")
        admin.execute("select pg_reload_conf()")


def surprise(admin_dsn: str) -> None:
    """Set what the sessions of a run begin with to what nobody has in mind; see `tests.support.hostile`."""
    with psycopg.connect(admin_dsn, autocommit=True) as admin:
        for name, value in hostile.FOR_EVERYBODY.items():
            # A list of names is a list, not one quoted name.
            given = sql.SQL(value) if name == "search_path" else sql.Literal(value)
            admin.execute(sql.SQL("alter system set {} = ").format(sql.Identifier(name)) + given)
        admin.execute("select pg_reload_conf()")


def hasten_logins(admin_dsn: str) -> None:
    """Store the administrator's password so that SCRAM repeats its hash once, not 4,096 times, for both ends.

    A run logs in some twenty thousand times, and half of what that costs is the repetition. The password stays.
    """
    with psycopg.connect(admin_dsn, autocommit=True) as admin:
        admin.execute(
            sql.SQL("alter role current_user password {}").format(
                sql.Literal(_verifier(admin.info.password, secrets.token_bytes(16)))
            )
        )


def _verifier(password: str, salt: bytes, iterations: int = 1) -> str:
    """Return what PostgreSQL stores of a password (RFC 5803; pg_authid in its documentation)."""

    def keyed(key: bytes, text: bytes) -> bytes:
        return hmac.digest(key, text, "sha256")

    def text(data: bytes) -> str:
        return b64encode(data).decode()

    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)
    stored = hashlib.sha256(keyed(salted, b"Client Key")).digest()
    return f"SCRAM-SHA-256${iterations}:{text(salt)}${text(stored)}:{text(keyed(salted, b'Server Key'))}"


def with_database(dsn: str, database: str) -> str:
    """Point a DSN, a URL or keywords, at another database of its server."""
    if "://" in dsn:
        return urlunsplit(urlsplit(dsn)._replace(path=f"/{database}"))
    return make_conninfo(dsn, dbname=database)
