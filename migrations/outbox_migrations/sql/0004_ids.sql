-- Ids that one login cannot use up for all others, locks that need rights, and a mark by which a restore is noticed.

-- A reserve at the end ---------------------------------------------------------------------------------------
--
-- A producer's INSERT needs nextval(), and lets its login take ids without sending: 3.4 million a second. Whatever takes ids must not
-- end the room of all, and must not fill the catalogue with partitions. So the last partition is a reserve of 1,000,000,000 ids. An
-- empty one costs nothing, however wide. Where messages fill it (the services that make partitions were away), the sequence skips
-- the rest of it once it holds as many messages as any other partition. Where ids are taken without messages, it is used up, which
-- lasts minutes, and each reserve behind it is ten times as wide: 11 hours at that rate.

-- About how many rows a partition of outbox.message holds: from its size, which is never old, and rows per page of the last vacuum.
CREATE FUNCTION outbox.rows_about(part regclass) RETURNS bigint
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
    RETURN (SELECT ((CASE WHEN c.reltuples > 0 AND c.relpages > 0 THEN c.reltuples / c.relpages ELSE 30 END)
                    * (pg_relation_size(c.oid) / current_setting('block_size')::integer))::bigint
            FROM pg_class c WHERE c.oid = part);
COMMENT ON FUNCTION outbox.rows_about(regclass) IS 'About how many rows a partition holds.';

CREATE FUNCTION outbox.is_reserve(lower bigint, upper bigint) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN upper - lower >= 1000000000;
COMMENT ON FUNCTION outbox.is_reserve(bigint, bigint) IS 'Whether a partition with these bounds is a reserve of ids.';

-- The same as before, up to the width of the widest reserve.
CREATE OR REPLACE FUNCTION outbox.add_partition(width bigint) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $$
DECLARE
    from_id bigint;
    suffix  text;
    parent  text;
BEGIN
    IF width IS NULL OR width < 1000 OR width > 100000000000 THEN
        RAISE EXCEPTION 'partition width % is out of range: 1,000 to 100,000,000,000 ids', width
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- One creator at a time; the second finds the first one's partition.
    LOCK TABLE outbox.partition_lock IN SHARE UPDATE EXCLUSIVE MODE;
    SELECT coalesce(max(p.upper), 1) INTO from_id FROM outbox.partition p;
    suffix := lpad(from_id::text, 15, '0');
    FOREACH parent IN ARRAY ARRAY['message', 'publication', 'event'] LOOP
        EXECUTE format('CREATE TABLE outbox.%I (LIKE outbox.%I INCLUDING ALL)', parent || '_p' || suffix, parent);
        EXECUTE format('ALTER TABLE outbox.%I ATTACH PARTITION outbox.%I FOR VALUES FROM (%s) TO (%s)',
                       parent, parent || '_p' || suffix, from_id, from_id + width);
    END LOOP;
    PERFORM outbox.share_partition(suffix);
    -- Vacuums sum up the new block ranges of the look-up indexes, and keep what index-only scans rely on.
    EXECUTE format('ALTER TABLE outbox.%I SET (autovacuum_vacuum_insert_scale_factor = 0.05)', 'message_p' || suffix);
    RETURN 'message_p' || suffix;
END $$;

-- Where ids go on when the current partition is a reserve that holds so many messages, or NULL. Half of the reserve must be left:
-- nobody takes that between the reading and the setting of the sequence in one statement. A statement that began before the next
-- partition was attached cannot write into it: it is gone to once every transaction that ran at that time has ended.
CREATE FUNCTION outbox.next_after_reserve(messages bigint) RETURNS bigint
    LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
    RETURN (SELECT n.lower
            FROM outbox.position s
            JOIN outbox.partition p ON s.last_value >= p.lower AND s.last_value < p.lower + (p.upper - p.lower) / 2
            JOIN outbox.partition n ON n.lower = p.upper
            JOIN pg_inherits i ON i.inhrelid = n.name AND i.inhparent = 'outbox.message'::regclass
            WHERE outbox.is_reserve(p.lower, p.upper) AND outbox.rows_about(p.name) >= messages
                AND NOT age(i.xmin) BETWEEN 0 AND age(pg_snapshot_xmin(pg_current_snapshot())::xid));

