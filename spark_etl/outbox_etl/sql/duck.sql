-- The tables of a warehouse as views of DuckDB, over their Parquet files.

-- name: view
-- {rows} is one of the next statements, or two of them with UNION ALL.
CREATE OR REPLACE VIEW {view} AS {rows}

-- name: whole
-- Files of which every row counts. A folder's name (born_at_day=2026-11-26) makes no column.
SELECT {columns} FROM read_parquet([{paths}], hive_partitioning = false)

-- name: marked
-- Files of which some rows are deleted.
SELECT {columns} FROM read_parquet([{paths}], hive_partitioning = false) r
ANTI JOIN deleted_of_{view} d ON d.place = r.file_index AND d.pos = r.file_row_number

-- name: deleted
-- What Iceberg's position deletes say of the files {places}: of each its name in the table and its place among those
-- that are read. A row may be deleted twice.
CREATE OR REPLACE TABLE {table} AS
SELECT DISTINCT CAST(f.place AS UBIGINT) AS place, CAST(d.pos AS BIGINT) AS pos
FROM read_parquet([{paths}], hive_partitioning = false) d JOIN (VALUES {places}) f(file, place) ON f.file = d.file_path

-- name: nothing
-- A table without files.
SELECT {columns} WHERE false

-- name: save
-- The rows of a query as a file.
COPY ({rows}) TO {path} (FORMAT parquet)

-- name: table
-- Rows of Arrow as a table, for all cursors.
CREATE OR REPLACE TABLE {table} AS SELECT * FROM given
