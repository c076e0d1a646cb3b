-- How a checker finds half messages that linger, asks about them and settles what it was answered.
--
-- outbox.message is written by decisions only; all that checking has to remember is in outbox.pending_check. Nothing
-- here ever waits for a row's lock: a locked half message is a running local transaction, and everything else that is
-- locked is being looked after by somebody. Settings are cut and intervals are counted by the caller, in seconds.
-- Rows are looked up one by one, by their primary keys. Written plainly, state = 'UNKNOWN' and ORDER BY id would allow
-- for other indexes, which look as good while the tables are empty, and from then on are read through for each claim.

-- name: begin
-- First in every transaction: who acts ($1), and plans that suit a few rows looked up among millions, whatever the
-- statistics say. The time limits are for a checker that is stopped in the middle (SIGSTOP, a suspended machine): the
-- server ends its session, and with it its locks, so that no producer's decision waits for it longer than that.
SELECT pg_catalog.set_config('outbox.actor', $1, true), pg_catalog.set_config('lock_timeout', '1s', true),
       pg_catalog.set_config('idle_in_transaction_session_timeout', '5s', true),
       pg_catalog.set_config('plan_cache_mode', 'force_generic_plan', true), pg_catalog.set_config('jit', 'off', true),
       pg_catalog.set_config('max_parallel_workers_per_gather', '0', true), pg_catalog.set_config('enable_seqscan', 'off', true),
       pg_catalog.set_config('enable_hashjoin', 'off', true), pg_catalog.set_config('enable_mergejoin', 'off', true);

-- name: groups
-- Groups that may have undecided half messages, rows to tidy up or alarms to clear. A loose index scan: each step goes
-- down the index of each partition to the next name, however many messages a group has. (The index holds EXHAUSTED and
-- DEAD messages as well; a group that has nothing else is named too, and costs its checker next to nothing.)
WITH RECURSIVE unsettled (name) AS (
    (SELECT m.producer_group FROM outbox.message m
     WHERE m.state IN ('UNKNOWN', 'EXHAUSTED', 'DEAD') AND m.producer_group >= ''
     ORDER BY m.producer_group LIMIT 1)
    UNION ALL
    SELECT (SELECT m.producer_group FROM outbox.message m
            WHERE m.state IN ('UNKNOWN', 'EXHAUSTED', 'DEAD') AND m.producer_group > u.name
            ORDER BY m.producer_group LIMIT 1)
    FROM unsettled u WHERE u.name IS NOT NULL
), pending (name) AS (
    (SELECT p.producer_group FROM outbox.pending_check p ORDER BY p.producer_group LIMIT 1)
    UNION ALL
    SELECT (SELECT p.producer_group FROM outbox.pending_check p WHERE p.producer_group > n.name
            ORDER BY p.producer_group LIMIT 1)
    FROM pending n WHERE n.name IS NOT NULL
)
SELECT u.name FROM unsettled u WHERE u.name IS NOT NULL
UNION SELECT n.name FROM pending n WHERE n.name IS NOT NULL
UNION SELECT a.producer_group FROM outbox.alarm a
ORDER BY 1;

-- name: settings
-- A registered group's settings, in seconds, and the time, so that a round can tell what was due when it began.
SELECT pg_catalog.statement_timestamp()::text, extract(epoch FROM g.check_after)::float8,
       extract(epoch FROM g.check_interval)::float8, extract(epoch FROM g.max_check_interval)::float8,
       extract(epoch FROM g.check_timeout)::float8, g.max_checks, extract(epoch FROM g.max_age)::float8, g.policy,
       g.workers
FROM (SELECT) AS always LEFT JOIN outbox.producer_group g ON g.name = $1;

