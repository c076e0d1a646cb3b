"""Topics and consumer groups: pause them and let them go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from outbox_relay.console.acts import act
from outbox_relay.database import connections
from outbox_relay.operations import consumers, topic_pauses, topics
from outbox_relay.text.formatting import cell, many, printable


def _topic_told(meaning: str) -> Callable[[connections.Connection, act.Params], act.ActPreview]:
    def tell(conn: connections.Connection, params: act.Params) -> act.ActPreview:
        topic = topics.get(conn, act.text(params, "topic"))
        paused = (
            f"paused since {cell(topic.paused_at)} by {printable(topic.paused_by or '-')}: "
            f"{printable(topic.pause_reason or '-')}"
            if topic.paused_at
            else "not paused"
        )
        waiting = topic_pauses.waiting(conn, topic.name)
        return act.ActPreview(
            [f"Topic {printable(topic.name)} is {paused}; {many(waiting, 'message')} of it wait.", meaning]
        )

    return tell


def _pause_topic(conn: connections.Connection, params: act.Params, reason: str) -> act.Outcome:
    topic, changed = topic_pauses.pause(conn, act.text(params, "topic"), reason)
    if changed:
        return act.Outcome(
            True, [f"Topic {printable(topic.name)} is paused: relays publish nothing more of it."]
        )
    why = f"{cell(topic.paused_at)}, by {printable(topic.paused_by or '-')}: {printable(topic.pause_reason or '-')}"
    return act.Outcome(False, [f"Topic {printable(topic.name)} is paused already, since {why}"])


def _resume_topic(conn: connections.Connection, params: act.Params, reason: str) -> act.Outcome:
    name = printable(act.text(params, "topic"))
    if topic_pauses.resume(conn, params["topic"]):
        return act.Outcome(True, [f"Topic {name} is published again: what waits goes first, in order."])
    return act.Outcome(False, [f"Topic {name} is not paused any more."])


def _group_told(meaning: str) -> Callable[[connections.Connection, act.Params], act.ActPreview]:
    def tell(conn: connections.Connection, params: act.Params) -> act.ActPreview:
        group = act.text(params, "group")
        consumers.find(conn, group)
        paused = [
            f"{'All topics' if one['topic'] is None else 'Topic ' + printable(one['topic'])} paused since "
            f"{cell(one['paused_at'])} by {printable(one['paused_by'])}: {printable(one['reason'])}."
            for one in consumers.pauses(conn, group)
        ]
        return act.ActPreview([f"Consumer group {printable(group)}.", *paused, meaning])

    return tell


def _group_line(verb: str) -> Callable[[act.Params, str], Sequence[str]]:
    def line(params: act.Params, reason: str) -> Sequence[str]:
        topic = ["--topic", params["topic"]] if "topic" in params else []
        return [
            "consumers",
            verb,
            params.get("group", ""),
            *topic,
            *(["--reason", reason] if verb == "pause" else []),
        ]

    return line


def _pause_group(conn: connections.Connection, params: act.Params, reason: str) -> act.Outcome:
    changed = consumers.pause(conn, act.text(params, "group"), params.get("topic"), reason)
    name = printable(params["group"])
    return act.Outcome(changed, [f"Consumer group {name} {'is paused' if changed else 'is paused already'}."])


def _resume_group(conn: connections.Connection, params: act.Params, reason: str) -> act.Outcome:
    changed = consumers.resume(conn, act.text(params, "group"), params.get("topic"))
    name = printable(params["group"])
    return act.Outcome(
        changed, [f"Consumer group {name} {'reads again' if changed else 'is not paused any more'}."]
    )


PAUSES: Mapping[str, act.Act] = {
    "pause-topic": act.Act(
        "Pause a topic",
        "Pause",
        ("topic",),
        lambda params, reason: ["topic", "pause", params.get("topic", ""), "--reason", reason],
        _topic_told(
            "Relays publish nothing more of it; applications go on sending, and what they send waits in order."
        ),
        _pause_topic,
    ),
    "resume-topic": act.Act(
        "Resume a topic",
        "Resume",
        ("topic",),
        lambda params, reason: ["topic", "resume", params.get("topic", "")],
        _topic_told("What waits is published in order, before newer messages."),
        _resume_topic,
        keeps_reason=False,
    ),
    "pause-group": act.Act(
        "Pause a consumer group",
        "Pause",
        ("group", "topic"),
        _group_line("pause"),
        _group_told("Its members take no more messages, and keep their partitions; Kafka keeps what comes."),
        _pause_group,
    ),
    "resume-group": act.Act(
        "Resume a consumer group",
        "Resume",
        ("group", "topic"),
        _group_line("resume"),
        _group_told("Its members take messages again, from where they were."),
        _resume_group,
        keeps_reason=False,
    ),
}
