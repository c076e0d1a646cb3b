-- What is wrong now, kept as rows of outbox.notice, and what of them is to be sent. See observing.py and delivery.py.

-- name: settings
-- A process that is paused in the middle of a turn loses its session, and with it its turn, after 5 s.
SELECT set_config('idle_session_timeout', '5s', false), set_config('statement_timeout', '60s', false),
       set_config('idle_in_transaction_session_timeout', '10s', false),
       set_config('jit', 'off', false), set_config('max_parallel_workers_per_gather', '0', false),
       set_config('enable_seqscan', 'off', false)

-- name: only_one
-- One process observes at a time, until its session ends. What it writes is based on snapshots taken in its turn.
SELECT outbox.take_turn_for_notices()

-- name: found
-- What is found at once: kind, cause, and what is shown to people; no text holds a body. A further kind is a further
-- branch: each reads a small table, or by an index that holds no more than what is wrong.
SELECT 'hold', format('%s %s', h.kind, h.topic),
       format('holds: %s, since %s: %s: outbox holds ls --topic %s', greatest(count(h.hold), 1),
              to_char(min(h.since) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SSZ'),
              left((array_agg(h.error ORDER BY h.since))[1], 300), h.topic)
FROM (SELECT CASE WHEN k.is_topic THEN 'topic' WHEN k.partition IS NOT NULL THEN format('partition %s of topic', k.partition)
                  WHEN k.queue IS NULL AND k.order_key IS NULL THEN 'message of topic' ELSE 'key of topic' END AS kind,
             CASE WHEN NOT k.is_topic AND k.partition IS NULL THEN k.number END AS hold, k.topic, k.error, k.since
      FROM outbox.parked_key k) h
GROUP BY h.kind, h.topic
UNION ALL
SELECT CASE WHEN a.kind IN ('exhausted', 'rolled_back') THEN 'half_message_' || a.kind ELSE 'group_' || a.kind END,
       format('group %s', a.producer_group), a.detail
FROM outbox.alarm a
UNION ALL
SELECT 'topic_grown', format('topic %s', t.name),
       format('%s partitions in Kafka, pinned to %s: no key moves, and the new ones stay empty',
              t.partitions_in_kafka, t.partitions)
FROM outbox.topic t WHERE t.partitions_in_kafka > t.partitions

-- name: found_dead
-- Dead messages by topic, with those that have expired. The index of messages holds undecided messages too, and each of them is read.
SELECT 'message_dead', format('topic %s', d.topic), format('%s DEAD, the first is message %s', count(*), min(d.id))
FROM (
    SELECT m.topic, m.id FROM outbox.message m
    WHERE m.state IN ('UNKNOWN', 'EXHAUSTED', 'DEAD') AND m.state = 'DEAD'
    UNION ALL
    SELECT m.topic, m.id FROM outbox.waiting w JOIN outbox.message m ON m.id = w.id WHERE w.reason = 'expired'
) d
GROUP BY d.topic

-- name: raise
-- A cause that is new; one that stands keeps its id and its time.
INSERT INTO outbox.notice (kind, cause, detail) VALUES (%(kind)s, %(cause)s, %(detail)s)
ON CONFLICT (kind, cause) DO NOTHING

-- name: clear
-- Causes of these kinds that are not found any more.
UPDATE outbox.notice n SET cleared_at = clock_timestamp()
WHERE n.cleared_at IS NULL AND n.kind <> ALL (%(except_kinds)s::text[])
    AND NOT EXISTS (SELECT FROM unnest(%(kinds)s::text[], %(causes)s::text[]) f (kind, cause)
                    WHERE f.kind = n.kind AND f.cause = n.cause)

-- name: claim
-- Take what is to be sent now, the oldest first, for so many seconds. Raised comes before cleared. A process that dies
-- lets its claim pass.
UPDATE outbox.notice n SET claim = %(claim)s, send_after = clock_timestamp() + make_interval(secs => %(lease)s),
       tries = n.tries + 1
FROM (SELECT o.kind, o.cause FROM outbox.notice o
      WHERE o.send_after <= clock_timestamp() AND (o.raise_sent_at IS NULL OR o.cleared_at IS NOT NULL)
      ORDER BY o.raised_at LIMIT 1 FOR UPDATE SKIP LOCKED) d
WHERE n.kind = d.kind AND n.cause = d.cause
RETURNING n.kind, n.cause, n.id::text, n.detail, n.raised_at,
          CASE WHEN n.raise_sent_at IS NOT NULL THEN n.cleared_at END AS cleared_at, n.tries

-- name: raise_sent
-- The receiver has it. When the cause is over meanwhile, that is sent next.
UPDATE outbox.notice SET raise_sent_at = clock_timestamp(), claim = NULL, tries = 0, send_after = clock_timestamp()
WHERE kind = %(kind)s AND cause = %(cause)s AND claim = %(claim)s

-- name: clear_sent
-- The receiver has both: nothing is left to be remembered.
DELETE FROM outbox.notice WHERE kind = %(kind)s AND cause = %(cause)s AND claim = %(claim)s

-- name: failed
-- Try again later.
UPDATE outbox.notice SET claim = NULL, send_after = clock_timestamp() + make_interval(secs => %(pause)s)
WHERE kind = %(kind)s AND cause = %(cause)s AND claim = %(claim)s