-- Goes on there; ids are skipped, and none is given out twice, since one session at a time does it. Returns whether it did.
CREATE FUNCTION outbox.leave_reserve(messages bigint) RETURNS boolean
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF outbox.next_after_reserve(messages) IS NULL THEN
        RETURN false;
    END IF;
    LOCK TABLE outbox.partition_lock IN SHARE UPDATE EXCLUSIVE MODE;
    PERFORM setval('outbox.position', n.lower) FROM outbox.next_after_reserve(messages) n (lower) WHERE n.lower IS NOT NULL;
    RETURN FOUND;
END $$;
REVOKE ALL ON FUNCTION outbox.leave_reserve(bigint), outbox.next_after_reserve(bigint) FROM PUBLIC;

-- Partitions for the coming days: a width of about one day at the rate of the recent past, but 5,000,000 ids at least and 20,000,000
-- at most; enough of them to last "days", never fewer than two beyond the current one and never more than 24 (each costs every query
-- over the whole table); and a reserve behind them. The rate is that of messages, not of ids. Returns how many were added. Cheap when
-- there is nothing to do; safe to call from any number of places.
CREATE OR REPLACE FUNCTION outbox.ensure_partitions(days integer DEFAULT 7) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $$
DECLARE
    least_width CONSTANT bigint := 5000000;
    most_width  CONSTANT bigint := 20000000;
    most_ahead  CONSTANT integer := 24;
    here        bigint;
    since       timestamptz;
    from_id     bigint;
    per_day     numeric := 0;
    width       bigint;
    top         bigint;
    room        numeric;
    ahead       integer;
    is_covered  boolean;
    burnt       integer;
    locked      boolean := false;
    added       integer := 0;
BEGIN
    IF days IS NULL OR days < 1 OR days > 60 THEN
        RAISE EXCEPTION 'days % is out of range: 1 to 60', days USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT s.last_value INTO here FROM outbox.position s;
    -- The oldest message of the partition before the current one tells when its ids were given out.
    SELECT p.lower INTO from_id FROM outbox.partition p WHERE p.lower <= here ORDER BY p.lower DESC OFFSET 1 LIMIT 1;
    from_id := coalesce(from_id, 1);
    SELECT m.born_at, m.id INTO since, from_id FROM outbox.message m
        WHERE m.id >= from_id AND m.id <= here ORDER BY m.id LIMIT 1;
    -- Over an hour at least: one bulk insert into a young database is not the rate of the day.
    IF since IS NOT NULL THEN
        per_day := least(here - from_id, (SELECT sum(outbox.rows_about(p.name)) FROM outbox.partition p
                                          WHERE p.upper > from_id AND p.lower <= here))
            * 86400.0 / greatest(extract(epoch FROM clock_timestamp() - since), 3600);
    END IF;
    width := least(greatest(per_day, least_width), most_width)::bigint;
    IF outbox.leave_reserve(width) THEN
        SELECT s.last_value INTO here FROM outbox.position s;
    END IF;
    LOOP
        SELECT coalesce(max(p.upper), 1),
               coalesce(sum(least(p.upper - greatest(p.lower, here), CASE WHEN outbox.is_reserve(p.lower, p.upper) THEN width END))
                        FILTER (WHERE p.upper > here), 0),
               count(*) FILTER (WHERE p.lower > here),
               coalesce(bool_or(p.lower > here AND outbox.is_reserve(p.lower, p.upper)), false),
               -- A reserve that was passed without being filled, by ids alone.
               count(*) FILTER (WHERE p.upper <= here AND outbox.is_reserve(p.lower, p.upper)
                                AND outbox.rows_about(p.name) < least_width)
        INTO top, room, ahead, is_covered, burnt
        FROM outbox.partition p;
        EXIT WHEN is_covered AND ahead >= 2;
        IF NOT locked THEN
            -- One creator at a time. The second looks again once the first has committed, and finds it done.
            LOCK TABLE outbox.partition_lock IN SHARE UPDATE EXCLUSIVE MODE;
            locked := true;
        ELSIF here >= top THEN
            -- One over all ids that were given out without a partition: decisions took them, and what they publish needs it.
            PERFORM outbox.add_partition(least(here - top + width, 100000000000));
            added := added + 1;
        ELSIF NOT is_covered AND (ahead >= most_ahead OR (ahead >= 2 AND room >= per_day * days)) THEN
            PERFORM outbox.add_partition((1000000000 * 10 ^ least(burnt, 2))::bigint);
            added := added + 1;
        ELSE
            PERFORM outbox.add_partition(width);
            added := added + 1;
        END IF;
    END LOOP;
    RETURN added;
