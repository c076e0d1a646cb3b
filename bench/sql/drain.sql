-- The backlog of the drain benchmark, and the same rows as a plain reader sees them.

-- name: fill
-- Messages first to last of one transaction: bodies of 213 to 230 bytes of JSON, 10,000 keys, a tag, a producer group
-- and a header of the user's.
INSERT INTO outbox.message (topic, key, body, headers, tags, producer_group)
SELECT %(topic)s::text, convert_to('order-' || n * 7919::bigint %% 10000, 'UTF8'),
       convert_to(format(
           '{"order":"order-%%s","number":%%s,"customer":"customer-%%s","status":"created","currency":"EUR","amount":"%%s.%%s",'
           '"note":"Please ring twice and leave the parcel with the neighbours if nobody answers the door; thank you a lot"}',
           n * 7919::bigint %% 10000, n, n %% 5003, n %% 900 + 100, n %% 90 + 10), 'UTF8'),
       '{"source": "bench"}', '{created}', 'bench'
FROM generate_series(%(first)s::int, %(last)s::int) n

-- name: sizes
-- Least and greatest body, in bytes.
SELECT min(octet_length(body)), max(octet_length(body)) FROM outbox.message WHERE key <> 'first'

-- name: newest
-- The last id.
SELECT max(id) FROM outbox.message

-- name: read
-- A page by id, every column that a Kafka record is made of; {columns} as the relay's finder reads them.
SELECT {columns} FROM (SELECT *, NULL::bigint AS withheld, 0 AS bytes FROM outbox.message) m
WHERE id BETWEEN %(first)s AND %(last)s ORDER BY id
