-- What `outbox etl maintain` asks of Iceberg, table by table.

-- name: sizes
-- The files that readers of the current snapshot open.
SELECT count(*) AS files, coalesce(sum(file_size_in_bytes), 0) AS bytes FROM {table}.files

-- name: snapshots
-- How many states of the table can be read.
SELECT count(*) AS snapshots FROM {table}.snapshots

-- name: current
-- What the current snapshot says of itself.
SELECT s.summary FROM {table}.snapshots s JOIN {table}.refs r ON r.snapshot_id = s.snapshot_id WHERE r.name = 'main'

-- name: compact
-- Files far below the target's size become few, sorted by the table's own order, so that each still has a narrow range
-- of ids. Two are reason enough: they are small. Whatever is above a third of the target stays, or a partition of one
-- file and a half would be written anew every time; unless {marked} of its rows are marked as deleted. Each group is a
-- commit of its own: what is done stays done.
CALL {catalog}.system.rewrite_data_files(
    table => '{table}',
    strategy => 'sort',
    sort_order => '{order}',
    where => '{condition}',
    options => map(
        'target-file-size-bytes', '{target}',
        'min-file-size-bytes', '{small}',
        'min-input-files', '2',
        'max-file-group-size-bytes', '{group}',
        'delete-ratio-threshold', '{marked}',
        'partial-progress.enabled', 'true'
    )
)

-- name: compact_marks
-- Marks of rows of files that are no more go, which Iceberg keeps for as long as the day has an older file; the others
-- become one file for each file of rows.
CALL {catalog}.system.rewrite_position_delete_files(table => '{table}', options => map('rewrite-all', 'true'))

-- name: compact_manifests
-- Every commit adds a manifest, and every plan of a query reads them all.
CALL {catalog}.system.rewrite_manifests(table => '{table}')

-- name: expire
-- Snapshots that are older, and the files that only they name. The newest stay, however old they are.
CALL {catalog}.system.expire_snapshots(
    table => '{table}', older_than => TIMESTAMP '{before}', retain_last => {newest}, stream_results => true
)

-- name: orphans
-- Files below the table's location that no snapshot names: runs that died left them.
CALL {catalog}.system.remove_orphan_files(
    table => '{table}', older_than => TIMESTAMP '{before}', prefix_listing => {prefix}
)