-- name: enqueue
-- One page ($3 rows) of the group's ($1) unsettled messages beyond id $2, in the order of their ids. Half messages past
-- the first delay ($4 s, or their own) get their row if the checker can ask ($8): rows of what producers decide go when
-- they are claimed, so who claims nothing must not make any. One whose own delay is longer gets it with that later time,
-- so that nothing older than the group's delay stays unmet. One that is older than the group's age ($5 s) gets its row
-- like any other: it is asked about before anything is done to it. Also returned: those that have used up $6 checks, and
-- those that are older than $5 s and overdue by $9 s (both unless somebody is asking about them at this moment); the
-- first that is still too young; and how many are pending, EXHAUSTED, and overdue by $7 s with nobody asking. Due times
-- never lie beyond that age. A decision committed meanwhile leaves a row that the next claim removes. (A range of group
-- and id, ordered by both, because only the index message_unsettled can serve that. With producer_group = $1 the
-- primary key could: it was chosen beside a flood, and every group's scan went through the flood. The range of the id
-- alone is for leaving out partitions.)
WITH page AS MATERIALIZED (
    SELECT m.id, m.message_id, m.state, m.born_at,
           CASE WHEN m.check_after IS NOT NULL
               THEN greatest(least(m.check_after, $5::float8 * interval '1 s'), interval '0') END AS own
    FROM outbox.message m
    WHERE (m.producer_group, m.id) > ($1::text, $2::bigint) AND m.producer_group <= $1::text AND m.id > $2::bigint
        AND m.state IN ('UNKNOWN', 'EXHAUSTED', 'DEAD')
    ORDER BY m.producer_group, m.id LIMIT $3::integer
), half AS MATERIALIZED (
    SELECT h.id, h.message_id, h.born_at, least(coalesce(h.own, $4::float8 * interval '1 s'),
                                                $5::float8 * interval '1 s') AS delay,
           h.born_at + least(h.own, $4::float8 * interval '1 s', $5::float8 * interval '1 s')
               <= pg_catalog.statement_timestamp() AS lingers,
           h.born_at <= pg_catalog.statement_timestamp() - $5::float8 * interval '1 s' AS too_old,
           p.id IS NOT NULL AS met, p.checks, p.due_at,
           p.asked_by IS NOT NULL AND p.due_at > pg_catalog.statement_timestamp() AS being_asked
    FROM page h LEFT JOIN outbox.pending_check p ON p.id = h.id
    WHERE h.state = 'UNKNOWN'
), enqueued AS (
    INSERT INTO outbox.pending_check (id, message_id, producer_group, due_at)
    SELECT h.id, h.message_id, $1, h.born_at + h.delay FROM half h
    WHERE $8::boolean AND h.lingers AND NOT h.met ORDER BY h.id
    ON CONFLICT (id) DO NOTHING
    RETURNING id
)
SELECT (SELECT pg_catalog.max(id) FROM page), (SELECT pg_catalog.count(*) FROM page),
       (SELECT pg_catalog.count(*) FROM page WHERE state = 'EXHAUSTED'), (SELECT pg_catalog.count(*) FROM enqueued),
       pg_catalog.count(*) FILTER (WHERE h.met OR h.lingers),
       pg_catalog.min(h.id) FILTER (WHERE NOT h.lingers AND NOT h.met),
       pg_catalog.count(*) FILTER (WHERE coalesce(h.due_at, h.born_at + h.delay)
                              < pg_catalog.statement_timestamp() - $7::float8 * interval '1 s' AND NOT h.being_asked),
       coalesce(pg_catalog.array_agg(h.id) FILTER (WHERE h.checks >= $6::integer AND NOT h.being_asked), '{}'),
       coalesce(pg_catalog.array_agg(h.id) FILTER (
           WHERE h.too_old AND NOT h.being_asked
               AND coalesce(h.due_at, h.born_at + h.delay) < pg_catalog.statement_timestamp() - $9::float8 * interval '1 s'), '{}')
FROM half h;

