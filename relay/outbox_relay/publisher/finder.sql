-- The statements that find rows. {…} is filled in by finder.py with the quoted names of live partitions only.

-- name: settings
-- Session settings without which the planner goes astray: on an empty partition every plan costs the same, and a
-- plan made then is kept; a bitmap reads a whole difference before its first row comes; a parallel plan starts processes
-- at every poll. A process that freezes in a transaction gives
-- up its locks after a lease.
SELECT set_config('plan_cache_mode', 'force_generic_plan', false),
       set_config('enable_seqscan', 'off', false),
       set_config('enable_bitmapscan', 'off', false),
       set_config('max_parallel_workers_per_gather', '0', false),
       set_config('jit', 'off', false),
       set_config('cursor_tuple_fraction', '1', false),
       set_config('synchronous_commit', 'on', false),
       set_config('client_min_messages', 'warning', false),
       set_config('lock_timeout', '0', false),
       set_config('idle_in_transaction_session_timeout', %(lease_ms)s, false)

-- name: still_prepared
-- Which of these statements the session still has.
SELECT name FROM pg_prepared_statements WHERE name = ANY (%(names)s::text[])

-- name: forget
-- A poll that is of no further use: its partitions or its scope have changed.
DEALLOCATE {name}

-- name: poll
-- The difference of two snapshots: rows that this statement's snapshot sees and the previous one did not, in position
-- order, if they fit a page; else none of them. The search ends at the first row beyond a page, so a poll costs no more
-- than a page however much there is: there is no ORDER BY below the LIMIT, and what was found of more than a page are
-- any rows of it, not the first. The first row is a header: how many rows were found (one more than a page: there are
-- more), the newest position given out, this statement's snapshot, if there are more, how many of what was found
-- belong to which hash of a topic ("headers"), and whether what was found needs no barrier (the last column; see
-- "secured"). "position + 0" keeps the planner from walking an index of positions. How a page is cut: see "page".
-- Transactions that still run are not searched ("visible"): one may have written a million rows, which are in the index,
-- and each would be looked up in the table to find that it is not visible.
WITH visible AS MATERIALIZED (
    SELECT pg_snapshot_xmax(s) AS xmax,
           ARRAY(SELECT x FROM unnest(%(xip)s::xid8[]) x WHERE pg_visible_in_snapshot(x, s)) AS ended,
           {written} AS written
    FROM pg_current_snapshot() s
), found AS MATERIALIZED (
    SELECT *, position + 0 AS place FROM ({branches}) m LIMIT %(page)s + 1
), size AS MATERIALIZED (
    SELECT count(*) AS rows FROM found
)
SELECT (SELECT rows FROM size) AS position, (SELECT last_value FROM outbox.position) AS id,
       NULL::smallint AS lane, pg_current_snapshot()::text AS topic, NULL::bytea AS key, NULL::bytea AS body,
       NULL::bytea AS order_key, NULL::integer AS queue, NULL::text AS selector, NULL::text AS message_id,
       NULL::text AS born_at, NULL::text AS deliver_at,
       CASE WHEN (SELECT rows FROM size) > %(page)s THEN (
           SELECT string_agg(t.hash || ':' || t.rows, ' ')
           FROM (SELECT hashtext(topic) AS hash, count(*) AS rows FROM found GROUP BY hashtext(topic)) t) END AS headers,
       NULL::text AS tags, NULL::text AS index_keys,
       NULL::text AS producer_group, {no_text_headers},
       NULL::text AS waiting, NULL::boolean AS expired, NULL::bigint AS withheld, {secured} AS fills_page
UNION ALL
SELECT {columns} FROM (
    SELECT *, {withheld} AS withheld FROM (
        SELECT *, sum(weight) OVER (ORDER BY place ROWS UNBOUNDED PRECEDING) AS bytes
        FROM (SELECT *, {weight} AS weight FROM found WHERE (SELECT rows FROM size) <= %(page)s) w
    ) c WHERE bytes - weight < %(bytes)s ORDER BY place OFFSET 0
) m

-- name: written
-- Where the log is written to, read by the poll itself: above all that its snapshot sees. (The snapshot is taken before the
-- statement runs, a commit is written before it is visible, and the function is volatile, so it is in no kept plan.)
pg_current_wal_insert_lsn()

-- name: nothing_written
-- The same in a poll that does not ask.
NULL::pg_lsn

