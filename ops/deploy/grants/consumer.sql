-- A consumer, which also stands in for the janitor (with `sweep = false` it needs less), and whose handlers may
-- enqueue.
--
-- Run it in the queue's database, after `rowmq migrate`, as an account that may grant:
--   CREATE USER 'queue_consumer'@'%' IDENTIFIED BY '…' REQUIRE SSL;
--   mysql shop < this file
-- or, for an account of another name: rowmq grants consumer --user NAME@HOST | mysql shop
GRANT SELECT ON queue_installation TO 'queue_consumer'@'%';
GRANT SELECT, UPDATE ON queue_topic TO 'queue_consumer'@'%';
GRANT SELECT ON queue_switch TO 'queue_consumer'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_message TO 'queue_consumer'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_cancellation TO 'queue_consumer'@'%';
GRANT SELECT, INSERT, DELETE ON queue_claim TO 'queue_consumer'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_worker TO 'queue_consumer'@'%';
GRANT SELECT, INSERT, UPDATE ON queue_floor TO 'queue_consumer'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_scheduled TO 'queue_consumer'@'%';
GRANT SELECT, INSERT ON queue_dead TO 'queue_consumer'@'%';
GRANT SELECT, INSERT, DELETE ON queue_archive TO 'queue_consumer'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_checkpoint TO 'queue_consumer'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_throughput TO 'queue_consumer'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_ledger TO 'queue_consumer'@'%';
GRANT SELECT, INSERT, UPDATE ON queue_limit TO 'queue_consumer'@'%';
GRANT SELECT, INSERT, DELETE ON queue_slot TO 'queue_consumer'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_share TO 'queue_consumer'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_lookup TO 'queue_consumer'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_dedupe TO 'queue_consumer'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_unique TO 'queue_consumer'@'%';
GRANT SELECT, UPDATE ON queue_schedule TO 'queue_consumer'@'%';
GRANT SELECT, UPDATE ON queue_partition TO 'queue_consumer'@'%';
GRANT SELECT, INSERT, DELETE ON queue_log TO 'queue_consumer'@'%';
GRANT SELECT, UPDATE ON queue_cursor TO 'queue_consumer'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_range TO 'queue_consumer'@'%';
GRANT SELECT, INSERT, DELETE ON queue_passed TO 'queue_consumer'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_member TO 'queue_consumer'@'%';
GRANT SELECT, INSERT, DELETE ON queue_trace TO 'queue_consumer'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_duty TO 'queue_consumer'@'%';
