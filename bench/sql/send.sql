-- The business transactions that pgbench runs, in pieces; the outbox's piece is the library's own statement.

-- name: accounts
-- The accounts, one row each.
CREATE TABLE account AS SELECT id, 0::bigint AS balance FROM generate_series(1, %(accounts)s::int) id

-- name: accounts_key
-- Their key, and room for updates within a page.
ALTER TABLE account ADD PRIMARY KEY (id), SET (fillfactor = 50)

-- name: orders
-- The orders, one row per transaction.
CREATE TABLE orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account bigint NOT NULL,
    amount bigint NOT NULL,
    note text NOT NULL,
    placed_at timestamptz NOT NULL DEFAULT now()
)

-- name: heap
-- The least that any table of messages costs: the same values, no default, no index, no trigger.
CREATE TABLE bare_heap (topic text, key bytea, body bytea, headers jsonb, tags text[], producer_group text)

-- name: settle
-- What autovacuum would do between the rounds.
VACUUM (ANALYZE) account, orders

-- name: update
-- Business write: an account.
UPDATE account SET balance = balance + :amount WHERE id = :account

-- name: insert
-- Business write: an order.
INSERT INTO orders (account, amount, note) VALUES (:account, :amount, 'parcel to the neighbours')

-- name: bare
-- The message into the bare heap.
INSERT INTO bare_heap (topic, key, body, headers, tags, producer_group)
VALUES (:topic, :account, :body, :headers, :tags, :group)