-- name: tidy
-- Rows that nobody is left to claim, in a group ($1) that nobody here asks about: of at most $2 that are overdue by $3 s,
-- those whose half message is decided go. A checker that could ask has made them, and was taken away.
DELETE FROM outbox.pending_check p
USING (
    SELECT o.id, o.message_id FROM outbox.pending_check o
    WHERE o.producer_group = $1 AND o.due_at < pg_catalog.statement_timestamp() - $3::float8 * interval '1 s'
    ORDER BY o.due_at LIMIT $2::integer FOR UPDATE SKIP LOCKED
) d
WHERE p.id = d.id AND NOT EXISTS (
    SELECT FROM outbox.message m
    WHERE m.id = d.id AND m.message_id = d.message_id AND m.state IS NOT DISTINCT FROM 'UNKNOWN'
)
RETURNING p.id;

-- name: claim
-- At most $2 of the group's ($1) rows that are due (and were at $3), those first that are due longest. A row whose half
-- message is free becomes the claim's ($4): its due time moves to the end of the lease, $5 s from now. One whose half
-- message is locked is postponed by $6 s, not asked about, not counted. One that is decided is removed. One that has
-- used up $7 checks is only told; an old one is asked about, however old it is. Bodies are read up to $8 bytes in all,
-- one at least; what is beyond stays due. The locks on messages last as long as this transaction, a few milliseconds.
WITH due AS MATERIALIZED (
    SELECT p.id, p.message_id, p.checks, p.due_at FROM outbox.pending_check p
    WHERE p.producer_group = $1
        AND p.due_at <= least(pg_catalog.statement_timestamp(), $3::timestamptz)
    ORDER BY p.due_at LIMIT $2::integer FOR UPDATE SKIP LOCKED
), undecided AS MATERIALIZED (
    SELECT d.id FROM due d JOIN outbox.message m ON m.id = d.id
    WHERE m.message_id = d.message_id AND m.state IS NOT DISTINCT FROM 'UNKNOWN'
), free AS MATERIALIZED (
    SELECT m.id, m.message_id, m.topic, m.born_at, m.key, m.body, m.headers, m.order_key, m.tags, m.index_keys,
           m.transaction_id, m.checker, m.biz_type, m.biz_id, m.deliver_at, m.traceparent, d.checks, d.due_at
    FROM due d JOIN outbox.message m ON m.id = d.id
    WHERE m.message_id = d.message_id AND m.state IS NOT DISTINCT FROM 'UNKNOWN'
    FOR UPDATE OF m SKIP LOCKED
), sorted AS MATERIALIZED (
    SELECT f.*, f.checks >= $7::integer AS over,
           pg_catalog.sum(pg_catalog.octet_length(coalesce(f.body, ''))) OVER (ORDER BY f.due_at, f.id)
               - pg_catalog.octet_length(coalesce(f.body, '')) < $8::bigint AS fits
    FROM free f
), claimed AS (
    UPDATE outbox.pending_check p SET due_at = pg_catalog.statement_timestamp() + $5::float8 * interval '1 s', asked_by = $4
    FROM sorted s WHERE p.id = s.id AND s.fits AND NOT s.over
), postponed AS (
    UPDATE outbox.pending_check p
    SET due_at = pg_catalog.statement_timestamp() + $6::float8 * interval '1 s', asked_by = NULL, answer = NULL,
        remark = 'a local transaction holds the half message'
    FROM undecided u WHERE p.id = u.id AND u.id NOT IN (SELECT id FROM free)
), removed AS (
    DELETE FROM outbox.pending_check p USING due d
    WHERE p.id = d.id AND d.id NOT IN (SELECT id FROM undecided)
)
-- The view of those that are asked about; times are kept within what Python can hold, and headers are text, so that what
-- cannot be read of one row (a number of 5000 digits) fails that row alone. (NOT IN and UNION ALL, because
-- joins between these lists would be planned for one row, and take the square of 200.)
SELECT s.id, CASE WHEN s.over THEN 'over' WHEN s.fits THEN 'ask' ELSE 'later' END, s.message_id, s.topic,
       least(greatest(s.born_at, '0001-01-03 UTC'), '9999-12-29 UTC'), s.key,
       CASE WHEN s.fits AND NOT s.over THEN s.body END, CASE WHEN s.fits AND NOT s.over THEN s.headers::text END, s.order_key, s.tags, s.index_keys,
       s.transaction_id, s.checker, s.biz_type, s.biz_id,
       CASE WHEN s.deliver_at IS NOT NULL THEN least(greatest(s.deliver_at, '0001-01-03 UTC'), '9999-12-29 UTC') END,
       s.traceparent, s.checks
