-- Bursts, what is held open meanwhile, and how fast the relay was.

-- name: look
-- Takes the snapshot that is held open.
SELECT count(*) FROM outbox.topic

-- name: dead
-- Dead rows that vacuum cannot remove while the snapshot is held.
SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables WHERE schemaname = 'outbox'
