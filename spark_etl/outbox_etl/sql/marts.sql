-- The daily marts, in Spark's SQL, over the views history, events and publications. {days} is a condition on the time
-- that makes a row's day; {low} and {high} bound the ids or positions of the day's rows, so that other files are left out.

-- name: touched
-- The days whose rows a later window wrote, in one job: what of them was born, was published, or happened to half
-- messages.
SELECT DISTINCT what, to_date(at) AS day
FROM (
    SELECT 'born' AS what, h.born_at AS at FROM history h WHERE h.window_hi > {since}
    UNION ALL
    SELECT 'published', h.published_at FROM history h WHERE h.window_hi > {since}
    UNION ALL
    SELECT 'published', p.published_at FROM publications p WHERE p.window_hi > {since}
    UNION ALL
    SELECT 'happened', e.happened_at FROM events e WHERE e.window_hi > {since}
) WHERE at IS NOT NULL

-- name: spans
-- Between which ids or positions the rows lie that the marts of these days need, in one job.
SELECT mart, min(place) AS low, max(place) AS high
FROM (
    SELECT 'decisions' AS mart, h.id AS place FROM history h WHERE {born}
    UNION ALL
    SELECT 'checks', e.id FROM events e WHERE (e.kind = 'check' OR e.to_state = 'DEAD') AND {happened}
    UNION ALL
    SELECT 'gaps', p.position FROM publications p WHERE {published}
) GROUP BY mart

-- name: throughput
-- A message is counted on the day of its insert, and again on the day of its publication.
SELECT day, topic, sum(sent) AS sent, sum(published) AS published, sum(bytes) AS bytes
FROM (
    SELECT to_date(h.born_at) AS day, h.topic, 1L AS sent, 0L AS published, 0L AS bytes
    FROM history h WHERE {born}
    UNION ALL
    SELECT to_date(h.published_at), h.topic, 0L, 1L,
           coalesce(octet_length(h.key), 0L) + coalesce(octet_length(h.body), 0L)
    FROM history h WHERE h.published_at IS NOT NULL AND {published}
) GROUP BY day, topic

-- name: latency
-- Counted by tenths of a millisecond first: what is shuffled does not grow with the messages, and the percentiles are
-- exact, the same each time.
SELECT day, topic, sum(times) AS published, round(p[0] / 10, 2) AS p50_ms, round(p[1] / 10, 2) AS p95_ms,
       round(p[2] / 10, 2) AS p99_ms, most / 10 AS max_ms
FROM (
    SELECT day, topic, sum(times) AS times, percentile(tenths, array(0.5, 0.95, 0.99), times) AS p, max(tenths) AS most
    FROM (
        SELECT to_date(h.published_at) AS day, h.topic, count(*) AS times,
               greatest(0L, (unix_micros(h.published_at)
                             - unix_micros(greatest(coalesce(h.decided_at, h.born_at), h.deliver_at))) DIV 100) AS tenths
        FROM history h WHERE h.published_at IS NOT NULL AND {published}
        GROUP BY ALL
    ) GROUP BY day, topic
) GROUP BY ALL

-- name: decisions
-- Half messages by the day of their birth, with the last decision on each: an operator may decide one that the policy
-- left to him. Whoever decided it is told by the audit's actor; the policy speaks through a checker, and says so.
WITH halves AS (
    SELECT e.id, e.message_id FROM events e
    WHERE e.kind = 'transition' AND e.from_state IS NULL AND e.to_state = 'UNKNOWN' AND e.id BETWEEN {low} AND {high}
), decided AS (
    SELECT e.id, e.message_id,
           max_by(struct(e.to_state AS state,
                         CASE WHEN e.from_state = 'EXHAUSTED' OR e.actor LIKE 'operator:%' THEN 'operator'
                              WHEN e.actor NOT LIKE 'checker:%' THEN 'producer'
                              WHEN e.reason LIKE '%: the group\'s policy' THEN 'policy' ELSE 'checker' END AS by),
                  struct(e.happened_at, e.xid)) AS last
    FROM events e
    WHERE e.kind = 'transition' AND e.from_state IN ('UNKNOWN', 'EXHAUSTED') AND e.id BETWEEN {low} AND {high}
    GROUP BY e.id, e.message_id
), told AS (
    SELECT to_date(h.born_at) AS day, h.producer_group, coalesce(d.last.state, 'UNKNOWN') AS state,
           CASE WHEN d.last.state IN ('COMMITTED', 'ROLLED_BACK') THEN d.last.by END AS by
    FROM history h JOIN halves USING (id, message_id) LEFT JOIN decided d USING (id, message_id)
    WHERE {born}
)
SELECT day, producer_group, count(*) AS half, count_if(state = 'COMMITTED') AS committed,
       count_if(state = 'ROLLED_BACK') AS rolled_back, count_if(state = 'EXHAUSTED') AS exhausted,
       count_if(state = 'UNKNOWN') AS undecided, count_if(by = 'producer') AS by_producer,
       count_if(by = 'checker') AS by_checker, count_if(by = 'policy') AS by_policy,
       count_if(by = 'operator') AS by_operator
