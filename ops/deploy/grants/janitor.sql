-- The janitor.
--
-- Run it in the queue's database, after `rowmq migrate`, as an account that may grant:
--   CREATE USER 'queue_janitor'@'%' IDENTIFIED BY '…' REQUIRE SSL;
--   mysql shop < this file
-- or, for an account of another name: rowmq grants janitor --user NAME@HOST | mysql shop
GRANT SELECT ON queue_installation TO 'queue_janitor'@'%';
GRANT SELECT, INSERT, UPDATE ON queue_topic TO 'queue_janitor'@'%';
GRANT SELECT ON queue_switch TO 'queue_janitor'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_message TO 'queue_janitor'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_cancellation TO 'queue_janitor'@'%';
GRANT SELECT, DELETE ON queue_claim TO 'queue_janitor'@'%';
GRANT SELECT, UPDATE, DELETE ON queue_worker TO 'queue_janitor'@'%';
GRANT SELECT, INSERT, UPDATE ON queue_floor TO 'queue_janitor'@'%';
GRANT SELECT, INSERT, DELETE ON queue_scheduled TO 'queue_janitor'@'%';
GRANT SELECT, INSERT, DELETE ON queue_dead TO 'queue_janitor'@'%';
GRANT SELECT, DELETE ON queue_archive TO 'queue_janitor'@'%';
GRANT SELECT, DELETE ON queue_checkpoint TO 'queue_janitor'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_throughput TO 'queue_janitor'@'%';
GRANT SELECT, DELETE ON queue_ledger TO 'queue_janitor'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_lookup TO 'queue_janitor'@'%';
GRANT SELECT, DELETE ON queue_dedupe TO 'queue_janitor'@'%';
GRANT SELECT, UPDATE, DELETE ON queue_unique TO 'queue_janitor'@'%';
GRANT SELECT, UPDATE ON queue_schedule TO 'queue_janitor'@'%';
GRANT SELECT, UPDATE ON queue_partition TO 'queue_janitor'@'%';
GRANT SELECT, INSERT, DELETE ON queue_log TO 'queue_janitor'@'%';
GRANT SELECT, UPDATE ON queue_cursor TO 'queue_janitor'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_range TO 'queue_janitor'@'%';
GRANT SELECT, INSERT, DELETE ON queue_passed TO 'queue_janitor'@'%';
GRANT SELECT, UPDATE ON queue_member TO 'queue_janitor'@'%';
GRANT SELECT, INSERT, DELETE ON queue_trace TO 'queue_janitor'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_duty TO 'queue_janitor'@'%';
GRANT SELECT, DELETE ON queue_audit TO 'queue_janitor'@'%';
-- To see the consumers' connections. Where PROCESS must not be granted: process-list.sql.
GRANT PROCESS ON *.* TO 'queue_janitor'@'%';
