-- How each script runs, whatever the role, the database or the session has set: no name is looked for where others may
-- create functions or operators, no row is hidden, strings are read as they are written, and no wait for a lock is without
-- a bound. Until the end of the transaction, so a script outside of one is refused by refusal.sql.
SET LOCAL client_encoding = 'UTF8';
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL row_security = off;
SET LOCAL standard_conforming_strings = on;
SET LOCAL lock_timeout = '5s';
