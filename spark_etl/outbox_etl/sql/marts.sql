-- The daily marts, in what Spark's SQL and DuckDB's have in common, over the views history, events and publications:
-- whichever of the two runs a statement, its rows are the same. So a keyword of either names no column unless a table
-- stands before it, a division is exact before it is rounded, and what meets a condition is counted by `count`, which is
-- never null. {born}, {published}, {recorded} and {happened} are conditions on the time that makes a row's day: of a
-- message, of its first publication, of any publication, of an event. {low} and {high} bound the ids or positions of the
-- day's rows, so that other files are left out.

-- name: made
-- Up to which window the marts of this cluster were made.
SELECT max(m.window_hi) AS hi FROM made m WHERE m.cluster = '{cluster}'

-- name: touched
-- The days whose rows a later window wrote, in one job: what of them was born, was published, or happened to half
-- messages. No mart has times of the year 1 (which -infinity becomes, too) or from 9999-12-31 on: days beside days must be days.
SELECT DISTINCT what, CAST(moment AS DATE) AS day
FROM (
    SELECT 'born' AS what, h.born_at AS moment FROM history h WHERE h.window_hi > {since}
    UNION ALL
    SELECT 'published', h.published_at FROM history h WHERE h.window_hi > {since}
    UNION ALL
    SELECT 'published', p.published_at FROM publications p WHERE p.window_hi > {since}
    UNION ALL
    SELECT 'happened', e.happened_at FROM events e WHERE e.window_hi > {since}
) WHERE moment >= TIMESTAMP'0002-01-01 00:00:00' AND moment < TIMESTAMP'9999-12-31 00:00:00'

-- name: spans
-- Between which ids or positions the rows lie that the marts of these days need, in one job.
SELECT mart, min(place) AS low, max(place) AS high
FROM (
    SELECT 'decisions' AS mart, h.id AS place FROM history h WHERE {born}
    UNION ALL
    SELECT 'checks', e.id FROM events e WHERE (e.kind = 'check' OR e.to_state = 'DEAD') AND {happened}
    UNION ALL
    SELECT 'gaps', p.position FROM publications p WHERE {recorded}
) GROUP BY mart

-- name: throughput
-- A message is counted on the day of its insert, and again on the day of its publication.
SELECT day, topic, sum(sent) AS sent, sum(published) AS published, sum(bytes) AS bytes
FROM (
    SELECT CAST(h.born_at AS DATE) AS day, h.topic, count(*) AS sent, 0 AS published, 0 AS bytes
    FROM history h WHERE {born} GROUP BY CAST(h.born_at AS DATE), h.topic
    UNION ALL
    SELECT CAST(h.published_at AS DATE), h.topic, 0, count(*),
           sum(coalesce(octet_length(h.key), 0) + coalesce(octet_length(h.body), 0))
    FROM history h WHERE h.published_at IS NOT NULL AND {published} GROUP BY CAST(h.published_at AS DATE), h.topic
) GROUP BY day, topic

-- name: latency
-- Counted by tenths of a millisecond first: what is sorted does not grow with the messages, and the percentiles are
-- exact, the same each time. A percentile lies between the two times around its place, in proportion.
WITH counted AS (
    SELECT m.day, m.topic, CAST((m.micros - m.micros % 100) / 100 AS BIGINT) AS tenths, count(*) AS times
    FROM (
        SELECT CAST(h.published_at AS DATE) AS day, h.topic,
               greatest(0, unix_micros(h.published_at)
                           - unix_micros(greatest(coalesce(h.decided_at, h.born_at), h.deliver_at))) AS micros
        FROM history h WHERE h.published_at IS NOT NULL AND {published}
    ) m GROUP BY ALL
), placed AS (
    SELECT c.*, sum(c.times) OVER (PARTITION BY c.day, c.topic ORDER BY c.tenths) AS upto,
           sum(c.times) OVER (PARTITION BY c.day, c.topic) - 1 AS highest
    FROM counted c
), around AS (
    SELECT p.day, p.topic, s.percent, max(p.highest * s.percent % 100) AS rest,
           min(CASE WHEN 100 * p.upto > p.highest * s.percent - p.highest * s.percent % 100 THEN p.tenths END) AS low,
           min(CASE WHEN 100 * p.upto - 100 > p.highest * s.percent - p.highest * s.percent % 100
                    THEN p.tenths END) AS high
    FROM placed p CROSS JOIN (VALUES (50), (95), (99)) AS s(percent)
    GROUP BY ALL
), percentiles AS (
    SELECT a.day, a.topic, a.percent,
           floor((100 * a.low + (coalesce(a.high, a.low) - a.low) * a.rest) / 10 + 0.5) / 100 AS ms
    FROM around a
), totals AS (
    SELECT c.day, c.topic, sum(c.times) AS published, max(c.tenths) / 10 AS max_ms FROM counted c GROUP BY ALL
)
SELECT t.day, t.topic, t.published, max(CASE WHEN p.percent = 50 THEN p.ms END) AS p50_ms,
       max(CASE WHEN p.percent = 95 THEN p.ms END) AS p95_ms, max(CASE WHEN p.percent = 99 THEN p.ms END) AS p99_ms,
       t.max_ms
