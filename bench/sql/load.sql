-- The business transaction of the latency benchmark.

-- name: orders
-- The business table.
CREATE TABLE orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer text NOT NULL,
    amount numeric NOT NULL,
    placed_at timestamptz NOT NULL DEFAULT now()
)

-- name: order
-- The business row of one transaction.
INSERT INTO orders (customer, amount) VALUES (%s, %s)
