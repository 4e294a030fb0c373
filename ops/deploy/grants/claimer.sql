-- A consumer in any language: it claims and settles by `CALL queue_claim…` and `queue_settle`, and sees only what it
-- claims. If it enqueues too, give it what caller.sql grants as well. Never grant it CREATE TEMPORARY TABLES on this
-- database: a temporary table would hide the queue's own from the procedures.
--
-- Run it in the queue's database, after `rowmq migrate`, as an account that may grant:
--   CREATE USER 'queue_claimer'@'%' IDENTIFIED BY '…' REQUIRE SSL WITH MAX_USER_CONNECTIONS 50;
--   mysql shop < this file
-- or, for an account of another name: rowmq grants claimer --user NAME@HOST | mysql shop
GRANT EXECUTE ON PROCEDURE queue_contract TO 'queue_claimer'@'%';
GRANT EXECUTE ON PROCEDURE queue_claim TO 'queue_claimer'@'%';
GRANT EXECUTE ON PROCEDURE queue_settle TO 'queue_claimer'@'%';
GRANT EXECUTE ON PROCEDURE queue_beat TO 'queue_claimer'@'%';
GRANT EXECUTE ON PROCEDURE queue_checkpoint TO 'queue_claimer'@'%';
GRANT EXECUTE ON PROCEDURE queue_last_checkpoint TO 'queue_claimer'@'%';
GRANT EXECUTE ON PROCEDURE queue_leave TO 'queue_claimer'@'%';
