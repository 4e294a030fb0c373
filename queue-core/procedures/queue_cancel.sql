CREATE PROCEDURE queue_cancel(
  IN in_topic  VARBINARY(255),
  IN in_msg_id VARBINARY(255)
)
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Take back a message whose time has not come. @queue_cancelled: 1, or 0 if none of yours waits.'
BEGIN
  DECLARE the_row    BIGINT UNSIGNED DEFAULT NULL;
  DECLARE the_looks  TINYINT UNSIGNED DEFAULT 0;
  DECLARE the_topic  INT UNSIGNED;
  DECLARE the_id     BINARY(16);
  DECLARE the_traced BOOLEAN;
  DECLARE the_others BOOLEAN;
  DECLARE the_open   BOOLEAN DEFAULT TRUE;
  DECLARE the_killed BOOLEAN;
  DECLARE the_account VARBINARY(512) DEFAULT LEFT(USER(), LENGTH(USER()) - LENGTH(SUBSTRING_INDEX(USER(), '@', -1)) - 1);
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET the_row = NULL;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION
  BEGIN
    IF NOT the_open THEN
      CALL queue_end(FALSE);
    END IF;
    RESIGNAL;
  END;

  SET @queue_cancelled = 0;
  CALL queue_refuse_clock();
  CALL queue_refuse_access(in_topic, 'cancel');
  CALL queue_may(in_topic, 'others', the_others);
  -- What is not found is looked for once more.
  WHILE the_looks < 2 AND NOT @queue_cancelled DO
    SET the_looks = the_looks + 1, the_row = NULL;
    -- Read without locks: what is not there must not lock the place where it would be, which is
    -- where others insert (REPEATABLE READ, both servers' default). NULL: from before rows had accounts.
    SELECT s.id, s.topic_id, s.msg_id, CRC32(s.msg_id) MOD 1000000 < t.trace_ppm INTO the_row, the_topic, the_id, the_traced
      FROM queue_scheduled s FORCE INDEX (queue_scheduled_msg), queue_topic t
      WHERE s.msg_id = IF(LENGTH(in_msg_id) = 16, in_msg_id, UNHEX(REPLACE(CONVERT(in_msg_id USING latin1), '-', '')))
        AND t.id = s.topic_id AND t.name = in_topic AND (the_others OR COALESCE(s.account, the_account) = the_account)
      LIMIT 1;
    IF the_row IS NOT NULL AND the_traced AND the_open THEN
      BEGIN
        -- Within a trigger or a stored function all is one statement.
        DECLARE EXIT HANDLER FOR 1422 BEGIN END;
        CALL queue_undo_killed(the_open, the_killed);
      END;
      IF NOT the_open THEN
        CALL queue_begin();
      END IF;
    END IF;
    IF the_row IS NOT NULL THEN
      -- With its unique key, in one statement: it may commit by itself.
      DELETE s, u FROM queue_scheduled s FORCE INDEX (queue_scheduled_id)
        LEFT JOIN queue_unique u FORCE INDEX (PRIMARY)
          ON u.topic_id = s.topic_id AND u.unique_key = s.unique_key AND u.msg_id = s.msg_id
        WHERE s.id = the_row;
      SET @queue_cancelled = ROW_COUNT() > 0;
    END IF;
    IF @queue_cancelled AND the_traced THEN
      INSERT INTO queue_trace (topic_id, msg_id, event, at, conn_id, client)
        VALUES (the_topic, the_id, 'cancelled', UTC_TIMESTAMP(6), CONNECTION_ID(), LEFT(USER(), 255));
    END IF;
  END WHILE;
  IF NOT the_open THEN
    CALL queue_end(TRUE);
  END IF;
END
