-- The business writes of the benchmarks of half messages; for JDBC, %s becomes ?.

-- name: update
-- Business write: an account.
UPDATE account SET balance = balance + %s WHERE id = %s

-- name: insert
-- Business write: an order.
INSERT INTO orders (account, amount, note) VALUES (%s, %s, 'parcel to the neighbours')