FROM totals t JOIN percentiles p ON p.day = t.day AND p.topic = t.topic
GROUP BY ALL

-- name: decisions
-- Half messages by the day of their birth, with the last decision on each: an operator may decide one that the policy
-- left to him. Whoever decided it is told by the audit's actor; the policy speaks through a checker, and says so.
WITH halves AS (
    SELECT e.id, e.message_id FROM events e
    WHERE e.kind = 'transition' AND e.from_state IS NULL AND e.to_state = 'UNKNOWN' AND e.id BETWEEN {low} AND {high}
), decisions AS (
    SELECT e.id, e.message_id, e.to_state,
           CASE WHEN e.from_state = 'EXHAUSTED' OR e.actor LIKE 'operator:%' THEN 'operator'
                WHEN e.actor NOT LIKE 'checker:%' THEN 'producer'
                WHEN e.reason LIKE concat('%: the group', chr(39), 's policy') THEN 'policy' ELSE 'checker' END AS decider,
           row_number() OVER (PARTITION BY e.id, e.message_id ORDER BY e.happened_at DESC, e.xid DESC, e.from_state, e.to_state) AS place
    FROM events e
    WHERE e.kind = 'transition' AND e.from_state IN ('UNKNOWN', 'EXHAUSTED') AND e.id BETWEEN {low} AND {high}
), told AS (
    SELECT CAST(h.born_at AS DATE) AS day, h.producer_group, coalesce(d.to_state, 'UNKNOWN') AS state,
           CASE WHEN d.to_state IN ('COMMITTED', 'ROLLED_BACK') THEN d.decider END AS decider
    FROM history h JOIN halves a ON a.id = h.id AND a.message_id = h.message_id
        LEFT JOIN decisions d ON d.id = h.id AND d.message_id = h.message_id AND d.place = 1
    WHERE {born}
)
SELECT t.day, t.producer_group, count(*) AS half,
       count(CASE WHEN t.state = 'COMMITTED' THEN 1 END) AS committed,
       count(CASE WHEN t.state = 'ROLLED_BACK' THEN 1 END) AS rolled_back,
       count(CASE WHEN t.state = 'EXHAUSTED' THEN 1 END) AS exhausted,
       count(CASE WHEN t.state = 'UNKNOWN' THEN 1 END) AS undecided,
       count(CASE WHEN t.decider = 'producer' THEN 1 END) AS by_producer,
       count(CASE WHEN t.decider = 'checker' THEN 1 END) AS by_checker,
       count(CASE WHEN t.decider = 'policy' THEN 1 END) AS by_policy,
       count(CASE WHEN t.decider = 'operator' THEN 1 END) AS by_operator
FROM told t GROUP BY t.day, t.producer_group

-- name: checks
-- What was asked and answered, and what was found dead, on a day. A message's group stands in its history.
SELECT CAST(e.happened_at AS DATE) AS day, h.producer_group, count(CASE WHEN e.kind = 'check' THEN 1 END) AS checks,
       count(CASE WHEN e.kind = 'check' AND e.answer = 'COMMIT' THEN 1 END) AS answered_commit,
       count(CASE WHEN e.kind = 'check' AND e.answer = 'ROLLBACK' THEN 1 END) AS answered_rollback,
       count(CASE WHEN e.kind = 'check' AND e.answer = 'UNKNOWN' THEN 1 END) AS answered_unknown,
       count(DISTINCT CASE WHEN e.to_state = 'DEAD' THEN e.message_id END) AS dead
FROM events e
    LEFT JOIN (SELECT m.id, m.message_id, m.producer_group FROM history m WHERE m.id BETWEEN {low} AND {high}) h
    ON h.id = e.id AND h.message_id = e.message_id
WHERE (e.kind = 'check' OR e.to_state = 'DEAD') AND {happened}
GROUP BY CAST(e.happened_at AS DATE), h.producer_group

