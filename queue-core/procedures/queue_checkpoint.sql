-- Saves how far the work on a delivery has come, as queue-core/src/store/checkpoint.rs: in the transaction
-- that is open, or at once.
CREATE PROCEDURE queue_checkpoint(
  IN in_delivery VARBINARY(255),
  IN in_state    LONGBLOB,
  IN in_progress INT
)
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Save how far the work on a delivery has come, for the next delivery to go on from there.'
BEGIN
  DECLARE the_topic    INT UNSIGNED;
  DECLARE the_priority TINYINT UNSIGNED;
  DECLARE the_row      BIGINT UNSIGNED;
  DECLARE the_worker   BIGINT UNSIGNED;
  DECLARE the_claim    BIGINT UNSIGNED;
  DECLARE the_id       BINARY(16);
  DECLARE the_enqueued_at DATETIME(6);
  DECLARE the_open     BOOLEAN;
  DECLARE the_killed   BOOLEAN;
  DECLARE the_saved    INT;
  DECLARE the_delivery INT UNSIGNED DEFAULT NULL;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;

  CALL queue_refuse_clock();
  IF COALESCE(LENGTH(in_state) > 1048576, FALSE) OR COALESCE(in_progress NOT BETWEEN 0 AND 100, FALSE) THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: a checkpoint has at most 1048576 bytes, and its progress is 0 to 100 percent, or NULL', MYSQL_ERRNO = 31031;
  END IF;
  BEGIN
    -- Within a trigger or a stored function all is one statement.
    DECLARE EXIT HANDLER FOR 1422 BEGIN END;
    CALL queue_undo_killed(the_open, the_killed);
  END;
  CALL queue_held(in_delivery, TRUE, the_topic, the_priority, the_row, the_worker, the_claim, the_id, the_enqueued_at);
  SET @queue_checkpoints = 1;
  IF the_priority IS NULL THEN
    -- Of an ordered group. By itself: within the INSERT it would lock the place where others claim.
    SELECT delivery_no INTO the_delivery FROM queue_range WHERE id = the_row AND worker_id = the_worker AND claim_no = the_claim;
  END IF;
  -- The checkpoint of an earlier delivery never replaces that of a later one: outside a transaction the claim may
  -- be taken back in between. What decides is set last: columns are set from left to right.
  INSERT INTO queue_checkpoint (topic_id, msg_id, enqueued_at, delivery_no, saved_at, progress, state)
    SELECT the_topic, the_id, the_enqueued_at, COALESCE(the_delivery, m.delivery_no), UTC_TIMESTAMP(6), in_progress, COALESCE(in_state, '')
    FROM (SELECT 1) o LEFT JOIN queue_message m FORCE INDEX (PRIMARY) ON m.topic_id = the_topic AND m.priority = the_priority
      AND m.id = the_row AND m.worker_id = the_worker AND m.claim_no = the_claim
    WHERE the_delivery IS NOT NULL OR m.id IS NOT NULL
    ON DUPLICATE KEY UPDATE
      saved_at = IF(VALUES(enqueued_at) <> queue_checkpoint.enqueued_at OR VALUES(delivery_no) >= queue_checkpoint.delivery_no, VALUES(saved_at), queue_checkpoint.saved_at),
      progress = IF(VALUES(enqueued_at) <> queue_checkpoint.enqueued_at OR VALUES(delivery_no) >= queue_checkpoint.delivery_no, VALUES(progress), queue_checkpoint.progress),
      state = IF(VALUES(enqueued_at) <> queue_checkpoint.enqueued_at OR VALUES(delivery_no) >= queue_checkpoint.delivery_no, VALUES(state), queue_checkpoint.state),
      delivery_no = IF(VALUES(enqueued_at) <> queue_checkpoint.enqueued_at OR VALUES(delivery_no) >= queue_checkpoint.delivery_no, VALUES(delivery_no), queue_checkpoint.delivery_no),
      enqueued_at = VALUES(enqueued_at);
  IF ROW_COUNT() = 0 THEN
    -- It stands there already, or a KILL has hidden the message's row.
    SELECT COUNT(*) INTO the_saved FROM queue_checkpoint WHERE topic_id = the_topic AND msg_id = the_id AND enqueued_at = the_enqueued_at;
    CALL queue_refuse_killed(the_saved);
  END IF;
END
