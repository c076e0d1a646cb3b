-- One row per server that took over from another one: a standby was promoted, a backup was restored, or a dump was read
-- into another cluster. The first relay that takes lanes there notes it. Messages that the server before had published,
-- and whose transactions did not come along, are in Kafka only: `outbox failover scan` lists them, and states here how
-- many it found.
CREATE TABLE outbox.failover (
    system_identifier      bigint      NOT NULL,
    timeline               integer     NOT NULL,
    from_system_identifier bigint      NOT NULL,
    from_timeline          integer     NOT NULL,
    noticed_at             timestamptz NOT NULL DEFAULT clock_timestamp(),
    scanned_at             timestamptz,
    lost                   bigint      CHECK (lost >= 0),
    PRIMARY KEY (system_identifier, timeline),
    CONSTRAINT failover_is_scanned_with_a_result CHECK ((scanned_at IS NULL) = (lost IS NULL))
);
