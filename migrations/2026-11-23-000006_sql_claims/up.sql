-- Mends of the SQL contract for consumers (docs/sql-contract.md): the bodies of four procedures.
-- A server that knows CREATE OR REPLACE keeps the accounts' rights to call them; on MySQL grant them again
-- (`queuectl grants claimer`).

/*!80000 DROP PROCEDURE IF EXISTS queue_retry_wait */ /*M! DO 0 */;

-- Not for callers. The wait after so many failures by a retry policy, in microseconds, or after 0 the
-- shortest that it ever makes; NULL if the policy cannot be read. As queue-core/src/topic/retry.rs reads it.
CREATE /*M! OR REPLACE */ PROCEDURE queue_retry_wait(
  IN  in_policy   BLOB,
  IN  in_failures INT UNSIGNED,
  OUT out_us      BIGINT UNSIGNED
)
  NO SQL
  SQL SECURITY DEFINER
  COMMENT 'Used by queue_settle.'
BEGIN
  DECLARE the_text   VARCHAR(1100) CHARACTER SET latin1 COLLATE latin1_bin;
  DECLARE the_kind   VARCHAR(1100) CHARACTER SET latin1 COLLATE latin1_bin;
  DECLARE the_rest   VARCHAR(1100) CHARACTER SET latin1 COLLATE latin1_bin;
  DECLARE the_digits VARCHAR(1100) CHARACTER SET latin1 COLLATE latin1_bin;
  DECLARE the_unit   VARCHAR(1100) CHARACTER SET latin1 COLLATE latin1_bin;
  DECLARE the_words  INT DEFAULT 0;
  DECLARE the_nth    INT DEFAULT 0;
  DECLARE the_wait   DOUBLE;
  DECLARE the_first  DOUBLE;
  DECLARE the_chosen DOUBLE;

  SET out_us = NULL;
  SET the_text = LEFT(TRIM(REGEXP_REPLACE(CONVERT(in_policy USING latin1), '[[:space:]]+', ' ')), 1100);
  SET the_kind = SUBSTRING_INDEX(the_text, ' ', 1);
  SET the_text = SUBSTR(the_text, LENGTH(the_kind) + 2);
  IF the_kind = 'exponential' AND the_text REGEXP '^[^ ]+[.][.][^ ]+$' THEN
    SET the_text = REPLACE(the_text, '..', ' ');
  ELSEIF the_kind = 'exponential' OR (the_kind = 'fixed' AND LOCATE(' ', the_text) > 0) THEN
    SET the_text = '';
  ELSEIF the_kind NOT IN ('fixed', 'ladder') THEN
    SET the_text = '';
  END IF;
  IF the_text <> '' THEN
    SET the_words = LENGTH(the_text) - LENGTH(REPLACE(the_text, ' ', '')) + 1;
  END IF;
  the_steps: WHILE the_nth < the_words DO
    SET the_nth = the_nth + 1, the_wait = 0;
    SET the_rest = SUBSTRING_INDEX(SUBSTRING_INDEX(the_text, ' ', the_nth), ' ', -1);
    WHILE the_rest <> '' DO
      SET the_digits = COALESCE(REGEXP_SUBSTR(the_rest, '^[0-9]+([.][0-9]+)?'), '');
      SET the_rest = SUBSTR(the_rest, LENGTH(the_digits) + 1);
      SET the_unit = COALESCE(REGEXP_SUBSTR(the_rest, '^[A-Za-z]+'), '');
      SET the_rest = SUBSTR(the_rest, LENGTH(the_unit) + 1);
      SET the_wait = the_wait + IF(LENGTH(the_digits) BETWEEN 1 AND 18, the_digits + 0e0, NULL) * CASE
        WHEN the_unit IN ('nanos', 'nsec', 'ns') THEN 1e-3
        WHEN the_unit IN ('usec', 'us') THEN 1e0
        WHEN the_unit IN ('millis', 'msec', 'ms') THEN 1e3
        WHEN the_unit IN ('seconds', 'second', 'secs', 'sec', 's') THEN 1e6
        WHEN the_unit IN ('minutes', 'minute', 'mins', 'min', 'm') THEN 60e6
        WHEN the_unit IN ('hours', 'hour', 'hrs', 'hr', 'h') THEN 3600e6
        WHEN the_unit IN ('days', 'day', 'd') THEN 86400e6
        WHEN the_unit IN ('weeks', 'week', 'wks', 'wk', 'w') THEN 604800e6
        WHEN the_unit IN ('months', 'month', 'M') THEN 2630016e6
        WHEN the_unit IN ('years', 'year', 'yrs', 'yr', 'y') THEN 31557600e6
      END;
    END WHILE;
    IF COALESCE(the_wait NOT BETWEEN 1e3 AND 31536000e6, TRUE) THEN
      SET the_chosen = NULL;
      LEAVE the_steps;
    END IF;
    IF the_nth = 1 THEN
      SET the_first = the_wait;
    END IF;
    IF in_failures = 0 THEN
      SET the_chosen = CASE WHEN the_kind <> 'exponential' THEN LEAST(COALESCE(the_chosen, the_wait), the_wait)
        WHEN the_nth = 2 AND the_first <= the_wait THEN the_first / 2 END;
    ELSEIF the_kind = 'exponential' AND the_nth = 2 THEN
      SET the_chosen = IF(the_first > the_wait, NULL,
        LEAST(the_first * POW(2, LEAST(in_failures - 1, 62)), the_wait) * (0.5 + RAND() / 2));
    ELSEIF the_kind <> 'exponential' AND the_nth <= in_failures THEN
      SET the_chosen = the_wait;
    END IF;
  END WHILE;
  SET out_us = ROUND(the_chosen);
