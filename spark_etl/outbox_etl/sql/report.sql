-- The figures of a report, in Spark's SQL, over the marts of its days and the view history. {inside} is the condition on
-- a mart's day, {most} how many rows are told apart; `everything` and `all_…` are over all rows, also those left out.

-- name: days
-- From when until when there are marts.
SELECT min(day) AS first, max(day) AS last FROM mart_days

-- name: per_day
-- Sent and published per day; `moment` is in seconds since 1970.
SELECT unix_date(day) * 86400L AS moment, sum(sent) AS sent, sum(published) AS published
FROM mart_throughput WHERE {inside} GROUP BY day ORDER BY day

-- name: per_minute
-- The same by the minute, for a few days: from the history itself.
SELECT minute * 60 AS moment, sum(sent) AS sent, sum(published) AS published
FROM (
    SELECT unix_seconds(h.born_at) DIV 60 AS minute, 1L AS sent, 0L AS published FROM history h WHERE {born}
    UNION ALL
    SELECT unix_seconds(h.published_at) DIV 60, 0L, 1L FROM history h WHERE h.published_at IS NOT NULL AND {published}
) GROUP BY minute ORDER BY minute

-- name: topics
-- The topics with most messages.
SELECT topic, sum(sent) AS sent, sum(published) AS published, sum(bytes) AS bytes, count(*) OVER () AS everything,
       sum(sum(sent)) OVER () AS all_sent, sum(sum(published)) OVER () AS all_published,
       sum(sum(bytes)) OVER () AS all_bytes
FROM mart_throughput WHERE {inside} GROUP BY topic ORDER BY published DESC, sent DESC, topic LIMIT {most}

-- name: latency
-- The percentiles of the topics with most publications, per day.
WITH top AS (
    SELECT topic, sum(published) AS all_days, count(*) OVER () AS everything
    FROM mart_latency WHERE {inside} GROUP BY topic ORDER BY all_days DESC, topic LIMIT {most}
)
SELECT l.topic, l.day, l.published, l.p50_ms, l.p95_ms, l.p99_ms, l.max_ms, t.everything
FROM mart_latency l JOIN top t ON t.topic = l.topic WHERE {inside} ORDER BY t.all_days DESC, l.topic, l.day

-- name: histogram
-- Messages by the time that they took, in buckets of 1, 2 and 5 per decade of microseconds; all below 100 are in the first.
SELECT 3 * decade + CASE WHEN took < 2 * power(10, decade) THEN 0 WHEN took < 5 * power(10, decade) THEN 1 ELSE 2 END
           AS bucket,
       count(*) AS messages
FROM (
    SELECT took, CAST(floor(log10(took)) AS INT) AS decade
    FROM (
        SELECT greatest(100L, unix_micros(h.published_at)
                              - unix_micros(greatest(coalesce(h.decided_at, h.born_at), h.deliver_at))) AS took
        FROM history h WHERE h.published_at IS NOT NULL AND {published}
    )
) GROUP BY ALL

-- name: decided_by_day
-- Half messages by the day of their birth.
SELECT day, sum(half) AS half, sum(committed) AS committed, sum(rolled_back) AS rolled_back,
       sum(exhausted) AS exhausted, sum(undecided) AS undecided
FROM mart_decisions WHERE {inside} GROUP BY day ORDER BY day

-- name: decided_by_group
-- Half messages by producer group.
SELECT producer_group, sum(half) AS half, sum(committed) AS committed, sum(rolled_back) AS rolled_back,
       sum(exhausted) AS exhausted, sum(undecided) AS undecided, sum(by_producer) AS by_producer,
       sum(by_checker) AS by_checker, sum(by_policy) AS by_policy, sum(by_operator) AS by_operator,
       count(*) OVER () AS everything, sum(sum(half)) OVER () AS all_half,
       sum(sum(committed)) OVER () AS all_committed, sum(sum(rolled_back)) OVER () AS all_rolled_back,
       sum(sum(exhausted)) OVER () AS all_exhausted, sum(sum(undecided)) OVER () AS all_undecided,
       sum(sum(by_producer)) OVER () AS all_by_producer, sum(sum(by_checker)) OVER () AS all_by_checker,
       sum(sum(by_policy)) OVER () AS all_by_policy, sum(sum(by_operator)) OVER () AS all_by_operator
FROM mart_decisions WHERE {inside} GROUP BY producer_group ORDER BY half DESC, producer_group LIMIT {most}

-- name: checks
-- Check-backs and dead messages by producer group.
SELECT producer_group, sum(checks) AS checks, sum(answered_commit) AS answered_commit,
       sum(answered_rollback) AS answered_rollback, sum(answered_unknown) AS answered_unknown, sum(dead) AS dead,
       count(*) OVER () AS everything, sum(sum(checks)) OVER () AS all_checks,
       sum(sum(answered_commit)) OVER () AS all_answered_commit,
       sum(sum(answered_rollback)) OVER () AS all_answered_rollback,
       sum(sum(answered_unknown)) OVER () AS all_answered_unknown, sum(sum(dead)) OVER () AS all_dead
FROM mart_checks WHERE {inside} GROUP BY producer_group ORDER BY dead DESC, checks DESC, producer_group LIMIT {most}

-- name: skew
-- The shares of a day's largest keys, averaged over the messages of all days, and the day on which one had most.
SELECT topic, sum(messages) AS messages, sum(top_share * messages) / sum(messages) AS top_share,
       sum(top10_share * messages) / sum(messages) AS top10_share, max(top_share) AS peak_share,
       max_by(day, top_share) AS peak_day, max_by(top_key, top_share) AS peak_key, count(*) OVER () AS everything
FROM mart_key_skew WHERE {inside} GROUP BY topic ORDER BY messages DESC, topic LIMIT {most}

-- name: gaps
-- The partitions with most offsets that no publication accounts for.
SELECT topic, `partition`, min(first_offset) AS first_offset, max(last_offset) AS last_offset, sum(seen) AS seen,
       sum(missing) AS missing, sum(repeated) AS repeated, count(*) OVER () AS everything,
       sum(sum(missing)) OVER () AS all_missing, sum(sum(repeated)) OVER () AS all_repeated
FROM mart_gaps WHERE {inside} GROUP BY topic, `partition`
ORDER BY abs(missing) + repeated DESC, topic, `partition` LIMIT {most}
