-- Decisions by operators. What is undecided goes through the library's own compare-and-set; what is EXHAUSTED is decided
-- by operators alone, here. Each is audited by the table's trigger.

-- name: begin
-- First in every transaction: who acts, and how long a local transaction that holds the message is waited for. A
-- verdict that was told to an operator must not be lost by a crash, whatever the database's default.
SELECT set_config('outbox.actor', %(actor)s, true), set_config('lock_timeout', %(wait)s, true),
       set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') = 'off' THEN 'on'
                                             ELSE current_setting('synchronous_commit') END, true)

-- name: decide_exhausted
-- The verdict on one half message that was left to operators. No row: another operator was first.
UPDATE outbox.message SET state = %(verdict)s, remark = %(reason)s
WHERE id = %(id)s AND message_id = %(message_id)s AND state = 'EXHAUSTED'
RETURNING outbox.actor(), decided_at

-- name: settings
-- For this transaction: the pages of a bulk decision go by the index of what is unsettled.
SELECT set_config('jit', 'off', true), set_config('max_parallel_workers_per_gather', '0', true),
       set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true)

-- name: count
-- What a bulk decision is about: how many, the oldest and newest, and the moment up to which they count.
SELECT count(*) AS messages, min(m.born_at) AS oldest, max(m.born_at) AS newest, max(m.id) AS last,
       statement_timestamp() AS moment
FROM outbox.message m
WHERE m.state IN ('UNKNOWN', 'EXHAUSTED', 'DEAD') AND m.producer_group = %(group)s AND {conditions}

-- name: decide_page
-- The verdict on one page of them. Those that a local transaction holds are passed over, and told: "looked" are the
-- ids of the page, "decided" those that got the verdict. What came into its state after the moment of the count, when
-- the operator was asked, is left alone.
WITH page AS MATERIALIZED (
    SELECT m.id FROM outbox.message m
    WHERE m.state IN ('UNKNOWN', 'EXHAUSTED', 'DEAD') AND m.producer_group = %(group)s AND {conditions}
        AND m.id > %(beyond)s AND m.id <= %(last)s AND coalesce(m.decided_at, m.born_at) <= %(moment)s
    ORDER BY m.producer_group, m.id LIMIT %(limit)s
), free AS MATERIALIZED (
    SELECT m.id FROM page p JOIN outbox.message m ON m.id = p.id
    WHERE m.state = ANY (%(states)s::text[])
    ORDER BY m.id FOR UPDATE OF m SKIP LOCKED
), decided AS (
    UPDATE outbox.message m SET state = %(verdict)s, remark = %(reason)s
    FROM free f WHERE m.id = f.id AND m.state = ANY (%(states)s::text[])
    RETURNING m.id
)
SELECT (SELECT coalesce(array_agg(p.id ORDER BY p.id), '{{}}') FROM page p) AS looked,
       (SELECT coalesce(array_agg(d.id ORDER BY d.id), '{{}}') FROM decided d) AS decided
