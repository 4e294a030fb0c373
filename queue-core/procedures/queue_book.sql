-- Not for callers. Takes slots, and permits of the rate, for messages that this transaction has locked and
-- is about to claim. So what a KILL leaves behind counts too much rather than too little; a slot of a
-- message that is not claimed after all counts for nothing. The topic's gate is locked.
CREATE PROCEDURE queue_book(
  IN in_topic    INT UNSIGNED,
  IN in_worker   BIGINT UNSIGNED,
  IN in_claim    BIGINT UNSIGNED,
  IN in_priority TINYINT UNSIGNED,
  IN in_ids      MEDIUMTEXT CHARACTER SET utf8mb4,
  IN in_count    INT
)
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Used by queue_claim.'
BEGIN
  DECLARE the_max      BIGINT;
  DECLARE the_per_key  BIGINT;
  DECLARE the_messages BIGINT;
  DECLARE the_period   BIGINT;

  SELECT NULLIF(max_running, 0), NULLIF(max_running_per_key, 0), IF(rate_period_ms > 0, rate_messages, NULL), rate_period_ms * 1000
    INTO the_max, the_per_key, the_messages, the_period FROM queue_topic WHERE id = in_topic;
  -- A topic that limits only how many messages run has no slots.
  IF the_per_key IS NOT NULL OR (the_max IS NOT NULL AND the_messages IS NOT NULL) THEN
    -- A row that was given back since the slots were counted still has one.
    INSERT INTO queue_slot (topic_id, id, priority, worker_id, claim_no, slot_key)
      SELECT m.topic_id, m.id, m.priority, in_worker, in_claim, m.ordering_key
        FROM JSON_TABLE(in_ids, '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$')) k
        STRAIGHT_JOIN queue_message m FORCE INDEX (PRIMARY) ON m.topic_id = in_topic AND m.priority = in_priority AND m.id = k.id
      ON DUPLICATE KEY UPDATE priority = VALUES(priority), worker_id = VALUES(worker_id), claim_no = VALUES(claim_no), slot_key = VALUES(slot_key);
    CALL queue_refuse_killed(ROW_COUNT());
  END IF;
  IF the_messages IS NOT NULL THEN
    UPDATE queue_limit SET spent_until = GREATEST(spent_until, UTC_TIMESTAMP(6)) + INTERVAL CEIL(the_period * in_count / the_messages) MICROSECOND
      WHERE topic_id = in_topic;
    CALL queue_refuse_killed(ROW_COUNT());
  END IF;
END
