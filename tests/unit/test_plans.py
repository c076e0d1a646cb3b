"""Every statement that runs while messages flow has a test of its query plan, or a reason why it needs none.

A plan test names its statements: `@pytest.mark.plan("outbox/sql/cancel.sql", "cancel", "read_cancelled")`.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUN_TIME = ("outbox/sql", "relay/outbox_relay")
DB = "what `outbox db` asks once; partitions are made ahead by a function of the schema"
TX = "what `outbox tx` asks once; its pages are tested in test_tx_plans.py"
RETENTION = "what `outbox history` asks before a drop: whole partitions, read on purpose"
INSPECT = "what operators ask once; tested in test_message_plans.py and test_status_command.py"
COMMANDS = {
    "local/outbox_local/demo/demo.sql": "tables of the demo",
    "local/outbox_local/shop/shop.sql": "tables of the e-commerce example",
    "outbox/sql/django.sql": "asked by Django's system checks, of the catalog",
    "outbox/sql/testing.sql": "asked by tests of applications",
    "relay/outbox_relay/database/partitions_ahead.sql": DB,
    "relay/outbox_relay/database/schema.sql": "asked once at a start, of the catalog",
    "relay/outbox_relay/monitoring/kept.sql": "figures, every 15 s: what is held, alarms, one message, the catalog",
    "relay/outbox_relay/operations/check_now.sql": TX,
    "relay/outbox_relay/operations/consumers.sql": "what `outbox consumers` and `outbox status` ask; reads what failed",
    "relay/outbox_relay/operations/database_checks.sql": DB,
    "relay/outbox_relay/operations/decide.sql": TX,
    "relay/outbox_relay/operations/doctor.sql": "what `outbox doctor` asks once, of the catalog and of one message",
    "relay/outbox_relay/operations/dlq.sql": "what `outbox dlq` asks once; tested in test_dlq_plans.py",
    "relay/outbox_relay/operations/failovers.sql": "what `outbox failover` asks once; a row per server that took over",
    "relay/outbox_relay/operations/lost_messages.sql": "what `outbox failover scan` asks, after a fail-over",
    "relay/outbox_relay/operations/inbox_days.sql": "what `outbox inbox` asks once: whole days, read on purpose",
    "relay/outbox_relay/operations/inbox_drop.sql": "the steps of `outbox inbox drop`: locks, and one row per group",
    "relay/outbox_relay/operations/groups.sql": "what `outbox group` asks once; a row per producer group",
    "relay/outbox_relay/operations/held_move.sql": "the steps of `outbox topic repartition`; a row per topic",
    "relay/outbox_relay/operations/half_message_life.sql": TX,
    "relay/outbox_relay/operations/half_messages.sql": TX,
    "relay/outbox_relay/operations/holds.sql": "`outbox holds`, and figures every 15 s; see test_plans_parked.py",
    "relay/outbox_relay/operations/messages.sql": INSPECT,
    "relay/outbox_relay/operations/names.sql": "what commands ask once that have found nothing; pages by an index",
    "relay/outbox_relay/operations/partitions.sql": DB,
    "relay/outbox_relay/operations/relays.sql": "what `outbox relay ls` and `drain` ask; a row per relay",
    "relay/outbox_relay/operations/replay_source.sql": "what a replay reads once; tested in test_replay_plans.py",
    "relay/outbox_relay/operations/replays.sql": "the steps of a replay; tested in test_replay_plans.py",
    "relay/outbox_relay/operations/registry_changes.sql": "what commands that change topics ask; a row per relay",
    "relay/outbox_relay/operations/status.sql": INSPECT,
    "relay/outbox_relay/operations/subject_keys.sql": "what `outbox key` asks once; pages of `rewrap` by an index",
    "relay/outbox_relay/operations/topic_pauses.sql": "what `outbox topic pause` asks once; a row per lane",
    "relay/outbox_relay/operations/topics.sql": "what `outbox topic` asks once; a row per topic",
    "relay/outbox_relay/proving/prove.sql": "tables of `outbox prove`, in a database of its own",
    "relay/outbox_relay/retention/eligibility.sql": RETENTION,
    "relay/outbox_relay/retention/ranges.sql": RETENTION,
    "relay/outbox_relay/retention/removal.sql": RETENTION,
    "relay/outbox_relay/retention/tidy.sql": RETENTION,
}
"""Not run while messages flow."""

LANES = "outbox.lane has eight rows, outbox.lease one for each relay"
INSERTS = "inserts, and reads no table"
NO_TABLE = "reads no table: settings, locks, sequences, cursors"
PART = "a part of another statement, which is tested"
REGISTRY = "one row of a table with a row per producer group, by its primary key"
RESTORE = "once, after a restore into another cluster: reads everything on purpose"

NOTICES = "outbox.notice has a row per alarm that stands"

EXEMPT: dict[str, dict[str, str]] = {
    "outbox/sql/cancel.sql": dict.fromkeys(["savepoint", "undo", "release"], NO_TABLE),
    "outbox/sql/checking.sql": {
        "begin": NO_TABLE,
        **dict.fromkeys(["settings", "raise_alarm", "clear_alarm"], REGISTRY),
    },
    "relay/outbox_relay/console/console.sql": dict.fromkeys(["reading", "acting"], NO_TABLE),
    "outbox/sql/keys.sql": {"retire": "one row by its primary key, in a function"},
    "outbox/sql/inbox.sql": {
        **dict.fromkeys(["park", "park_followers"], INSERTS),
        **dict.fromkeys(["require_transaction", "require_same_transaction", "is_committed"], NO_TABLE),
        **dict.fromkeys(
            [
                *("before_retry", "take_back", "await_commits", "apply_policies", "notice_dead_clients"),
                *("keep_role", "reset_role", "check_constraints"),
            ],
            NO_TABLE,
        ),
    },
    "outbox/sql/inbox_leases.sql": {"wait_briefly": NO_TABLE}
    | dict.fromkeys(
        ["hold_all", "park_all"], "inserts; reads rows of this transaction by their primary keys"
    ),
    "outbox/sql/inbox_groups.sql": {
        "hidden_by": "one group by its unique name, in a function",
        **dict.fromkeys(
            [
                "find_group",
                "add_group",
                "others",
                "change_group",
                "join",
                "is_listed",
                "leave",
                "pauses",
                "pause",
                "resume",
                "copy_to",
                "may_copy",
            ],
            "a row per consumer group, or per member of one",
        ),
        **dict.fromkeys(["find_topic", "add_topic"], "a row per topic, by a unique index"),
        "types": REGISTRY,
        **dict.fromkeys(["ensure_partition", "ensure_ahead", "end_session", "server"], NO_TABLE),
    },
    "outbox/sql/groups.sql": dict.fromkeys(
        ["add_group", "configure_group", "set_callback", "read_group"], REGISTRY
    ),
    "outbox/sql/prepare.sql": dict.fromkeys(["prepare", "prepare_with_message_id"], INSERTS),
    "outbox/sql/send.sql": {
        **dict.fromkeys(["send", "send_with_message_id", "send_ordered"], INSERTS),
        **dict.fromkeys(["send_many", "send_many_with_message_id", "refuse_unlocked_key"], INSERTS),
        **dict.fromkeys(["lock_order_keys", "recount_order_keys", "lock_idempotency_key"], NO_TABLE),
    },
    "outbox/sql/topics.sql": {"register_topic": "inserts one row, by the primary key"},
    "outbox/sql/sessions.sql": {"set": NO_TABLE},
    "outbox/sql/rocketmq.sql": dict.fromkeys(["hurry", "wait_briefly"], NO_TABLE),
    "relay/outbox_relay/alarms/alarms.sql": {
        **dict.fromkeys(["settings", "only_one"], NO_TABLE),
        **dict.fromkeys(["raise", "clear", "claim", "raise_sent", "clear_sent", "failed"], NOTICES),
        "found": "lanes, parked keys, alarms of groups, and a row per topic, on a connection that is for nothing else",
        "found_dead": "by the index of what is unsettled, as `outbox status` reads it; paced by what it took",
    },
    "relay/outbox_relay/checker/askers/query.sql": dict.fromkeys(
        ["limits", "role", "leave_nothing"], NO_TABLE
    ),
    "relay/outbox_relay/checker/registered.sql": dict.fromkeys(
        ["registered", "with_callback"], "reads a table with a row per producer group, every few seconds"
    ),
    "relay/outbox_relay/publisher/wal.sql": dict.fromkeys(
        ["positions", "server", "written", "aurora", "elsewhere", "has_synchronous_standbys"],
        "no table, or a row per role once in a session",
    ),
    "relay/outbox_relay/publisher/finder.sql": {
        **dict.fromkeys(["written", "nothing_written", "secured", "not_secured"], PART),
        **dict.fromkeys(
            [
                "settings",
                "still_prepared",
                "forget",
                "next_of_list",
                "close_list",
                "here",
                "take_xid",
                "nested_loops",
                "hashes",
            ],
            NO_TABLE,
        ),
        **dict.fromkeys(["branch", "lanes", "columns", "weight", "withheld", "headers"], PART),
        **dict.fromkeys(["is_named", "text_header", "no_text_header", "text_bytes"], PART),
        "unpublished": "without a floor: reads everything on purpose",
    },
    "relay/outbox_relay/publisher/upkeep.sql": {
        **dict.fromkeys(["all", "still_there"], "a row per partition"),
        "settings": NO_TABLE,
    },
    "relay/outbox_relay/publisher/hands/batches.sql": {
        "identity": "reads what the server knows of itself",
        **dict.fromkeys(["known", "begin", "forget", "was_exactly_once"], "a row per shard, and its intents"),
        **dict.fromkeys(["proven", "not_proven", "intend_last"], "when lanes are taken: one row"),
        **dict.fromkeys(["intents", "end_intents"], "when lanes are taken: three intents of a shard at most"),
        "end_announcements": "when lanes are taken: what is held of them, by its index",
    },
    "relay/outbox_relay/publisher/lanes.sql": {
        **dict.fromkeys(["take", "lock_free", "give_back", "clear", "join", "renew", "release"], LANES),
        **dict.fromkeys(["note_failover", "leave_timeline"], LANES),
        "doubt_held": "when lanes are taken: reads what is held only where their last owner was on another server",
        **dict.fromkeys(
            [
                "leadership",
                "others",
                "disagreeing",
                "lane_numbers",
                "not_ended",
            ],
            LANES,
        ),
        "is_exactly_once": "a row per shard",
        "note_origin": "a table of one row",
        **dict.fromkeys(["lock_holders", "loop"], "reads what the server knows of its sessions"),
        **dict.fromkeys(
            [
                "lock",
                "lock_timeout",
                "idle_timeout",
                "mark_session",
                "session_mark",
                "renewal_settings",
                "newest",
            ],
            NO_TABLE,
        ),
        **dict.fromkeys(["take_over_unpublished", "take_over_published"], RESTORE),
    },
    "relay/outbox_relay/publisher/hands/writes.sql": {"record": LANES},
}


def statements() -> dict[str, set[str]]:
    """The names of the statements that run while messages flow, by file."""
    files = (file for folder in RUN_TIME for file in sorted((ROOT / folder).rglob("*.sql")))
    named = {
        file.relative_to(ROOT).as_posix(): re.findall(r"^-- name: *(\w+)", file.read_text(), re.M)
        for file in files
    }
    return {file: set(names) for file, names in named.items() if not file.startswith(tuple(COMMANDS))}


@functools.cache
def covered() -> dict[str, set[str]]:
    """The statements that plan tests name, by file."""
    found: dict[str, set[str]] = {}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        text = file.read_text()
        if "pytest.mark.plan(" in text:
            for path, *names in marks(ast.parse(text)):
                assert names, f"{file}: plan() takes a file and the names of statements"
                found.setdefault(path, set()).update(names)
    return found


def marks(tree: ast.Module) -> Iterator[list[str]]:
    """The arguments of each mark `plan` of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.plan":
                    yield [ast.literal_eval(argument) for argument in mark.args]


def test_every_statement_that_runs_while_messages_flow_has_a_plan_test_or_a_reason() -> None:
    without = {
        f"{file}: {name}"
        for file, names in statements().items()
        for name in names - covered().get(file, set()) - EXEMPT.get(file, {}).keys()
    }
    assert not without, "test their plans (mark the test with `plan`), or say in EXEMPT why not"


def test_plan_tests_and_reasons_name_statements_that_exist_once() -> None:
    known = statements()
    exempt = {file: set(reasons) for file, reasons in EXEMPT.items()}
    for named in (covered(), exempt):
        for file, names in named.items():
            assert names <= known.get(file, set()), (
                f"{file} has no statements {names - known.get(file, set())}"
            )
    for file, names in exempt.items():
        assert not covered().get(file, set()) & names, f"{file}: tested and exempt"
    for place in COMMANDS:
        assert (ROOT / place).exists(), place
