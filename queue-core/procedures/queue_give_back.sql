-- Not for callers. Releases what is left of a claim of this session, in a transaction of its own, if it is
-- of in_topic: a rollback gives a claim's number back, and the next claim, of any topic, has it then.
-- in_topic is NULL: the claim is only forgotten, if it has no message any more.
-- out_pause: a lock was in the way; nothing is to be claimed before it is done.
CREATE PROCEDURE queue_give_back(
  IN    in_worker BIGINT UNSIGNED,
  IN    in_claim  BIGINT UNSIGNED,
  IN    in_topic  INT UNSIGNED,
  INOUT out_pause BOOLEAN
)
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Used by queue_claim.'
BEGIN
  DECLARE the_topic    INT UNSIGNED DEFAULT NULL;
  DECLARE the_priority TINYINT UNSIGNED;
  DECLARE the_low      BIGINT UNSIGNED;
  DECLARE the_high     BIGINT UNSIGNED;
  DECLARE the_row      BIGINT UNSIGNED DEFAULT NULL;
  DECLARE the_first    BIGINT UNSIGNED DEFAULT NULL;
  DECLARE the_verdict  VARCHAR(16);
  DECLARE the_none     BIGINT UNSIGNED;
  DECLARE the_looks    INT DEFAULT 0;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  DECLARE EXIT HANDLER FOR 1205, 1213
  BEGIN
    ROLLBACK AND NO CHAIN NO RELEASE;
    SET out_pause = TRUE;
  END;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION
  BEGIN
    ROLLBACK AND NO CHAIN NO RELEASE;
    RESIGNAL;
  END;

  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SAVEPOINT queue_own;
  SELECT topic_id, priority, lo, hi INTO the_topic, the_priority, the_low, the_high
    FROM queue_claim WHERE worker_id = in_worker AND claim_no = in_claim AND topic_id = COALESCE(in_topic, topic_id) FOR UPDATE;
  the_rows: WHILE the_topic IS NOT NULL AND the_looks < 2 DO
    SET the_looks = the_looks + 1, the_row = NULL;
    SELECT id INTO the_row FROM queue_message FORCE INDEX (PRIMARY)
      WHERE topic_id = the_topic AND priority = the_priority AND id BETWEEN the_low AND the_high
        AND worker_id = in_worker AND claim_no = in_claim
      ORDER BY topic_id, priority, id LIMIT 1 FOR UPDATE;
    IF the_row IS NOT NULL AND in_topic IS NULL THEN
      SET the_topic = NULL;
      LEAVE the_rows;
    ELSEIF the_row IS NOT NULL THEN
      CALL queue_settle_row(in_worker, in_claim, the_row, 'release', NULL, NULL, FALSE, the_verdict, the_none);
      SET the_low = the_row + 1, the_looks = 0, the_first = COALESCE(the_first, the_row);
    END IF;
  END WHILE the_rows;
  IF the_topic IS NOT NULL AND the_first IS NULL THEN
    DELETE FROM queue_claim WHERE worker_id = in_worker AND claim_no = in_claim;
    CALL queue_refuse_killed(ROW_COUNT());
  ELSEIF the_first IS NOT NULL AND the_priority <= 9 THEN
    INSERT INTO queue_floor (topic_id, priority, floor, seq) VALUES (the_topic, the_priority, the_first, 1)
      ON DUPLICATE KEY UPDATE floor = VALUES(floor), seq = seq + 1;
  END IF;
  IF the_topic IS NULL AND in_topic IS NOT NULL THEN
    -- Of an ordered group. Twice: a KILL can hide a range.
    SET the_looks = 0;
    WHILE the_looks < 2 DO
      UPDATE queue_range FORCE INDEX (queue_range_worker) SET worker_id = 0, claim_no = 0, conn_id = 0
        WHERE worker_id = in_worker AND claim_no = in_claim AND group_id = in_topic;
      SET the_looks = IF(ROW_COUNT() > 0, 2, the_looks + 1);
    END WHILE;
  END IF;
  COMMIT AND NO CHAIN NO RELEASE;
  IF in_topic IS NOT NULL THEN
    SET @queue_unsaid = REPLACE(CONVERT(@queue_unsaid USING latin1), CONCAT('<', in_topic, ':', in_worker, '.', in_claim, '>'), '');
  END IF;
END
