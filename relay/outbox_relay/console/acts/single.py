"""Single messages: what is held is tried again, given up or set aside; half messages are asked about and decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from outbox.operations.decide import DecidedState
from outbox_relay.console.acts import act
from outbox_relay.database import connections
from outbox_relay.operations import (
    check_now,
    dead_letters,
    decide,
    half_message_life,
    half_messages,
    holds,
    messages,
)
from outbox_relay.operations.cancel import cancel
from outbox_relay.text.formatting import cell, many, printable

WAIT_S = 2.0
"""Seconds to wait for another transaction that has the row."""
_FINAL = "A decision is final. Find out first what became of the local transaction."


def _message_told(meaning: str) -> Callable[[connections.Connection, act.Params], act.ActPreview]:
    def tell(conn: connections.Connection, params: act.Params) -> act.ActPreview:
        if "topic" in params:
            found = holds.everything(conn, _of_topic(params), None)
            waiting = sum(hold.waiting for hold in found)
            return act.ActPreview(
                [
                    (
                        f"{many(len(found), 'hold')} of topic {printable(params['topic'])}, {many(waiting, 'message')} "
                        "behind."
                    ),
                    meaning,
                ]
            )
        message = half_messages.get(conn, (act.number(params), None))
        hold = holds.of_message(conn, message["id"])
        topic, key = printable(message["topic"]), cell(message["key"])
        about = f"Message {message['id']}, topic {topic}, key {key}, {message['state']}."
        return act.ActPreview(
            [about, *([] if hold is None else [f"It {hold.hold_up(message['id'])}."]), meaning]
        )

    return tell


def _of_topic(params: act.Params) -> holds.HoldFilter:
    return holds.HoldFilter(topic=act.text(params, "topic"), error=params.get("error"))


def _release_line(params: act.Params, reason: str) -> Sequence[str]:
    if "topic" in params:
        code = ["--error", params["error"]] if "error" in params else []
        return ["holds", "release", "--topic", params["topic"], *code]
    return ["holds", "release", params["id"], "--reason", reason]


def _release(conn: connections.Connection, params: act.Params, reason: str) -> act.Outcome:
    if "topic" not in params:
        return act.decided(dead_letters.act(conn, "release", (act.number(params), None), reason, WAIT_S))
    asked = holds.release(conn, holds.everything(conn, _of_topic(params), None))
    return act.Outcome(bool(asked), [f"{many(len(asked), 'hold')} tried again within about a second."])


def _skip_line(params: act.Params, reason: str) -> Sequence[str]:
    doubt = ["--may-be-published"] if "in_doubt" in params else []
    return ["holds", "skip", params["id"], *doubt, "--reason", reason]


def _skip(conn: connections.Connection, params: act.Params, reason: str) -> act.Outcome:
    action = "skip in doubt" if "in_doubt" in params else "skip"
    return act.decided(dead_letters.act(conn, action, (act.number(params), None), reason, WAIT_S))


def _half_told(meaning: str) -> Callable[[connections.Connection, act.Params], act.ActPreview]:
    def tell(conn: connections.Connection, params: act.Params) -> act.ActPreview:
        half = half_messages.get(conn, (act.number(params), None))
        said, at = half["last_answer"], cell(half["answered_at"])
        answer = f"; the last answer: {said} at {at}" if said else ""
        return act.ActPreview(
            [
                (
                    f"Half message {half['id']} of producer group {printable(half['producer_group'] or '-')}, topic "
                    f"{printable(half['topic'])}, key {cell(half['key'])}: {half['state']} since "
                    f"{cell(half['born_at'])}, {half['checks'] or 0} of {half['max_checks']} checks{answer}."
                ),
                meaning,
            ]
        )

    return tell


def _half_decided(verdict: DecidedState) -> Callable[[connections.Connection, act.Params, str], act.Outcome]:
    def run(conn: connections.Connection, params: act.Params, reason: str) -> act.Outcome:
        half = half_messages.get(conn, (act.number(params), None))
        half_message_life.require_half(half, messages.events(conn, half))
        return act.decided(decide.decide(conn, half, verdict, reason, WAIT_S))

    return run


def _check(conn: connections.Connection, params: act.Params, reason: str) -> act.Outcome:
    half = half_messages.get(conn, (act.number(params), None))
    due = check_now.due_now(conn, half)
    if due is None:
        return act.Outcome(
            False, [f"Half message {half['id']} is {half['state']}: checkers ask about it no more."]
        )
    return act.Outcome(
        True, [f"Half message {half['id']} is due now: the next turn of a checker asks about it."]
    )


SINGLE: Mapping[str, act.Act] = {
    "release": act.Act(
        "Try again what is held",
        "Try again",
        ("id", "topic", "error"),
        _release_line,
        _message_told("The relay tries it within about a second; what is held behind it follows in order."),
        _release,
    ),
    "skip": act.Act(
        "Give up a message",
        "Give up",
        ("id", "in_doubt"),
        _skip_line,
        _message_told("It is never published, which cannot be undone; what is held behind it follows."),
        _skip,
    ),
    "set-aside": act.Act(
        "Set a message aside",
        "Set aside",
        ("id",),
        lambda params, reason: ["holds", "dead", params["id"], "--reason", reason],
        _message_told("It is not published until it is released; what is held behind it follows."),
        lambda conn, params, reason: act.decided(
            dead_letters.act(conn, "dead", (act.number(params), None), reason, WAIT_S)
        ),
    ),
    "cancel": act.Act(
        "Cancel a delayed message",
        "Cancel it",
        ("id",),
        lambda params, reason: ["message", "cancel", params["id"], "--reason", reason],
        _message_told("It is never published, if it is not too late."),
        lambda conn, params, reason: act.decided(cancel(conn, (act.number(params), None), reason, WAIT_S)),
    ),
    "commit": act.Act(
        "Commit a half message",
        "Commit",
        ("id",),
        lambda params, reason: ["tx", "commit", params["id"], "--reason", reason],
        _half_told(f"It is published. {_FINAL}"),
        _half_decided(DecidedState.COMMITTED),
    ),
    "rollback": act.Act(
        "Roll a half message back",
        "Roll back",
        ("id",),
        lambda params, reason: ["tx", "rollback", params["id"], "--reason", reason],
        _half_told(f"It is never published. {_FINAL}"),
        _half_decided(DecidedState.ROLLED_BACK),
    ),
    "check": act.Act(
        "Ask about a half message now",
        "Check now",
        ("id",),
        lambda params, reason: ["tx", "check", params["id"]],
        _half_told("The next turn of a checker asks about it; the check counts as any other."),
        _check,
        keeps_reason=False,
    ),
}
