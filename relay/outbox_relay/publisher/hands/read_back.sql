-- What a relay that takes over reads of what former ones recorded.

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
