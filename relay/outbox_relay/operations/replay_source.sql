-- What a replay reads in the database of the messages. Bodies and headers are read by `contents` alone.

-- name: origin
-- Which database this is, and its time: what is published later is not part of the replay.
SELECT s.system_identifier || '/' || current_database(), clock_timestamp() FROM pg_control_system() s

-- name: id_of
-- The id of a message whose message id was made elsewhere; the second condition is the index's.
SELECT m.id FROM outbox.message m
WHERE m.message_id = %(message_id)s::uuid AND get_byte(uuid_send(m.message_id), 6) >> 4 <> 8

-- name: chosen
-- The published messages that fit, each at the place in Kafka where it appeared first. A window is one of the times at which they
-- were sent. The milliseconds are those of the header, as the relay makes it. An offset that is not known is -1.
SELECT s.id, s.message_id, s.position, s.key, s.tags, (date_part('epoch', s.born_at) * 1000)::bigint AS born,
    (date_part('epoch', s.deliver_at) * 1000)::bigint AS due,
    s.partition, coalesce(s."offset", -1) AS "offset", s.published_at,
    CASE WHEN octet_length(s.order_key) > 255 THEN 'sha256:'::bytea || sha256(s.order_key) ELSE s.order_key END AS row_order_key,
    m.queue, m.selector
FROM outbox.message_status s JOIN outbox.message m ON m.id = s.id
WHERE s.topic = %(topic)s AND s.state = 'COMMITTED' AND s.published_at < %(published_before)s
    AND (%(ids)s::bigint[] IS NULL OR s.id = ANY (%(ids)s::bigint[]))
    AND (%(key)s::bytea IS NULL OR s.key = %(key)s::bytea)
    AND (%(since)s::timestamptz IS NULL OR s.born_at >= %(since)s::timestamptz)
    AND (%(until)s::timestamptz IS NULL OR s.born_at < %(until)s::timestamptz)
LIMIT %(limit)s

-- name: contents
-- What the records of messages are made of, as in the finder of the relay.
SELECT m.id, m.body, m.headers::text, CASE WHEN m.tags <> '{}' THEN array_to_string(m.tags, '||') END,
    CASE WHEN m.index_keys <> '{}' THEN array_to_string(m.index_keys, ' ') END, m.producer_group, m.transaction_id,
    m.traceparent
FROM outbox.message m WHERE m.id = ANY (%(ids)s::bigint[])
