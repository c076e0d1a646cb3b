"""Connection strings: no password is ever shown, whatever the form, and errors say what to do."""

from __future__ import annotations

import click
import psycopg
import pytest

from outbox_relay.cli.relay.databases import chosen
from outbox_relay.database import connections
from outbox_relay.database.connections import DsnError, connect, masked, parameters, place, unreachable
from outbox_relay.text.masking import mask_text

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        (f"postgresql://u:{SECRET}@h:5433/shop", "postgresql://u:***@h:5433/shop"),
        (f"postgres://u:{SECRET}@h/shop?sslmode=require", "postgresql://u:***@h/shop?sslmode=require"),
        (f"postgresql://h/shop?user=u&password={SECRET}", "postgresql://u:***@h/shop"),
        (f"postgresql://u:{SECRET}%40x@h1:1,h2:2/shop", "postgresql://u:***@h1:1,h2:2/shop"),
        (f"postgresql://u:{SECRET}@[::1]:5432/shop", "postgresql://u:***@[::1]:5432/shop"),
        (f"postgresql://u:{SECRET}@/shop?host=/tmp", "postgresql://u:***@/shop?host=/tmp"),
        ("postgresql://u@h/shop", "postgresql://u@h/shop"),
        (f"host=h dbname=shop user=u password={SECRET}", "host=h dbname=shop user=u password=***"),
        (f"host=h dbname=shop password='{SECRET} \\' x'", "host=h dbname=shop password=***"),
        (f"host=h dbname=shop sslpassword={SECRET}", "host=h dbname=shop sslpassword=***"),
    ],
)
def test_a_password_is_masked_in_every_form(dsn: str, shown: str) -> None:
    hidden = masked(dsn)
    assert SECRET not in hidden
    if dsn.startswith("postgres"):
        assert hidden == shown
    else:
        assert sorted(hidden.split()) == sorted(shown.split())


@pytest.mark.parametrize(
    "dsn",
    [
        SECRET,
        f"host=h password=a {SECRET}",
        f"postgresql://u:a@{SECRET}@h/shop",
        f"postgresql://u:a/{SECRET}@h/shop",
        f"postgresql://u:{SECRET}@h:port:x/shop?what",
    ],
)
def test_a_connection_string_that_cannot_be_read_is_not_repeated(dsn: str) -> None:
    assert SECRET not in masked(dsn)
    with pytest.raises(DsnError) as caught:
        parameters(dsn)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert "--dsn" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        f"connection to postgresql://u:{SECRET}@h/x failed",
        f"password={SECRET} host=h",
        f"PASSWORD = '{SECRET}'",
        f'{{"password": "{SECRET}"}}',
        f"sasl.password={SECRET}",
        f"user=u&password={SECRET}&x=1",
        f"sasl.oauthbearer.client.secret={SECRET}",
        f"'sasl.oauthbearer.client.secret': '{SECRET}'",
        f"ssl.key.pem=-----BEGIN PRIVATE KEY-----\nMII {SECRET}\n-----END PRIVATE KEY-----",
        f"-----BEGIN ENCRYPTED PRIVATE KEY-----\n{SECRET}",
        f"ssl.certificate.pem={SECRET}",
        f"sasl.oauthbearer.assertion.private.key.passphrase = {SECRET}",
        f"sasl.oauthbearer.config=principal=x secret_key={SECRET}",
        f"sasl.jaas.config='org.apache Login required {SECRET}'",
        f"ssl.keystore.password={SECRET}",
        f"spark.hadoop.fs.s3a.secret.key={SECRET}",
        f"s3.access-key={SECRET}",
        f"credential-token={SECRET}",
    ],
)
def test_text_that_looks_like_a_password_is_masked_anywhere(text: str) -> None:
    assert SECRET not in mask_text(text)


@pytest.mark.parametrize(
    "secrets", [["pass", "password-long"], ["password-long", "pass"], ["", "password-long"]]
)
def test_known_passwords_are_masked_wherever_they_are(secrets: list[str]) -> None:
    assert mask_text("role password-long does not exist", secrets) == "role *** does not exist"


def test_text_without_a_password_is_left_alone() -> None:
    text = "relation outbox.message at postgresql://h:5432/shop does not exist (password authentication)"
    assert mask_text(text) == text


@pytest.mark.parametrize(
    ("dsn", "named"),
    [
        ("postgresql://u@h:5433/shop", 'database "shop" at h:5433'),
        ("host=h dbname=shop", 'database "shop" at h:5432'),
        ("postgresql://u@h1:1,h2:2/shop", 'database "shop" at h1:1, h2:2'),
        ("dbname=shop host=/run/postgresql", 'database "shop" at /run/postgresql:5432'),
    ],
)
def test_a_place_is_named_by_database_host_and_port(
    dsn: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGHOST", "PGPORT", "PGDATABASE", "PGUSER"):
        monkeypatch.delenv(name, raising=False)
    assert place(dsn) == named


@pytest.mark.parametrize(
    ("reason", "step"),
    [
        ('FATAL:  database "shop" does not exist', "createdb shop"),
        ('FATAL:  password authentication failed for user "u"', "password"),
        ('FATAL:  role "u" does not exist', "Create the role"),
        ("Connection refused", "outbox up"),
        (f"invalid sslpassword {SECRET}", "outbox up"),
    ],
)
def test_a_failed_connection_names_the_place_and_the_next_step(reason: str, step: str) -> None:
    text = unreachable(
        f"postgresql://u:{SECRET}@h:5433/shop",
        psycopg.OperationalError(f'connection to server at "h", port 5433 failed: {reason}'),
    )
    assert text.startswith('cannot reach database "shop" at h:5433: ')
    assert step in text
    assert SECRET not in text


def test_an_unreadable_connection_string_is_reported_before_a_server_is_contacted() -> None:
    with pytest.raises(DsnError, match="neither a URL"):
        connect(f"host=h password=a {SECRET}")


@pytest.mark.parametrize(
    ("dsn", "label"),
    [
        ("postgresql://outbox@db1:5432/shop", "shop"),
        ("host=db1 dbname=parcels", "parcels"),
        ("host=db1 user=outbox", "outbox"),
    ],
)
def test_metrics_label_a_database_by_its_name_alone(
    dsn: str, label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGDATABASE", raising=False)
    assert connections.name(dsn) == label


def test_databases_of_one_name_are_told_apart_by_their_addresses() -> None:
    two = ("postgresql://db1/shop", "postgresql://db2/shop")
    with click.Context(click.Command("run")):
        assert sorted(chosen(two, None)) == ['database "shop" at db1:5432', 'database "shop" at db2:5432']
        assert sorted(chosen((two[0], "postgresql://db1/parcels"), None)) == ["parcels", "shop"]
