"""Reads what a process serves to a monitoring system, as Prometheus and Kubernetes do."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, ...], float]


def get(port: int, path: str, *, accept: str = "", seconds: float = 5.0) -> tuple[int, str]:
    """Return the status and the page."""
    conn = HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        conn.request("GET", path, headers={"Accept": accept})
        reply = conn.getresponse()
        return reply.status, reply.read().decode()
    finally:
        conn.close()


def probe(port: int, path: str) -> tuple[int, Any]:
    """Return the status and what the page of a probe holds."""
    status, page = get(port, path)
    return status, json.loads(page)


def scrape(port: int) -> Samples:
    """Return all samples by name and values of labels, without the label `database`."""
    status, page = get(port, "/metrics")
    assert status == 200, page
    return samples(page)


def samples(page: str) -> Samples:
    """Read a page of metrics."""
    return {
        (one.name, *(value for label, value in one.labels.items() if label != "database")): one.value
        for family in text_string_to_metric_families(page)
        for one in family.samples
    }
