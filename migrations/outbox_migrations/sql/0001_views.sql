-- What people read: every message with the one status, partition and offset that it has.
-- PUBLISHED appears here only, and DEAD for a message that cannot be published and parks its key, or has expired. A message that
-- was published twice (at-least-once, after a crash) shows its first appearance. "deliver_before" is shown within the years
-- that clients can load: a writer whose stated lanes are trusted may have written infinity.
CREATE VIEW outbox.message_status AS
SELECT m.id,
       m.message_id,
       CASE WHEN m.state <> 'COMMITTED' THEN m.state WHEN p.published_at IS NOT NULL THEN 'PUBLISHED'
            WHEN w.reason IN ('failed', 'expired') THEN 'DEAD' ELSE m.state END AS status,
       m.topic,
       p.partition,
       p."offset",
       m.key,
       m.order_key,
       m.tags,
       m.index_keys,
       m.producer_group,
       m.transaction_id,
       m.checker,
       m.biz_type,
       m.biz_id,
       m.born_at,
       m.decided_at,
       m.deliver_at,
       CASE WHEN m.deliver_before IS NOT NULL
            THEN least(greatest(m.deliver_before, '0001-01-02 UTC'), '9999-12-30 UTC') END AS deliver_before,
       p.published_at,
       w.reason AS waiting,
       w.due_at,
       c.checks,
       c.due_at AS check_due_at,
       m.lane,
       m.position,
       m.xid,
       m.state,
       m.remark
FROM outbox.message m
LEFT JOIN outbox.waiting w ON w.id = m.id
LEFT JOIN outbox.pending_check c ON c.id = m.id AND m.state = 'UNKNOWN'
LEFT JOIN LATERAL (
    SELECT b.published_at,
           b.partitions[array_position(b.positions, m.position)] AS partition,
           b.offsets[array_position(b.positions, m.position)] AS "offset"
    FROM outbox.publication b
    WHERE int8range(b.lo, b.hi, '[]') @> m.position
      -- Said again for a plan without the index: cheap to check before the arrays are read, in this order.
      AND b.lo <= m.position
      AND b.hi >= m.position
      AND b.positions @> ARRAY[m.position]
    ORDER BY b.published_at
    LIMIT 1
) p ON m.state = 'COMMITTED';
COMMENT ON VIEW outbox.message_status IS 'Messages with status (PUBLISHED included), partition, offset and times.';
