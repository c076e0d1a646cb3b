-- Partitions: message, publication and event are split at the same bounds and grow and shrink together.
-- There is no DEFAULT partition: it would forbid DETACH ... CONCURRENTLY, and every new partition would have to
-- wait for a scan of it.

-- What exists, by bounds.
CREATE VIEW outbox.partition AS
SELECT c.oid::regclass AS name,
       substr(c.relname, length('message_p') + 1) AS suffix,
       (regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM \(''(\d+)''\) TO \(''(\d+)''\)'))[1]::bigint AS lower,
       (regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM \(''(\d+)''\) TO \(''(\d+)''\)'))[2]::bigint AS upper
FROM pg_inherits i
JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'outbox.message'::regclass AND NOT i.inhdetachpending
    AND pg_get_expr(c.relpartbound, c.oid) <> 'DEFAULT';
COMMENT ON VIEW outbox.partition IS 'Partitions of outbox.message: ids from lower (inclusive) to upper (exclusive).';

-- A role that may read a table, or some of its columns, may read them in a partition by its name, as the relay and
-- `outbox history` do.
CREATE FUNCTION outbox.share_partition(suffix text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parent  text;
    reader  text;
    columns text;
BEGIN
    FOREACH parent IN ARRAY ARRAY['message', 'publication', 'event'] LOOP
        FOR reader, columns IN
            SELECT a.grantee::regrole::text, '' FROM pg_class c, aclexplode(c.relacl) a
            WHERE c.oid = format('outbox.%I', parent)::regclass AND a.privilege_type = 'SELECT'
                AND a.grantee NOT IN (c.relowner, 0)
            UNION ALL
            SELECT x.grantee::regrole::text, format('(%s)', string_agg(quote_ident(a.attname), ', '))
            FROM pg_attribute a, aclexplode(a.attacl) x
            WHERE a.attrelid = format('outbox.%I', parent)::regclass AND x.privilege_type = 'SELECT' AND x.grantee <> 0
            GROUP BY 1
        LOOP
            EXECUTE format('GRANT SELECT %s ON outbox.%I TO %s', columns, parent || '_p' || suffix, reader);
        END LOOP;
    END LOOP;
END $$;

-- A session that adds partitions locks this table, which nobody but the schema's owner can lock this way: an advisory lock could
-- be taken, and kept, by any role. It holds no rows. SHARE UPDATE EXCLUSIVE conflicts with itself and with no reader.
CREATE TABLE outbox.partition_lock ();
COMMENT ON TABLE outbox.partition_lock IS 'Locked by the session that adds partitions; holds no rows.';

-- Adds the next partition of the given width. Each table is made apart and then attached: that takes SHARE
-- UPDATE EXCLUSIVE on the parent, beside which inserts go on, where CREATE TABLE ... PARTITION OF would take
-- ACCESS EXCLUSIVE and queue every insert behind the oldest open transaction. lock_timeout bounds the wait for
-- a vacuum or another DDL; the caller tries again later.
CREATE FUNCTION outbox.add_partition(width bigint) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $$
DECLARE
    from_id bigint;
    suffix  text;
    parent  text;
BEGIN
    IF width IS NULL OR width < 1000 OR width > 1000000000 THEN
        RAISE EXCEPTION 'partition width % is out of range: 1,000 to 1,000,000,000 ids', width
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

-- Partitions for the coming days: a width of about one day at the rate of the recent past, but 5,000,000 ids at
-- least (a partition that is too small is too soon full: a bulk insert writes 200,000 rows/s, and a row without a
-- partition fails) and 20,000,000 at most; enough of them to last "days", never fewer than two beyond the
-- current one and never more than 24 (each costs every query over the whole table). Returns how many were
-- added. Cheap when there is nothing to do; safe to call from any number of places.
CREATE FUNCTION outbox.ensure_partitions(days integer DEFAULT 7) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $$
DECLARE
    least_width CONSTANT bigint := 5000000;
    most_width  CONSTANT bigint := 20000000;
    most_ahead  CONSTANT integer := 24;
    here     bigint;
    since    timestamptz;
    from_id  bigint;
    per_day  numeric := 0;
    top      bigint;
    ahead    integer;
    locked   boolean := false;
    added    integer := 0;
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
        per_day := (here - from_id) * 86400.0
            / greatest(extract(epoch FROM clock_timestamp() - since), 3600);
    END IF;
    LOOP
        SELECT coalesce(max(p.upper), 1), count(*) FILTER (WHERE p.lower > here) INTO top, ahead
            FROM outbox.partition p;
        EXIT WHEN ahead >= most_ahead OR (ahead >= 2 AND top - here >= per_day * days);
        IF locked THEN
            PERFORM outbox.add_partition(least(greatest(per_day, least_width), most_width)::bigint);
            added := added + 1;
        ELSE
            -- One creator at a time. The second looks again once the first has committed, and finds it done.
            LOCK TABLE outbox.partition_lock IN SHARE UPDATE EXCLUSIVE MODE;
            locked := true;
        END IF;
    END LOOP;
    RETURN added;
END $$;

SELECT outbox.ensure_partitions();
