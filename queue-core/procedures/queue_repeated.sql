-- Not for callers. Whether the ledger has the biz id of a delivery's message: another message with it has been acked.
CREATE PROCEDURE queue_repeated(
  IN  in_worker    BIGINT UNSIGNED,
  IN  in_claim     BIGINT UNSIGNED,
  IN  in_row       BIGINT UNSIGNED,
  OUT out_repeated BOOLEAN
)
  READS SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Used by queue_settle.'
BEGIN
  DECLARE the_topic  INT UNSIGNED DEFAULT NULL;
  DECLARE the_biz_id VARBINARY(255) DEFAULT NULL;
  DECLARE the_range  BIGINT UNSIGNED;
  DECLARE the_id     BINARY(16);
  DECLARE the_time   DATETIME(6);
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;

  SET out_repeated = FALSE;
  IF in_row < 1000000000000000000 THEN
    SELECT m.topic_id, m.biz_id INTO the_topic, the_biz_id
      FROM queue_claim c JOIN queue_message m FORCE INDEX (PRIMARY) ON m.topic_id = c.topic_id AND m.priority = c.priority AND m.id = in_row
      WHERE c.worker_id = in_worker AND c.claim_no = in_claim;
  ELSE
    CALL queue_own_range(in_worker, in_claim, in_row, the_range);
    CALL queue_peek_log(the_range, the_topic, the_id, the_time, the_biz_id);
  END IF;
  SELECT TRUE INTO out_repeated FROM queue_ledger
    WHERE topic_id = the_topic AND group_id = 0 AND biz_id = the_biz_id AND keep_until >= UTC_TIMESTAMP(6);
END
