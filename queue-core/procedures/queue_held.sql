-- Not for callers. Where the message of a delivery lies that this session holds; any other is refused. Of an ordered group:
-- out_row is its range, and out_priority NULL.
-- in_locks: nothing takes the claim back before the open transaction ends.
CREATE PROCEDURE queue_held(
  IN  in_delivery  VARBINARY(255),
  IN  in_locks     BOOLEAN,
  OUT out_topic    INT UNSIGNED,
  OUT out_priority TINYINT UNSIGNED,
  OUT out_row      BIGINT UNSIGNED,
  OUT out_worker   BIGINT UNSIGNED,
  OUT out_claim    BIGINT UNSIGNED,
  OUT out_msg_id   BINARY(16),
  OUT out_enqueued_at DATETIME(6)
)
  READS SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Used by queue_checkpoint and queue_last_checkpoint.'
BEGIN
  DECLARE the_text  VARCHAR(128) CHARACTER SET latin1;
  DECLARE the_token VARCHAR(255) CHARACTER SET latin1 DEFAULT CONVERT(in_delivery USING latin1);
  DECLARE the_claim VARCHAR(64) CHARACTER SET latin1;
  DECLARE the_range BIGINT UNSIGNED;
  DECLARE the_looks INT DEFAULT 0;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET out_topic = NULL;

  -- As in queue_settle.
  IF the_token REGEXP '[^0-9.]' OR COALESCE(the_token NOT REGEXP '^[1-9][0-9]{0,18}[.][1-9][0-9]{0,18}[.][1-9][0-9]{0,18}$', TRUE) THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: that is no delivery; pass the column delivery of queue_claim as it came', MYSQL_ERRNO = 31022;
  END IF;
  SET the_claim = SUBSTRING_INDEX(the_token, '.', 2), out_row = SUBSTRING_INDEX(the_token, '.', -1);
  SET out_worker = SUBSTRING_INDEX(the_claim, '.', 1), out_claim = SUBSTRING_INDEX(the_claim, '.', -1), out_topic = NULL;
  SELECT m.topic_id, m.priority, m.msg_id, m.enqueued_at INTO out_topic, out_priority, out_msg_id, out_enqueued_at
    FROM queue_claim c STRAIGHT_JOIN queue_worker w ON w.id = c.worker_id
    STRAIGHT_JOIN queue_message m FORCE INDEX (PRIMARY) ON m.topic_id = c.topic_id AND m.priority = c.priority AND m.id = out_row
    WHERE c.worker_id = out_worker AND c.claim_no = out_claim AND c.conn_id = CONNECTION_ID()
      AND IS_USED_LOCK(CONCAT('queue:', LOWER(HEX(w.instance)))) = CONNECTION_ID()
      AND m.worker_id = c.worker_id AND m.claim_no = c.claim_no;
  WHILE out_row >= 1000000000000000000 AND out_topic IS NULL AND the_looks < 2 DO
    -- Its message is in the log. Looked for twice: a KILL can hide a range.
    SET the_looks = the_looks + 1;
    SELECT r.group_id, r.id, IF(l.entries IS NULL, l.msg_id, SUBSTRING(l.entries, 17 + 52 * (r.mark + l.messages - l.offset_no - 1), 16)),
        IF(l.entries IS NULL, l.enqueued_at, l.enqueued_at + INTERVAL
          CAST(CONV(HEX(SUBSTRING(l.entries, 33 + 52 * (r.mark + l.messages - l.offset_no - 1), 8)), 16, 10) AS UNSIGNED) MICROSECOND)
      INTO out_topic, the_range, out_msg_id, out_enqueued_at
      FROM queue_range r FORCE INDEX (queue_range_worker) STRAIGHT_JOIN queue_worker w ON w.id = r.worker_id
      STRAIGHT_JOIN queue_topic t ON t.id = r.group_id
      STRAIGHT_JOIN queue_log l FORCE INDEX (PRIMARY) ON l.topic_id = t.stream_id AND l.partition_no = r.partition_no
        AND l.offset_no = (SELECT MIN(x.offset_no) FROM queue_log x WHERE x.topic_id = t.stream_id AND x.partition_no = r.partition_no AND x.offset_no >= r.mark)
        AND r.mark + l.messages > l.offset_no
      WHERE r.worker_id = out_worker AND r.claim_no = out_claim AND r.mark = out_row - 1000000000000000000 AND r.conn_id = CONNECTION_ID()
        AND IS_USED_LOCK(CONCAT('queue:', LOWER(HEX(w.instance)))) = CONNECTION_ID();
  END WHILE;
  IF the_looks > 0 THEN
    SET out_row = the_range, out_priority = NULL;
    IF out_topic IS NOT NULL AND in_locks THEN
      SELECT group_id INTO out_topic FROM queue_range WHERE id = the_range AND worker_id = out_worker AND claim_no = out_claim FOR UPDATE;
    END IF;
  ELSEIF out_topic IS NOT NULL AND in_locks THEN
    SELECT topic_id INTO out_topic FROM queue_message FORCE INDEX (PRIMARY)
      WHERE topic_id = out_topic AND priority = out_priority AND id = out_row AND worker_id = out_worker AND claim_no = out_claim FOR UPDATE;
  END IF;
  IF out_topic IS NULL THEN
    SET the_text = LEFT(CONCAT('queue: this session does not hold ', the_token, ' any more: ROLLBACK, it is done or another consumer has it'), 128);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = the_text, MYSQL_ERRNO = 31015;
  END IF;
  -- The session that knows the delivery has received it.
  SET @queue_unsaid = REGEXP_REPLACE(CONVERT(@queue_unsaid USING latin1), CONCAT('<[0-9]+:', REPLACE(the_claim, '.', '[.]'), '>'), '');
END
