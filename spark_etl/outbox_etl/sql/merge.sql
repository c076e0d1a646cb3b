-- A merge of few changes by DuckDB, over the files of message_history. `changes` are numbered: one row is one change.
-- What becomes of each column is the text of Spark's merge (outbox_etl.warehouse.changes.merged).

-- name: nothing_deleted
-- The rows that are deleted already (see `deleted` of duck.sql), where no file has such rows.
CREATE TEMP TABLE deleted (place UBIGINT, pos BIGINT)

-- name: found
-- The rows that are changed: where each lies, by which change, and the columns that a newer state asks for.
CREATE TEMP TABLE found AS
SELECT t.file_index AS place, t.file_row_number AS pos, s.number, coalesce({newer}, false) AS is_newer, {columns}
FROM read_parquet([{paths}], hive_partitioning = false) t JOIN changes s ON t.id = s.id AND t.message_id = s.message_id
WHERE t.id >= {low} AND t.id < {high}

-- name: nothing_found
-- The same where no file can have such rows.
CREATE TEMP TABLE found AS
SELECT CAST(0 AS UBIGINT) AS place, CAST(0 AS BIGINT) AS pos, t.number, true AS is_newer, {columns}
FROM changes t WHERE false

-- name: leave_deleted
-- Without those that are deleted already.
DELETE FROM found USING deleted d WHERE d.place = found.place AND d.pos = found.pos

-- name: newer
-- What becomes of the rows that get a newer state: their other columns are not read.
SELECT {sets} FROM found t JOIN changes s ON s.number = t.number WHERE t.is_newer

-- name: others
-- What becomes of the others. {places} has the place of a file among {paths} and its place in `found`.
SELECT {sets}
FROM read_parquet([{paths}], hive_partitioning = false) t
JOIN (VALUES {places}) p(here, place) ON p.here = t.file_index
JOIN found f ON f.place = p.place AND f.pos = t.file_row_number
JOIN changes s ON s.number = f.number
WHERE NOT f.is_newer AND t.id >= {low} AND t.id < {high}

-- name: unknown
-- The messages that the table does not know.
SELECT {sets} FROM changes s WHERE s.is_message AND NOT EXISTS (SELECT 1 FROM found f WHERE f.number = s.number)

-- name: places_of_others
-- The files of which rows get no newer state.
SELECT DISTINCT place FROM found WHERE NOT is_newer ORDER BY place

-- name: count
-- How many rows have to be written: those that were found, and those that are new.
SELECT (SELECT count(*) FROM found) + (
    SELECT count(*) FROM changes s WHERE s.is_message AND NOT EXISTS (SELECT 1 FROM found f WHERE f.number = s.number)
) AS number

-- name: marks
-- The rows to be marked as deleted in each file, with those that are marked in it already.
SELECT place, pos FROM found UNION SELECT place, pos FROM deleted WHERE place IN (SELECT place FROM found)
ORDER BY place, pos
