-- A person with `rowmq`: looks at everything, bodies included, and may change or purge it.
--
-- Run it in the queue's database, after `rowmq migrate`, as an account that may grant:
--   CREATE USER 'queue_operator'@'%' IDENTIFIED BY '…' REQUIRE SSL;
--   mysql shop < this file
-- or, for an account of another name: rowmq grants operator --user NAME@HOST | mysql shop
GRANT SELECT ON queue_installation TO 'queue_operator'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_topic TO 'queue_operator'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_switch TO 'queue_operator'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_message TO 'queue_operator'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_cancellation TO 'queue_operator'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_claim TO 'queue_operator'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_worker TO 'queue_operator'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_floor TO 'queue_operator'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_scheduled TO 'queue_operator'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_dead TO 'queue_operator'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_archive TO 'queue_operator'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_checkpoint TO 'queue_operator'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_throughput TO 'queue_operator'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_ledger TO 'queue_operator'@'%';
GRANT SELECT, DELETE ON queue_limit TO 'queue_operator'@'%';
GRANT SELECT, DELETE ON queue_slot TO 'queue_operator'@'%';
GRANT SELECT, DELETE ON queue_share TO 'queue_operator'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_lookup TO 'queue_operator'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_dedupe TO 'queue_operator'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_unique TO 'queue_operator'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_schedule TO 'queue_operator'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_partition TO 'queue_operator'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_log TO 'queue_operator'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_cursor TO 'queue_operator'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_range TO 'queue_operator'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_passed TO 'queue_operator'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_member TO 'queue_operator'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_trace TO 'queue_operator'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_duty TO 'queue_operator'@'%';
GRANT SELECT, INSERT, UPDATE (messages) ON queue_audit TO 'queue_operator'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_access TO 'queue_operator'@'%';
GRANT SELECT ON queue_schema_migration TO 'queue_operator'@'%';
GRANT EXECUTE ON PROCEDURE queue_contract TO 'queue_operator'@'%';
GRANT EXECUTE ON PROCEDURE queue_send TO 'queue_operator'@'%';
GRANT EXECUTE ON PROCEDURE queue_send_all TO 'queue_operator'@'%';
GRANT EXECUTE ON PROCEDURE queue_send_unique TO 'queue_operator'@'%';
GRANT EXECUTE ON PROCEDURE queue_cancel TO 'queue_operator'@'%';
-- `rowmq workers` and `doctor` say more with these.
-- optional: GRANT PROCESS ON *.* TO 'queue_operator'@'%';
-- optional: GRANT REPLICATION CLIENT ON *.* TO 'queue_operator'@'%';
