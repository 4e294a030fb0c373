-- A producer: the library, `rowmq-producer send` and the relay, streams included. It can read what waits, because it
-- appends to the logs of streams; it sees no dead letter and no log. Programs that only call the procedures
-- need far less: caller.sql.
--
-- Run it in the queue's database, after `rowmq migrate`, as an account that may grant:
--   CREATE USER 'queue_producer'@'%' IDENTIFIED BY '…' REQUIRE SSL;
--   mysql shop < this file
-- or, for an account of another name: rowmq grants producer --user NAME@HOST | mysql shop
GRANT SELECT ON queue_topic TO 'queue_producer'@'%';
GRANT SELECT ON queue_switch TO 'queue_producer'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_message TO 'queue_producer'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_scheduled TO 'queue_producer'@'%';
GRANT SELECT, INSERT, UPDATE ON queue_lookup TO 'queue_producer'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_dedupe TO 'queue_producer'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_unique TO 'queue_producer'@'%';
GRANT SELECT, UPDATE ON queue_partition TO 'queue_producer'@'%';
GRANT INSERT ON queue_log TO 'queue_producer'@'%';
GRANT INSERT ON queue_trace TO 'queue_producer'@'%';
