-- What reconcile reads in PostgreSQL beside what the export reads.

-- name: publications
-- What was published in a window, with the batch's primary key: its snapshot says what the relay saw.
SELECT m.xid::text::bigint AS xid, m.epoch, m.batch, m.lo AS id, m.published_at, m.positions, m.partitions, m.offsets
FROM outbox.publication m

-- name: messages
-- The messages of a window, and those of older ones that were published in it: their positions say which.
WHERE ({in_window}) OR (m.state = 'COMMITTED' AND m.position BETWEEN {low} AND {high})

-- name: later
-- Messages that were written or changed after the window.
SELECT m.message_id::text AS message_id, m.id, m.state FROM outbox.message m WHERE m.xid >= '{hi}'::xid8

-- name: sent_twice
-- Messages of a window whose message id another message has too. The database makes no two; ids made elsewhere come as
-- they were given, and a plain INSERT does not look whether there is one.
SELECT m.message_id::text AS message_id, m.id, m.topic
FROM outbox.message m
WHERE ({in_window}) AND get_byte(uuid_send(m.message_id), 6) >> 4 <> 8 AND EXISTS (
    SELECT FROM outbox.message o
    WHERE o.message_id = m.message_id AND o.id <> m.id AND get_byte(uuid_send(o.message_id), 6) >> 4 <> 8
)

-- name: topics
-- The topics that somebody has registered.
SELECT t.name FROM outbox.topic t

-- name: snapshots
-- What the relay saw when it published these batches.
SELECT b.epoch, b.batch, b.lo, b.snapshot::text AS snapshot
FROM outbox.publication b
WHERE (b.epoch, b.batch, b.lo) IN ({batches})

-- name: messages_by_id
-- Messages by their message ids, with every place at which they were published. A message id made here carries the row's
-- id; one made elsewhere has an index. An operator may have given one up although Kafka might have it.
SELECT m.message_id::text AS message_id, m.state, m.topic,
       m.state = 'SKIPPED' AND EXISTS (
           SELECT FROM outbox.event e WHERE e.id = m.id AND e.message_id = m.message_id AND e.kind = 'transition'
               AND e.from_state = 'COMMITTED' AND e.to_state = 'SKIPPED') AS given_up_in_doubt,
       ARRAY(SELECT format('%s@%s', b.partitions[array_position(b.positions, m.position)],
                           b.offsets[array_position(b.positions, m.position)])
             FROM outbox.publication b
             WHERE int8range(b.lo, b.hi, '[]') @> m.position AND b.lo <= m.position AND b.hi >= m.position
                 AND b.positions @> ARRAY[m.position]) AS places
FROM unnest('{{message_ids}}'::uuid[]) w (message_id)
CROSS JOIN LATERAL (
    SELECT a.id, a.message_id, a.state, a.topic, a.position FROM outbox.message a
    WHERE a.id = outbox.id_of(w.message_id) AND a.message_id = w.message_id
    UNION ALL
    SELECT a.id, a.message_id, a.state, a.topic, a.position FROM outbox.message a
    WHERE outbox.id_of(w.message_id) IS NULL AND a.message_id = w.message_id
        AND get_byte(uuid_send(a.message_id), 6) >> 4 <> 8
) m

-- name: certificates
-- What was proven of a target, and what was not, by whose xids.
SELECT c.xid::text::bigint AS xid, c.system_identifier::text AS system_identifier, c.timeline, c.database, c.warehouse,
       c.window_lo::text::bigint AS lo, c.window_hi::text::bigint AS hi, c.messages, c.problems, c.checksum,
       (extract(epoch FROM c.verified_at) * 1000000)::bigint AS verified_us
FROM outbox.certificate c
WHERE c.target = ?

-- name: certify
-- Write a certificate, if this server is the one that was read: {server} is the statement that said which that is. A
-- primary keeps its timeline as long as it runs, so what it says within this statement holds when the row is committed.
-- Whoever sees the row on a standby, also after its promotion, has all that was committed before it, and so the window.
-- It is on disk before the job reports it: a crash must not forget that something was taken back.
INSERT INTO outbox.certificate
    (target, system_identifier, timeline, database, warehouse, held, window_lo, window_hi, messages, problems, checksum)
SELECT ?, s.system_identifier::bigint, s.timeline, s.database, ?, ?::int8multirange, ?::xid8, ?::xid8, ?, ?, ?
FROM ({server}) s CROSS JOIN set_config('synchronous_commit', 'on', true) AS durable
WHERE s.system_identifier = ? AND s.timeline = ? AND s.database = ?
RETURNING problems

-- name: copied_messages
-- Messages of a range of ids for COPY, in the types that its reader has.
SELECT q.xid, q.position, q.id, q.message_id::text AS message_id, q.born_at, q.decided_at, q.deliver_at, q.deliver_before,
       q.queue, q.lane, q.state, q.topic, q.key, q.body, q.headers, q.order_key, q.selector, q.tags, q.index_keys,
       q.producer_group, q.transaction_id, q.checker, q.biz_type, q.biz_id, q.traceparent, q.remark
FROM ({rows}) q WHERE {within}

-- name: copied_events
-- Events of a range of ids for COPY.
SELECT q.xid, q.id, q.message_id::text AS message_id, q.happened_at, q.kind, q.from_state, q.to_state, q.answer, q.actor,
       q.reason
FROM ({rows}) q WHERE {within}

-- name: copied_publications
-- Batches of a range of ids for COPY.
SELECT q.xid, q.epoch, q.batch, q.id, q.published_at, q.positions, q.partitions, q.offsets FROM ({rows}) q WHERE {within}
