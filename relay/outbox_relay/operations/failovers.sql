-- Servers that took over from another one. outbox.failover has a row for each: relays write it, and a scan states there how
-- many lost messages it found.

-- name: all
-- Every server that took over, the newest first.
SELECT system_identifier, timeline, from_system_identifier, from_timeline, noticed_at, scanned_at, lost
FROM outbox.failover ORDER BY noticed_at DESC, timeline DESC

-- name: last_published_before
-- When the server before recorded its last publication that is here. What it published and is not here was committed
-- after that: a copy of a database is a beginning of what it was made from. Null: none is here.
SELECT max(p.published_at) FROM outbox.publication p WHERE p.published_at < %(noticed_at)s

-- name: scanned
-- State what a scan found. No row: the server is not known as one that took over.
UPDATE outbox.failover SET scanned_at = clock_timestamp(), lost = %(lost)s
WHERE system_identifier = %(system_identifier)s AND timeline = %(timeline)s