FROM sorted s
UNION ALL
SELECT d.id, CASE WHEN d.id IN (SELECT id FROM undecided) THEN 'locked' ELSE 'decided' END, NULL, NULL,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, d.checks
FROM due d WHERE d.id NOT IN (SELECT id FROM free);

-- name: settle
-- What was answered: ids ($1), the claims they were asked under ($2), answers ($3, null: not asked after all), remarks
-- ($4), the seconds to the next time ($5), and whether nobody answered ($6: asking failed, or there was nobody to ask).
-- A claim that somebody else has taken over since is not settled: the answer came too late. COMMIT and ROLLBACK decide
-- by the same compare-and-set as everybody's, in the order of the ids; a locked half message is asked about again in
-- $7 s, nothing counted. UNKNOWN counts. The next time is never put beyond the age $8 s, and past that age never further
-- off than $10 s. Every check is noted in outbox.event, also one whose half message was decided meanwhile. Returned for
-- each that was settled: what became of it, and whether it is over: $9 checks are used up; or it is past its age, and
-- the answer was UNKNOWN, or nobody has answered about it for $11 s.
WITH given AS MATERIALIZED (
    SELECT g.id::bigint AS id, g.claim, g.answer, g.remark, g.pause::float8 AS pause, g.silent::boolean AS silent
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[])
        AS g (id, claim, answer, remark, pause, silent)
), mine AS MATERIALIZED (
    SELECT p.id, p.message_id, p.checks, g.answer, g.remark, g.pause, g.silent, p.unanswered_since
    FROM given g JOIN outbox.pending_check p ON p.id = g.id
    WHERE p.asked_by = g.claim
    ORDER BY p.id + 0 FOR UPDATE OF p SKIP LOCKED
), seen AS MATERIALIZED (
    SELECT x.*, m.id IS NOT NULL AS there, m.state = 'UNKNOWN' AS undecided, m.born_at,
           m.born_at <= pg_catalog.statement_timestamp() - $8::float8 * interval '1 s' AS too_old
    FROM mine x LEFT JOIN outbox.message m ON m.id = x.id AND m.message_id = x.message_id
), free AS MATERIALIZED (
    SELECT m.id, x.answer, x.checks, x.remark
    FROM mine x JOIN outbox.message m ON m.id = x.id
    WHERE x.answer IN ('COMMIT', 'ROLLBACK') AND m.message_id = x.message_id
        AND m.state IS NOT DISTINCT FROM 'UNKNOWN'
    ORDER BY m.id + 0 FOR UPDATE OF m SKIP LOCKED
), checked AS (
    INSERT INTO outbox.event (id, message_id, kind, answer, actor, reason)
    SELECT s.id, s.message_id, 'check', s.answer, outbox.actor(), s.remark
    FROM seen s
    WHERE s.answer IS NOT NULL AND s.there
        AND (s.answer = 'UNKNOWN' OR NOT s.undecided OR s.id IN (SELECT id FROM free))
    RETURNING id
), noted AS MATERIALIZED (
    SELECT pg_catalog.count(*) FROM checked
), decided AS (
    -- Joined to "noted", so that the checks come first in the audit, and their consequences after them.
    UPDATE outbox.message m
    SET state = CASE f.answer WHEN 'COMMIT' THEN 'COMMITTED' ELSE 'ROLLED_BACK' END,
        remark = pg_catalog.concat_ws(': ', 'check ' || (f.checks + 1)::text || ' answered ' || f.answer, f.remark)
    FROM free f CROSS JOIN noted WHERE m.id = f.id AND m.state IS NOT DISTINCT FROM 'UNKNOWN'
    RETURNING m.id
), outcome AS MATERIALIZED (
    SELECT s.id, s.answer, s.remark, s.pause, s.born_at, s.checks, s.silent, s.too_old, s.unanswered_since,
           CASE WHEN s.id IN (SELECT id FROM decided) THEN 'decided'
                WHEN s.undecided IS NOT TRUE THEN 'decided_before' WHEN s.answer IS NULL THEN 'not_asked'
                WHEN s.answer = 'UNKNOWN' THEN 'unknown' ELSE 'locked' END AS settled
    FROM seen s
), kept AS (
    UPDATE outbox.pending_check p
    SET checks = o.checks + (o.settled = 'unknown')::integer, asked_by = NULL, answer = o.answer, remark = o.remark,
        -- The last check counts. One that failed takes away what an earlier one answered, for the local transaction may
        -- have committed since; so does a COMMIT or ROLLBACK that could not be used: no policy must contradict it.
        answered_at = CASE WHEN o.settled = 'not_asked' THEN p.answered_at
            WHEN o.settled = 'unknown' AND NOT o.silent THEN pg_catalog.statement_timestamp() END,
        unanswered_since = CASE WHEN NOT o.too_old OR o.answer IS NOT NULL AND NOT o.silent THEN NULL
            WHEN o.silent THEN coalesce(p.unanswered_since, pg_catalog.statement_timestamp()) ELSE p.unanswered_since END,
        due_at = pg_catalog.statement_timestamp() + CASE o.settled
            WHEN 'locked' THEN $7::float8 * interval '1 s'
            WHEN 'not_asked' THEN (CASE WHEN o.too_old THEN least(o.pause, $10::float8) ELSE o.pause END) * interval '1 s'
            ELSE CASE WHEN o.too_old THEN least(o.pause, $10::float8) * interval '1 s'
                ELSE greatest(least(o.pause * interval '1 s',
                                    o.born_at + $8::float8 * interval '1 s' - pg_catalog.statement_timestamp()), interval '0') END
            END
    FROM outcome o WHERE p.id = o.id AND o.settled IN ('unknown', 'not_asked', 'locked')
), removed AS (
    DELETE FROM outbox.pending_check p USING outcome o
    WHERE p.id = o.id AND o.settled IN ('decided', 'decided_before')
)
SELECT o.id, o.settled,
       o.settled = 'unknown' AND (o.checks + 1 >= $9::integer OR o.too_old AND NOT o.silent)
           OR o.settled IN ('unknown', 'not_asked') AND o.too_old AND o.silent
               AND o.unanswered_since <= pg_catalog.statement_timestamp() - $11::float8 * interval '1 s'
