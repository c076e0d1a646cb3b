-- What the job does to the warehouse's tables, in Spark's SQL.

-- name: top
-- The highest id there is, from the files' statistics; none where a file has no such. Rows that are marked as deleted
-- count: as long as there are some, Iceberg itself answers this from the rows.
SELECT CASE WHEN count(*) = count(f.readable_metrics.id.upper_bound)
            THEN coalesce(max(f.readable_metrics.id.upper_bound), 0) END AS top
FROM {table}.data_files f

-- name: top_of_rows
-- The same from the rows.
SELECT coalesce(max(id), 0) AS top FROM {table}

-- name: merge
-- A window's changes into message_history. Identity is the message id; the literals leave all files out that cannot hold
-- one of the ids.
MERGE INTO {table} t USING outbox_etl_changes s
ON t.id >= {low} AND t.id < {high} AND t.id = s.id AND t.message_id = s.message_id
WHEN MATCHED THEN UPDATE SET {sets}
WHEN NOT MATCHED AND s.is_message THEN INSERT ({names}) VALUES ({values})

-- name: merge_known
-- The same for messages that are there: without an outer join, few changes are sent to the many rows.
MERGE INTO {table} t USING outbox_etl_changes s
ON t.id >= {low} AND t.id < {high} AND t.id = s.id AND t.message_id = s.message_id
WHEN MATCHED THEN UPDATE SET {sets}

-- name: merge_rebase
-- The same after a fail-over or a restore, with all that PostgreSQL holds: messages that it held once and has forgotten
-- stay, as LOST. Those of ranges that were dropped are no such: {lost} names ids that PostgreSQL should hold.
MERGE INTO {table} t USING outbox_etl_changes s
ON t.id = s.id AND t.message_id = s.message_id
WHEN MATCHED THEN UPDATE SET {sets}
WHEN NOT MATCHED AND s.is_message THEN INSERT ({names}) VALUES ({values})
WHEN NOT MATCHED BY SOURCE AND {lost} AND t.status <> 'LOST'
    THEN UPDATE SET t.status = 'LOST', t.window_hi = {window_hi}