FROM told GROUP BY day, producer_group

-- name: checks
-- What was asked and answered, and what was found dead, on a day. A message's group stands in its history.
SELECT to_date(e.happened_at) AS day, h.producer_group, count_if(e.kind = 'check') AS checks,
       count_if(e.kind = 'check' AND e.answer = 'COMMIT') AS answered_commit,
       count_if(e.kind = 'check' AND e.answer = 'ROLLBACK') AS answered_rollback,
       count_if(e.kind = 'check' AND e.answer = 'UNKNOWN') AS answered_unknown,
       count(DISTINCT CASE WHEN e.to_state = 'DEAD' THEN e.message_id END) AS dead
FROM events e LEFT JOIN (SELECT id, message_id, producer_group FROM history WHERE id BETWEEN {low} AND {high}) h
    ON h.id = e.id AND h.message_id = e.message_id
WHERE (e.kind = 'check' OR e.to_state = 'DEAD') AND {happened}
GROUP BY to_date(e.happened_at), h.producer_group

-- name: key_skew
-- The ten largest order keys against all. A limit per group is taken where the rows are, before they are sorted.
WITH counted AS (
    SELECT to_date(h.born_at) AS day, h.topic, coalesce(h.order_key, h.key) AS order_key, count(*) AS times
    FROM history h WHERE coalesce(h.order_key, h.key) IS NOT NULL AND {born}
    GROUP BY ALL
), largest AS (
    SELECT * FROM (
        SELECT c.*, row_number() OVER (PARTITION BY c.day, c.topic ORDER BY c.times DESC, c.order_key) AS place
        FROM counted c
    ) WHERE place <= 10
), top AS (
    SELECT day, topic, max(CASE WHEN place = 1 THEN order_key END) AS top_key, max(times) AS first, sum(times) AS ten
    FROM largest GROUP BY day, topic
), total AS (
    SELECT day, topic, sum(times) AS messages, count(*) AS keys FROM counted GROUP BY day, topic
)
SELECT day, topic, messages, keys, top_key, first / messages AS top_share, ten / messages AS top10_share
FROM total JOIN top USING (day, topic)

-- name: gaps
-- The offsets of a day against those that follow the day before. {mart} is what the mart has: days that were not touched
-- stand as they are, only what they follow may be new.
WITH offsets AS (
    SELECT to_date(p.published_at) AS day, h.topic, p.`partition`, min(p.`offset`) AS first_offset,
           max(p.`offset`) AS last_offset, count(DISTINCT p.`offset`) AS seen,
           count_if(p.`offset` <> h.`offset` OR p.`partition` <> h.`partition`) AS repeated
    FROM publications p JOIN history h ON h.position = p.position
    WHERE h.state = 'COMMITTED' AND h.status <> 'LOST' AND h.position BETWEEN {low} AND {high}
        AND p.`offset` >= 0 AND {published}
    GROUP BY ALL
), every AS (
    SELECT * FROM offsets
    UNION ALL
    SELECT day, topic, `partition`, first_offset, last_offset, seen, repeated FROM {mart} WHERE day NOT IN ({days})
), following AS (
    SELECT e.*, lag(e.last_offset) OVER (PARTITION BY e.topic, e.`partition` ORDER BY e.day) AS before FROM every e
)
SELECT day, topic, `partition`, first_offset, last_offset, seen,
       last_offset - CASE WHEN last_offset > before THEN before ELSE first_offset - 1 END - seen AS missing, repeated
FROM following WHERE day >= {first}

-- name: days
-- Which days were made, up to which window and of which cluster: literals, for which no Python has to start.
SELECT explode(array({days})) AS day, {window_hi}L AS window_hi, '{cluster}' AS cluster
