-- name: limits
-- How long the operator's query may run, in milliseconds; ends with the transaction.
SELECT set_config('statement_timeout', %(milliseconds)s, true), set_config('lock_timeout', %(milliseconds)s, true);

-- name: role
-- The role that the operator's query runs as; ends with the transaction.
SELECT set_config('role', %(role)s, true);

-- name: leave_nothing
-- After each question, in one round trip: settings and the role end with the transaction, session-wide advisory locks
-- and prepared statements do not.
ROLLBACK; RESET ALL; DEALLOCATE ALL; SELECT pg_catalog.pg_advisory_unlock_all();
