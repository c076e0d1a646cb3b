-- The business side of the demo: tables of an airline's maintenance office.

-- name: create
-- One row per aircraft, updated by each of its flights, and its logbook.
CREATE SCHEMA demo;
CREATE TABLE demo.aircraft (
    tail      text PRIMARY KEY,
    flights   integer NOT NULL,
    minutes   integer NOT NULL,
    last_seen timestamptz NOT NULL
);
CREATE TABLE demo.logbook (
    flight   integer PRIMARY KEY,
    tail     text NOT NULL,
    sequence integer NOT NULL
);

-- name: enter
-- Count the flight on its aircraft's row, whose lock orders the flights of one aircraft, and enter it in the logbook.
-- Answers the flight's place in that order: 1 for the aircraft's first.
WITH counted AS (
    INSERT INTO demo.aircraft AS a (tail, flights, minutes, last_seen)
    VALUES (%(tail)s, 1, %(minutes)s, %(seen)s)
    ON CONFLICT (tail) DO UPDATE
    SET flights = a.flights + 1, minutes = a.minutes + excluded.minutes,
        last_seen = greatest(a.last_seen, excluded.last_seen)
    RETURNING tail, flights
)
INSERT INTO demo.logbook (flight, tail, sequence)
SELECT %(flight)s, tail, flights FROM counted
RETURNING sequence

-- name: entered
-- The place under which a flight was entered, if its transaction committed.
SELECT sequence FROM demo.logbook WHERE flight = %(flight)s

-- name: now
-- A transaction that is later than all that the producers did.
SELECT pg_current_xact_id()::text

-- name: settled
-- Whether all transactions up to that one have ended.
SELECT pg_snapshot_xmin(pg_current_snapshot()) > %(xid)s::xid8