-- name: secured
-- Whether what the poll found may be published without a commit behind it: all that its snapshot saw is on this server's
-- disk, no standby is to have it first, and the lanes are ours. Asked in the poll, because an answer of another session
-- may come from after a crash. When the last record ends a page of the log, "written" lies behind what can be flushed until
-- somebody writes more: false, and a barrier is made.
(SELECT rows FROM size) > 0 AND pg_current_wal_flush_lsn() >= (SELECT written FROM visible)
    AND current_setting('synchronous_standby_names') = ''
    AND (SELECT count(*) FROM outbox.lane
         WHERE epoch = %(epoch)s AND owner = %(owner)s AND lane = ANY (%(mine)s::smallint[])) = cardinality(%(mine)s::smallint[])

-- name: not_secured
-- The same in a poll that does not ask.
false

-- name: branch
-- One live partition of the difference, for one run of neighbouring lanes and one of hashes of topics. Each half is an
-- index scan of its own: an OR would not use the index, and for a list of lanes it would be walked once per lane.
SELECT * FROM {partition}
WHERE xid >= %(xmax)s::xid8 AND xid < (SELECT xmax FROM visible) AND state = 'COMMITTED' AND {scope}
UNION ALL
SELECT * FROM {partition} WHERE xid = ANY ((SELECT ended FROM visible)::xid8[]) AND state = 'COMMITTED' AND {scope}

-- name: lanes
-- A run of neighbouring lanes.
lane BETWEEN {first}::smallint AND {last}::smallint

-- name: topics
-- A range of hashes of topics, which the finder's index holds: a topic that is left out costs no row of the table.
hashtext(topic) BETWEEN {low}::integer AND {high}::integer

-- name: others
-- Hashes within the ranges that are left out as well. The next poll begins behind their rows, so each is looked up once.
hashtext(topic) <> ALL (%(others)s::integer[])

-- name: columns
-- What a Kafka record is made of, in types that are cheap to read. "waiting": null is to be published; else the
-- message waits, for whatever reason, until that time (as text whose order is that of time). It is looked up per
-- row that is returned: a join would read all that waits at every poll. "expired": true when its
-- deliver_before is over, by this server's clock as the row is read. "withheld": the bytes of a row too large
-- to be brought; of its fields it has only what is parked for it, and none where that is long, too. "fills_page": true for
-- the row that fills the page's bytes.
position, id, lane, CASE WHEN {is_named} THEN topic END,
       CASE WHEN withheld IS NULL OR order_key IS NULL AND ({is_named}) THEN key END,
       CASE WHEN withheld IS NULL THEN body END, CASE WHEN {is_named} THEN order_key END, queue,
       CASE WHEN withheld IS NULL THEN selector END, message_id::text,
       (date_part('epoch', born_at) * 1000)::bigint::text, (date_part('epoch', deliver_at) * 1000)::bigint::text,
       CASE WHEN withheld IS NULL AND headers IS NOT NULL THEN {headers} END,
       CASE WHEN withheld IS NULL AND tags <> '{{}}' THEN array_to_string(tags, '||') END,
       CASE WHEN withheld IS NULL AND index_keys <> '{{}}' THEN array_to_string(index_keys, ' ') END,
       CASE WHEN withheld IS NULL THEN producer_group END, {text_headers},
       (SELECT least(w.due_at, '9999-01-01')::text FROM outbox.waiting w WHERE w.id = m.id),
       CASE WHEN deliver_before <= clock_timestamp() THEN true END, withheld, CASE WHEN bytes >= %(bytes)s THEN true END

-- name: is_named
-- Whether a row comes with its topic and its order key, in "columns".
withheld IS NULL OR octet_length(topic) <= {longest_topic}
    AND coalesce(octet_length(coalesce(order_key, key)), 0) <= {longest_key}

-- name: text_header
-- A column that travels as a header as it is (wire.TEXT_HEADERS), in "columns".
CASE WHEN withheld IS NULL THEN {column} END

-- name: no_text_header
-- The same column in the header row of a poll.
NULL::text AS {name}

-- name: text_bytes
-- The bytes of such a column, in "weight" and "withheld".
coalesce(octet_length({column}), 0)

-- name: weight
-- Bytes that a row brings, at most, without reading what lies out of line. PostgreSQL compresses a value to no less
-- than a 90th of its size (pglz: 25 bytes tell of 8 runs of 273) or a 256th (lz4). JSON's text doubles quotes and
-- backslashes (and writes six bytes for other control characters: that much a page can be larger). What lies above
-- the bound of a row is cut off, so that a row's bytes stay an integer.
least(octet_length(topic)::bigint + coalesce(octet_length(key), 0) + coalesce(octet_length(body), 0)
      + coalesce(octet_length(order_key), 0) + coalesce(octet_length(selector), 0)
      + coalesce(octet_length(producer_group), 0) + {text_bytes}
      + CASE WHEN headers IS NULL THEN 0 WHEN pg_column_compression(headers) IS NULL THEN 2 * pg_column_size(headers)
             ELSE 2 * pg_column_size(headers)::bigint
                      * CASE pg_column_compression(headers) WHEN 'pglz' THEN 90 ELSE 256 END END
      + CASE WHEN pg_column_compression(tags) IS NULL THEN pg_column_size(tags)
             ELSE pg_column_size(tags)::bigint
                  * CASE pg_column_compression(tags) WHEN 'pglz' THEN 90 ELSE 256 END END
      + CASE WHEN pg_column_compression(index_keys) IS NULL THEN pg_column_size(index_keys)
             ELSE pg_column_size(index_keys)::bigint
                  * CASE pg_column_compression(index_keys) WHEN 'pglz' THEN 90 ELSE 256 END END,
      %(row_bytes)s::bigint + 1)::integer

