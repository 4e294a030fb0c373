-- The web console: looks at everything, bodies included, and changes what its pages change. Who may see and do
-- what there is the console's own business: docs/console.md.
--
-- Run it in the queue's database, after `rowmq migrate`, as an account that may grant:
--   CREATE USER 'queue_console'@'%' IDENTIFIED BY '…' REQUIRE SSL;
--   mysql shop < this file
-- or, for an account of another name: rowmq grants console --user NAME@HOST | mysql shop
GRANT SELECT, UPDATE ON queue_topic TO 'queue_console'@'%';
GRANT SELECT ON queue_switch TO 'queue_console'@'%';
GRANT SELECT, INSERT ON queue_message TO 'queue_console'@'%';
GRANT SELECT, INSERT, UPDATE ON queue_cancellation TO 'queue_console'@'%';
GRANT SELECT ON queue_claim TO 'queue_console'@'%';
GRANT SELECT ON queue_worker TO 'queue_console'@'%';
GRANT SELECT, INSERT, UPDATE ON queue_floor TO 'queue_console'@'%';
GRANT SELECT, UPDATE, DELETE ON queue_scheduled TO 'queue_console'@'%';
GRANT SELECT, UPDATE, DELETE ON queue_dead TO 'queue_console'@'%';
GRANT SELECT ON queue_archive TO 'queue_console'@'%';
GRANT SELECT ON queue_checkpoint TO 'queue_console'@'%';
GRANT SELECT ON queue_throughput TO 'queue_console'@'%';
GRANT SELECT, INSERT, UPDATE ON queue_lookup TO 'queue_console'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_unique TO 'queue_console'@'%';
GRANT SELECT, UPDATE ON queue_schedule TO 'queue_console'@'%';
GRANT SELECT ON queue_partition TO 'queue_console'@'%';
GRANT SELECT ON queue_log TO 'queue_console'@'%';
GRANT SELECT, UPDATE ON queue_cursor TO 'queue_console'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON queue_range TO 'queue_console'@'%';
GRANT SELECT, DELETE ON queue_passed TO 'queue_console'@'%';
GRANT SELECT, UPDATE, DELETE ON queue_member TO 'queue_console'@'%';
GRANT SELECT ON queue_trace TO 'queue_console'@'%';
GRANT SELECT ON queue_duty TO 'queue_console'@'%';
GRANT SELECT, INSERT, UPDATE (messages) ON queue_audit TO 'queue_console'@'%';
-- To see the consumers' connections, which is one of the three signs that they are alive.
-- optional: GRANT PROCESS ON *.* TO 'queue_console'@'%';
