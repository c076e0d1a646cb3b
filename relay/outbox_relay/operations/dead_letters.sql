-- What operators do with a message that cannot be published; the guards of the table decide whether it may be done.

-- name: change
-- One transition of one message. No row: it is in another state. The trigger writes the audit.
UPDATE outbox.message SET state = %(after)s, remark = %(reason)s
WHERE id = %(id)s AND message_id = %(message_id)s AND state = %(before)s
RETURNING outbox.actor(), decided_at

-- name: read_state
-- The state of a message, where it is published, whether its time is over (one that parks its key is asked
-- again when its key is drained), and the transition that brought the state.
SELECT s.state, s.status, s.waiting, s.topic, s.partition, s."offset", s.deliver_before,
       s.status = 'DEAD' AND s.waiting IS DISTINCT FROM 'failed' AND s.deliver_before <= clock_timestamp() AS expired,
       e.actor, e.happened_at, e.reason
FROM outbox.message_status s
LEFT JOIN LATERAL (
    SELECT t.actor, t.happened_at, t.reason FROM outbox.event t
    WHERE t.id = s.id AND t.message_id = s.message_id AND t.kind = 'transition' AND t.to_state = s.state
    ORDER BY t.happened_at DESC LIMIT 1
) e ON true
WHERE s.id = %(id)s AND s.message_id = %(message_id)s

-- name: request_drain
-- Asks the owner of a held key, or the owners of a topic, to publish the messages again, in order; waits for whoever gives
-- one of them up. No row: the relay is publishing them now.
UPDATE outbox.parked_key k SET requested_at = clock_timestamp(), requested_by = outbox.actor()
WHERE k.number = ANY (%(numbers)s) AND k.draining_at IS NULL
RETURNING k.requested_by, k.requested_at

-- name: next_to_give_up
-- Messages that failed, or that have expired, by id: of chosen holds or of all, in doubt or certain. An index has both.
SELECT w.id FROM outbox.waiting w JOIN outbox.message m ON m.id = w.id
LEFT JOIN outbox.parked_key k ON k.number = w.parked
WHERE w.reason IN ('failed', 'expired') AND w.reason = %(waiting)s AND w.in_doubt = %(in_doubt)s AND w.id > %(after)s
    AND (%(topic)s::text IS NULL OR coalesce(k.topic, m.topic) = %(topic)s)
    AND (%(error)s::text IS NULL OR split_part(k.error, ':', 1) = %(error)s)
    AND (%(older)s::float IS NULL OR k.since <= clock_timestamp() - make_interval(secs => %(older)s))
ORDER BY w.id LIMIT 1000