-- name: withheld
-- The bytes of a row that is too large to be brought at all, else null. Only the last row of a page can be so heavy,
-- so only it is measured by reading it: "||" with nothing gives the value back as it is uncompressed.
CASE WHEN weight > %(row_bytes)s THEN nullif(greatest(
    octet_length(topic)::bigint + coalesce(octet_length(key), 0) + coalesce(octet_length(body), 0)
    + coalesce(octet_length(order_key), 0) + coalesce(octet_length(selector), 0)
    + coalesce(octet_length(producer_group), 0) + {text_bytes}
    + CASE WHEN headers IS NULL THEN 0 WHEN jsonb_typeof(headers) = 'object' THEN pg_column_size('{{}}'::jsonb || headers)
           ELSE 256 * pg_column_size(headers)::bigint END
    + pg_column_size(tags || '{{}}'::text[]) + pg_column_size(index_keys || '{{}}'::text[]),
    %(row_bytes)s), %(row_bytes)s) END

-- name: headers
-- Headers as text. A number of ten bytes has up to 131,000 digits: what is no object of strings, which the table
-- refuses, comes as an array instead, and its message stops as malformed. Small ones are taken for granted.
CASE WHEN (pg_column_size(headers) > 500 OR pg_column_compression(headers) IS NOT NULL)
               AND jsonb_path_exists(headers, 'strict $.* ? (@.type() != "string" && @.type() != "null")', '{{}}', true)
                   IS DISTINCT FROM false
          THEN '[]' ELSE headers::text END

-- name: backlog
-- A large difference, listed once, as ids in position order: what "cur" sees and the previous snapshot did not.
-- PostgreSQL writes the ids to a temporary file; see polls.py. Without what waits: that leaves the table by its hold
-- only, or with another xid.
DECLARE {name} NO SCROLL CURSOR WITH HOLD FOR SELECT m.id FROM ({branches}) m
WHERE {unpublished} NOT EXISTS (SELECT FROM outbox.waiting w WHERE w.id = m.id) ORDER BY m.position

-- name: no_publication
-- Where some of it is published: without what has a publication. A message has its xid before it is visible, so its publication,
-- which is written later, has a higher one.
NOT EXISTS (SELECT FROM (SELECT unnest(b.positions) AS position FROM outbox.publication b WHERE b.xid >= %(since)s::xid8) p
            WHERE p.position = m.position) AND

-- name: backlog_branch
-- One live partition of a large difference.
SELECT id, position, topic FROM {partition} WHERE {scope} AND xid >= %(xmax)s::xid8
    AND xid < %(cur_xmax)s::xid8 AND NOT xid = ANY (%(cur_xip)s::xid8[])
    AND state = 'COMMITTED'
UNION ALL
SELECT id, position, topic FROM {partition} WHERE {scope} AND xid = ANY (%(xip)s::xid8[])
    AND xid < %(cur_xmax)s::xid8 AND NOT xid = ANY (%(cur_xip)s::xid8[])
    AND state = 'COMMITTED'

-- name: unpublished_by_topic
-- What a poll counts of a difference of more than a page, without what is published or has expired: messages by hash of a
-- topic, of so many as are more than a page. The difference to a floor begins with what is published of every topic. The LIMIT is
-- outside: the planner would choose a nested loop for it.
WITH unpublished AS MATERIALIZED (
    SELECT hashtext(m.topic) AS hash FROM ({branches}) m
    WHERE {unpublished} NOT EXISTS (SELECT FROM outbox.waiting w WHERE w.id = m.id AND w.reason = 'expired')
)
SELECT hash, count(*) FROM (SELECT hash FROM unpublished LIMIT %(page)s + 1) f GROUP BY hash

-- name: nested_loops
-- Off while a comparison with all publications since a floor is planned: a partition without statistics seems to hold a
-- few messages, and then each of a million would be compared with all publications.
SELECT set_config('enable_nestloop', %(on)s, false)

