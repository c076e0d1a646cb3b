"""A database with full partitions for tests of retention: messages, their publications, certificates made by hand."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp

from tests.support.bare_reader import narrow_partitions
from tests.support.plain_inserts import Connection, connect, insert, insert_numbered
from tests.support.plain_warehouses import PlainWarehouse
from tests.support.publications import own_lanes, positions, record, snapshot, value

WIDTH = 1_000

CERTIFY = """
    INSERT INTO outbox.certificate
        (target, system_identifier, timeline, database, warehouse, held, window_lo, window_hi, messages, problems,
         checksum, verified_at)
    SELECT %(target)s, s.system_identifier + %(cluster)s,
           ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::integer,
           d.oid::bigint + %(database)s, %(warehouse)s, %(held)s::int8multirange, %(lo)s::text::xid8,
           coalesce(%(hi)s::text::xid8, pg_snapshot_xmin(pg_current_snapshot())), 0, %(problems)s, %(checksum)s,
           clock_timestamp() - %(ago)s::interval
    FROM pg_control_system() s, pg_database d WHERE d.datname = current_database()
"""

STATE = """
    SELECT CASE WHEN to_regclass(%(table)s) IS NULL THEN 'gone' ELSE coalesce(
        (SELECT CASE WHEN inhdetachpending THEN 'pending' ELSE 'attached' END
         FROM pg_inherits WHERE inhrelid = to_regclass(%(table)s)), 'detached') END
"""


class History:
    """Writes history: ranges of 1,000 ids, from id 1 on."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.conn: Connection = connect(dsn)
        narrow_partitions(self.conn)
        own_lanes(self.conn)
        self._batch = 0
        self.warehouse = PlainWarehouse(Path(mkdtemp(prefix="outbox-warehouse-")))

    def close(self) -> None:
        self.conn.close()
        shutil.rmtree(self.warehouse.root, ignore_errors=True)

    def reconnect(self) -> None:
        """Go on after the server was away."""
        self.conn.close()
        self.conn = connect(self.dsn)

    def fill(self, number: int, messages: int = 10, *, publish: bool = True) -> None:
        """Write messages into the range of this number (0 is the first), and their publication."""
        self.go_to(number * WIDTH + 1)
        insert_numbered(self.conn, "t", messages, start=number * WIDTH)
        if publish:
            self.publish(number)

    def go_to(self, id_: int) -> None:
        """Let the next message have this id."""
        self.conn.execute("SELECT setval('outbox.position', %s, false)", [id_])

    def leave(self, number: int) -> None:
        """Give out an id in the range of this number, so that those before it are full."""
        self.go_to(number * WIDTH + 1)
        insert(self.conn, "t", "k", b"beyond")

    def publish(self, number: int) -> None:
        """Record as published whatever has a position in a range and no publication."""
        found = positions(
            self.conn,
            f"state = 'COMMITTED' AND position > {number * WIDTH} AND position <= {(number + 1) * WIDTH} "
            "AND NOT EXISTS (SELECT FROM outbox.publication b WHERE b.positions @> ARRAY[position])",
        )
        if found:
            self._batch += 1
            record(self.conn, found, seen=snapshot(self.conn), batch=self._batch)

    def certify(
        self,
        target: str = "lake",
        *,
        lo: int = 3,
        hi: int | None = None,
        problems: int = 0,
        cluster: int = 0,
        database: int = 0,
        warehouse: str = "the first",
        held: str = "{[1,)}",
        ago: str = "0",
        evidence: Mapping[str, object] | None = None,
    ) -> None:
        """Certify a window of xids; up to now unless `hi` is given; `cluster`, `database`: 1 is another one's.

        `warehouse`: which one was found at the target's place; `held`: the ids whose partitions were attached.
        `ago`: how far the clock is behind. `evidence`: by default the warehouse as it is.
        """
        # The oldest xid that runs on the server: other tests' transactions count too.
        self.conn.execute(
            CERTIFY,
            {
                "target": target,
                "cluster": cluster,
                "database": database,
                "lo": lo,
                "hi": hi,
                "problems": problems,
                "warehouse": warehouse,
                "held": held,
                "ago": ago,
                "checksum": json.dumps({"evidence": evidence or self.warehouse.evidence()}),
            },
        )

    def tables(self) -> list[str]:
        """The tables of messages that exist, attached or not."""
        rows = self.conn.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r' "
            "AND relname ~ '_p[0-9]{15}$' ORDER BY 1"
        ).fetchall()
        return [row[0] for row in rows]

    def attached(self) -> list[str]:
        """The tables that belong to their parents, and are not leaving."""
        rows = self.conn.execute(
            "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
            "WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind = 'r' AND NOT i.inhdetachpending ORDER BY 1"
        ).fetchall()
        return [row[0] for row in rows]

    def state(self, kind: str, number: int = 0) -> str:
        """How a table belongs to its parent: attached, pending, detached or gone."""
        return str(value(self.conn, STATE, {"table": table(kind, number)}))


def table(kind: str, number: int = 0) -> str:
    """The table of a range."""
    return f"outbox.{kind}_p{number * WIDTH + 1:015d}"
