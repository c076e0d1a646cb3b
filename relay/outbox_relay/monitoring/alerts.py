"""Alert rules for Prometheus: what to page somebody for, and what can wait for the morning.

One list is the source of the rule file and of the headings of the runbook docs/operations/alerts.md. Rules
take the maximum over processes, because two may serve the figures of a database while lane 0 moves.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple


class AlertRule(NamedTuple):
    """One rule of a Prometheus rule file."""

    name: str
    expression: str
    """In PromQL; one series for each cause."""
    hold: str
    """How long the expression must hold, as Prometheus writes durations: `5m`."""
    severity: str
    """`page`: messages are late or will be lost sight of. `ticket`: somebody has to act, and nothing is late yet."""
    summary: str
    """A sentence with Prometheus' templates for labels and the value."""

    @property
    def runbook(self) -> str:
        """The heading of the runbook in docs/operations/alerts.md, as a link has it."""
        return f"operations/alerts.md#{self.name.lower()}"


_DATABASE = "{{ $labels.database }}"
_GROUP = "group {{ $labels.group }}"

ALERTS = (
    AlertRule(
        "OutboxNothingPublished",
        "max by (database, topic) (outbox_backlog_oldest_age_seconds) > 60",
        "2m",
        "page",
        f"{_DATABASE}: the oldest unpublished message of topic {{{{ $labels.topic }}}} is "
        "{{ $value | humanizeDuration }} old",
    ),
    AlertRule(
        "OutboxHolds",
        "max by (database, kind, topic, error) (outbox_holds) > 0",
        "5m",
        "page",
        f"{_DATABASE}: {{{{ $value }}}} holds of kind {{{{ $labels.kind }}}}, topic {{{{ $labels.topic }}}}, by "
        "{{ $labels.error }}: outbox holds ls",
    ),
    AlertRule(
        "OutboxProblem",
        "max by (database, kind) (outbox_problems"
        '{kind!~"dead|dead_letters|exhausted|failover|hold|late|no_checker|no_relay|not_proven|partitions"}) > 0',
        "5m",
        "ticket",
        f"{_DATABASE}: outbox status reports {{{{ $labels.kind }}}}",
    ),
    AlertRule(
        "OutboxFailover",
        'max by (database) (outbox_problems{kind="failover"}) > 0',
        "0m",
        "page",
        f"{_DATABASE}: another server took over, and messages that Kafka has may be lost here",
    ),
    AlertRule(
        "OutboxNoRelay",
        'max by (database) (outbox_problems{kind="no_relay"}) > 0',
        "1m",
        "page",
        f"{_DATABASE}: no relay runs",
    ),
    AlertRule(
        "OutboxNotProven",
        'max by (database) (outbox_problems{kind="not_proven"}) > 0',
        "0m",
        "page",
        f"{_DATABASE}: nothing of a shard is published, because Kafka does not prove its last batch",
    ),
    AlertRule(
        "OutboxFiguresOld",
        "time() - max by (database) (outbox_figures_timestamp_seconds) > 300",
        "5m",
        "page",
        f"{_DATABASE}: nothing reads the database's figures; the other rules are blind",
    ),
    AlertRule(
        "OutboxFiguresAbsent",
        "absent(outbox_figures_timestamp_seconds)",
        "10m",
        "page",
        "no relay, checker or outbox metrics serve is scraped",
    ),
    AlertRule(
        "OutboxLoopSilent",
        "max by (database, instance) (outbox_loop_silent_seconds) > 120",
        "1m",
        "page",
        f"{_DATABASE}: the loop of relay {{{{ $labels.instance }}}} makes no progress",
    ),
    AlertRule(
        "OutboxLanesFlap",
        "sum by (database) (increase(outbox_leases_lost_total[30m])) > 10",
        "5m",
        "ticket",
        f"{_DATABASE}: relays lose their leases again and again",
    ),
    AlertRule(
        "OutboxSessionsFail",
        "sum by (database) (increase(outbox_sessions_failed_total[30m])) > 20",
        "5m",
        "ticket",
        f"{_DATABASE}: relays start over after errors again and again",
    ),
    AlertRule(
        "OutboxPublishedTwice",
        "sum by (database) (increase(outbox_unrecorded_messages_total[1h])) > 1000",
        "0m",
        "ticket",
        f"{_DATABASE}: about {{{{ $value }}}} messages may have been published again within an hour",
    ),
    AlertRule(
        "OutboxPublishSlow",
        "histogram_quantile(0.99, sum by (database, le) (rate(outbox_publish_latency_seconds_bucket[10m]))) > 5",
        "10m",
        "ticket",
        f"{_DATABASE}: one batch of a hundred takes longer than "
        "{{ $value | humanizeDuration }} to reach Kafka",
    ),
    AlertRule(
        "OutboxHalfMessagesOverdue",
        "max by (database, group) (outbox_half_messages_overdue) > 0",
        "5m",
        "page",
        f"{_DATABASE}: no checker asks about half messages of {_GROUP}",
    ),
    AlertRule(
        "OutboxHalfMessagesExhausted",
        'max by (database, group) (outbox_half_messages{state="EXHAUSTED"}) > 0',
        "0m",
        "ticket",
        f"{_DATABASE}: half messages of {_GROUP} need a decision by hand",
    ),
    AlertRule(
        "OutboxChecksFail",
        "max by (database, group) (outbox_check_turns_failed) > 10",
        "5m",
        "ticket",
        f"{_DATABASE}: the checker's turns for {_GROUP} fail",
    ),
    AlertRule(
        "OutboxDeadMessages",
        "max by (database, group) (outbox_dead_messages) > 0",
        "0m",
        "ticket",
        f"{_DATABASE}: messages of {_GROUP} cannot be published",
    ),
    AlertRule(
        "OutboxPartitionsAhead",
        "max by (database) (outbox_partitions_ahead) < 1",
        "5m",
        "page",
        f"{_DATABASE}: no partition of outbox.message is made ahead; inserts will fail when the present one is full",
    ),
    AlertRule(
        "OutboxIdsRunOut",
        "min by (database) (outbox_ids_left_seconds) < 3600",
        "5m",
        "page",
        f"{_DATABASE}: at this pace the ids of all partitions last for {{{{ $value | humanizeDuration }}}}",
    ),
    AlertRule(
        "OutboxHistoryKept",
        "max by (database) (outbox_history_oldest_age_seconds) > 45 * 86400",
        "1h",
        "ticket",
        f"{_DATABASE}: the oldest message is kept since {{{{ $value | humanizeDuration }}}}: nothing drops history",
    ),
    AlertRule(
        "OutboxInboxKept",
        "max by (database) (outbox_inbox_oldest_age_seconds) > 45 * 86400",
        "1h",
        "ticket",
        f"{_DATABASE}: the oldest day of the inbox ended {{{{ $value | humanizeDuration }}}} ago: nothing drops it",
    ),
    AlertRule(
        "OutboxTablesLarge",
        "max by (database) (outbox_history_bytes) + max by (database) (outbox_inbox_bytes) > 100e9",
        "1h",
        "ticket",
        f"{_DATABASE}: history and inbox have {{{{ $value | humanize1024 }}}}B",
    ),
    AlertRule(
        "OutboxAlarmsUnsent",
        "max by (database) (outbox_alarms_unsent_seconds) > 900",
        "5m",
        "ticket",
        f"{_DATABASE}: the webhook has not taken an alarm for {{{{ $value | humanizeDuration }}}}",
    ),
    AlertRule(
        "OutboxConsumerLag",
        "max by (database, group, topic) (outbox_consumer_lag_seconds) > 300",
        "10m",
        "page",
        f"{_GROUP} is {{{{ $value | humanizeDuration }}}} behind on topic {{{{ $labels.topic }}}}",
    ),
    AlertRule(
        "OutboxConsumerGone",
        "max by (database, group, topic) (outbox_consumer_members) == 0 "
        "and max by (database, group, topic) (outbox_consumer_lag_messages) > 0",
        "5m",
        "page",
        f"no member of {_GROUP} runs, and topic {{{{ $labels.topic }}}} has messages for it",
    ),
    AlertRule(
        "OutboxKeysHeld",
        "max by (database, group, topic) (outbox_consumer_held_keys) > 0",
        "30m",
        "ticket",
        f"{_GROUP} holds order keys of topic {{{{ $labels.topic }}}} behind messages that fail",
    ),
    AlertRule(
        "OutboxKeysFull",
        "max by (database, group) (outbox_consumer_full_keys) > 0",
        "5m",
        "page",
        f"{_GROUP} has held keys behind which no more messages may wait: other keys of their partitions stop",
    ),
    AlertRule(
        "OutboxMessagesFail",
        "max by (database, group, topic) (outbox_consumer_retries) > 0",
        "15m",
        "ticket",
        f"{_GROUP} fails with {{{{ $value }}}} messages of topic {{{{ $labels.topic }}}}, and tries them again: "
        "outbox dlq ls --retrying",
    ),
    AlertRule(
        "OutboxDeadLetters",
        "max by (database, group, topic) (outbox_dead_letters) > 0",
        "0m",
        "ticket",
        f"{_GROUP} has dead letters of topic {{{{ $labels.topic }}}}",
    ),
)
"""Limits are starting points: copy the file and change what does not fit a service."""


def rule_file(runbooks: str) -> str:
    """Return a rule file for Prometheus in YAML.

    Args:
        runbooks: where the documentation is, without a slash at its end: a URL or a path.
    """
    return "\n".join(_lines(runbooks)) + "\n"


def _lines(runbooks: str) -> Iterator[str]:
    yield "groups:"
    yield "  - name: outbox"
    yield "    rules:"
    for rule in ALERTS:
        yield f"      - alert: {rule.name}"
        yield f"        expr: {json.dumps(rule.expression)}"
        yield f"        for: {rule.hold}"
        yield "        labels:"
        yield f"          severity: {rule.severity}"
        yield "        annotations:"
        yield f"          summary: {json.dumps(rule.summary)}"
        yield f"          runbook_url: {json.dumps(f'{runbooks}/{rule.runbook}')}"
