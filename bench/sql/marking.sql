-- The two ways to remember what is published.

-- name: prepare
-- A twin of outbox.message whose rows are marked, with the index that a finder by status needs.
CREATE TABLE marked AS SELECT * FROM outbox.message WITH NO DATA;
ALTER TABLE marked ADD COLUMN partition integer, ADD COLUMN "offset" bigint, ADD COLUMN published_at timestamptz,
    ADD PRIMARY KEY (id);
CREATE INDEX marked_finder ON marked (position) WHERE state = 'COMMITTED'

-- name: hold
-- Takes the snapshot that is held open, as a backup does.
SELECT count(*) FROM outbox.topic

-- name: arrive
-- A batch of messages arrives.
INSERT INTO outbox.message (topic, key, body) SELECT 'marking', convert_to(i::text, 'utf8'),
    convert_to(repeat('x', 213), 'utf8') FROM generate_series(1, %(messages)s) i

-- name: arrive_marked
-- The same messages in the twin.
INSERT INTO marked SELECT * FROM outbox.message WHERE id > %(after)s

-- name: newest
-- The newest id.
SELECT coalesce(max(id), 0) FROM outbox.message

-- name: find_by_status
-- What a finder by status does: the first rows that are not marked yet.
SELECT position, key, body FROM marked WHERE state = 'COMMITTED' ORDER BY position LIMIT %(messages)s

-- name: mark
-- One row version per message.
UPDATE marked m SET state = 'PUBLISHED', partition = p.partition, "offset" = p."offset", published_at = now()
FROM unnest(%(positions)s::bigint[], %(partitions)s::integer[], %(offsets)s::bigint[])
    AS p (position, partition, "offset")
WHERE m.position = p.position AND m.state = 'COMMITTED'

-- name: record
-- One row per batch.
INSERT INTO outbox.publication (epoch, batch, lo, hi, lanes, snapshot, positions, partitions, offsets)
VALUES (1, %(batch)s, %(lo)s, %(hi)s, '{0,1,2,3,4,5,6,7}', %(snapshot)s::pg_snapshot, %(positions)s::bigint[],
        %(partitions)s::integer[], %(offsets)s::bigint[])
