-- A dashboard: `rowmq stats`, `topic list`, `group list`, `workers`, `janitor`, and queries of your own. It
-- reads no body, header, key or error, and writes nothing.
--
-- Run it in the queue's database, after `rowmq migrate`, as an account that may grant:
--   CREATE USER 'queue_dashboard'@'%' IDENTIFIED BY '…' REQUIRE SSL;
--   mysql shop < this file
-- or, for an account of another name: rowmq grants dashboard --user NAME@HOST | mysql shop
GRANT SELECT ON queue_topic TO 'queue_dashboard'@'%';
GRANT SELECT ON queue_switch TO 'queue_dashboard'@'%';
GRANT SELECT ON queue_claim TO 'queue_dashboard'@'%';
GRANT SELECT ON queue_worker TO 'queue_dashboard'@'%';
GRANT SELECT ON queue_floor TO 'queue_dashboard'@'%';
GRANT SELECT ON queue_partition TO 'queue_dashboard'@'%';
GRANT SELECT ON queue_cursor TO 'queue_dashboard'@'%';
GRANT SELECT ON queue_member TO 'queue_dashboard'@'%';
GRANT SELECT ON queue_duty TO 'queue_dashboard'@'%';
GRANT SELECT (topic_id, priority, id, conn_id, worker_id, claim_no, delivery_no, failures, crashes, enqueued_at, expires_at) ON queue_message TO 'queue_dashboard'@'%';
GRANT SELECT (due_at, id, topic_id, priority, delivery_no, failures, crashes, enqueued_at, expires_at) ON queue_scheduled TO 'queue_dashboard'@'%';
GRANT SELECT (id, topic_id, priority, delivery_no, failures, crashes, enqueued_at, cause, died_at) ON queue_dead TO 'queue_dashboard'@'%';
GRANT SELECT (id, topic_id, priority, delivery_no, failures, crashes, enqueued_at, outcome, settled_at, keep_until) ON queue_archive TO 'queue_dashboard'@'%';
GRANT SELECT (name, topic_id, cron, time_zone, missed, paused, next_at, last_at, ticks, priority) ON queue_schedule TO 'queue_dashboard'@'%';
GRANT SELECT (topic_id, partition_no, offset_no, messages, enqueued_at, sequenced_at, expires_at) ON queue_log TO 'queue_dashboard'@'%';
GRANT SELECT (id, group_id, partition_no, mark, hi, worker_id, claim_no, conn_id, delivery_no, failures, crashes, suspicions, ready_at, claimed_at) ON queue_range TO 'queue_dashboard'@'%';