END $$;

SELECT outbox.ensure_partitions();

-- The mark of a restore --------------------------------------------------------------------------------------

-- Its one row states the transaction that wrote it, which is its xmin: in a copy of it, which pg_restore makes in whatever cluster,
-- the two differ. Relays write it when they take lanes, and note a copy in outbox.failover. Empty until then.
CREATE TABLE outbox.origin (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    xid xid8
);
INSERT INTO outbox.origin DEFAULT VALUES;
COMMENT ON TABLE outbox.origin IS 'One row; its xid is its own xmin unless a dump was restored since a relay took lanes.';

-- Relays -----------------------------------------------------------------------------------------------------

ALTER TABLE outbox.lease ADD lacks_kafka boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN outbox.lease.lacks_kafka IS
    'no broker replies to this relay, and something waits for one: it leaves its lanes to a relay that has Kafka';
ALTER TABLE outbox.lease ADD topics_behind text[] NOT NULL DEFAULT '{}';
COMMENT ON COLUMN outbox.lease.topics_behind IS
    'topics whose messages still go, or may arrive, by an older change than topics_seen: commands wait for their own topic';

ALTER TABLE outbox.lease ADD shard text CHECK (shard ~ '^[1-9][0-9]*/[1-9][0-9]*$');
COMMENT ON COLUMN outbox.lease.shard IS
    'which lanes this relay may lead, such as 1/2; null: it is of the version before, and all such relays divide the lanes';

-- Turns ------------------------------------------------------------------------------------------------------

-- What one session does at a time: dropping history, dropping days of the inbox, looking for alarms. A turn lasts until it is given back or
-- the session ends. Not an advisory lock, which every login of the database may take and keep.
CREATE TABLE outbox.turn (
    what  text PRIMARY KEY,
    pid   integer NOT NULL,
    login oid NOT NULL,
    began timestamptz  -- of the session; PostgreSQL shows it to its own role and to members of pg_read_all_stats
);
COMMENT ON TABLE outbox.turn IS 'Which session does what one does at a time; a row of a session that has ended counts for nothing.';

-- Takes a turn until the session ends; false: another session has it. Under a lock of the table, so that a session that has it was there
-- when the sessions were listed.
CREATE FUNCTION outbox.take_turn(what text) RETURNS boolean
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
BEGIN
    LOCK TABLE outbox.turn IN SHARE ROW EXCLUSIVE MODE;
    INSERT INTO outbox.turn AS t (what, pid, login, began)
    SELECT take_turn.what, a.pid, a.usesysid, a.backend_start FROM pg_stat_activity a WHERE a.pid = pg_backend_pid()
    ON CONFLICT ON CONSTRAINT turn_pkey DO UPDATE SET pid = excluded.pid, login = excluded.login, began = excluded.began
    WHERE t.pid = excluded.pid OR NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = t.pid AND a.usesysid = t.login
                                              AND (a.backend_start = t.began) IS NOT FALSE);
    RETURN FOUND;
END $$;

-- Gives it back before the session ends.
CREATE FUNCTION outbox.give_turn_back(what text) RETURNS void
    LANGUAGE sql SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    DELETE FROM outbox.turn t WHERE t.what = give_turn_back.what AND t.pid = pg_backend_pid();
END;

-- The relay's turn, with the owner's rights: it takes no other.
CREATE FUNCTION outbox.take_turn_for_notices() RETURNS boolean
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    RETURN outbox.take_turn('notices');

REVOKE ALL ON FUNCTION outbox.take_turn(text), outbox.give_turn_back(text), outbox.take_turn_for_notices() FROM PUBLIC;
