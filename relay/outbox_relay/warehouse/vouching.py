"""Asks the job whether a warehouse that only Spark reads still holds what was certified."""

from __future__ import annotations

import json
import os

from outbox_relay.text.errors import OperatorError
from outbox_relay.warehouse import child, prepare


def vouched(target: str, evidence: str) -> str:
    """Return why what was verified may be gone; empty: it is there. The job takes its options from the environment.

    Args:
        target: the warehouse that the certificate is of.
        evidence: what the certificate names, as JSON.
    """
    said: list[str] = []
    try:
        given = os.environ.get("OUTBOX_ETL_JARS", "")
        prepare.require_packages(fetching=not given)
        home = prepare.java_home(said.append)
        jars = prepare.jars(given, said.append)
        arguments = ["vouch", f"--target={target}", f"--evidence={evidence}", f"--jars={jars}", "--json"]
        ended = child.run(arguments, prepare.environment(home), said.append)
        answer = json.loads(ended.output.strip().splitlines()[-1])
    except OperatorError as error:
        return f"only Spark can read it: {' '.join(str(error).split())}"
    except (ValueError, IndexError):
        return f"the job that reads it failed: {said[-1] if said else 'it wrote nothing'}"
    return str(answer.get("error", answer.get("doubt", "the job gave no answer")))
