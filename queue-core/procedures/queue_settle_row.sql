-- Not for callers. Settles one row of a claim, in the transaction that is open: as
-- queue-core/src/worker/settling.rs, and moves between tables as in queue-core/src/store/moves.rs.
-- Who releases publishes the floor, last, so that its row is locked no longer than the commit takes.
-- in_once: the transaction does what the message is about, so its biz id must be new in the ledger.
CREATE PROCEDURE queue_settle_row(
  IN  in_worker   BIGINT UNSIGNED,
  IN  in_claim    BIGINT UNSIGNED,
  IN  in_row      BIGINT UNSIGNED,
  IN  in_verdict  VARBINARY(16),
  IN  in_reason   LONGTEXT CHARACTER SET utf8mb4,
  IN  in_delay_us BIGINT UNSIGNED,
  IN  in_once     BOOLEAN,
  OUT out_verdict VARCHAR(16),
  OUT out_scheduled BIGINT UNSIGNED
)
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Used by queue_claim and queue_settle.'
BEGIN
  DECLARE the_topic    INT UNSIGNED DEFAULT NULL;
  DECLARE the_priority TINYINT UNSIGNED;
  DECLARE the_low      BIGINT UNSIGNED;
  DECLARE the_high     BIGINT UNSIGNED;
  DECLARE the_id       BINARY(16) DEFAULT NULL;
  DECLARE the_delivery INT UNSIGNED;
  DECLARE the_failures INT UNSIGNED;
  DECLARE the_biz_id   VARBINARY(255);
  DECLARE the_key      VARBINARY(255);
  DECLARE the_headers  LONGTEXT CHARACTER SET latin1;
  DECLARE the_name     VARBINARY(129);
  DECLARE the_limit    BIGINT UNSIGNED;
  DECLARE the_policy   VARBINARY(1024);
  DECLARE the_keep     BIGINT UNSIGNED;
  DECLARE the_window   BIGINT UNSIGNED;
  DECLARE the_trace    INT UNSIGNED;
  DECLARE the_search   BOOLEAN;
  DECLARE the_other    INT UNSIGNED;
  DECLARE the_other_is_stream BOOLEAN;
  DECLARE the_other_search    BOOLEAN;
  DECLARE the_own      TEXT CHARACTER SET utf8mb4;
  DECLARE the_wait     BIGINT UNSIGNED DEFAULT in_delay_us;
  DECLARE the_allowed  BIGINT UNSIGNED;
  DECLARE the_cause    VARBINARY(16) DEFAULT 'handler';
  DECLARE the_error    LONGTEXT CHARACTER SET utf8mb4 DEFAULT LEFT(COALESCE(in_reason, ''), 8192);
  DECLARE the_short    TEXT CHARACTER SET utf8mb4;
  DECLARE the_line     BLOB;
  DECLARE the_told     BLOB;
  DECLARE the_entry    DATETIME(6) DEFAULT NULL;
  DECLARE the_left     BIGINT UNSIGNED DEFAULT NULL;
  DECLARE the_looks    INT DEFAULT 0;
  DECLARE the_saved    INT;

  SET out_verdict = CONVERT(in_verdict USING latin1), out_scheduled = NULL;
  BEGIN
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    -- The session that claimed, and not a later one that was given the same id (history H21).
    SELECT c.topic_id, c.priority, c.lo, c.hi INTO the_topic, the_priority, the_low, the_high
      FROM queue_claim c JOIN queue_worker w ON w.id = c.worker_id
      WHERE c.worker_id = in_worker AND c.claim_no = in_claim AND c.conn_id = CONNECTION_ID()
        AND IS_USED_LOCK(CONCAT('queue:', LOWER(HEX(w.instance)))) = CONNECTION_ID();
    -- Full key and fence: nothing else is locked, and nobody is passed over.
    SELECT m.msg_id, m.delivery_no, m.failures, m.biz_id, m.unique_key, IF(in_verdict = 'retry', CONVERT(m.headers USING latin1), NULL)
      INTO the_id, the_delivery, the_failures, the_biz_id, the_key, the_headers
      FROM queue_message m FORCE INDEX (PRIMARY)
      WHERE m.topic_id = the_topic AND m.priority = the_priority AND m.id = in_row
        AND m.worker_id = in_worker AND m.claim_no = in_claim AND m.conn_id = CONNECTION_ID() FOR UPDATE;
    SELECT t.name, t.max_attempts, t.retry, t.keep_done_ms, t.ledger_window_ms, t.trace_ppm, t.searchable_ms IS NOT NULL,
        o.id, o.kind = 'stream', o.searchable_ms IS NOT NULL
      INTO the_name, the_limit, the_policy, the_keep, the_window, the_trace, the_search,
        the_other, the_other_is_stream, the_other_search
      FROM queue_topic t LEFT JOIN queue_topic o ON o.id = t.dead_letter_topic_id WHERE t.id = the_topic;
  END;
  IF the_id IS NULL OR the_name IS NULL THEN
    CALL queue_refuse_delivery(CONCAT_WS('.', in_worker, in_claim, in_row));
  END IF;

  IF in_verdict = 'retry' THEN
    -- What the message asks for itself, within what its topic allows: no more attempts, and no shorter
    -- wait than the topic's policy ever makes. Headers that are no JSON object, or that nest deeper than
    -- MySQL reads, ask for nothing.
    IF LENGTH(the_headers) - LENGTH(REPLACE(REPLACE(the_headers, '[', ''), '{', '')) > 100 OR NOT JSON_VALID(the_headers) THEN
      SET the_headers = NULL;
    END IF;
    SET the_own = LEFT(TRIM(JSON_UNQUOTE(JSON_EXTRACT(the_headers, '$."queue-max-attempts"'))), 64);
    IF the_own REGEXP '^[+]?[0-9]{1,10}$' AND the_own + 0 BETWEEN 1 AND 4294967295 THEN
      SET the_limit = LEAST(the_limit, the_own + 0);
    END IF;
    IF the_failures + 1 >= the_limit THEN
      SET out_verdict = 'dead-letter', the_cause = 'attempts';
    ELSEIF the_wait IS NULL THEN
      SET the_own = LEFT(JSON_UNQUOTE(JSON_EXTRACT(the_headers, '$."queue-retry"')), 1100);
      CALL queue_retry_wait(the_own, the_failures + 1, the_wait);
      CALL queue_retry_wait(the_policy, IF(the_wait IS NULL, the_failures + 1, 0), the_allowed);
      SET the_wait = GREATEST(COALESCE(the_wait, 0), COALESCE(the_allowed, 0));
      SET the_wait = IF(the_wait > 0, the_wait, 1000000);
    END IF;
  END IF;

  WHILE LENGTH(the_error) > 8192 DO
    SET the_error = LEFT(the_error, CHAR_LENGTH(the_error) - CEIL((LENGTH(the_error) - 8192) / 4));
  END WHILE;
  SET the_short = LEFT(the_error, 1024);
  WHILE LENGTH(the_short) > 1024 DO
    SET the_short = LEFT(the_short, CHAR_LENGTH(the_short) - CEIL((LENGTH(the_short) - 1024) / 4));
  END WHILE;
  IF out_verdict IN ('retry', 'dead-letter') THEN
    SET the_line = CONCAT('{"delivery_no":', the_delivery, ',"worker":', in_worker,
      ',"at":"', DATE_FORMAT(UTC_TIMESTAMP(6), '%Y-%m-%dT%H:%i:%s.%fZ'), '","error":', JSON_QUOTE(the_short), '}', CHAR(10));
  END IF;

  IF out_verdict = 'ack' AND the_window IS NOT NULL AND the_biz_id IS NOT NULL THEN
    IF in_once THEN
      BEGIN
        DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
        -- Read without locks: what is not there must not lock the place where others insert.
        SELECT keep_until INTO the_entry FROM queue_ledger WHERE topic_id = the_topic AND group_id = 0 AND biz_id = the_biz_id;
      END;
      IF the_entry < UTC_TIMESTAMP(6) THEN
        DELETE FROM queue_ledger WHERE topic_id = the_topic AND group_id = 0 AND biz_id = the_biz_id AND keep_until < UTC_TIMESTAMP(6);
        -- If a janitor was quicker, it is done again for nothing.
        CALL queue_refuse_killed(ROW_COUNT());
      END IF;
      BEGIN
        DECLARE EXIT HANDLER FOR 1062
        BEGIN
          SET the_short = LEFT(CONCAT('queue: a message with the biz id of ', CONCAT_WS('.', in_worker, in_claim, in_row), ' was acked: ROLLBACK, and do each alone; this, only ''ack'''), 128);
          SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = the_short, MYSQL_ERRNO = 31023;
        END;
        INSERT INTO queue_ledger (topic_id, group_id, biz_id, msg_id, keep_until)
          VALUES (the_topic, 0, the_biz_id, the_id, UTC_TIMESTAMP(6) + INTERVAL LEAST(the_window, 315360000000) * 1000 MICROSECOND);
      END;
    ELSE
      INSERT INTO queue_ledger (topic_id, group_id, biz_id, msg_id, keep_until)
        VALUES (the_topic, 0, the_biz_id, the_id, UTC_TIMESTAMP(6) + INTERVAL LEAST(the_window, 315360000000) * 1000 MICROSECOND)
        ON DUPLICATE KEY UPDATE keep_until = VALUES(keep_until);
    END IF;
  END IF;
  -- The session has saved or read checkpoints. What is not there must not lock the place where others insert.
  IF @queue_checkpoints = 1 AND out_verdict IN ('ack', 'discard') THEN
    SELECT COUNT(*) INTO the_saved FROM queue_checkpoint WHERE topic_id = the_topic AND msg_id = the_id;
    IF the_saved > 0 THEN
      DELETE FROM queue_checkpoint WHERE topic_id = the_topic AND msg_id = the_id;
    END IF;
  END IF;
  IF the_key IS NOT NULL AND out_verdict IN ('ack', 'repeated', 'dead-letter', 'discard') THEN
    DELETE FROM queue_unique WHERE topic_id = the_topic AND unique_key = the_key AND msg_id = the_id;
    IF ROW_COUNT() = 0 THEN
      -- Held for a time that is over, or still there because this was killed.
      BEGIN
        DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
        SELECT 0 INTO the_left FROM queue_unique WHERE topic_id = the_topic AND unique_key = the_key AND msg_id = the_id;
      END;
      CALL queue_refuse_killed(the_left);
    END IF;
  END IF;

  IF out_verdict = 'release' THEN
    UPDATE queue_message FORCE INDEX (PRIMARY) SET conn_id = 0, worker_id = 0, claim_no = 0
      WHERE topic_id = the_topic AND priority = the_priority AND id = in_row;
    CALL queue_refuse_killed(ROW_COUNT());
  ELSE
    IF out_verdict IN ('retry', 'snooze') THEN
      INSERT INTO queue_scheduled (due_at, priority, failures, crashes, suspicions, last_error, history, expires_at, unique_key,
          topic_id, msg_id, delivery_no, enqueued_at, ordering_key, biz_id, headers, body)
        SELECT UTC_TIMESTAMP(6) + INTERVAL the_wait MICROSECOND, priority % 100, failures + (out_verdict = 'retry'), crashes, 0,
          IF(out_verdict = 'retry', the_error, NULL),
          IF(out_verdict = 'retry', RIGHT(CONCAT(COALESCE(history, ''), the_line), 32768), history), expires_at, unique_key,
          topic_id, msg_id, delivery_no, enqueued_at, ordering_key, biz_id, headers, body
        FROM queue_message FORCE INDEX (PRIMARY) WHERE topic_id = the_topic AND priority = the_priority AND id = in_row;
      SET out_scheduled = LAST_INSERT_ID();
    ELSEIF out_verdict = 'dead-letter' AND the_other IS NULL THEN
      INSERT INTO queue_dead (priority, failures, crashes, suspicions, cause, last_error, died_at, history, unique_key,
          topic_id, msg_id, delivery_no, enqueued_at, ordering_key, biz_id, headers, body)
        SELECT priority % 100, failures + 1, crashes, suspicions, the_cause, the_error, UTC_TIMESTAMP(6),
          RIGHT(CONCAT(COALESCE(history, ''), the_line), 32768), unique_key,
          topic_id, msg_id, delivery_no, enqueued_at, ordering_key, biz_id, headers, body
        FROM queue_message FORCE INDEX (PRIMARY) WHERE topic_id = the_topic AND priority = the_priority AND id = in_row;
    ELSEIF out_verdict = 'dead-letter' THEN
      SET the_told = CONCAT('"queue-dead-from":"', the_name, '","queue-dead-cause":"', the_cause, '"}');
      INSERT INTO queue_message (topic_id, priority, headers, history, msg_id, delivery_no, enqueued_at, ordering_key, biz_id, body)
        SELECT the_other, IF(the_other_is_stream, 5, priority % 100), CASE
            WHEN headers IS NULL THEN CONCAT('{', the_told)
            WHEN LENGTH(headers) - LENGTH(REPLACE(REPLACE(CONVERT(headers USING latin1), '[', ''), '{', '')) > 100 THEN headers
            WHEN NOT JSON_VALID(CONVERT(headers USING latin1)) THEN headers
            WHEN JSON_TYPE(CONVERT(headers USING latin1)) <> 'OBJECT' THEN headers
            WHEN JSON_LENGTH(CONVERT(headers USING latin1)) = 0 THEN CONCAT('{', the_told)
            ELSE CONCAT(LEFT(headers, LENGTH(headers) - LOCATE('}', REVERSE(headers))), ',', the_told) END,
          RIGHT(CONCAT(COALESCE(history, ''), the_line), 32768), msg_id, delivery_no, enqueued_at, ordering_key, biz_id, body
        FROM queue_message FORCE INDEX (PRIMARY) WHERE topic_id = the_topic AND priority = the_priority AND id = in_row;
    ELSEIF out_verdict IN ('repeated', 'discard') OR the_keep IS NOT NULL THEN
      INSERT INTO queue_archive (priority, failures, crashes, suspicions, outcome, reason, settled_at, keep_until, history,
          topic_id, msg_id, delivery_no, enqueued_at, ordering_key, biz_id, headers, body)
        SELECT priority % 100, failures, crashes, suspicions,
          CASE out_verdict WHEN 'ack' THEN 'done' WHEN 'discard' THEN 'discarded' ELSE 'repeated' END,
          IF(out_verdict = 'discard', the_error, NULL), UTC_TIMESTAMP(6),
          UTC_TIMESTAMP(6) + INTERVAL LEAST(COALESCE(the_keep DIV 1000, 604800), 315360000) SECOND, history,
          topic_id, msg_id, delivery_no, enqueued_at, ordering_key, biz_id, headers, body
        FROM queue_message FORCE INDEX (PRIMARY) WHERE topic_id = the_topic AND priority = the_priority AND id = in_row
          AND (out_verdict <> 'repeated' OR the_keep IS NOT NULL);
    END IF;
    IF out_verdict = 'dead-letter' AND the_other IS NOT NULL AND (the_search OR the_other_search) THEN
      INSERT INTO queue_lookup (topic_id, msg_id, row_id, enqueued_at, biz_id, ordering_key)
        SELECT t.id, m.msg_id, m.id, m.enqueued_at, m.biz_id, m.ordering_key
        FROM queue_message m FORCE INDEX (queue_message_id), queue_topic t
        WHERE m.id = LAST_INSERT_ID() AND t.id IN (the_topic, the_other) AND t.searchable_ms IS NOT NULL
        ON DUPLICATE KEY UPDATE row_id = VALUES(row_id);
    END IF;
    DELETE FROM queue_message WHERE topic_id = the_topic AND priority = the_priority AND id = in_row;
    CALL queue_refuse_killed(ROW_COUNT());
  END IF;
  BEGIN
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    -- Behind this one first: what was settled before it still lies there, and many in one transaction would walk over all of that.
    IF in_row < the_high THEN
      SELECT id INTO the_left FROM queue_message FORCE INDEX (PRIMARY) WHERE topic_id = the_topic AND priority = the_priority
        AND id BETWEEN in_row + 1 AND the_high AND worker_id = in_worker AND claim_no = in_claim LIMIT 1;
    END IF;
    WHILE the_left IS NULL AND the_looks < 2 DO
      SET the_looks = the_looks + 1;
      -- A plain SELECT locks nothing. Within an IF or a SET it would, and wait for whoever has a neighbour (MySQL bug 85431).
      SELECT id INTO the_left FROM queue_message FORCE INDEX (PRIMARY) WHERE topic_id = the_topic AND priority = the_priority
        AND id BETWEEN the_low AND the_high AND worker_id = in_worker AND claim_no = in_claim LIMIT 1;
    END WHILE;
  END;
  IF the_left IS NULL THEN
    DELETE FROM queue_claim WHERE worker_id = in_worker AND claim_no = in_claim;
    CALL queue_refuse_killed(ROW_COUNT());
  END IF;
  IF CRC32(the_id) MOD 1000000 < the_trace THEN
    INSERT INTO queue_trace (topic_id, msg_id, event, at, delivery_no, worker_id, conn_id, outcome, error)
      VALUES (the_topic, the_id, 'settled', UTC_TIMESTAMP(6), the_delivery, in_worker, CONNECTION_ID(), REPLACE(out_verdict, '-', '_'),
        IF(out_verdict IN ('retry', 'dead-letter', 'discard'), the_short, NULL));
  END IF;
  IF out_verdict NOT IN ('release', 'snooze') THEN
    CALL queue_count_settled(in_worker, the_topic, out_verdict NOT IN ('retry', 'dead-letter'), out_verdict IN ('retry', 'dead-letter'));
  END IF;
END
