-- The settings of sessions that are ours; see outbox/sessions.py.

-- name: set
-- Sets what sessions.py lists, for the session, whatever its search_path is until then. In one round trip.
SELECT {settings};