-- name: published
-- Which of these positions have a publication.
SELECT p.position FROM (
    SELECT unnest(b.positions) AS position FROM outbox.publication b
    WHERE int8range(b.lo, b.hi, '[]') && int8range(%(lowest)s, %(highest)s, '[]') AND b.lo <= %(highest)s
) p WHERE p.position IN (SELECT unnest(%(positions)s::bigint[]))

-- name: unpublished
-- The same when no floor is known (a new schema, a restore, another cluster): all that has no publication.
DECLARE {name} NO SCROLL CURSOR WITH HOLD FOR
SELECT m.id FROM outbox.message m
WHERE m.lane = ANY (%(lanes)s::smallint[]) AND m.state = 'COMMITTED'
    AND m.xid < %(cur_xmax)s::xid8 AND NOT m.xid = ANY (%(cur_xip)s::xid8[])
    AND NOT EXISTS (SELECT FROM (SELECT unnest(b.positions) AS position FROM outbox.publication b) p
                    WHERE p.position = m.position)
    AND NOT EXISTS (SELECT FROM outbox.waiting w WHERE w.id = m.id)
ORDER BY m.position

-- name: next_of_list
-- The next ids of a list.
FETCH {count} FROM {name}

-- name: close_list
-- A list that is taken, or no longer wanted.
CLOSE {name}

-- name: page
-- Rows of a backlog by id, in position order. The bounds prune partitions when the statement starts. A row that got
-- a new xid and position since it was listed (released when it fell due, retried) belongs to a later difference.
-- State and xid are asked outside (OFFSET 0 keeps them there): inside they would lead the planner to the finder's
-- index, all of it, for a page.
-- A page is cut behind the row whose bytes fill it. Only rows that are returned count, so the first of them is always
-- returned: an empty answer says that none of the ids is left, and one without a row that fills the page ("fills_page")
-- that no others are. Rows that have been cancelled since must not fill a page: those behind them would seem gone.
SELECT {columns} FROM (
    SELECT *, {withheld} AS withheld FROM (
        SELECT *, sum(weight) OVER (ORDER BY place ROWS UNBOUNDED PRECEDING) AS bytes
        FROM (
            SELECT *, position + 0 AS place, {weight} AS weight FROM outbox.message
            WHERE {listed} id BETWEEN %(lowest)s AND %(highest)s OFFSET 0
        ) w
        WHERE state = 'COMMITTED' AND xid < %(cur_xmax)s::xid8 AND NOT xid = ANY (%(cur_xip)s::xid8[])
    ) c WHERE bytes - weight < %(bytes)s ORDER BY place OFFSET 0
) m
ORDER BY place

-- name: listed
-- The ids, in "page". Where they follow each other closely it is left out: one walk over their range costs less than a descent for each.
-- Rows between them are left out by the caller. They count, too: a page that they fill alone says nothing of the ids.
id = ANY (%(ids)s::bigint[]) AND

-- name: here
-- A snapshot and the newest position given out, for a lane that joins.
SELECT pg_current_snapshot()::text, (SELECT last_value FROM outbox.position)

-- name: take_xid
-- Take an xid, and end. A snapshot ends at the newest transaction that has ended; one that still runs may have a higher xid,
-- and is in no list of that snapshot. After this, every xid that was given out before lies below a snapshot's xmax.
SELECT pg_current_xact_id()

-- name: hashes
-- The hashes of topics, as the finder's index holds them.
SELECT n.name, pg_catalog.hashtext(n.name) FROM unnest(%(topics)s::text[]) n (name)

-- name: recorded
-- The last recorded offsets of topics, by partition, as far as the newest publications of former relays have them. A message
-- that was not published as soon as it was inserted has another position than id: it is left out.
-- OFFSET 0 keeps the planner from reading all messages for a join.
WITH newest AS MATERIALIZED (
    SELECT b.positions, b.partitions, b.offsets FROM outbox.publication b
    WHERE b.epoch < %(epoch)s ORDER BY b.epoch DESC, b.batch DESC, b.lo DESC LIMIT %(publications)s
), recorded AS MATERIALIZED (
    SELECT r.position, r.partition, r.place FROM newest n
    CROSS JOIN LATERAL unnest(n.positions, n.partitions, n.offsets) r (position, partition, place) LIMIT %(messages)s
)
SELECT m.topic, r.partition, max(r.place) FROM recorded r
CROSS JOIN LATERAL (SELECT o.topic FROM outbox.message o WHERE o.id = r.position AND o.position = r.position OFFSET 0) m
WHERE m.topic = ANY (%(topics)s::text[]) GROUP BY m.topic, r.partition
