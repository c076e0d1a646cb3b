"""Whatever a callback's host replies, or does not: only a clear, signed answer is one; all else is UNKNOWN in time."""

from __future__ import annotations

import threading
import time

import pytest

from outbox.callbacks.protocol import LARGEST_REPLY
from outbox.checking import Answer, LocalTransactionState
from tests.support.callback_asking import UNKNOWN, ask, ask_peer, make_asker
from tests.support.callback_peer import Line, Peer, a_view, answering, reply
from tests.support.waiting import wait_until


@pytest.mark.parametrize(
    ("announce", "what"), [(True, "with its size"), (False, "in chunks"), (None, "until the end")]
)
def test_a_huge_reply_is_not_read_to_its_end(announce: bool | None, what: str) -> None:
    sent = 0

    def serve(line: Line) -> None:
        nonlocal sent
        line.read()
        length = {True: "Content-Length: 1000000000\r\n", False: "Transfer-Encoding: chunked\r\n", None: ""}
        line.write(f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n{length[announce]}\r\n".encode())
        block = b"4000\r\n" + b" " * 0x4000 + b"\r\n" if announce is False else b" " * 0x4000
        while True:
            line.write(block)
            sent += len(block)

    answer = ask_peer(serve)
    assert answer.state is UNKNOWN
    assert f"larger than {LARGEST_REPLY} bytes" in (answer.remark or "")
    assert sent < 20_000_000, what


def test_endless_headers_are_not_read_to_their_end() -> None:
    def serve(line: Line) -> None:
        line.read()
        line.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            line.write(b"X-Filler: " + b"a" * 1000 + b"\r\n")

    answer = ask_peer(serve)
    assert answer.state is UNKNOWN
    assert answer.remark


def test_endless_interim_replies_end() -> None:
    def serve(line: Line) -> None:
        line.read()
        while True:
            line.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    answer = ask_peer(serve)
    assert answer.state is UNKNOWN
    assert "larger than" in (answer.remark or "")


@pytest.mark.feature("S-47")
@pytest.mark.parametrize("part", ["head", "body"])
def test_a_reply_that_drips_ends_with_the_deadline(part: str) -> None:
    with Peer(answering()) as peer:

        def serve(line: Line) -> None:
            question = line.read()
            assert question is not None
            text = reply(question)
            start = 0 if part == "head" else text.index(b"\r\n\r\n") + 4
            line.write(text[:start])
            for place in range(start, len(text)):
                if peer.stopping.wait(0.1):
                    return
                line.write(text[place : place + 1])

        peer.serve = serve
        answer = ask(make_asker(peer.url()), 0.5)
    assert answer == Answer(
        UNKNOWN, "callback: no answer in time: time is up while waiting for the reply"
    ) or (answer.state is UNKNOWN and "timed out" in (answer.remark or ""))


@pytest.mark.feature("S-47")
@pytest.mark.parametrize("when", ["before reading", "after reading"])
def test_a_peer_that_hangs_costs_no_more_than_the_deadline(when: str) -> None:
    # Before reading, a body larger than what the sockets buffer: the sender is stuck, not the reader.
    view = a_view(body=b"x" * 30_000_000) if when == "before reading" else a_view()
    with Peer(answering()) as peer:

        def serve(line: Line) -> None:
            if when == "after reading":
                line.read()
            peer.stopping.wait(30)

        peer.serve = serve
        answer = ask(make_asker(peer.url()), 1.0, view)
    assert answer.state is UNKNOWN
    assert "no answer in time" in (answer.remark or "")


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        (b"", "before a reply began"),
        (b"\x00\xff garbage\r\n\r\n", "BadStatusLine"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 0\r\n\r\n", "'text/html'"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "content of type ''"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Type: application/json\r\n\r\n",
            "application/json",
        ),
        (b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n", "status 503"),
        (b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n", "same secret"),
        (b"HTTP/1.1 204 No\r\n\r\n", "status 204"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{", "not signed"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            "callback: ",
        ),
        (b"HTTP/1.1 404 No\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", "not signed"),
    ],
)
def test_a_malformed_reply_is_unknown(text: bytes, remark: str) -> None:
    def serve(line: Line) -> None:
        line.read()
        line.write(text)

    answer = ask_peer(serve)
    assert answer.state is UNKNOWN
    assert remark in (answer.remark or "")


@pytest.mark.parametrize(
    ("body", "remark"),
    [
        (b"COMMIT", "the body is not valid JSON"),
        (b'["COMMIT"]', "the body is a JSON list"),
        (b"[" * 10_000, "the body is not valid JSON"),
        (b"{}", "state is not valid; expected COMMIT, ROLLBACK, UNKNOWN"),
        (b'{"state": true}', "state is not valid; expected COMMIT, ROLLBACK, UNKNOWN"),
        (b'{"state": "commit"}', "state is not valid; expected COMMIT, ROLLBACK, UNKNOWN"),
        (b'{"state": "COMMIT", "remark": 5}', "remark is int; expected text or null"),
    ],
)
def test_a_signed_reply_that_says_nothing_clear_is_unknown(body: bytes, remark: str) -> None:
    answer = ask_peer(answering(body=body))
    assert answer.state is UNKNOWN
    assert remark in (answer.remark or "")


@pytest.mark.parametrize(
    "settings", [{"secret": "another-secret-of-a-test"}, {"signature": "v1=" + "0" * 64}]
)
def test_a_reply_with_a_wrong_signature_is_unknown(settings: dict[str, str]) -> None:
    answer = ask_peer(answering(**settings))
    assert answer == Answer(
        UNKNOWN, "callback: the reply's signature does not fit: another secret, or changed on its way"
    )


def test_a_reply_that_was_overheard_fits_no_other_question() -> None:
    recorded = []

    def serve(line: Line) -> None:
        while (question := line.read()) is not None:
            recorded.append(reply(question))
            line.write(recorded[0])

    with Peer(serve) as peer:
        asker = make_asker(peer.url())
        assert asker.ask(a_view(), time.monotonic() + 5).state is LocalTransactionState.COMMIT
        answer = ask(asker)
    assert "signature does not fit" in (answer.remark or "")


def test_connections_are_used_again_and_replaced_when_the_peer_closed_them() -> None:
    with Peer(answering()) as peer:
        asker = make_asker(peer.url())
        for _ in range(5):
            assert asker.ask(a_view(), time.monotonic() + 5).state is LocalTransactionState.COMMIT
        assert peer.connections == 1

        def closing(line: Line) -> None:
            """Answers once, and ends only when the next question is there: the worst moment."""
            question = line.read()
            assert question is not None
            line.write(reply(question))
            line.read()

        asker.close()
        peer.serve = closing
        asker = make_asker(peer.url())
        for _ in range(3):
            assert asker.ask(a_view(), time.monotonic() + 5).state is LocalTransactionState.COMMIT
        assert peer.connections == 4
        asker.close()


def test_something_unasked_on_an_idle_connection_is_not_taken_for_a_reply() -> None:
    answered = threading.Event()

    def serve(line: Line) -> None:
        question = line.read()
        assert question is not None
        line.write(reply(question))
        answered.wait(30)
        line.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        line.read()

    with Peer(serve) as peer:
        asker = make_asker(peer.url())
        assert asker.ask(a_view(), time.monotonic() + 5).state is LocalTransactionState.COMMIT
        answered.set()
        (idle,) = asker._idle
        wait_until(lambda: not idle.is_fresh(1e9), "it has arrived", seconds=20)
        assert asker.ask(a_view(), time.monotonic() + 5).state is LocalTransactionState.COMMIT
        assert peer.connections == 2
        asker.close()
