"""A dashboard for Grafana, made from the catalogue of metrics: what one opens when a rule of `alerts.py` fires.

Panels take the maximum over processes of what describes a database, and the sum of what describes a process.
"""

from __future__ import annotations

from typing import Any, NamedTuple

WIDTH = 24
"""Columns of Grafana's grid."""
HEIGHT = 8
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_OF = '{database=~"$database"}'


class Panel(NamedTuple):
    """One graph."""

    title: str
    unit: str
    """Grafana's name of a unit: s, short, ops."""
    queries: tuple[tuple[str, str], ...]
    """PromQL, and the legend of each of its series."""


def _largest(metric: str, *labels: str) -> str:
    return f"max by ({', '.join(labels)}) ({metric}{_OF})"


def _per_second(metric: str, *labels: str) -> str:
    return f"sum by ({', '.join(labels)}) (rate({metric}{_OF}[$__rate_interval]))"


def _quantile(share: float, metric: str) -> str:
    return (
        f"histogram_quantile({share}, sum by (database, le) (rate({metric}_bucket{_OF}[$__rate_interval])))"
    )


def _quantiles(metric: str) -> tuple[tuple[str, str], ...]:
    return tuple((_quantile(share, metric), f"p{share * 100:g} {{{{database}}}}") for share in (0.5, 0.99))


ROWS: dict[str, tuple[Panel, ...]] = {
    "Publishing": (
        Panel(
            "Problems, as outbox status reports them",
            "short",
            ((_largest("outbox_problems", "database", "kind"), "{{kind}} {{database}}"),),
        ),
        Panel(
            "Backlog by topic",
            "short",
            ((_largest("outbox_backlog_messages", "database", "topic"), "{{topic}} {{database}}"),),
        ),
        Panel(
            "Age of the oldest unpublished message by topic",
            "s",
            ((_largest("outbox_backlog_oldest_age_seconds", "database", "topic"), "{{topic}} {{database}}"),),
        ),
        Panel(
            "Messages published per second",
            "ops",
            (
                (
                    _per_second("outbox_published_messages_total", "database", "instance"),
                    "{{instance}} {{database}}",
                ),
            ),
        ),
        Panel(
            "From the insertion to Kafka's acknowledgement", "s", _quantiles("outbox_publish_latency_seconds")
        ),
        Panel("From the hand-over to Kafka's acknowledgement", "s", _quantiles("outbox_kafka_ack_seconds")),
    ),
    "Relays": (
        Panel(
            "Lanes by relay",
            "short",
            ((_largest("outbox_relay_lanes", "database", "instance"), "{{instance}} {{database}}"),),
        ),
        Panel(
            "Holds, by kind, topic and error",
            "short",
            (
                (
                    _largest("outbox_holds", "database", "kind", "topic", "error"),
                    "{{kind}} {{topic}} {{error}} {{database}}",
                ),
            ),
        ),
        Panel(
            "Leases lost and sessions failed per second",
            "ops",
            (
                (
                    _per_second("outbox_leases_lost_total", "database", "instance"),
                    "lease lost {{instance}} {{database}}",
                ),
                (
                    _per_second("outbox_sessions_failed_total", "database", "instance"),
                    "failed {{instance}} {{database}}",
                ),
            ),
        ),
        Panel(
            "Seconds since a loop made progress",
            "s",
            ((_largest("outbox_loop_silent_seconds", "database", "instance"), "{{instance}} {{database}}"),),
        ),
        Panel(
            "Messages without an acknowledgement",
            "short",
            (
                (
                    _largest("outbox_unacknowledged_messages", "database", "instance"),
                    "{{instance}} {{database}}",
                ),
            ),
        ),
        Panel(
            "Messages that are delayed, or have expired",
            "short",
            ((_largest("outbox_waiting_messages", "database", "reason"), "{{reason}} {{database}}"),),
        ),
    ),
    "Half messages": (
        Panel(
            "Undecided, by group and state",
            "short",
            (
                (
                    _largest("outbox_half_messages", "database", "group", "state"),
                    "{{group}} {{state}} {{database}}",
                ),
            ),
        ),
        Panel(
            "Age of the oldest",
            "s",
            (
                (
                    _largest("outbox_half_oldest_age_seconds", "database", "group", "state"),
                    "{{group}} {{state}} {{database}}",
                ),
            ),
        ),
        Panel(
            "Checks per second, by result",
            "ops",
            (
                (
                    _per_second("outbox_checks_total", "database", "group", "result"),
                    "{{group}} {{result}} {{database}}",
                ),
            ),
        ),
    ),
    "Consumers": (
        Panel(
            "Lag",
            "s",
            (
                (
                    _largest("outbox_consumer_lag_seconds", "database", "group", "topic"),
                    "{{group}} {{topic}} {{database}}",
                ),
            ),
        ),
        Panel(
            "Retries and messages behind a failed one",
            "short",
            (
                (
                    _largest("outbox_consumer_retries", "database", "group", "topic"),
                    "retries {{group}} {{topic}} {{database}}",
                ),
                (
                    _largest("outbox_consumer_waiting", "database", "group", "topic"),
                    "held {{group}} {{topic}} {{database}}",
                ),
            ),
        ),
        Panel(
            "Dead letters",
            "short",
            (
                (
                    _largest("outbox_dead_letters", "database", "group", "topic"),
                    "{{group}} {{topic}} {{database}}",
                ),
            ),
        ),
    ),
}


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row, members in ROWS.items():
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": row,
                "collapsed": False,
                "panels": [],
                "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": top},
            }
        )
        top += 1
        for number, panel in enumerate(members):
            place = {
                "h": HEIGHT,
                "w": WIDTH // 3,
                "x": number % 3 * (WIDTH // 3),
                "y": top + number // 3 * HEIGHT,
            }
            panels.append(_graph(panel, len(panels) + 1, place))
        top += -(-len(members) // 3) * HEIGHT
    return {
        "title": "Outbox",
        "uid": "outbox",
        "tags": ["outbox"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": panels,
    }


def _graph(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": query, "legendFormat": legend}
            for index, (query, legend) in enumerate(panel.queries)
        ],
    }


def _variables() -> list[dict[str, Any]]:
    return [
        {"name": "datasource", "label": "Source", "type": "datasource", "query": "prometheus"},
        {
            "name": "database",
            "label": "Database",
            "type": "query",
            "datasource": SOURCE,
            "query": "label_values(outbox_figures_timestamp_seconds, database)",
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        },
    ]
