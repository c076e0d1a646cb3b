"""Holds the warehouse as it is now against what a certificate names as its evidence."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from outbox_etl.errors import SettingsError, TargetError
from outbox_etl.options.option import Option
from outbox_etl.warehouse.evidence import Doubt, Evidence

if TYPE_CHECKING:
    from outbox_etl.options.settings import Settings
    from outbox_etl.warehouse.target import Target

OPTIONS = (
    Option(
        "--target", "The warehouse that the certificate is of, by the name that it carries.", metavar="NAME"
    ),
    Option("--evidence", "What the certificate names, as JSON.", metavar="JSON"),
)
"""The options that only vouch has."""


def requested(given: argparse.Namespace, settings: Settings) -> Evidence:
    """Read the evidence.

    Raises:
        SettingsError: it is not JSON, or the options name another warehouse.
    """
    if settings.target != given.target:
        raise SettingsError(
            f"the certificate is of {given.target}, and the options name {settings.target}: set OUTBOX_WAREHOUSE and "
            "the OUTBOX_ETL_CATALOG variables as for `outbox etl run`"
        )
    try:
        evidence: dict[str, Any] = json.loads(given.evidence)
    except ValueError as error:
        raise SettingsError(f"--evidence is not JSON: {error}") from error
    return evidence


def doubt(target: Target, evidence: Evidence) -> Doubt | None:
    """Find out whether what was verified is still there, with its files."""
    try:
        state = target.state()
        return state.doubt(evidence) or state.doubt_files()
    except TargetError as error:
        return Doubt(str(error))
    except (KeyError, TypeError, ValueError) as error:
        return Doubt(f"it cannot be read: {type(error).__name__}: {error}")
