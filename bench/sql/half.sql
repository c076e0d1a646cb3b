-- What the benchmarks of half messages share: the business writes for JDBC, and what the relay published of a round.

-- name: update
-- Business write: an account.
UPDATE account SET balance = balance + ? WHERE id = ?

-- name: insert
-- Business write: an order.
INSERT INTO orders (account, amount, note) VALUES (?, ?, 'parcel to the neighbours')