-- name: key_skew
-- The ten largest order keys against all. A limit per group is taken where the rows are, before they are sorted.
WITH counted AS (
    SELECT CAST(h.born_at AS DATE) AS day, h.topic, coalesce(h.order_key, h.key) AS order_key, count(*) AS times
    FROM history h WHERE coalesce(h.order_key, h.key) IS NOT NULL AND {born}
    GROUP BY ALL
), largest AS (
    SELECT * FROM (
        SELECT c.*, row_number() OVER (PARTITION BY c.day, c.topic ORDER BY c.times DESC, c.order_key) AS place
        FROM counted c
    ) p WHERE p.place <= 10
), foremost AS (
    SELECT l.day, l.topic, max(CASE WHEN l.place = 1 THEN l.order_key END) AS top_key, max(l.times) AS most,
           sum(l.times) AS ten
    FROM largest l GROUP BY l.day, l.topic
), total AS (
    SELECT c.day, c.topic, sum(c.times) AS messages, count(*) AS keys FROM counted c GROUP BY c.day, c.topic
)
SELECT t.day, t.topic, t.messages, t.keys, k.top_key, k.most / t.messages AS top_share, k.ten / t.messages AS top10_share
FROM total t JOIN foremost k ON k.day = t.day AND k.topic = t.topic

-- name: published_once
-- Whether every publication of these days is the first one of a message: each of those is one of the publications, so
-- where there are as many, there is no other.
SELECT (SELECT count(*) FROM publications p WHERE {recorded})
     = (SELECT count(*) FROM history h WHERE h.state = 'COMMITTED' AND h.status <> 'LOST' AND {published}) AS is_so

-- name: first_offsets
-- The offsets of a day, where `published_once`: the messages have them. They are counted by 32, as the bits of a number:
-- offsets lie close, and there is one group for 32 of them, where `count(DISTINCT …)` keeps each.
SELECT b.day, b.topic, b.partition, min(b.lowest) AS first_offset, max(b.highest) AS last_offset,
       CAST(sum(bit_count(b.bits)) AS BIGINT) AS seen, 0 AS repeated
FROM (
    SELECT CAST(h.published_at AS DATE) AS day, h.topic, h.partition, h.offset - h.offset % 32 AS block,
           min(h.offset) AS lowest, max(h.offset) AS highest,
           bit_or(CAST(1 AS BIGINT) << CAST(h.offset % 32 AS INT)) AS bits
    FROM history h
    WHERE h.state = 'COMMITTED' AND h.status <> 'LOST' AND h.offset >= 0 AND {published}
    GROUP BY ALL
) b GROUP BY b.day, b.topic, b.partition

-- name: offsets
-- The offsets of a day.
SELECT CAST(p.published_at AS DATE) AS day, h.topic, p.partition, min(p.offset) AS first_offset,
       max(p.offset) AS last_offset, count(DISTINCT p.offset) AS seen,
       count(CASE WHEN p.offset <> h.offset OR p.partition <> h.partition THEN 1 END) AS repeated
FROM publications p JOIN history h ON h.position = p.position
WHERE h.state = 'COMMITTED' AND h.status <> 'LOST' AND h.position BETWEEN {low} AND {high}
    AND p.offset >= 0 AND {recorded}
GROUP BY CAST(p.published_at AS DATE), h.topic, p.partition

-- name: gaps
-- The offsets of a day ({offsets} is one of the two statements above) against those that follow the day before.
-- gaps_before is what the mart has: days that were not touched stand as they are, only what they follow may be new.
WITH offsets AS (
{offsets}
), every AS (
    SELECT * FROM offsets
    UNION ALL
    SELECT m.day, m.topic, m.partition, m.first_offset, m.last_offset, m.seen, m.repeated
    FROM gaps_before m WHERE m.day NOT IN ({dates})
), followed AS (
    SELECT e.*, lag(e.last_offset) OVER (PARTITION BY e.topic, e.partition ORDER BY e.day) AS earlier FROM every e
)
SELECT f.day, f.topic, f.partition, f.first_offset, f.last_offset, f.seen,
       f.last_offset - CASE WHEN f.last_offset > f.earlier THEN f.earlier ELSE f.first_offset - 1 END - f.seen AS missing,
       f.repeated
FROM followed f WHERE f.day >= {first}

-- name: days
-- Which days were made, up to which window and of which cluster: literals, for which no Python has to start.
SELECT d.day, {window_hi} AS window_hi, '{cluster}' AS cluster FROM (VALUES {dates}) AS d(day)
