"""Signatures bind a request's parts and its reply to it; secrets can be replaced without a call failing."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.callbacks.signing import TOLERANCE_S, Secrets, SignatureError, SignedHead
from outbox.errors import ConfigurationError

OLD, NEW = "an-old-secret-of-a-test", "a-new-secret-of-a-test"
NOW = 1_790_000_000
HEAD = SignedHead("POST", "/outbox", "a=1", str(NOW), "0123456789abcdef0123456789abcdef")
BODY = '{"商品":"书"}'.encode()


def test_the_signature_is_what_the_page_says() -> None:
    """Computed by hand: an implementation in another language is compared with this."""
    lines = ["v1", "request", *HEAD, hashlib.sha256(BODY).hexdigest()]
    digest = hmac.new(OLD.encode(), "\n".join(lines).encode(), hashlib.sha256).hexdigest()
    assert Secrets(OLD).sign_request(HEAD, BODY) == f"v1={digest}"
    lines = ["v1", "reply", "200", f"v1={digest}", hashlib.sha256(b"{}").hexdigest()]
    reply = hmac.new(OLD.encode(), "\n".join(lines).encode(), hashlib.sha256).hexdigest()
    assert Secrets(OLD).sign_reply(f"v1={digest}", 200, b"{}") == f"v1={reply}"


def test_a_signed_request_is_accepted() -> None:
    Secrets(OLD).verify_request(HEAD, BODY, Secrets(OLD).sign_request(HEAD, BODY), now=NOW)


@pytest.mark.parametrize(
    "changed",
    [
        {"method": "PUT"},
        {"path": "/other"},
        {"query": "a=2"},
        {"timestamp": str(NOW + 1)},
        {"request_id": "1123456789abcdef0123456789abcdef"},
        {"path": "/outbox\na=1", "query": ""},
    ],
)
def test_a_changed_request_is_refused(changed: dict[str, str]) -> None:
    signature = Secrets(OLD).sign_request(HEAD, BODY)
    with pytest.raises(SignatureError):
        Secrets(OLD).verify_request(HEAD._replace(**changed), BODY, signature, now=NOW)


def test_a_changed_body_is_refused() -> None:
    signature = Secrets(OLD).sign_request(HEAD, BODY)
    with pytest.raises(SignatureError, match="does not fit"):
        Secrets(OLD).verify_request(HEAD, BODY + b" ", signature, now=NOW)


@pytest.mark.parametrize("signature", ["", "v1=", "v2=00", "v1=00", "v1=é", "garbage", "v1=" + "0" * 64])
def test_anything_else_is_no_signature(signature: str) -> None:
    with pytest.raises(SignatureError):
        Secrets(OLD).verify_request(HEAD, BODY, signature, now=NOW)


@pytest.mark.parametrize("skew", [-TOLERANCE_S, TOLERANCE_S])
def test_clocks_may_differ_by_the_tolerance(skew: float) -> None:
    Secrets(OLD).verify_request(HEAD, BODY, Secrets(OLD).sign_request(HEAD, BODY), now=NOW + skew)


@pytest.mark.parametrize("skew", [-TOLERANCE_S - 1, TOLERANCE_S + 1])
def test_an_old_or_early_request_is_refused(skew: float) -> None:
    signature = Secrets(OLD).sign_request(HEAD, BODY)
    with pytest.raises(SignatureError, match="allowed: 300 s"):
        Secrets(OLD).verify_request(HEAD, BODY, signature, now=NOW + skew)


def test_a_reply_fits_one_request_only() -> None:
    secrets = Secrets(OLD)
    request, other = "v1=" + "1" * 64, "v1=" + "2" * 64
    reply = secrets.sign_reply(request, 200, b"{}")
    secrets.verify_reply(request, 200, b"{}", reply)
    for given_request, status, body in [(other, 200, b"{}"), (request, 404, b"{}"), (request, 200, b"[]")]:
        with pytest.raises(SignatureError):
            secrets.verify_reply(given_request, status, body, reply)


def test_a_request_never_passes_for_a_reply() -> None:
    secrets = Secrets(OLD)
    signature = secrets.sign_request(HEAD, BODY)
    with pytest.raises(SignatureError):
        secrets.verify_reply(signature, 200, BODY, signature)


@pytest.mark.parametrize(
    ("checker", "application"),
    [
        (Secrets(OLD), Secrets(OLD, NEW)),
        (Secrets(OLD, NEW), Secrets(OLD)),
        (Secrets(OLD, NEW), Secrets(NEW, OLD)),
        (Secrets(NEW, OLD), Secrets(OLD, NEW)),
        (Secrets(NEW), Secrets(NEW, OLD)),
        (Secrets(NEW, OLD), Secrets(NEW)),
    ],
)
def test_each_step_of_replacing_a_secret_works_both_ways(checker: Secrets, application: Secrets) -> None:
    signature = checker.sign_request(HEAD, BODY)
    application.verify_request(HEAD, BODY, signature, now=NOW)
    checker.verify_reply(signature, 200, b"{}", application.sign_reply(signature, 200, b"{}"))


def test_secrets_are_read_from_one_variable() -> None:
    text = Secrets.from_text(f" {NEW},\n{OLD} ")
    assert text.sign_request(HEAD, BODY) == Secrets(NEW).sign_request(HEAD, BODY)
    text.verify_request(HEAD, BODY, Secrets(OLD).sign_request(HEAD, BODY), now=NOW)


@pytest.mark.parametrize("text", ["", " , ", "short", f"{OLD} short"])
def test_missing_and_short_secrets_are_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Secrets.from_text(text)
    assert "short " not in str(refused.value).replace("shorter ", "")
    assert OLD not in str(refused.value)


def test_secrets_are_never_shown() -> None:
    assert OLD not in repr(Secrets(OLD, NEW))


@given(st.binary(), st.text(), st.text())
def test_whatever_is_signed_is_verified(body: bytes, path: str, query: str) -> None:
    head = HEAD._replace(path=path, query=query)
    if "\n" in path + query:
        with pytest.raises(SignatureError, match="line break"):
            Secrets(OLD).sign_request(head, body)
    else:
        Secrets(OLD).verify_request(head, body, Secrets(OLD).sign_request(head, body), now=NOW)
