-- What is told of one half message beyond its row: who holds it.

-- name: locker
-- The open transaction that holds the message's row, if one does: a local transaction that has joined the half message,
-- or one that has decided it and not yet committed. A row's xmax is the transaction that locked it last; that one is
-- open if it still holds the lock on its own number. A prepared transaction has no process.
SELECT l.pid, p.gid, p.prepared, a.usename, a.application_name, host(a.client_addr) AS address, a.state, a.xact_start,
       extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared))::float8 AS age
FROM outbox.message m
JOIN pg_locks l ON l.locktype = 'transactionid' AND l.transactionid = m.xmax AND l.granted
LEFT JOIN pg_prepared_xacts p ON p.transaction = m.xmax
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE m.id = %(id)s AND l.pid IS DISTINCT FROM pg_backend_pid()
LIMIT 1

-- name: sharing_locker
-- The same where several share the row, or one holds it from inside and outside a savepoint: xmax is then the number of
-- a list. An error (SQLSTATE XX000) says that it was none.
SELECT l.pid, p.gid, p.prepared, a.usename, a.application_name, host(a.client_addr) AS address, a.state, a.xact_start,
       extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared))::float8 AS age
FROM outbox.message m
CROSS JOIN LATERAL pg_get_multixact_members(m.xmax) x
JOIN pg_locks l ON l.locktype = 'transactionid' AND l.transactionid = x.xid AND l.granted
LEFT JOIN pg_prepared_xacts p ON p.transaction = x.xid
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE m.id = %(id)s AND m.xmax <> '0' AND x.mode NOT IN ('keysh', 'sh') AND l.pid IS DISTINCT FROM pg_backend_pid()
LIMIT 1
