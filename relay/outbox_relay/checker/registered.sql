-- name: registered
-- How these groups ($1: their names) are asked, as the operator registered it. A group that is not registered, or has
-- no callback, is asked in its own process.
SELECT g.name, g.callback, g.workers FROM outbox.producer_group g
WHERE g.name = ANY (%(names)s::text[]) AND g.callback IS NOT NULL;

-- name: with_callback
-- All groups that this checker would ask.
SELECT g.name, g.callback, g.workers FROM outbox.producer_group g WHERE g.callback IS NOT NULL ORDER BY g.name;
