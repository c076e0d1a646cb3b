-- Finding messages and telling a message's life. {conditions} is put together from the "by_…" blocks; values are
-- always bound. Bodies and headers are read by "content" alone.

-- name: search
-- The newest messages that fit. Their ids are found first, so that status, partition and offset are looked up for
-- these alone. "id + 0" keeps the planner from walking the primary key in the hope of an early end: for a rare key
-- there is none. Frequent ones end early by the window of ids that the conditions hold.
WITH found AS MATERIALIZED (
    SELECT m.id FROM outbox.message m WHERE {conditions} ORDER BY m.id + 0 DESC LIMIT %(limit)s
)
SELECT s.* FROM found f JOIN outbox.message_status s ON s.id = f.id
ORDER BY s.id DESC

-- name: search_published
-- The newest messages that fit and are in a publication: looked up one by one, newest first, until there are enough.
WITH found AS MATERIALIZED (
    SELECT c.id FROM (
        SELECT m.id, m.position FROM outbox.message m
        WHERE {conditions} AND m.state = 'COMMITTED'
        ORDER BY m.id + 0 DESC OFFSET 0
    ) c
    WHERE (SELECT b.epoch FROM outbox.publication b
           WHERE int8range(b.lo, b.hi, '[]') @> c.position AND b.lo <= c.position AND b.hi >= c.position
               AND b.positions @> ARRAY[c.position] LIMIT 1) IS NOT NULL
    LIMIT %(limit)s
)
SELECT s.* FROM found f JOIN outbox.message_status s ON s.id = f.id
ORDER BY s.id DESC

-- name: search_unpublished
-- The newest messages that fit among those committed and not published: what waits, and what is beyond the
-- floor of its lane and has no publication. No xid below "lowest" is beyond any floor, which is what the index is asked for.
WITH floors AS (
    SELECT * FROM unnest(%(lanes)s::smallint[], %(floors)s::pg_snapshot[]) g (lane, floor)
), found AS MATERIALIZED (
    SELECT id FROM (
        (SELECT m.id FROM outbox.waiting w JOIN outbox.message m ON m.id = w.id
         WHERE w.reason NOT IN ('failed', 'expired') AND {conditions} ORDER BY m.id DESC LIMIT %(limit)s)
        UNION
        (SELECT m.id FROM outbox.message m JOIN floors g ON g.lane = m.lane
         WHERE m.state = 'COMMITTED' AND m.xid >= %(lowest)s::xid8
             AND NOT pg_visible_in_snapshot(m.xid, g.floor)
             AND NOT EXISTS (SELECT FROM outbox.publication b
                             WHERE int8range(b.lo, b.hi, '[]') @> m.position AND b.lo <= m.position AND b.hi >= m.position
                                 AND b.positions @> ARRAY[m.position])
             AND NOT EXISTS (SELECT FROM outbox.waiting w WHERE w.id = m.id AND w.reason IN ('failed', 'expired'))
             AND {conditions}
         ORDER BY m.id + 0 DESC LIMIT %(limit)s)
    ) u
    ORDER BY id DESC LIMIT %(limit)s
)
SELECT s.* FROM found f JOIN outbox.message_status s ON s.id = f.id
ORDER BY s.id DESC

-- name: search_dead
-- The newest messages that fit among those set aside, those that cannot be published and park their keys, and those that
-- have expired.
WITH found AS MATERIALIZED (
    SELECT id FROM (
        (SELECT m.id FROM outbox.message m
         WHERE m.state = 'DEAD' AND {conditions} ORDER BY m.id + 0 DESC LIMIT %(limit)s)
        UNION
        (SELECT m.id FROM outbox.waiting w JOIN outbox.message m ON m.id = w.id
         WHERE w.reason IN ('failed', 'expired') AND {conditions} ORDER BY m.id DESC LIMIT %(limit)s)
    ) u
    ORDER BY id DESC LIMIT %(limit)s
)
SELECT s.* FROM found f JOIN outbox.message_status s ON s.id = f.id
ORDER BY s.id DESC

-- name: span
-- The ids there can be, from the first of the oldest partition to the newest given out, and the first one of each partition.
SELECT coalesce(min(p.lower), 1), (SELECT last_value FROM outbox.position),
       coalesce(array_agg(p.lower ORDER BY p.lower), '{}')
FROM outbox.partition p