FROM outcome o;

-- name: expire
-- What becomes of those of the half messages $1 of the group $2 that are over. Looked at again under their lock; one that
-- is locked, or that somebody is asking about at this moment, is left for the next time. The policy ($3: the state it
-- leads to) follows the last check, and only if it was answered with UNKNOWN: the last of $5 checks, or one that was made
-- past the age $4 s. Where nobody has answered, it is EXHAUSTED, whatever the policy: the last of $5 checks failed; nobody has answered about it since $6 s past its age; or nobody answers for the whole
-- group, and the alarm "silent" has said so for $6 s. (Its row in pending_check is read as of this statement's
-- beginning and not locked: a claim that is committed just then is not seen, and the policy decides while somebody asks.
-- That is the verdict which was due, and the only one: the answer finds no claim any more, and is thrown away.
-- Locking both rows would not see a row that was enqueued just then either.)
WITH silence AS MATERIALIZED (
    SELECT pg_catalog.count(*) > 0 AS found FROM outbox.alarm a
    WHERE a.producer_group = $2 AND a.kind = 'silent'
        AND a.since <= pg_catalog.statement_timestamp() - $6::float8 * interval '1 s'
        AND a.seen_at > pg_catalog.statement_timestamp() - $6::float8 * interval '1 s'
), over AS MATERIALIZED (
    SELECT m.id, p.checks, p.answered_at, m.born_at + $4::float8 * interval '1 s' AS aged_at
    FROM pg_catalog.unnest($1::text[]) AS g (id) JOIN outbox.message m ON m.id = g.id::bigint
        LEFT JOIN outbox.pending_check p ON p.id = m.id
    WHERE m.producer_group = $2 AND m.state IS NOT DISTINCT FROM 'UNKNOWN'
        AND (p.checks >= $5::integer
             OR m.born_at <= pg_catalog.statement_timestamp() - $4::float8 * interval '1 s'
                 AND (p.answered_at >= m.born_at + $4::float8 * interval '1 s'
                      OR p.unanswered_since <= pg_catalog.statement_timestamp() - $6::float8 * interval '1 s'
                      OR (SELECT found FROM silence)))
        AND (p.asked_by IS NULL OR p.due_at <= pg_catalog.statement_timestamp())
    ORDER BY m.id + 0 FOR UPDATE OF m SKIP LOCKED
), decided AS (
    UPDATE outbox.message m
    SET state = CASE WHEN o.answered_at IS NOT NULL AND (o.checks >= $5::integer OR o.answered_at >= o.aged_at)
            THEN $3 ELSE 'EXHAUSTED' END,
        remark = CASE WHEN o.answered_at >= o.aged_at AND o.checks < $5::integer
                THEN pg_catalog.format('undecided for %s s, checked %s times: the group''s policy', $4, o.checks)
            WHEN o.checks >= $5::integer AND o.answered_at IS NOT NULL
                THEN pg_catalog.format('undecided after %s checks: the group''s policy', o.checks)
            WHEN o.checks >= $5::integer THEN pg_catalog.format('the last of %s checks was not answered', o.checks)
            ELSE pg_catalog.format('undecided for %s s, checked %s times, and checks get no reply any more', $4, coalesce(o.checks, 0))
            END
    FROM over o WHERE m.id = o.id AND m.state IS NOT DISTINCT FROM 'UNKNOWN'
    RETURNING m.id, m.state, coalesce(o.checks, 0) AS checks, m.remark
), removed AS (
    DELETE FROM outbox.pending_check p USING decided d WHERE p.id = d.id
)
SELECT d.id, d.state, d.checks, d.remark FROM decided d;

-- name: raise_alarm
-- Tell operators ($1 group, $2 kind, $3 what); since when is kept. But for "silent", which counts down: when nobody has
-- confirmed it for $4 s, no checker was there meanwhile, and it begins again. Returned: for how long it has stood, in s.
INSERT INTO outbox.alarm AS a (producer_group, kind, detail) VALUES ($1, $2, $3)
ON CONFLICT (producer_group, kind) DO UPDATE
    SET detail = EXCLUDED.detail, seen_at = pg_catalog.clock_timestamp(),
        since = CASE WHEN a.kind = 'silent' AND a.seen_at < pg_catalog.clock_timestamp() - $4::float8 * interval '1 s'
            THEN pg_catalog.clock_timestamp() ELSE a.since END
RETURNING extract(epoch FROM pg_catalog.clock_timestamp() - a.since)::float8;

-- name: clear_alarm
-- It is over ($1 group, $2 kind); but "rolled_back", which is about events, not before $3 s after it was last confirmed.
DELETE FROM outbox.alarm
WHERE producer_group = $1 AND kind = $2
    AND (kind <> 'rolled_back' OR seen_at < pg_catalog.clock_timestamp() - $3::float8 * interval '1 s')
RETURNING kind;
