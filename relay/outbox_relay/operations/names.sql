-- The names that this database knows, to tell a typing error from an answer that is empty.

-- name: topic
-- Topics that are registered, that the newest messages go to, or that consumers of this database have read.
SELECT t.name FROM outbox.topic t
UNION
SELECT n.topic FROM (SELECT m.topic FROM outbox.message m ORDER BY m.id DESC LIMIT 10000) n
UNION
SELECT i.name FROM outbox.inbox_topic i
ORDER BY 1

-- name: producer_group
-- Producer groups that are registered, that sent the newest messages, that have half messages to decide, or an alarm.
SELECT g.name FROM outbox.producer_group g
UNION
SELECT n.producer_group
FROM (SELECT m.producer_group FROM outbox.message m ORDER BY m.id DESC LIMIT 10000) n
WHERE n.producer_group IS NOT NULL
UNION
SELECT m.producer_group FROM outbox.message m
WHERE m.state IN ('UNKNOWN', 'EXHAUSTED', 'DEAD') AND m.state <> 'DEAD'
UNION
SELECT a.producer_group FROM outbox.alarm a
ORDER BY 1

-- name: consumer_group
-- Consumer groups that have run on this database.
SELECT g.name FROM outbox.consumer_group g ORDER BY 1
