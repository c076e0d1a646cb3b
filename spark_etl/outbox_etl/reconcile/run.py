"""Reconcile PostgreSQL, Kafka and the warehouse, under the lock of a run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from outbox_etl.errors import TargetError
from outbox_etl.reconcile import certificate as certificates
from outbox_etl.reconcile import vouching
from outbox_etl.reconcile.kafka import Broker
from outbox_etl.reconcile.request import ReconcileRequest, ReconcileResult
from outbox_etl.reconcile.revocation import revoke
from outbox_etl.reconcile.verification import Systems, Verification
from outbox_etl.source import partition_guard
from outbox_etl.source.reader import Source
from outbox_etl.source.window import following
from outbox_etl.warehouse.evidence import Doubt, Evidence

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from outbox_etl.options.settings import Settings
    from outbox_etl.warehouse.target import Target


def reconcile(
    spark: SparkSession,
    settings: Settings,
    target: Target,
    request: ReconcileRequest,
    say: Callable[[str], None],
) -> ReconcileResult:
    """Verify what was exported since the last certificate, and certify it; take back what cannot be true any more.

    Raises:
        EtlError: it cannot be verified; no certificate was written.
    """
    source = Source(spark, settings)
    source.check()
    with source.lock(settings.target), ExitStack() as stack:
        attached = partition_guard.check_attached(source)
        mark, warehouse, cluster = target.watermark(), target.identity(), source.cluster()
        known = certificates.present(certificates.read(source, settings.target), cluster)
        doubt = _doubt(target, certificates.newest_evidence(known)) if mark else None
        lost = doubt.text if doubt and doubt.is_loss else ""
        revoke(source, settings.target, cluster, say, warehouse=warehouse, mark=mark, because=lost)
        if mark is None:
            raise TargetError("the warehouse is empty: `outbox etl run` fills it")
        if doubt:
            say(f"everything is verified again: {doubt.text}")
            request = replace(request, everything=True)
        now = source.horizon()
        following(mark, now)
        broker = Broker(request.bootstrap_servers, request.kafka)
        stack.callback(broker.close)
        systems = Systems(spark, settings, target, broker, say)
        return Verification(systems, request, mark, now, attached).run()


def _doubt(target: Target, evidence: Evidence | None) -> Doubt | None:
    """Find out whether what was certified last is still there."""
    if evidence is None:
        return None
    if not evidence:
        return Doubt("the certificates name no evidence: an older release gave them", is_loss=False)
    return vouching.doubt(target, evidence)
