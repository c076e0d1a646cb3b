-- The business side of the shop: orders and payments, and what three consumer groups make of an order that is paid.
-- No table of an effect is unique per order: a second delivery that were applied again would show in the proof.

-- name: create
-- All tables. `happening` is what the page and the proof list of failures; `failure` has one row for each switch.
CREATE SCHEMA shop;
CREATE TABLE shop.orders (
    id       text PRIMARY KEY,
    customer text NOT NULL,
    product  text NOT NULL,
    amount   integer NOT NULL,
    state    text NOT NULL,
    made_at  timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE shop.payment (
    order_id       text PRIMARY KEY REFERENCES shop.orders,
    transaction_id text NOT NULL UNIQUE,
    amount         integer NOT NULL
);
CREATE TABLE shop.shipment (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_id text NOT NULL
);
CREATE TABLE shop.credit (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_id text NOT NULL,
    customer text NOT NULL,
    points   integer NOT NULL
);
CREATE TABLE shop.balance (customer text PRIMARY KEY, points integer NOT NULL);
CREATE TABLE shop.cart (
    order_id text PRIMARY KEY,
    items    integer NOT NULL DEFAULT 1,
    emptied  integer NOT NULL DEFAULT 0
);
CREATE TABLE shop.failure (name text PRIMARY KEY, remaining integer NOT NULL);
INSERT INTO shop.failure VALUES ('crash-service', 0), ('crash-logistics', 0), ('confirm', 0), ('broker', 0);
CREATE TABLE shop.happening (
    id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at   timestamptz NOT NULL DEFAULT now(),
    kind text NOT NULL,
    text text NOT NULL
);

-- name: ship
-- Logistics: a shipment for a paid order.
INSERT INTO shop.shipment (order_id) VALUES (%(order_id)s)

-- name: empty_cart
-- Cart: the order's items leave the cart.
UPDATE shop.cart SET items = 0, emptied = emptied + 1 WHERE order_id = %(order_id)s

-- name: add_to_balance
-- Points: the customer's balance.
INSERT INTO shop.balance AS b (customer, points) VALUES (:customer, :points)
ON CONFLICT (customer) DO UPDATE SET points = b.points + excluded.points

-- name: switch_on
-- Let a failure happen so many times more.
UPDATE shop.failure SET remaining = remaining + %(times)s WHERE name = %(name)s RETURNING remaining

-- name: take_failure
-- Use up one occurrence of a failure, if it is switched on. Committed before the failure happens: it happens once.
UPDATE shop.failure SET remaining = remaining - 1 WHERE name = %(name)s AND remaining > 0 RETURNING remaining

-- name: note
-- Record what happened, for page and proof.
INSERT INTO shop.happening (kind, text) VALUES (%(kind)s, %(text)s)

-- name: board_orders
-- The newest orders with the effect of each group, and what became of their messages.
SELECT o.id, o.customer, o.product, o.amount, o.state,
       (SELECT count(*) FROM shop.shipment s WHERE s.order_id = o.id) AS shipments,
       (SELECT count(*) FROM shop.credit c WHERE c.order_id = o.id) AS credits,
       (SELECT emptied FROM shop.cart c WHERE c.order_id = o.id) AS emptied,
       (SELECT array_agg(m.status ORDER BY m.id) FROM outbox.message_status m WHERE m.biz_id = o.id) AS messages
FROM shop.orders o ORDER BY o.made_at DESC, o.id DESC LIMIT 24

-- name: board_counts
-- The figures of the page: orders by state, messages by status, effects and waiting messages of each group.
SELECT (SELECT jsonb_object_agg(state, n) FROM (SELECT state, count(*) AS n FROM shop.orders GROUP BY state) s) AS orders,
       (SELECT jsonb_object_agg(status, n)
        FROM (SELECT status, count(*) AS n FROM outbox.message_status GROUP BY status) s) AS messages,
       jsonb_build_object('logistics', (SELECT count(*) FROM shop.shipment),
                          'points', (SELECT count(*) FROM shop.credit),
                          'cart', (SELECT coalesce(sum(emptied), 0) FROM shop.cart)) AS effects,
       (SELECT jsonb_object_agg(g.name, n) FROM (
            SELECT group_id, count(*) AS n FROM outbox.inbox_parked GROUP BY group_id) p
        JOIN outbox.consumer_group g ON g.id = p.group_id) AS parked,
       (SELECT count(*) FROM outbox.event WHERE kind = 'check') AS checks,
       (SELECT jsonb_object_agg(name, remaining) FROM shop.failure) AS failures

-- name: board_happenings
-- What happened, the newest first.
SELECT to_char(at, 'HH24:MI:SS') AS at, kind, text FROM shop.happening ORDER BY id DESC LIMIT 24

-- name: converged
-- Whether nothing is under way: no half message is undecided, nothing waits to be published, and no paid order lacks an
-- effect. A wrong effect does not keep it from being true: it is the proof that finds those.
SELECT NOT EXISTS (SELECT FROM outbox.message_status WHERE status NOT IN ('PUBLISHED', 'ROLLED_BACK'))
   AND NOT EXISTS (SELECT FROM shop.orders o JOIN shop.cart c ON c.order_id = o.id
                   WHERE o.state = 'paid'
                     AND (c.emptied = 0 OR NOT EXISTS (SELECT FROM shop.shipment s WHERE s.order_id = o.id)
                          OR NOT EXISTS (SELECT FROM shop.credit k WHERE k.order_id = o.id)))

-- name: progress
-- A number that grows while anything goes on.
SELECT (SELECT count(*) FROM outbox.event) + (SELECT count(*) FROM shop.shipment) + (SELECT count(*) FROM shop.credit)
     + (SELECT coalesce(sum(emptied), 0) FROM shop.cart) + (SELECT count(*) FROM shop.payment)

-- name: facts_orders
-- Each order with its customer, amount and state.
SELECT id, customer, amount, state FROM shop.orders

-- name: facts_shipments
-- The order of each shipment.
SELECT order_id FROM shop.shipment

-- name: facts_credits
-- The order and the points of each credit.
SELECT order_id, points FROM shop.credit

-- name: facts_balances
-- The balance of each customer.
SELECT customer, points FROM shop.balance

-- name: facts_carts
-- How often each cart was emptied, and what is left in it.
SELECT order_id, emptied, items FROM shop.cart

-- name: facts_messages
-- The orders that half messages are about, with their status.
SELECT biz_id, status FROM outbox.message_status

-- name: facts_happenings
-- How often each failure happened.
SELECT kind, count(*) FROM shop.happening GROUP BY kind
