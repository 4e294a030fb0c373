-- Not for callers. Waits for the gate of a topic with limits, locks it until the transaction ends, and
-- lowers io_limit to the number of messages that may be claimed now, whatever their keys are
-- (docs/decisions/claim-limits.md). A claim locks the gate before anything else, as the library does, and
-- waits for it no longer than a worker does, for a second. out_per_key is NULL if keys have no limit.
-- in_suspect: the claim is of a suspect. For others, a place is kept for a suspect that waits, in ten of
-- twenty seconds, and one of its key, out_kept: only a session that holds nothing takes it, and there may
-- be none.
CREATE PROCEDURE queue_enter_gate(
  IN    in_topic    INT UNSIGNED,
  IN    in_worker   BIGINT UNSIGNED,
  INOUT io_limit    INT,
  IN    in_suspect  BOOLEAN,
  OUT   out_per_key BIGINT,
  OUT   out_kept    VARBINARY(255)
)
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Used by queue_claim.'
BEGIN
  DECLARE the_gate     INT UNSIGNED DEFAULT NULL;
  DECLARE the_max      BIGINT;
  DECLARE the_messages BIGINT;
  DECLARE the_period   BIGINT;
  DECLARE the_lead     BIGINT;
  DECLARE the_running  BIGINT;
  DECLARE the_free     MEDIUMTEXT CHARACTER SET utf8mb4;
  DECLARE the_kept     INT DEFAULT 0;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;

  BEGIN
    /*!80000 DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
      SET SESSION innodb_lock_wait_timeout = @queue_lock_wait, @queue_lock_wait = NULL;
      RESIGNAL;
    END;
    -- After a KILL here, queue_undo_killed puts it back.
    SET @queue_lock_wait = COALESCE(@queue_lock_wait, @@SESSION.innodb_lock_wait_timeout), SESSION innodb_lock_wait_timeout = 1; */
    /*M! SET STATEMENT innodb_lock_wait_timeout = 1 FOR */
    SELECT topic_id INTO the_gate FROM queue_limit WHERE topic_id = in_topic FOR UPDATE;
    /*!80000 SET SESSION innodb_lock_wait_timeout = @queue_lock_wait, @queue_lock_wait = NULL; */
  END;
  IF the_gate IS NULL THEN
    INSERT INTO queue_limit (topic_id, spent_until) VALUES (in_topic, UTC_TIMESTAMP(6))
      ON DUPLICATE KEY UPDATE topic_id = VALUES(topic_id);
  END IF;
  -- A change of the limits locks the gate, too.
  SELECT NULLIF(max_running, 0), NULLIF(max_running_per_key, 0), IF(rate_period_ms > 0, rate_messages, NULL), rate_period_ms * 1000
    INTO the_max, out_per_key, the_messages, the_period FROM queue_topic WHERE id = in_topic;
  IF NOT in_suspect AND UNIX_TIMESTAMP() MOD 20 < 10 THEN
    SELECT 1, ordering_key INTO the_kept, out_kept FROM queue_message FORCE INDEX (PRIMARY)
      WHERE topic_id = in_topic AND priority >= 100 AND worker_id = 0
      ORDER BY topic_id, priority, id LIMIT 1;
  END IF;

  IF the_max IS NOT NULL AND out_per_key IS NULL AND the_messages IS NULL THEN
    SET the_max = the_max - the_kept;
    CALL queue_take_places(in_topic, in_worker, the_max, io_limit);
  ELSEIF COALESCE(the_max, out_per_key) IS NOT NULL THEN
    -- MariaDB cuts off what it aggregates at group_concat_max_len.
    /*M! SET STATEMENT group_concat_max_len = 4194304 FOR */
    SELECT JSON_ARRAYAGG(h.id) INTO the_free
      FROM queue_slot h FORCE INDEX (PRIMARY) LEFT JOIN queue_message m FORCE INDEX (PRIMARY)
        ON m.topic_id = h.topic_id AND m.priority = h.priority AND m.id = h.id AND m.worker_id = h.worker_id AND m.claim_no = h.claim_no
      WHERE h.topic_id = in_topic AND m.id IS NULL;
    IF the_free IS NOT NULL THEN
      -- MariaDB takes the list for a table that is read whole, which safe updates refuse.
      /*M! SET STATEMENT sql_safe_updates = 0 FOR */
      DELETE h FROM JSON_TABLE(the_free, '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$')) k
        STRAIGHT_JOIN queue_slot h FORCE INDEX (PRIMARY) ON h.topic_id = in_topic AND h.id = k.id;
    END IF;
    SELECT COUNT(*) INTO the_running FROM queue_slot FORCE INDEX (PRIMARY) WHERE topic_id = in_topic;
    SET io_limit = GREATEST(0, LEAST(io_limit, COALESCE(the_max - the_running - the_kept, io_limit)));
  END IF;

  IF the_messages IS NOT NULL THEN
    SELECT GREATEST(0, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), spent_until)) INTO the_lead
      FROM queue_limit WHERE topic_id = in_topic;
    IF the_lead > the_period THEN
      -- The server's clock was set back, or the period was shortened: claims would wait for a time that
      -- the current rate never asks for.
      SET the_lead = the_period;
      UPDATE queue_limit SET spent_until = UTC_TIMESTAMP(6) + INTERVAL the_period MICROSECOND WHERE topic_id = in_topic;
    END IF;
    SET io_limit = LEAST(io_limit, (the_period - the_lead) * the_messages DIV the_period);
  END IF;
END
