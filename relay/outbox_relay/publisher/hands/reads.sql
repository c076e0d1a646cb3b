-- What the publisher reads besides the finder's statements.

-- name: hashes
-- The hashes of topics, as the finder's index holds them.
SELECT n.name, pg_catalog.hashtext(n.name) FROM unnest(%(topics)s::text[]) n (name)
