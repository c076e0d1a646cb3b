"""The finder against every interleaving of concurrent transactions: nothing lost, nothing twice, order kept.

At each point of a schedule the finder polls from every earlier point. Whatever subset of points a relay polls
at, what it publishes is put together from such differences; so all subsets are proven at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import psycopg
import pytest

from outbox_relay.publisher.finder import Finder, Slice, prepare_session
from outbox_relay.publisher.partitions import LivePartitions
from outbox_relay.publisher.snapshot import Snapshot
from tests.support.plain_inserts import connect, insert
from tests.support.transaction_schedules import Schedule, Stage, Transaction, interleavings, sample

LANES = Slice(frozenset(range(8)))
A = (["SC", "SC"], "ab")
B = (["LSC", "XLSC", "XC"], "kk-")
D = (["LSC", "LSC", "XLSC", "XC"], "kkk-")
E = (["LSC", "LSC", "SC"], "kkz")
SEND_BEFORE_LOCK = (["SLC", "LSC"], "kk")
SAVEPOINTS = (["XL(S)[S]C", "L[S]SC", "(S)R"], "kkz")
PREPARED = (["LSPK", "XLSC", "SC"], "kkz")


@pytest.fixture
def senders(database: str) -> Iterator[Stage]:
    senders = Stage(database, 4)
    yield senders
    senders.close()


@pytest.fixture
def finder(database: str) -> Iterator[Finder]:
    with connect(database) as conn:
        prepare_session(conn)
        finder = Finder(conn)
        finder.name_partitions(LivePartitions(conn).tables)
        yield finder


def difference(finder: Finder, previous: Snapshot) -> list[str]:
    """Message ids in the order in which a relay would publish them."""
    return [row[9] for row in finder.poll(previous, LANES).rows]


def inversions(found: Sequence[str], running: Sequence[Transaction]) -> Iterator[str]:
    """Name each message in front of one of its key that was committed before it was sent, or before its lock."""
    place = {message_id: index for index, message_id in enumerate(found)}
    keys = {message_id: t.key for t in running for message_id, _ in t.sent}
    for transaction in running:
        for later, earlier in transaction.sent:
            for message_id in (earlier | transaction.seen) & place.keys():
                if keys[message_id] == transaction.key and place.get(later, len(place)) < place[message_id]:
                    yield f"{later} before {message_id}"


def check(senders: Stage, finder: Finder, scripts: list[str], keys: str, schedule: Schedule) -> list[str]:
    """Run one schedule; return its inversions. Loss and doubles fail at once."""
    points: dict[str, tuple[Snapshot, dict[str, int]]] = {}
    wrong: list[str] = []
    for running in senders.run(scripts, keys, schedule):
        snapshot, _ = finder.here()
        visible = senders.visible()
        points.setdefault(str(snapshot), (snapshot, visible))
        for previous, known in points.values():
            found = difference(finder, previous)
            new = [m for _, m in sorted((p, m) for m, p in visible.items() if m not in known)]
            assert found == new, f"{schedule}: from {previous} to {snapshot} {found}, committed was {new}"
            wrong += inversions(found, running)
    return wrong


@pytest.mark.feature("S-102")
@pytest.mark.parametrize(("scripts", "keys"), [A, E], ids=["A", "E"])
def test_no_interleaving_loses_doubles_or_inverts(
    senders: Stage, finder: Finder, scripts: list[str], keys: str
) -> None:
    for schedule in interleavings(scripts):
        assert not check(senders, finder, scripts, keys, schedule)


@pytest.mark.feature("S-102")
@pytest.mark.parametrize("part", range(4))
def test_an_early_xid_and_a_long_writer_never_lose_duplicate_or_reorder_messages(
    senders: Stage, finder: Finder, part: int
) -> None:
    for number, schedule in enumerate(interleavings(B[0])):
        if number % 4 == part:
            assert not check(senders, finder, *B, schedule)


@pytest.mark.parametrize(
    ("scripts", "keys"), [D, SAVEPOINTS, PREPARED], ids=["D", "savepoints", "prepared transactions"]
)
def test_sampled_interleavings_lose_double_and_invert_nothing(
    senders: Stage, finder: Finder, scripts: list[str], keys: str
) -> None:
    for schedule in sample(scripts, 60, seed=2026):
        assert not check(senders, finder, scripts, keys, schedule)


def test_sending_before_the_lock_of_the_key_can_invert_and_is_the_callers_mistake(
    senders: Stage, finder: Finder
) -> None:
    wrong = [
        check(senders, finder, *SEND_BEFORE_LOCK, schedule) for schedule in interleavings(SEND_BEFORE_LOCK[0])
    ]
    assert any(wrong), "scenario C no longer inverts: the documentation may promise more"
    assert not all(wrong)


def test_a_sequence_with_a_cache_can_invert_which_is_why_it_has_none(database: str, finder: Finder) -> None:
    with connect(database) as first, connect(database) as second:
        row = first.execute("SELECT cache_size FROM pg_sequences WHERE sequencename = 'position'").fetchone()
        assert row == (1,)
        first.execute("ALTER SEQUENCE outbox.position CACHE 10")
        insert(first, "t", "k", "warms up the first session's stale block")
        insert(second, "t", "k", "moves the second session to a later one")
        snapshot, _ = finder.here()
        earlier = insert(second, "t", "k", "committed first")
        later = insert(first, "t", "k", "sent after that commit, from the stale block")
        assert difference(finder, snapshot) == [later, earlier], "scenario F no longer inverts"


def test_a_transaction_prepared_and_committed_much_later_is_found_then(database: str, finder: Finder) -> None:
    with connect(database) as conn, psycopg.connect(database) as other:
        before, _ = finder.here()
        late = insert(other, "t", "k", b"")
        other.execute("PREPARE TRANSACTION 'late'")
        other.rollback()  # nothing is open: the transaction belongs to nobody now
        for _ in range(50):
            insert(conn, "t", "k", b"")
        between = finder.poll(before, LANES)
        assert len(between.rows) == 50
        for _ in range(50):
            insert(conn, "t", "k", b"")
        after = finder.poll(between.snapshot, LANES)
        assert len(after.rows) == 50
        conn.execute("COMMIT PREPARED 'late'")
        assert difference(finder, after.snapshot) == [late]
        assert difference(finder, finder.here()[0]) == []
