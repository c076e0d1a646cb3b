-- What the writers of tests do in their transactions. A row of business.item is the truth about one key: every
-- version from 1 to its version was committed together with one message that carries it.

-- name: create
-- The business table, with its keys: k… are sent plainly, h… as half messages.
CREATE SCHEMA business;
CREATE TABLE business.item (key text PRIMARY KEY, version integer NOT NULL DEFAULT 0, half uuid);
INSERT INTO business.item (key) SELECT 'k' || i FROM generate_series(0, %(keys)s - 1) i;
INSERT INTO business.item (key) SELECT 'h' || i FROM generate_series(0, %(halves)s - 1) i

-- name: advance
-- The write that serialises a key.
UPDATE business.item SET version = version + 1 WHERE key = %(key)s RETURNING version

-- name: send
-- Its message, after it.
INSERT INTO outbox.message (topic, key, body)
VALUES (%(topic)s, convert_to(%(key)s, 'UTF8'), convert_to(%(key)s || ':' || %(version)s, 'UTF8'))

-- name: poison
-- The same, larger than its topic takes. The table trusts a stated lane, and does not check the size then.
INSERT INTO outbox.message (topic, key, body, headers, lane)
VALUES (%(topic)s, convert_to(%(key)s, 'UTF8'), convert_to(%(key)s || ':' || %(version)s, 'UTF8'),
        pg_catalog.jsonb_build_object('much', repeat('x', %(much)s)),
        outbox.lane_of(%(topic)s, NULL, convert_to(%(key)s, 'UTF8'), 0))

-- name: lock
-- A half message's key: its version, and the half message that is undecided.
SELECT version, half FROM business.item WHERE key = %(key)s FOR UPDATE

-- name: prepare
-- The half message of the next version.
WITH half AS (
    INSERT INTO outbox.message (topic, key, body, state, producer_group)
    VALUES (%(topic)s, convert_to(%(key)s, 'UTF8'), convert_to(%(key)s || ':' || %(version)s, 'UTF8'), 'UNKNOWN',
            'writers')
    RETURNING message_id
)
UPDATE business.item SET half = (SELECT message_id FROM half) WHERE key = %(key)s

-- name: decide
-- Decides it, by the row's id that its message id carries.
UPDATE outbox.message SET state = %(state)s
WHERE id = outbox.id_of(%(half)s) AND message_id = %(half)s AND state = 'UNKNOWN'

-- name: decided
-- Takes note of the decision in the business.
UPDATE business.item SET half = NULL, version = version + %(committed)s WHERE key = %(key)s

-- name: truth
-- All versions that were committed.
SELECT key, v FROM business.item, generate_series(1, version) v
