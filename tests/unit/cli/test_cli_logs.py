"""Structured logs: both formats, no bodies, no passwords."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from outbox_relay.text import logs

SECRET = "s3cr3t"


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root, ours = logging.getLogger(), logging.getLogger(logs.ROOT)
    before, level = list(root.handlers), ours.level
    yield io.StringIO()
    root.handlers[:] = before
    ours.setLevel(level)


def test_text_is_one_line_with_named_fields(stream: io.StringIO) -> None:
    logs.setup("text", stream=stream)
    logs.Log("relay").info("lanes taken", lanes=[1, 2], owner="a b", epoch=7, quiet=True, error=None)
    line = stream.getvalue()
    assert line.endswith(' info relay: lanes taken lanes=1,2 owner="a b" epoch=7 quiet=true error=null\n')
    assert line.count("\n") == 1


def test_json_is_one_object_per_line(stream: io.StringIO) -> None:
    logs.setup("json", stream=stream)
    logs.Log("relay").warning("slow", seconds=1.5, topic="订单")
    found = json.loads(stream.getvalue())
    assert found.pop("time").endswith("Z")
    assert found == {"level": "warning", "logger": "relay", "event": "slow", "seconds": 1.5, "topic": "订单"}


@pytest.mark.parametrize("log_format", logs.FORMATS)
def test_a_body_is_shown_as_its_size_only(stream: io.StringIO, log_format: str) -> None:
    logs.setup(log_format, stream=stream)
    logs.Log("relay").info("message", body=SECRET.encode(), parts=[bytearray(b"xy")])
    assert SECRET not in stream.getvalue()
    assert "6 bytes" in stream.getvalue()
    assert "2 bytes" in stream.getvalue()


@pytest.mark.parametrize("log_format", logs.FORMATS)
def test_passwords_are_masked_in_events_fields_and_tracebacks(stream: io.StringIO, log_format: str) -> None:
    logs.setup(log_format, stream=stream)
    dsn = f"postgresql://u:{SECRET}@h/x"
    try:
        raise RuntimeError(f"cannot connect to {dsn}")
    except RuntimeError as error:
        logs.Log("relay").error(f"failed at {dsn}", exception=error, dsn=dsn, pairs=[f"password={SECRET}"])
    text = stream.getvalue()
    assert SECRET not in text
    assert "RuntimeError" in text
    assert "Traceback" in text


def test_a_field_cannot_take_the_place_of_the_event(stream: io.StringIO) -> None:
    logs.setup("json", stream=stream)
    logs.Log("relay").info("true event", event="other", level="none")
    found = json.loads(stream.getvalue())
    assert (found["event"], found["level"], found["event_"], found["level_"]) == (
        "true event",
        "info",
        "other",
        "none",
    )


def test_a_line_break_in_a_field_does_not_make_a_second_line(stream: io.StringIO) -> None:
    logs.setup("text", stream=stream)
    logs.Log("relay").info("a\nb", remark="c\nd")
    assert stream.getvalue().count("\n") == 1


def test_other_loggers_appear_in_the_same_format_from_warning_on(stream: io.StringIO) -> None:
    logs.setup("json", stream=stream)
    logging.getLogger("other").info("not shown")
    logging.getLogger("other").warning("shown %s", f"password={SECRET}")
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["event"] == "shown password=***"


def test_levels_below_the_chosen_one_are_silent(stream: io.StringIO) -> None:
    logs.setup("text", "error", stream=stream)
    logs.Log("relay").warning("not shown")
    assert stream.getvalue() == ""


def test_setting_up_twice_does_not_double_lines(stream: io.StringIO) -> None:
    logs.setup("text", stream=stream)
    logs.setup("json", stream=stream)
    logs.Log("relay").info("once")
    assert stream.getvalue().count("once") == 1


@pytest.mark.parametrize(("log_format", "level"), [("xml", "info"), ("text", "loud")])
def test_an_unknown_format_or_level_names_the_allowed(log_format: str, level: str) -> None:
    with pytest.raises(ValueError, match="is not one of"):
        logs.setup(log_format, level)


def test_fields_of_a_block_are_in_its_lines_and_in_those_of_threads_that_inherit(stream: io.StringIO) -> None:
    logs.setup("json", stream=stream)
    log = logs.Log("relay")
    with logs.context(database="shop"):
        log.info("own")
        with logs.context(lane=3):
            log.info("nested", lane=4)
        heir = threading.Thread(target=logs.inheriting(log.info), args=("heir",))
        pool = ThreadPoolExecutor(1, initializer=logs.inherit())
        other = threading.Thread(target=log.info, args=("other",))
    # They begin when the block is over, and another thread has fields of its own.
    with logs.context(database="parcels"):
        for thread in (heir, other):
            thread.start()
            thread.join()
        pool.submit(log.info, "pool").result()
        pool.shutdown()
    log.info("after")
    seen = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["event"], line.get("database"), line.get("lane")) for line in seen] == [
        ("own", "shop", None),
        ("nested", "shop", 4),
        ("heir", "shop", None),
        ("other", None, None),
        ("pool", "shop", None),
        ("after", None, None),
    ]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_control_character_reaches_a_terminal_and_no_line_is_forged(log_format: str) -> None:
    out = io.StringIO()
    logs.setup(log_format, "info", out)
    forged = "2026-11-27T00:00:00.000Z info relay: everything is fine"
    logs.Log("relay").error("refused", remark="\x1b[2J\x1b]0;owned\x07", c1="\x9b31m", many=["\x1b[1m", "x"])
    logs.Log("relay").info(f"event \x1b[31m with escapes\r{forged}\n{forged}\u2028{forged}")
    try:
        raise ValueError(f"\x1b[31mx\r\n{forged}\x07")
    except ValueError as error:
        logs.Log("relay").error("failed", exception=error)
    logging.getLogger("outbox.callbacks").warning("refused with %d: %s", 401, "\x1b]52;c;ZXZpbA==\x07")
    said = out.getvalue()
    assert not [letter for letter in said if letter != "\n" and (letter < " " or "\x7f" <= letter <= "\x9f")]
    assert not [line for line in said.splitlines() if line.startswith(forged)]
    assert "owned" in said
    assert "\\u001b" in said
