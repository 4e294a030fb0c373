-- Not for callers. Acks several rows of a claim at once, in the transaction that is open, where an ack is no
-- more than a DELETE. If it is more, or the session does not hold all of them, nothing is changed and out_acked
-- is FALSE: queue_settle_row settles each then, or says which is not held.
CREATE PROCEDURE queue_ack_rows(
  IN  in_worker BIGINT UNSIGNED,
  IN  in_claim  BIGINT UNSIGNED,
  IN  in_rows   MEDIUMTEXT CHARACTER SET latin1,
  IN  in_count  INT,
  OUT out_acked BOOLEAN
)
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Used by queue_settle.'
BEGIN
  DECLARE the_topic    INT UNSIGNED;
  DECLARE the_priority TINYINT UNSIGNED;
  DECLARE the_low      BIGINT UNSIGNED;
  DECLARE the_high     BIGINT UNSIGNED;
  DECLARE the_plain    BOOLEAN DEFAULT FALSE;
  DECLARE the_held     INT;
  DECLARE the_last     BIGINT UNSIGNED;
  DECLARE the_left     BIGINT UNSIGNED DEFAULT NULL;
  DECLARE the_looks    INT DEFAULT 0;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;

  SET out_acked = FALSE;
  SELECT c.topic_id, c.priority, c.lo, c.hi,
      t.keep_done_ms IS NULL AND t.ledger_window_ms IS NULL AND t.trace_ppm = 0 AND COALESCE(@queue_checkpoints <> 1, TRUE)
    INTO the_topic, the_priority, the_low, the_high, the_plain
    FROM queue_claim c JOIN queue_worker w ON w.id = c.worker_id JOIN queue_topic t ON t.id = c.topic_id
    WHERE c.worker_id = in_worker AND c.claim_no = in_claim AND c.conn_id = CONNECTION_ID()
      AND IS_USED_LOCK(CONCAT('queue:', LOWER(HEX(w.instance)))) = CONNECTION_ID();
  IF the_plain THEN
    -- Full keys and fence, as queue_settle_row; one with a unique key does not count. MySQL refuses to lock next
    -- to a JSON_TABLE unless it is materialized: the LIMIT, larger than any list, ensures that.
    SELECT COUNT(DISTINCT m.id), MAX(m.id) INTO the_held, the_last
      FROM (SELECT j.id FROM JSON_TABLE(CONCAT('[', in_rows, ']'), '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$')) j LIMIT 1000000) k
      STRAIGHT_JOIN queue_message m FORCE INDEX (PRIMARY) ON m.topic_id = the_topic AND m.priority = the_priority AND m.id = k.id
      WHERE m.worker_id = in_worker AND m.claim_no = in_claim AND m.conn_id = CONNECTION_ID() AND m.unique_key IS NULL FOR UPDATE;
    SET out_acked = the_held = in_count;
  END IF;
  IF out_acked THEN
    -- As in queue_claim.
    /*M! SET STATEMENT sql_safe_updates = 0 FOR */
    DELETE m FROM JSON_TABLE(CONCAT('[', in_rows, ']'), '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$')) k
      STRAIGHT_JOIN queue_message m FORCE INDEX (PRIMARY) ON m.topic_id = the_topic AND m.priority = the_priority AND m.id = k.id
      WHERE m.worker_id = in_worker AND m.claim_no = in_claim AND m.conn_id = CONNECTION_ID();
    CALL queue_refuse_killed(ROW_COUNT() = in_count);
    -- What is left of the claim, as in queue_settle_row.
    IF the_last < the_high THEN
      SELECT id INTO the_left FROM queue_message FORCE INDEX (PRIMARY) WHERE topic_id = the_topic AND priority = the_priority
        AND id BETWEEN the_last + 1 AND the_high AND worker_id = in_worker AND claim_no = in_claim LIMIT 1;
    END IF;
    WHILE the_left IS NULL AND the_looks < 2 DO
      SET the_looks = the_looks + 1;
      SELECT id INTO the_left FROM queue_message FORCE INDEX (PRIMARY) WHERE topic_id = the_topic AND priority = the_priority
        AND id BETWEEN the_low AND the_high AND worker_id = in_worker AND claim_no = in_claim LIMIT 1;
    END WHILE;
    IF the_left IS NULL THEN
      DELETE FROM queue_claim WHERE worker_id = in_worker AND claim_no = in_claim;
      CALL queue_refuse_killed(ROW_COUNT());
    END IF;
    CALL queue_count_settled(in_worker, the_topic, in_count, 0);
  END IF;
END
