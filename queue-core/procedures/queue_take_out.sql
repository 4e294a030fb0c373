-- Not for callers. Copies the message at the mark of a range that this session holds into the topic of its group, as claimed by
-- the claim that holds the range: there it can be read and settled as any other. out_row is NULL if the log does
-- not have it any more. The caller's transaction removes the copy again, or ends it together with the range.
CREATE PROCEDURE queue_take_out(
  IN  in_range BIGINT UNSIGNED,
  OUT out_row  BIGINT UNSIGNED
)
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Used by queue_claim and queue_settle.'
BEGIN
  DECLARE the_group     INT UNSIGNED DEFAULT NULL;
  DECLARE the_stream    INT UNSIGNED;
  DECLARE the_partition INT UNSIGNED;
  DECLARE the_offset    BIGINT UNSIGNED;
  DECLARE the_worker    BIGINT UNSIGNED;
  DECLARE the_claim     BIGINT UNSIGNED;
  DECLARE the_priority  TINYINT UNSIGNED;
  DECLARE the_end       BIGINT UNSIGNED;
  DECLARE the_count     INT;
  DECLARE the_lost      BIGINT UNSIGNED;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;

  SET out_row = NULL;
  SELECT r.group_id, t.stream_id, r.partition_no, r.mark, r.worker_id, r.claim_no, IF(r.suspicions >= 2, 105, 5)
    INTO the_group, the_stream, the_partition, the_offset, the_worker, the_claim, the_priority
    FROM queue_range r JOIN queue_topic t ON t.id = r.group_id WHERE r.id = in_range;
  -- A reset may have removed the range, if the caller has not locked it.
  SET the_count = 0;
  IF the_group IS NOT NULL THEN
    CALL queue_file_messages(the_group, the_stream, the_partition, in_range, the_offset, the_offset + 1, 1, TRUE, the_end, the_count, the_lost);
  END IF;
  IF the_count = 1 THEN
    SET out_row = LAST_INSERT_ID();
    INSERT INTO queue_claim (worker_id, claim_no, topic_id, priority, lo, hi, n, conn_id, claimed_at)
      VALUES (the_worker, the_claim, the_group, the_priority, out_row, out_row, 1, CONNECTION_ID(), UTC_TIMESTAMP(6));
    UPDATE queue_message SET conn_id = CONNECTION_ID(), worker_id = the_worker, claim_no = the_claim
      WHERE topic_id = the_group AND priority = the_priority AND id = out_row;
    CALL queue_refuse_killed(ROW_COUNT());
  END IF;
END
