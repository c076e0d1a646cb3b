-- The table of Debezium's outbox event router, as its documentation has it, with a header of the user's.
-- https://debezium.io/documentation/reference/stable/transformations/outbox-event-router.html

-- name: table
-- The outbox of the peer.
CREATE TABLE event_outbox (
    id            uuid  PRIMARY KEY DEFAULT gen_random_uuid(),
    aggregatetype text  NOT NULL,
    aggregateid   text  NOT NULL,
    type          text  NOT NULL,
    payload       bytea NOT NULL,
    source        text  NOT NULL
)

-- name: publication
-- What the connector reads of the log.
CREATE PUBLICATION bench_debezium FOR TABLE event_outbox WITH (publish = 'insert')

-- name: drop_slot
-- The connector has ended; without this the database cannot be dropped.
SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
WHERE slot_name = 'bench_debezium' AND database = current_database() AND NOT active

-- name: send
-- One event (topic, key, body) of the business transaction.
INSERT INTO event_outbox (aggregatetype, aggregateid, type, payload, source) VALUES (%s, %s, 'created', %s, 'bench')

-- name: fill
-- Events first to last of one transaction: the bodies and keys of the backlog of the drain benchmark.
INSERT INTO event_outbox (aggregatetype, aggregateid, type, payload, source)
SELECT %(topic)s::text, 'order-' || n * 7919::bigint %% 10000, 'created',
       convert_to(format(
           '{"order":"order-%%s","number":%%s,"customer":"customer-%%s","status":"created","currency":"EUR","amount":"%%s.%%s",'
           '"note":"Please ring twice and leave the parcel with the neighbours if nobody answers the door; thank you a lot"}',
           n * 7919::bigint %% 10000, n, n %% 5003, n %% 900 + 100, n %% 90 + 10), 'UTF8'), 'bench'
FROM generate_series(%(first)s::int, %(last)s::int) n
