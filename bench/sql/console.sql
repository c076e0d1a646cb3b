-- What the console's benchmark fills its database with, besides the history of the export's.

-- name: own
-- A relay that leads, and whose progress is what the history has published on paper.
UPDATE outbox.lane SET owner = 'bench', epoch = %(epoch)s, joined = 0,
    system_identifier = (SELECT system_identifier FROM pg_control_system())

-- name: lease
-- It lives for as long as the benchmark.
INSERT INTO outbox.lease (epoch, owner, backend_pid, leased_until)
VALUES (%(epoch)s, 'bench', pg_backend_pid(), clock_timestamp() + interval '1 day')
ON CONFLICT (epoch) DO UPDATE SET leased_until = EXCLUDED.leased_until

-- name: halves
-- Half messages that nobody has decided, of a hundred groups.
INSERT INTO outbox.message (topic, key, body, state, producer_group)
SELECT 'half', convert_to('k' || i, 'UTF8'), '{}', 'UNKNOWN', 'bench-' || i %% 100 FROM generate_series(1, %(count)s) i

-- name: group
-- A consumer group of which messages are dead.
WITH grouped AS (
    INSERT INTO outbox.consumer_group (name, subscription, orderly) VALUES ('bench', '{"orders": "*"}', true) RETURNING id
)
INSERT INTO outbox.inbox_topic (name, kafka_id) SELECT 'orders', 'bench/orders' FROM grouped

-- name: letters
-- Dead letters of fifty causes, each of a key of its own.
WITH dead AS (
    INSERT INTO outbox.inbox_parked (group_id, message_id, born_on, topic_id, part, off, digest, key, order_key,
        header_names, header_values, published_at, state, attempts, fingerprint, error, failed_at, body)
    SELECT g.id, gen_random_uuid(), CURRENT_DATE, t.id, 0, i, 'd', convert_to('k' || i, 'UTF8'),
        convert_to('k' || i, 'UTF8'), '{}', '{}', now(), 'dead', 3, 'ValueError at shop.points:apply: ' || i %% 50,
        repeat('Traceback ', 300), now() - make_interval(secs => i), '{}'
    FROM outbox.consumer_group g, outbox.inbox_topic t, generate_series(1, %(count)s) i
    RETURNING group_id, topic_id, order_key
)
INSERT INTO outbox.inbox_held_key (group_id, topic_id, order_key) SELECT * FROM dead

-- name: one
-- A message of the middle of the history.
SELECT id, message_id::text, convert_from(key, 'UTF8') AS key, index_keys[1] AS index_key
FROM outbox.message WHERE id > (SELECT max(id) / 2 FROM outbox.message) AND index_keys <> '{}' ORDER BY id LIMIT 1

-- name: analyze
-- What autovacuum would have done.
ANALYZE outbox.message, outbox.publication, outbox.pending_check, outbox.inbox_parked, outbox.inbox_held_key
