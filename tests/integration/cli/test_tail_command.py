"""`outbox tail` shows what a consumer of committed messages reads, and ends when it should."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.support.outbox_command import Ran, outbox
from tests.support.servers import MakeTopic

TAIL = [sys.executable, "-m", "outbox_relay", "tail"]


def produce(bootstrap_servers: str, topic: str, records: Sequence[dict[str, Any]]) -> None:
    """Write records to partition 0, in order."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 0})
    for record in records:
        producer.produce(topic, partition=0, **record)
    assert producer.flush(30) == 0


def tail(bootstrap_servers: str, topic: str, *options: str) -> Ran:
    return outbox("tail", topic, "--from-beginning", *options, OUTBOX_BOOTSTRAP_SERVERS=bootstrap_servers)


@contextmanager
def started(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a command beside the test; it does not outlive a test that fails."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def tagged(*tags: str, key: str | None = None) -> dict[str, Any]:
    return {"key": key, "value": "||".join(tags), "headers": [("outbox-tags", "||".join(tags))]}


def test_a_record_is_shown_with_its_place_its_headers_and_its_body(
    bootstrap_servers: str, topic: str
) -> None:
    headers = [("source", b"import"), ("source", b"\xff"), ("empty", None)]
    produce(bootstrap_servers, topic, [{"key": "o-1", "value": '{\n"a": 1}', "headers": headers}])
    ran = tail(bootstrap_servers, topic, "--count", "1")
    assert ran.code == 0
    head, *rest = ran.out.splitlines()
    assert head.startswith("partition 0  offset 0  20")
    assert head.endswith("Z  key o-1")
    assert rest == ["  source: import", "  source: base64:/w==", "  empty: -", "  {", '  "a": 1}']
    assert f"reading {topic}, 4 partitions, from the beginning" in ran.err


def test_nothing_that_a_record_holds_reaches_the_terminal_as_a_command(
    bootstrap_servers: str, topic: str
) -> None:
    evil = "\x1b[2J\x07"
    produce(bootstrap_servers, topic, [{"key": evil, "value": evil, "headers": [(evil, evil)]}])
    ran = tail(bootstrap_servers, topic, "--count", "1")
    assert not set(ran.out) & {"\x1b", "\x07"}


def test_json_is_one_line_for_each_record_and_keeps_every_byte(bootstrap_servers: str, topic: str) -> None:
    produce(
        bootstrap_servers,
        topic,
        [
            {"key": b"\xff", "value": b"\x00\n", "headers": [("a", b"1"), ("a", None)]},
            {"key": None, "value": None},
        ],
    )
    first, second = map(json.loads, tail(bootstrap_servers, topic, "--json", "--count", "2").out.splitlines())
    assert first.pop("timestamp").endswith("Z")
    assert first == {
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "key": {"base64": "/w=="},
        "headers": [{"name": "a", "value": "1"}, {"name": "a", "value": None}],
        "body": {"base64": "AAo="},
    }
    assert (second["offset"], second["key"], second["body"]) == (1, None, None)


def test_keys_and_tags_choose_and_only_what_fits_counts(bootstrap_servers: str, topic: str) -> None:
    produce(
        bootstrap_servers,
        topic,
        [tagged("a", key="k"), tagged("b", key="k"), tagged("b", "c"), {"value": "untagged"}],
    )

    def bodies(*options: str) -> list[str]:
        ran = tail(bootstrap_servers, topic, *options, "--json")
        assert ran.code == 0
        return [json.loads(line)["body"] for line in ran.out.splitlines()]

    assert bodies("--tag", "b", "--count", "2") == ["b", "b||c"]
    assert bodies("--tag", "a || c", "--count", "2") == ["a", "b||c"]
    assert bodies("--key", "k", "--tag", "b", "--count", "1") == ["b"]
    assert bodies("--timeout", "0.5") == ["a", "b", "b||c", "untagged"]


def test_records_of_an_aborted_transaction_are_not_shown(bootstrap_servers: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": f"tail-{topic}"})
    producer.init_transactions(30)
    for body in ("aborted", "committed"):
        producer.begin_transaction()
        producer.produce(topic, body, partition=0)
        assert producer.flush(30) == 0
        (producer.abort_transaction if body == "aborted" else producer.commit_transaction)(30)
    ran = tail(bootstrap_servers, topic, "--count", "1", "--json")
    assert json.loads(ran.out)["body"] == "committed"


def test_fewer_messages_than_asked_for_are_a_failure(bootstrap_servers: str, topic: str) -> None:
    ran = tail(bootstrap_servers, topic, "--count", "2", "--timeout", "0.3")
    assert ran.code == 1
    assert "0 messages of 2 came" in ran.err
    assert tail(bootstrap_servers, topic, "--timeout", "0.3").code == 0


@pytest.mark.parametrize("expression", ["", "a ||", "a || *", "|| b"])
def test_a_tag_expression_that_cannot_be_read_is_refused(expression: str) -> None:
    ran = tail("127.0.0.1:1", "orders", "--tag", expression)
    assert ran.code == 2
    assert "is not a tag expression" in ran.err


def test_a_missing_topic_is_named_with_the_nearest_and_is_not_created(
    bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    ran = tail(bootstrap_servers, f"{topic}x")
    assert ran.code == 1
    assert f"has no topic '{topic}x'. Did you mean '{topic}'" in ran.err
    assert f"outbox topic create {topic}x" in ran.err
    assert f"has no topic '{topic}x'" in tail(bootstrap_servers, f"{topic}x").err


def test_a_kafka_setting_that_is_refused_names_its_option(bootstrap_servers: str) -> None:
    ran = tail(bootstrap_servers, "orders", "--kafka-config", "nosuch=1")
    assert ran.code == 2
    assert "--kafka-config: " in ran.err
    assert "KafkaError{" not in ran.err


def test_from_the_end_a_later_message_is_read_and_ctrl_c_ends_with_0(
    bootstrap_servers: str, topic: str
) -> None:
    produce(bootstrap_servers, topic, [{"value": "before"}])
    command = [*TAIL, topic, "--json", "--bootstrap-servers", bootstrap_servers]
    with started(command) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "from the end" in process.stderr.readline()
        produce(bootstrap_servers, topic, [{"value": "after"}])
        assert json.loads(process.stdout.readline())["body"] == "after"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", "")


def test_when_the_reader_of_the_pipe_ends_so_does_tail(bootstrap_servers: str, topic: str) -> None:
    """As in `outbox tail orders | head -1`, on a topic without further traffic."""
    produce(bootstrap_servers, topic, [{"value": "only"}])
    command = [*TAIL, topic, "--from-beginning", "--json", "--bootstrap-servers", bootstrap_servers]
    with started(command) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["body"] == "only"
        process.stdout.close()
        assert process.wait(30) == 0
        assert "Traceback" not in process.stderr.read()