END;

/*!80000 DROP PROCEDURE IF EXISTS queue_settle_row */ /*M! DO 0 */;

-- Not for callers. Settles one row of a claim, in the transaction that is open: as
-- queue-core/src/worker/settling.rs, and moves between tables as in queue-core/src/store/moves.rs.
-- Who releases publishes the floor, last, so that its row is locked no longer than the commit takes.
-- in_once: the transaction does what the message is about, so its biz id must be new in the ledger.
CREATE /*M! OR REPLACE */ PROCEDURE queue_settle_row(
  IN  in_worker   BIGINT UNSIGNED,
  IN  in_claim    BIGINT UNSIGNED,
  IN  in_row      BIGINT UNSIGNED,
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
  DECLARE the_counted  BOOLEAN DEFAULT FALSE;
  DECLARE the_entry    DATETIME(6) DEFAULT NULL;
  DECLARE the_left     BIGINT UNSIGNED DEFAULT NULL;
  DECLARE the_looks    INT DEFAULT 0;

  SET out_verdict = CONVERT(in_verdict USING latin1);
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
    SET the_short = LEFT(CONCAT('queue: this session does not hold ', CONCAT_WS('.', in_worker, in_claim, in_row), ' any more: ROLLBACK, it is done or another consumer has it'), 128);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = the_short, MYSQL_ERRNO = 31015;
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
    BEGIN
      DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
      -- Its own row, which it always sees. An upsert of a row that is there locks the gap before it, where others begin theirs (MySQL).
      SELECT 1 INTO the_counted FROM queue_throughput WHERE worker_id = in_worker AND topic_id = the_topic;
    END;
    IF the_counted THEN
      UPDATE queue_throughput SET done = done + (out_verdict NOT IN ('retry', 'dead-letter')), failed = failed + (out_verdict IN ('retry', 'dead-letter'))
        WHERE worker_id = in_worker AND topic_id = the_topic;
      CALL queue_refuse_killed(ROW_COUNT());
    ELSE
      INSERT INTO queue_throughput (worker_id, topic_id, done, failed)
        VALUES (in_worker, the_topic, out_verdict NOT IN ('retry', 'dead-letter'), out_verdict IN ('retry', 'dead-letter'));
    END IF;
  END IF;
END;

/*!80000 DROP PROCEDURE IF EXISTS queue_give_back */ /*M! DO 0 */;

-- Not for callers. Releases what is left of a claim of this session, in a transaction of its own, if it is
-- of in_topic: a rollback gives a claim's number back, and the next claim, of any topic, has it then.
-- in_topic is NULL: the claim is only forgotten, if it has no message any more.
-- out_pause: a lock was in the way; nothing is to be claimed before it is done.
CREATE /*M! OR REPLACE */ PROCEDURE queue_give_back(
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
      CALL queue_settle_row(in_worker, in_claim, the_row, 'release', NULL, NULL, FALSE, the_verdict);
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
  COMMIT AND NO CHAIN NO RELEASE;
  IF in_topic IS NOT NULL THEN
    SET @queue_unsaid = REPLACE(CONVERT(@queue_unsaid USING latin1), CONCAT('<', in_topic, ':', in_worker, '.', in_claim, '>'), '');
  END IF;
END;

/*!80000 DROP PROCEDURE IF EXISTS queue_claim */ /*M! DO 0 */;

-- Claims up to in_limit (NULL: 1) messages in a transaction of its own, and returns them: nothing is
-- handed out that is not committed. in_lease: after so many seconds (NULL: 60, or as before) in which
-- the session says nothing the server ends it, and with it its claims.
CREATE /*M! OR REPLACE */ PROCEDURE queue_claim(
  IN in_topic VARBINARY(255),
  IN in_limit INT,
  IN in_lease INT
)
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Claim messages for this session; settle each by queue_settle. No row: nothing is ready.'
BEGIN
  DECLARE the_topic    INT UNSIGNED DEFAULT NULL;
  DECLARE the_kind     VARBINARY(16);
  DECLARE the_pause    BOOLEAN;
  DECLARE the_bounds   BOOLEAN;
  DECLARE the_window   BIGINT UNSIGNED;
  DECLARE the_trace    INT UNSIGNED;
  DECLARE the_text     VARCHAR(128);
  DECLARE the_name     VARCHAR(255) CHARACTER SET utf8mb4 DEFAULT COALESCE(CONVERT(in_topic USING latin1), 'NULL');
  DECLARE the_open     BOOLEAN;
  DECLARE the_killed   BOOLEAN;
  DECLARE the_worker   BIGINT UNSIGNED DEFAULT NULL;
  DECLARE the_lease    BIGINT UNSIGNED;
  DECLARE the_instance BINARY(16);
  DECLARE the_uid      VARBINARY(64) DEFAULT '';
  DECLARE the_uptime   BIGINT DEFAULT 0;
  DECLARE the_held     INT DEFAULT 0;
  DECLARE the_claim    BIGINT UNSIGNED DEFAULT 0;
  DECLARE the_limit    INT;
  DECLARE the_priority TINYINT UNSIGNED DEFAULT 0;
  DECLARE the_from     BIGINT UNSIGNED DEFAULT 0;
  DECLARE the_floors   BIGINT UNSIGNED;
  DECLARE the_low      BIGINT UNSIGNED DEFAULT NULL;
  DECLARE the_high     BIGINT UNSIGNED;
  DECLARE the_count    INT DEFAULT 0;
  DECLARE the_live     INT DEFAULT 0;
  DECLARE the_rounds   INT DEFAULT 0;
  DECLARE the_at       TINYINT UNSIGNED DEFAULT NULL;
  DECLARE the_at_id    BIGINT UNSIGNED;
  DECLARE the_start    BOOLEAN;
  DECLARE the_mark     BOOLEAN DEFAULT FALSE;
  DECLARE the_turn     BOOLEAN;
  DECLARE the_end      BOOLEAN;
  DECLARE the_row      BIGINT UNSIGNED;
  DECLARE the_id       BINARY(16);
  DECLARE the_key      VARBINARY(255);
  DECLARE the_fate     VARCHAR(16);
  DECLARE the_overs    TEXT CHARACTER SET latin1 DEFAULT '';
  DECLARE the_over     VARCHAR(64) CHARACTER SET latin1;
  DECLARE the_unsaid   VARCHAR(64) CHARACTER SET latin1 DEFAULT '';
  DECLARE the_ready CURSOR FOR
    SELECT m.id, m.msg_id, m.unique_key,
        CASE WHEN m.expires_at <= UTC_TIMESTAMP(6) THEN 'discard'
          WHEN the_window IS NOT NULL AND m.biz_id IS NOT NULL AND EXISTS (
            SELECT 1 FROM queue_ledger l WHERE l.topic_id = m.topic_id AND l.group_id = 0 AND l.biz_id = m.biz_id
              AND l.keep_until >= UTC_TIMESTAMP(6)) THEN 'repeated' END
      FROM queue_message m FORCE INDEX (PRIMARY)
      WHERE m.topic_id = the_topic AND m.priority = the_priority AND m.id >= the_from AND m.worker_id = 0
      ORDER BY m.topic_id, m.priority, m.id LIMIT the_limit FOR UPDATE SKIP LOCKED;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET the_end = TRUE;

  CALL queue_undo_killed(the_open, the_killed);
  IF the_open THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: a claim is a transaction of its own: call queue_claim with autocommit on, and COMMIT or ROLLBACK before', MYSQL_ERRNO = 31014;
  END IF;
  SELECT id, kind, claim_paused OR EXISTS (SELECT 1 FROM queue_switch x WHERE x.claim_paused),
      COALESCE(max_running, max_running_per_key, rate_messages) IS NOT NULL, ledger_window_ms, trace_ppm
    INTO the_topic, the_kind, the_pause, the_bounds, the_window, the_trace
    FROM queue_topic WHERE name = in_topic;
  IF the_topic IS NULL THEN
    SET the_text = LEFT(CONCAT('queue: unknown topic ''', the_name, '''; create it: queuectl topic create NAME'), 128);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = the_text, MYSQL_ERRNO = 31001;
  END IF;
  IF the_kind <> 'queue' THEN
    SET the_text = LEFT(CONCAT('queue: ''', the_name, ''' is no queue but a ', CONVERT(the_kind USING latin1), '; read it by the consumer program or the library'), 128);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = the_text, MYSQL_ERRNO = 31016;
  END IF;
  IF the_bounds THEN
    SET the_text = LEFT(CONCAT('queue: topic ''', the_name, ''' bounds what runs, which queue_claim does not; use the consumer program or the library'), 128);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = the_text, MYSQL_ERRNO = 31016;
  END IF;
  IF in_limit NOT BETWEEN 1 AND 1000 THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: limit must be 1 to 1000 messages, or NULL for 1', MYSQL_ERRNO = 31017;
  END IF;
  IF in_lease NOT BETWEEN 3 AND 86400 THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: lease must be 3 to 86400 seconds, or NULL for 60', MYSQL_ERRNO = 31018;
  END IF;

  CALL queue_own_worker(the_worker, the_lease, the_instance);
  IF the_worker IS NULL OR in_lease * 1000 <> the_lease THEN
    SET @queue_lease = COALESCE(in_lease, IF(@queue_lease BETWEEN 3 AND 86400, @queue_lease, NULL), 60);
    SET the_lease = @queue_lease * 1000;
    SET SESSION wait_timeout = the_lease DIV 1000, SESSION net_write_timeout = the_lease DIV 1000, SESSION net_read_timeout = the_lease DIV 1000;
    IF the_worker IS NOT NULL THEN
      UPDATE queue_worker SET lease_ms = the_lease, beat_no = beat_no + 1 WHERE id = the_worker;
      CALL queue_refuse_killed(ROW_COUNT());
    END IF;
  END IF;
  IF the_worker IS NULL THEN
    SET the_instance = UNHEX(LEFT(SHA2(CONCAT(UUID(), RAND()), 256), 32));
    IF COALESCE(GET_LOCK(CONCAT('queue:', LOWER(HEX(the_instance))), 0), 0) <> 1 THEN
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: this server gives no name lock (GET_LOCK), by which a session is known to live', MYSQL_ERRNO = 31024;
    END IF;
    SELECT VARIABLE_VALUE INTO the_uid FROM /*!80000 performance_schema.global_variables */ /*M! information_schema.GLOBAL_VARIABLES */
      WHERE VARIABLE_NAME IN ('server_uid', 'server_uuid') LIMIT 1;
    SELECT VARIABLE_VALUE INTO the_uptime FROM /*!80000 performance_schema.global_status */ /*M! information_schema.GLOBAL_STATUS */
      WHERE VARIABLE_NAME = 'Uptime' LIMIT 1;
    -- USER(), not CURRENT_USER(), which is who made this procedure.
    INSERT INTO queue_worker (instance, client_id, version, account, conn_id, life_conn_id, server_uid, server_started_at, lease_ms, beat_at, registered_at)
      VALUES (the_instance, LEFT(CONCAT(USER(), ' by SQL'), 255), 'sql', LEFT(USER(), 255), CONNECTION_ID(), CONNECTION_ID(),
        the_uid, UNIX_TIMESTAMP() - the_uptime, the_lease, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6));
    SET the_worker = LAST_INSERT_ID(), @queue_worker = the_worker, @queue_unsaid = '';
  ELSE
    -- Claims beat by themselves; where there is nothing to claim, this does.
    UPDATE queue_worker SET beat_no = beat_no + 1, beat_at = UTC_TIMESTAMP(6)
      WHERE id = the_worker AND state = 'alive' AND beat_at < UTC_TIMESTAMP(6) - INTERVAL the_lease * 250 MICROSECOND;
    -- What it was last given of this topic, and has settled nothing of: nobody works on it, because the
    -- answer never came. No call can tell its own end from a KILL just before it.
    SET the_unsaid = COALESCE(REGEXP_SUBSTR(CONVERT(@queue_unsaid USING latin1), CONCAT('<', the_topic, ':', the_worker, '[.][0-9]+>')), '');
    IF the_unsaid <> '' THEN
      CALL queue_give_back(the_worker, TRIM(TRAILING '>' FROM SUBSTRING_INDEX(the_unsaid, '.', -1)), the_topic, the_pause);
    END IF;
    SELECT COUNT(*) + COALESCE(SUM(priority >= 100), 0) * 1000000 INTO the_held FROM queue_claim WHERE worker_id = the_worker;
    -- Claims whose messages were cancelled or purged: nobody settles them, and they hold nothing.
    WHILE the_held > 0 AND NOT the_pause AND the_claim IS NOT NULL DO
      SET the_claim = NULL;
      SELECT c.claim_no INTO the_claim FROM queue_claim c WHERE c.worker_id = the_worker
        AND NOT EXISTS (SELECT 1 FROM queue_message m FORCE INDEX (PRIMARY)
          WHERE m.topic_id = c.topic_id AND m.priority = c.priority AND m.id BETWEEN c.lo AND c.hi
            AND m.worker_id = c.worker_id AND m.claim_no = c.claim_no) LIMIT 1;
      IF the_claim IS NOT NULL THEN
        CALL queue_give_back(the_worker, the_claim, NULL, the_pause);
        SELECT COUNT(*) + COALESCE(SUM(priority >= 100), 0) * 1000000 INTO the_held FROM queue_claim WHERE worker_id = the_worker;
      END IF;
    END WHILE;
  END IF;

  -- After a suspect the others have their turn for 200 ms, as with the library: after a mass crash there
  -- may be thousands. The time begins with the first claim after it, however long it was worked on.
  IF @queue_turn = 'after a suspect' THEN
    SET @queue_turn = UTC_TIMESTAMP(6) + INTERVAL 200000 MICROSECOND;
  END IF;
  SET the_turn = NOT COALESCE(@queue_turn BETWEEN UTC_TIMESTAMP(6) AND UTC_TIMESTAMP(6) + INTERVAL 200000 MICROSECOND, FALSE);

  the_rounds: WHILE the_live = 0 AND the_rounds < 100 AND NOT the_pause AND the_held < 1000000 DO
    SET the_rounds = the_rounds + 1, the_limit = COALESCE(in_limit, 1), the_row = NULL;
    -- A suspect is claimed alone, by a session that holds nothing. Backwards, where no dead entries lie.
    IF the_held = 0 AND the_turn THEN
      SELECT id INTO the_row FROM queue_message FORCE INDEX (PRIMARY) WHERE topic_id = the_topic AND priority >= 100 AND worker_id = 0
        ORDER BY topic_id DESC, priority DESC, id DESC LIMIT 1;
    END IF;
    IF the_row IS NOT NULL THEN
      SELECT priority, id INTO the_priority, the_from FROM queue_message FORCE INDEX (PRIMARY) WHERE topic_id = the_topic AND priority >= 100 AND worker_id = 0
        ORDER BY topic_id, priority, id LIMIT 1;
      SET the_limit = 1;
    ELSE
      -- Where claims begin: where the last one found something, for a second, unless something lower
      -- was made ready again meanwhile. Dead entries make a walk from the start dear.
      IF the_at IS NULL THEN
        SELECT COALESCE(SUM(seq), 0) INTO the_floors FROM queue_floor WHERE topic_id = the_topic;
        IF NOT COALESCE(@queue_mark = CONCAT(the_topic, ':', the_floors) AND @queue_mark_until BETWEEN UTC_TIMESTAMP(6) AND UTC_TIMESTAMP(6) + INTERVAL 1 SECOND, FALSE) THEN
          SET @queue_mark = CONCAT(the_topic, ':', the_floors), @queue_mark_until = UTC_TIMESTAMP(6) + INTERVAL 1 SECOND, @queue_mark_priority = 0, @queue_mark_id = 0;
        END IF;
        SET the_at = @queue_mark_priority, the_at_id = @queue_mark_id, the_start = @queue_mark_id = 0, the_mark = TRUE;
      END IF;
      SELECT priority, id INTO the_priority, the_row FROM queue_message FORCE INDEX (PRIMARY)
        WHERE topic_id = the_topic AND worker_id = 0
          AND ((priority = the_at AND id >= the_at_id) OR (priority > the_at AND priority <= 9))
        ORDER BY topic_id, priority, id LIMIT 1;
      IF the_row IS NULL AND the_start AND the_held = 0 AND NOT the_turn THEN
        SET the_turn = TRUE;
        ITERATE the_rounds;
      ELSEIF the_row IS NULL AND the_start THEN
        LEAVE the_rounds;
      ELSEIF the_row IS NULL THEN
        SET @queue_mark = NULL, the_at = NULL;
        ITERATE the_rounds;
      END IF;
      IF the_mark THEN
        SET @queue_mark_priority = the_priority, @queue_mark_id = the_row, the_mark = FALSE;
      END IF;
      SET the_from = the_row;
    END IF;

    BEGIN
      -- Somebody was quicker, or holds a lock for long: nothing is claimed now, and nothing is lost.
      DECLARE EXIT HANDLER FOR 1205, 1213, 3572
      BEGIN
        ROLLBACK AND NO CHAIN NO RELEASE;
        SET @queue_unsaid = REPLACE(CONVERT(@queue_unsaid USING latin1), the_unsaid, '');
        SET the_low = NULL, the_live = 0, the_rounds = 100;
      END;
      DECLARE EXIT HANDLER FOR SQLEXCEPTION
      BEGIN
        ROLLBACK AND NO CHAIN NO RELEASE;
        SET @queue_unsaid = REPLACE(CONVERT(@queue_unsaid USING latin1), the_unsaid, '');
        RESIGNAL;
      END;
      SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
      START TRANSACTION;
      SAVEPOINT queue_own;
      SET the_low = NULL, the_count = 0, the_overs = '', the_end = FALSE;
      -- Where the next round goes on, if this one hands out nothing: behind what it has seen, or, where
      -- all of it is another's just now, at the next priority.
      IF the_priority <= 9 THEN
        SET the_at = the_priority + 1, the_at_id = 0;
      END IF;
      -- The worker's row first: from here to the commit its death cannot be decided. beat_no is the
      -- claim's number, so none is used twice.
      UPDATE queue_worker SET beat_no = beat_no + 1, beat_at = UTC_TIMESTAMP(6) WHERE id = the_worker AND state = 'alive';
      -- Declared dead meanwhile, or killed just now: the next call finds out.
      CALL queue_refuse_killed(ROW_COUNT());
      SELECT beat_no INTO the_claim FROM queue_worker WHERE id = the_worker;
      SET @queue_unsaid = REPLACE(COALESCE(CONVERT(@queue_unsaid USING latin1), ''), the_unsaid, '');
      SET the_unsaid = CONCAT('<', the_topic, ':', the_worker, '.', the_claim, '>');
      SET @queue_unsaid = CONCAT(@queue_unsaid, the_unsaid);
      OPEN the_ready;
      the_rows: WHILE NOT the_end DO
        FETCH the_ready INTO the_row, the_id, the_key, the_fate;
        -- Rescue reads a claim's whole key range: no row far from the first one.
        IF the_end OR the_row - COALESCE(the_low, the_row) > the_limit * 10 + 1000 THEN
          LEAVE the_rows;
        END IF;
        IF the_priority <= 9 THEN
          SET the_at = the_priority, the_at_id = the_row + 1;
        END IF;
        IF the_fate IS NOT NULL AND the_key IS NOT NULL THEN
          -- Over, but its key is another transaction's just now: left for later.
          SET the_over = NULL;
          SELECT 'held' INTO the_over FROM queue_unique WHERE topic_id = the_topic AND unique_key = the_key AND msg_id = the_id;
          IF the_over IS NOT NULL THEN
            SET the_over = NULL;
            SELECT 'held' INTO the_over FROM queue_unique WHERE topic_id = the_topic AND unique_key = the_key AND msg_id = the_id FOR UPDATE SKIP LOCKED;
            IF the_over IS NULL THEN
              SET the_end = FALSE;
              ITERATE the_rows;
            END IF;
          END IF;
          SET the_end = FALSE;
        END IF;
        IF the_low IS NULL THEN
          -- Before any row bears it, and as wide as it may become: whatever a KILL leaves behind is
          -- within a claim that rescue finds.
          SET the_low = the_row;
          INSERT INTO queue_claim (worker_id, claim_no, topic_id, priority, lo, hi, n, conn_id, claimed_at)
            VALUES (the_worker, the_claim, the_topic, the_priority, the_low, the_low + the_limit * 10 + 1000, the_limit, CONNECTION_ID(), UTC_TIMESTAMP(6));
        END IF;
        UPDATE queue_message FORCE INDEX (PRIMARY)
          SET conn_id = CONNECTION_ID(), worker_id = the_worker, claim_no = the_claim, delivery_no = delivery_no + 1
          WHERE topic_id = the_topic AND priority = the_priority AND id = the_row AND worker_id = 0;
        IF ROW_COUNT() = 1 THEN
          SET the_high = the_row, the_count = the_count + 1;
          IF the_fate IS NOT NULL THEN
            SET the_overs = CONCAT(the_overs, the_row, '=', the_fate, ' ');
          END IF;
        END IF;
      END WHILE;
      CLOSE the_ready;
      SET the_live = the_count;
      IF the_low IS NOT NULL AND the_count = 0 THEN
        DELETE FROM queue_claim WHERE worker_id = the_worker AND claim_no = the_claim;
        CALL queue_refuse_killed(ROW_COUNT());
        SET the_low = NULL;
      END IF;
      IF the_count > 0 THEN
        UPDATE queue_claim SET hi = the_high, n = the_count WHERE worker_id = the_worker AND claim_no = the_claim;
        IF the_trace > 0 THEN
          INSERT INTO queue_trace (topic_id, msg_id, event, at, delivery_no, worker_id, conn_id, client)
            SELECT topic_id, msg_id, 'claimed', UTC_TIMESTAMP(6), delivery_no, worker_id, CONNECTION_ID(), LEFT(USER(), 255)
            FROM queue_message FORCE INDEX (PRIMARY) WHERE topic_id = the_topic AND priority = the_priority
              AND id BETWEEN the_low AND the_high AND worker_id = the_worker AND claim_no = the_claim
              AND CRC32(msg_id) MOD 1000000 < the_trace;
        END IF;
        -- What nobody is to handle: it has expired, or its biz id was handled before.
        WHILE the_overs <> '' DO
          SET the_over = SUBSTRING_INDEX(the_overs, ' ', 1), the_overs = SUBSTR(the_overs, LENGTH(the_over) + 2), the_live = the_live - 1;
          CALL queue_settle_row(the_worker, the_claim, SUBSTRING_INDEX(the_over, '=', 1), SUBSTRING_INDEX(the_over, '=', -1),
            'it had expired before its handler could begin', NULL, FALSE, the_fate);
        END WHILE;
      END IF;
      COMMIT AND NO CHAIN NO RELEASE;
      IF the_count = 0 AND the_priority > 9 THEN
        -- The suspect is another's just now.
        SET the_held = 1;
      ELSEIF the_priority > 9 THEN
        SET @queue_turn = 'after a suspect';
      END IF;
    END;
  END WHILE;

  SELECT CONCAT(worker_id, '.', claim_no, '.', id) AS delivery,
      LOWER(CONCAT_WS('-', SUBSTR(HEX(msg_id), 1, 8), SUBSTR(HEX(msg_id), 9, 4), SUBSTR(HEX(msg_id), 13, 4),
        SUBSTR(HEX(msg_id), 17, 4), SUBSTR(HEX(msg_id), 21, 12))) AS msg_id,
      delivery_no, failures, priority % 100 AS priority, enqueued_at, expires_at, ordering_key AS `key`, biz_id, headers, body
    FROM queue_message FORCE INDEX (PRIMARY)
    WHERE topic_id = the_topic AND priority = the_priority AND id BETWEEN COALESCE(the_low, 1) AND IF(the_low IS NULL, 0, the_high)
      AND worker_id = the_worker AND claim_no = the_claim
    ORDER BY topic_id, queue_message.priority, id;
END;
