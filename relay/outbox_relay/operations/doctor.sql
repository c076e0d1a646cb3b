-- What `outbox doctor` asks beyond `outbox db check`: this session, what holds snapshots, and the half message of its test.

-- name: session
-- The server's clock, who we are and how we are connected. A superuser is a member of every role, so it is told apart.
SELECT extract(epoch FROM clock_timestamp())::double precision AS now,
       current_user AS who,
       r.rolsuper AS superuser,
       ARRAY(SELECT m.rolname::text FROM pg_roles m
             WHERE m.rolname LIKE 'outbox\_%%' AND pg_has_role(current_user, m.oid, 'USAGE') ORDER BY 1) AS roles,
       coalesce((SELECT s.ssl FROM pg_stat_ssl s WHERE s.pid = pg_backend_pid()), false) AS encrypted,
       coalesce(host(inet_server_addr()), '') AS server
FROM pg_roles r WHERE r.rolname = current_user

-- name: mark
-- Leave a mark in this session, and name its process.
SELECT set_config('outbox.doctor', %(mark)s, false), pg_backend_pid()

-- name: take
-- Take a process of the server, as another client of a pooler would.
SELECT 1

-- name: marked
-- The mark of the session that a later statement reaches: another one, if a pooler divides it.
SELECT current_setting('outbox.doctor', true), pg_backend_pid()

-- name: holders
-- What keeps VACUUM from removing old rows of this database, the oldest first: transactions, prepared transactions, and
-- replication slots. Seconds are since it began; a slot does not know that.
SELECT * FROM (
    SELECT 'session' AS kind, a.pid::text AS name,
           coalesce(nullif(a.application_name, ''), a.usename::text, '') AS who,
           extract(epoch FROM clock_timestamp() - a.xact_start)::double precision AS seconds
    FROM pg_stat_activity a
    WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL) AND a.pid <> pg_backend_pid()
        AND a.backend_type = 'client backend' AND a.datname = current_database()
    UNION ALL
    SELECT 'prepared', p.gid, p.owner::text, extract(epoch FROM clock_timestamp() - p.prepared)::double precision
    FROM pg_prepared_xacts p WHERE p.database = current_database()
    UNION ALL
    SELECT 'slot', s.slot_name::text, coalesce(s.plugin::text, 'physical'), NULL
    FROM pg_replication_slots s WHERE NOT s.active
) held
WHERE held.seconds IS NULL OR held.seconds > %(longer_than)s::double precision
ORDER BY held.seconds DESC NULLS LAST, held.name LIMIT 20

-- name: reply
-- The query of the test's producer group: it rolls each half message back.
SELECT 'ROLLBACK'

-- name: tested
-- What became of the half message of the test, and who decided it: both by the message's id. A checker that finds it and
-- was given no login for queries raises an alarm instead.
SELECT m.state, (SELECT e.actor FROM outbox.event e
                 WHERE e.id = m.id AND e.kind = 'transition' AND e.to_state = m.state LIMIT 1) AS by,
       (SELECT a.detail FROM outbox.alarm a WHERE a.producer_group = m.producer_group AND a.kind = 'no_checker'
            AND a.seen_at > m.born_at AND strpos(a.detail, '--callback-dsn') > 0) AS unable
FROM outbox.message m WHERE m.id = %(id)s
