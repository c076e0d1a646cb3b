"""The revision that the service works with is the newest that the migrations bring."""

from __future__ import annotations

import re
from itertools import pairwise

from alembic.script import ScriptDirectory

from outbox_migrations import api
from outbox_relay.database import schema


def test_the_service_expects_the_newest_revision() -> None:
    assert api.head() == schema.REVISION


def test_each_later_revision_states_the_oldest_software_and_limits_its_waits() -> None:
    revisions = [script.revision for script in ScriptDirectory.from_config(api._config()).walk_revisions()]
    for before, revision in pairwise(sorted(revisions)):
        script = "\n".join(api.scripts(before, revision))
        assert re.search(
            r"^UPDATE outbox\.schema_version SET oldest_software = '\d{4}';", script, re.MULTILINE
        )
        assert re.search(r"^SET LOCAL lock_timeout = '\d+m?s';", script, re.MULTILINE), revision


def test_revisions_are_numbers_so_that_older_and_newer_can_be_told() -> None:
    revisions = [script.revision for script in ScriptDirectory.from_config(api._config()).walk_revisions()]
    assert revisions == sorted(revisions, reverse=True)
    assert all(re.fullmatch(r"\d{4}", revision) for revision in revisions)