-- name: born_before
-- About the last id that was born before a time: found in halves by the primary key, as if ids and times had the same
-- order, which they nearly have. 64 halves are enough for any ids.
WITH RECURSIVE bounds AS (
    SELECT coalesce((SELECT min(p.lower) FROM outbox.partition p), 1) - 1 AS below,
           (SELECT last_value FROM outbox.position) AS top, 0 AS step
    UNION ALL
    SELECT CASE WHEN b.is_before THEN b.middle ELSE b.below END, CASE WHEN b.is_before THEN b.top ELSE b.middle - 1 END, step + 1
    FROM (
        SELECT s.*, coalesce((
            SELECT m.born_at < %(until)s FROM outbox.message m WHERE m.id >= s.middle ORDER BY m.id LIMIT 1
        ), false) AS is_before
        FROM (SELECT *, (below + top + 1) / 2 AS middle FROM bounds WHERE below < top AND step < 64) s
    ) b
)
SELECT below FROM bounds ORDER BY step DESC LIMIT 1

-- name: by_window
-- Ids above "below" up to "top": one step of a search from the newest backwards.
m.id > %(below)s AND m.id <= %(top)s

-- name: by_id
-- The place of the insert: the partition is known from it.
m.id = %(id)s

-- name: by_own_message_id
-- A message id that the outbox made carries the row's id, so that the primary key is used.
m.id = outbox.id_of(%(message_id)s::uuid) AND m.message_id = %(message_id)s::uuid

-- name: by_foreign_message_id
-- Message ids made elsewhere have an index of their own; the second condition is the index's.
m.message_id = %(message_id)s::uuid AND get_byte(uuid_send(m.message_id), 6) >> 4 <> 8

-- name: by_topic
-- The topic.
m.topic = %(topic)s

-- name: by_key
-- The record's key, byte for byte.
m.key = %(key)s

-- name: by_index_key
-- One of the message's index keys; the second condition is the index's.
m.index_keys @> ARRAY[%(index_key)s]::text[] AND m.index_keys <> '{{}}'

-- name: by_tag
-- One of the message's tags.
%(tag)s = ANY (m.tags)

-- name: by_producer_group
-- The producer group.
m.producer_group = %(producer_group)s

-- name: by_transaction_id
-- The application's name for its transaction.
m.transaction_id = %(transaction_id)s

-- name: by_checker
-- The name of the checker that can be asked.
m.checker = %(checker)s

-- name: by_biz_type
-- What kind of business it is about.
m.biz_type = %(biz_type)s

-- name: by_biz_id
-- Which piece of business it is about.
m.biz_id = %(biz_id)s

-- name: by_state
-- The state as it is stored; UNKNOWN, EXHAUSTED and DEAD have an index.
m.state = %(state)s

-- name: by_past_transition
-- For states that have no index of their own: only messages with such a transition in their audit are looked at.
m.state = %(state)s AND m.id IN (
    SELECT e.id FROM outbox.event e
    WHERE e.id > %(below)s AND e.id <= %(top)s AND e.kind = 'transition' AND e.to_state = %(state)s)

-- name: by_since
-- Born at or after a time.
m.born_at >= %(since)s

-- name: by_since_ago
-- Born in the last so many seconds, by the database's clock.
m.born_at >= statement_timestamp() - make_interval(secs => %(since_ago)s)

-- name: by_until
-- Born before a time.
m.born_at < %(until)s

-- name: by_until_ago
-- Born more than so many seconds ago, by the database's clock.
m.born_at < statement_timestamp() - make_interval(secs => %(until_ago)s)

-- name: routing
-- What the view leaves out: how the partition is chosen, and the trace.
SELECT queue, selector, traceparent FROM outbox.message WHERE id = %(id)s

-- name: events
-- Every transition and check of a half message, in order.
SELECT happened_at, kind, from_state, to_state, answer, actor, reason, xid::text::bigint AS xid
FROM outbox.event WHERE id = %(id)s AND message_id = %(message_id)s ORDER BY happened_at, xid

-- name: publications
-- Every publication of a message, the first first: more than one after a crash of an at-least-once relay.
SELECT b.published_at, b.epoch, b.batch,
       b.partitions[array_position(b.positions, %(position)s::bigint)] AS partition,
       b.offsets[array_position(b.positions, %(position)s::bigint)] AS "offset"
FROM outbox.publication b
WHERE int8range(b.lo, b.hi, '[]') @> %(position)s::bigint
    AND b.lo <= %(position)s::bigint AND b.hi >= %(position)s::bigint
    AND b.positions @> ARRAY[%(position)s::bigint]
ORDER BY b.published_at

-- name: content
-- Headers and body; asked for by name only. The headers as text: what Python cannot read is to be shown, too.
SELECT headers::text AS headers, body FROM outbox.message WHERE id = %(id)s
