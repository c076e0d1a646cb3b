-- Dead letters by id, for operators: they are few among the messages that wait to be tried again.
-- Not CONCURRENTLY: that cannot be part of a transaction, and an upgrade is one, so that whatever ends it leaves the old
-- revision whole, without an invalid index. For the same reason there is no IF NOT EXISTS, which would keep an invalid one.
-- The price: consumers that park a message wait while the index is built. The table holds only what failed. Senders and
-- the relay do not use it. Before that, this statement waits for transactions that have written to the table, and writers
-- that come later queue behind it: for 5 s at most, then the upgrade fails and has changed nothing. Run it again.
SET LOCAL lock_timeout = '5s';
CREATE INDEX inbox_parked_dead ON outbox.inbox_parked (id) WHERE state = 'dead';
UPDATE outbox.schema_version SET oldest_software = '0001';
SET LOCAL lock_timeout = DEFAULT;
