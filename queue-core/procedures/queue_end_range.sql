-- Not for callers. Settles the message of a range of one offset, which this transaction has locked: as a row of the
-- group's own topic. A retry or a snooze then goes back into the range, which holds back its partition until it is due.
CREATE PROCEDURE queue_end_range(
  IN  in_range    BIGINT UNSIGNED,
  IN  in_verdict  VARBINARY(16),
  IN  in_reason   LONGTEXT CHARACTER SET utf8mb4,
  IN  in_delay_us BIGINT UNSIGNED,
  IN  in_once     BOOLEAN,
  OUT out_verdict VARCHAR(16)
)
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Used by queue_claim and queue_settle.'
BEGIN
  DECLARE the_row       BIGINT UNSIGNED DEFAULT NULL;
  DECLARE the_group     INT UNSIGNED;
  DECLARE the_plain     BOOLEAN;
  DECLARE the_scheduled BIGINT UNSIGNED;
  DECLARE the_worker    BIGINT UNSIGNED DEFAULT NULL;
  DECLARE the_claim     BIGINT UNSIGNED;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;

  SELECT r.worker_id, r.claim_no, r.group_id, in_verdict = 'ack' AND t.keep_done_ms IS NULL AND t.ledger_window_ms IS NULL
      AND t.trace_ppm = 0 AND COALESCE(@queue_checkpoints <> 1, TRUE)
    INTO the_worker, the_claim, the_group, the_plain FROM queue_range r JOIN queue_topic t ON t.id = r.group_id WHERE r.id = in_range;
  CALL queue_refuse_killed(the_worker IS NOT NULL);
  IF NOT the_plain THEN
    CALL queue_take_out(in_range, the_row);
  END IF;
  IF the_plain THEN
    -- As in queue_ack_rows: the end of the range is all.
    SET out_verdict = 'ack';
    CALL queue_count_settled(the_worker, the_group, 1, 0);
  ELSEIF the_row IS NULL THEN
    SET out_verdict = CONVERT(in_verdict USING latin1);
    IF in_verdict <> 'ack' THEN
      UPDATE queue_cursor c JOIN queue_range r ON r.id = in_range AND r.group_id = c.group_id AND r.partition_no = c.partition_no
        SET c.lost = c.lost + 1;
    END IF;
  ELSE
    CALL queue_settle_row(the_worker, the_claim, the_row, in_verdict, in_reason, in_delay_us, in_once, out_verdict, the_scheduled);
  END IF;
  IF the_row IS NOT NULL AND out_verdict IN ('retry', 'snooze') THEN
    UPDATE queue_range r JOIN queue_scheduled s FORCE INDEX (queue_scheduled_id) ON s.id = the_scheduled
      SET r.worker_id = 0, r.claim_no = 0, r.conn_id = 0, r.failures = s.failures, r.history = s.history, r.ready_at = s.due_at
      WHERE r.id = in_range;
    CALL queue_refuse_killed(ROW_COUNT());
    DELETE s FROM queue_scheduled s FORCE INDEX (queue_scheduled_id) WHERE s.id = the_scheduled;
    CALL queue_refuse_killed(ROW_COUNT());
  ELSEIF the_row IS NOT NULL AND out_verdict = 'release' THEN
    DELETE m FROM queue_message m FORCE INDEX (queue_message_id) WHERE m.id = the_row;
    CALL queue_refuse_killed(ROW_COUNT());
    UPDATE queue_range SET worker_id = 0, claim_no = 0, conn_id = 0 WHERE id = in_range;
    CALL queue_refuse_killed(ROW_COUNT());
  ELSE
    DELETE FROM queue_range WHERE id = in_range;
    CALL queue_refuse_killed(ROW_COUNT());
  END IF;
END
