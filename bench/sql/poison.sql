-- Messages of which some order keys begin with one that its topic does not take.

-- name: fill
-- Messages first to last of so many keys, in turn. The first message of each of the first "poison" keys has a body that
-- is too large for the topic; the others have 200 bytes.
INSERT INTO outbox.message (topic, key, body)
SELECT %(topic)s, convert_to('k' || n %% %(keys)s, 'UTF8'),
       convert_to(repeat('x', CASE WHEN n < %(poison)s THEN %(large)s ELSE 200 END), 'UTF8')
FROM generate_series(%(first)s::bigint, %(last)s::bigint) n

-- name: published
-- Messages recorded, and the seconds from the first record to the last.
SELECT coalesce(sum(cardinality(positions)), 0)::bigint,
       extract(epoch FROM max(published_at) - min(published_at))::float8,
       (array_agg(cardinality(positions) ORDER BY published_at))[1]
FROM outbox.publication

-- name: held
-- Messages that failed, and those held behind them.
SELECT count(*) FILTER (WHERE reason = 'failed'), count(*) FILTER (WHERE reason = 'held') FROM outbox.waiting
