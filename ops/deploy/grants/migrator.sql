-- The migrator: `rowmq migrate`, in a job of its own and in no running process. It makes the tables and
-- is the definer of the procedures, so keep the account: they run with its rights.
--
-- Run it in the queue's database, after `rowmq migrate`, as an account that may grant:
--   CREATE USER 'queue_migrator'@'%' IDENTIFIED BY '…' REQUIRE SSL;
--   mysql shop < this file
-- or, for an account of another name: rowmq grants migrator --user NAME@HOST | mysql shop
GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX, DROP, CREATE ROUTINE, ALTER ROUTINE, EXECUTE ON * TO 'queue_migrator'@'%';
