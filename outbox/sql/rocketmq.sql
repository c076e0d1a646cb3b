-- What the two programming models of RocketMQ need beside the verbs of Outbox.

-- name: note_remark
-- Says in a half message ($1 id, $2 message id) that is still undecided why it is ($3). No transition: the row keeps its
-- xid and position, and no audit is written. (state || '': see decide.sql.)
UPDATE outbox.message
SET remark = $3
WHERE id = $1::bigint AND message_id = $2::uuid AND state || '' = 'UNKNOWN'
RETURNING id;

-- name: read_state
-- What has become of a message ($1 id, $2 message id).
SELECT state, remark, transaction_id
FROM outbox.message
WHERE id = $1::bigint AND message_id = $2::uuid;

-- name: hurry
-- For a transaction that repairs what another one left in doubt: its COMMIT does not wait for a standby, which may be
-- what is missing, and it does not wait for locks for ever.
SELECT pg_catalog.set_config('synchronous_commit', 'local', true), pg_catalog.set_config('lock_timeout', '5s', true);

-- name: wait_briefly
-- For a decision apart from a transaction that had joined the same messages: if that one still runs, the caller would
-- wait for itself for ever, and no deadlock would be found.
SELECT pg_catalog.set_config('lock_timeout', '10s', true);
