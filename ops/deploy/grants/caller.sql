-- A program that only enqueues by `CALL queue_send…`, in any language: it can read nothing. One that also uses
-- unique keys or cancels: keyed.sql.
--
-- Run it in the queue's database, after `rowmq migrate`, as an account that may grant:
--   CREATE USER 'queue_caller'@'%' IDENTIFIED BY '…' REQUIRE SSL WITH MAX_USER_CONNECTIONS 50;
--   mysql shop < this file
-- or, for an account of another name: rowmq grants caller --user NAME@HOST | mysql shop
GRANT EXECUTE ON PROCEDURE queue_contract TO 'queue_caller'@'%';
GRANT EXECUTE ON PROCEDURE queue_send TO 'queue_caller'@'%';
GRANT EXECUTE ON PROCEDURE queue_send_all TO 'queue_caller'@'%';
