-- Which software works with this schema. The table of the revision is there already: whoever runs migrations needs it.
-- Software whose own revision is older than version_num goes on if it is not older than oldest_software; see ADR 22.
-- Each later revision states it again: '0001' if it only adds, its own number if older software must not run any more.
ALTER TABLE outbox.schema_version ADD COLUMN oldest_software varchar(32) NOT NULL DEFAULT '0001';
