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
  DECLARE the_token VARCHAR(255) CHARACTER SET latin1 DEFAULT CONVERT(in_delivery USING latin1);
  DECLARE the_claim VARCHAR(64) CHARACTER SET latin1;
  DECLARE the_biz_id VARBINARY(255);
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET out_topic = NULL;

  -- As in queue_settle.
  IF the_token REGEXP '[^0-9.]' OR COALESCE(the_token NOT REGEXP '^[1-9][0-9]{0,18}[.][1-9][0-9]{0,18}[.][1-9][0-9]{0,18}$', TRUE) THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: that is no delivery; pass the column delivery of queue_claim as it came', MYSQL_ERRNO = 31022;
  END IF;
  SET the_claim = SUBSTRING_INDEX(the_token, '.', 2), out_row = SUBSTRING_INDEX(the_token, '.', -1);
  SET out_worker = SUBSTRING_INDEX(the_claim, '.', 1), out_claim = SUBSTRING_INDEX(the_claim, '.', -1), out_topic = NULL;
  IF out_row >= 1000000000000000000 THEN
    CALL queue_own_range(out_worker, out_claim, out_row, out_row);
    SET out_priority = NULL;
    CALL queue_peek_log(out_row, out_topic, out_msg_id, out_enqueued_at, the_biz_id);
    IF out_topic IS NOT NULL AND in_locks THEN
      SELECT group_id INTO out_topic FROM queue_range WHERE id = out_row AND worker_id = out_worker AND claim_no = out_claim FOR UPDATE;
    END IF;
  ELSE
    SELECT m.topic_id, m.priority, m.msg_id, m.enqueued_at INTO out_topic, out_priority, out_msg_id, out_enqueued_at
      FROM queue_claim c STRAIGHT_JOIN queue_worker w ON w.id = c.worker_id
      STRAIGHT_JOIN queue_message m FORCE INDEX (PRIMARY) ON m.topic_id = c.topic_id AND m.priority = c.priority AND m.id = out_row
      WHERE c.worker_id = out_worker AND c.claim_no = out_claim AND c.conn_id = CONNECTION_ID()
        AND IS_USED_LOCK(CONCAT('queue:', LOWER(HEX(w.instance)))) = CONNECTION_ID()
        AND m.worker_id = c.worker_id AND m.claim_no = c.claim_no;
    IF out_topic IS NOT NULL AND in_locks THEN
      SELECT topic_id INTO out_topic FROM queue_message FORCE INDEX (PRIMARY)
        WHERE topic_id = out_topic AND priority = out_priority AND id = out_row AND worker_id = out_worker AND claim_no = out_claim FOR UPDATE;
    END IF;
  END IF;
  IF out_topic IS NULL THEN
    CALL queue_refuse_delivery(the_token);
  END IF;
  -- The session that knows the delivery has received it.
  SET @queue_unsaid = REGEXP_REPLACE(CONVERT(@queue_unsaid USING latin1), CONCAT('<[0-9]+:', REPLACE(the_claim, '.', '[.]'), '>'), '');
END
