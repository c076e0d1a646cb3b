-- name: limits
-- How long the operator's query may run, in milliseconds; ends with the transaction.
SELECT set_config('statement_timeout', %(milliseconds)s, true), set_config('lock_timeout', %(milliseconds)s, true);

-- name: role
-- The role that the operator's query runs as; ends with the transaction.
SELECT set_config('role', %(role)s, true);
