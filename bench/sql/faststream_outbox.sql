-- The table of faststream-outbox is its own; these are its writer's statements in it.
-- https://faststream-outbox.modern-python.org/usage/publisher/

-- name: send
-- One message (queue, body, headers) of the business transaction: what `OutboxBroker.publish` executes, NOTIFY included.
INSERT INTO outbox (queue, payload, headers) VALUES (%s, %s, %s) RETURNING outbox.id, pg_notify('outbox_outbox', outbox.queue)

-- name: fill
-- Messages first to last of one transaction: the bodies and keys of the backlog of the drain benchmark.
INSERT INTO outbox (queue, payload, headers)
SELECT %(topic)s::text,
       convert_to(format(
           '{"order":"order-%%s","number":%%s,"customer":"customer-%%s","status":"created","currency":"EUR","amount":"%%s.%%s",'
           '"note":"Please ring twice and leave the parcel with the neighbours if nobody answers the door; thank you a lot"}',
           n * 7919::bigint %% 10000, n, n %% 5003, n %% 900 + 100, n %% 90 + 10), 'UTF8'),
       jsonb_build_object('source', 'bench', 'key', 'order-' || n * 7919::bigint %% 10000, 'correlation_id', gen_random_uuid())
FROM generate_series(%(first)s::int, %(last)s::int) n
