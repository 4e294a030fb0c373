-- A program that enqueues by `CALL queue_send…` in any language, and also with unique keys, and cancels: beyond
-- `caller` it learns whether a key is held, and can hold it against others. It can read nothing.
--
-- Run it in the queue's database, after `rowmq migrate`, as an account that may grant:
--   CREATE USER 'queue_keyed'@'%' IDENTIFIED BY '…' REQUIRE SSL;
--   mysql shop < this file
-- or, for an account of another name: rowmq grants keyed --user NAME@HOST | mysql shop
GRANT EXECUTE ON PROCEDURE queue_contract TO 'queue_keyed'@'%';
GRANT EXECUTE ON PROCEDURE queue_send TO 'queue_keyed'@'%';
GRANT EXECUTE ON PROCEDURE queue_send_all TO 'queue_keyed'@'%';
GRANT EXECUTE ON PROCEDURE queue_send_unique TO 'queue_keyed'@'%';
GRANT EXECUTE ON PROCEDURE queue_cancel TO 'queue_keyed'@'%';
