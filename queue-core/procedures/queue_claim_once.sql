-- Not for callers. Tries once to claim up to in_limit (NULL: 1) messages, in a transaction of its own:
-- nothing is handed out that is not committed. out_low is NULL if nothing has been claimed; out_blocked
-- says that messages are ready which have to wait for the topic's limits, or that another session is just
-- claiming from the same stream. out_range: the range of an ordered group whose message has been claimed; it is in the log.
CREATE PROCEDURE queue_claim_once(
  IN  in_topic     VARBINARY(255),
  IN  in_limit     INT,
  OUT out_topic    INT UNSIGNED,
  OUT out_worker   BIGINT UNSIGNED,
  OUT out_instance BINARY(16),
  OUT out_claim    BIGINT UNSIGNED,
  OUT out_priority TINYINT UNSIGNED,
  OUT out_low      BIGINT UNSIGNED,
  OUT out_high     BIGINT UNSIGNED,
  OUT out_range    BIGINT UNSIGNED,
  OUT out_blocked  BOOLEAN
)
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Used by queue_claim.'
BEGIN
  DECLARE the_topic    INT UNSIGNED DEFAULT NULL;
  DECLARE the_kind     VARBINARY(16);
  DECLARE the_pause    BOOLEAN;
  DECLARE the_bounds   BOOLEAN;
  DECLARE the_stream   INT UNSIGNED DEFAULT NULL;
  DECLARE the_ordered  BOOLEAN;
  DECLARE the_files    INT DEFAULT 0;
  DECLARE the_waits    BOOLEAN;
  DECLARE the_window   BIGINT UNSIGNED;
  DECLARE the_trace    INT UNSIGNED;
  DECLARE the_text     VARCHAR(128);
  DECLARE the_name     VARCHAR(255) CHARACTER SET utf8mb4 DEFAULT COALESCE(CONVERT(in_topic USING latin1), 'NULL');
  DECLARE the_open     BOOLEAN;
  DECLARE the_killed   BOOLEAN;
  DECLARE the_worker   BIGINT UNSIGNED DEFAULT NULL;
  DECLARE the_lease    BIGINT UNSIGNED;
  DECLARE the_wanted   BIGINT UNSIGNED;
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
  DECLARE the_ids      MEDIUMTEXT CHARACTER SET utf8mb4;
  DECLARE the_per_key  BIGINT DEFAULT NULL;
  DECLARE the_admitted MEDIUMTEXT CHARACTER SET utf8mb4;
  DECLARE the_next     BIGINT UNSIGNED;
  DECLARE the_kept     VARBINARY(255);
  DECLARE the_checked  BIGINT UNSIGNED DEFAULT 0;
  DECLARE the_of       INT UNSIGNED;
  DECLARE the_left     TEXT CHARACTER SET latin1;
  DECLARE the_any_over BOOLEAN;
  DECLARE the_turn     BOOLEAN;
  DECLARE the_end      BOOLEAN;
  DECLARE the_row      BIGINT UNSIGNED;
  DECLARE the_id       BINARY(16);
  DECLARE the_key      VARBINARY(255);
  DECLARE the_fate     VARCHAR(16);
  DECLARE the_overs    TEXT CHARACTER SET latin1 DEFAULT '';
  DECLARE the_over     VARCHAR(64) CHARACTER SET latin1;
  DECLARE the_unsaid   VARCHAR(64) CHARACTER SET latin1 DEFAULT '';
  -- Those of the_ids that no handler is to see: expired, or their biz id was handled before. Joined and
  -- not by EXISTS: MariaDB 11.8.9 crashes in optimize_keyuse if a KILL meets a cursor with a correlated
  -- subquery.
  DECLARE the_over_ones CURSOR FOR
    SELECT m.id, m.msg_id, m.unique_key, IF(m.expires_at <= UTC_TIMESTAMP(6), 'discard', 'repeated')
      FROM JSON_TABLE(the_ids, '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$')) k
      STRAIGHT_JOIN queue_message m FORCE INDEX (PRIMARY) ON m.topic_id = the_topic AND m.priority = the_priority AND m.id = k.id
      LEFT JOIN queue_ledger l ON l.topic_id = the_topic AND l.group_id = 0 AND l.biz_id = m.biz_id
        AND l.keep_until >= UTC_TIMESTAMP(6)
      WHERE m.expires_at <= UTC_TIMESTAMP(6) OR (the_window IS NOT NULL AND l.biz_id IS NOT NULL);
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET the_end = TRUE;

  CALL queue_refuse_clock();
  CALL queue_undo_killed(the_open, the_killed);
  IF the_open THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: a claim is a transaction of its own: call queue_claim with autocommit on, and COMMIT or ROLLBACK before', MYSQL_ERRNO = 31014;
  END IF;
  CALL queue_refuse_access(in_topic, 'claim');
  SELECT t.id, t.kind, t.stream_id, t.is_ordered,
      t.claim_paused OR COALESCE(s.claim_paused, FALSE) OR EXISTS (SELECT 1 FROM queue_switch x WHERE x.claim_paused),
      COALESCE(t.max_running, t.max_running_per_key, t.rate_messages) IS NOT NULL, t.ledger_window_ms, t.trace_ppm
    INTO the_topic, the_kind, the_stream, the_ordered, the_pause, the_bounds, the_window, the_trace
    FROM queue_topic t LEFT JOIN queue_topic s ON s.id = t.stream_id WHERE t.name = in_topic;
  IF the_topic IS NULL THEN
    SET the_text = LEFT(CONCAT('queue: unknown topic ''', the_name, '''; create it: rowmq topic create NAME'), 128);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = the_text, MYSQL_ERRNO = 31001;
  END IF;
  IF the_kind = 'stream' THEN
    SET the_text = LEFT(CONCAT('queue: ''', the_name, ''' is a stream; claim from a group of it: rowmq group create STREAM@GROUP'), 128);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = the_text, MYSQL_ERRNO = 31016;
  ELSEIF the_kind = 'broadcast' THEN
    SET the_text = LEFT(CONCAT('queue: ''', the_name, ''' is a broadcast group; read it by the consumer program or the library'), 128);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = the_text, MYSQL_ERRNO = 31016;
  END IF;
  IF in_limit NOT BETWEEN 1 AND 1000 THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: limit must be 1 to 1000 messages, or NULL for 1', MYSQL_ERRNO = 31017;
  END IF;
  IF COALESCE(@queue_lease NOT BETWEEN 3 AND 86400, FALSE) THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: @queue_lease must be 3 to 86400 seconds, or NULL for 60', MYSQL_ERRNO = 31018;
  END IF;

  CALL queue_own_worker(the_worker, the_lease, the_instance);
  SET the_wanted = COALESCE(@queue_lease, 60) * 1000;
  IF the_worker IS NULL OR the_wanted <> the_lease THEN
    SET the_lease = the_wanted;
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
    -- The last claim of this topic, if the session has settled none of it: its answer never arrived, so no
    -- program works on it. A call cannot tell whether it ended or was killed just before its end.
    SET the_unsaid = COALESCE(REGEXP_SUBSTR(CONVERT(@queue_unsaid USING latin1), CONCAT('<', the_topic, ':', the_worker, '[.][0-9]+>')), '');
    IF the_unsaid <> '' THEN
      CALL queue_give_back(the_worker, TRIM(TRAILING '>' FROM SUBSTRING_INDEX(the_unsaid, '.', -1)), the_topic, the_pause);
    END IF;
    SELECT COUNT(*) + COALESCE(SUM(priority >= 100), 0) * 1000000 INTO the_held FROM queue_claim WHERE worker_id = the_worker;
    -- Claims whose messages were cancelled or purged: no session will settle them, and they hold nothing.
    WHILE the_held > 0 AND NOT the_pause AND the_checked IS NOT NULL DO
      SET the_claim = NULL, the_row = NULL;
      SELECT claim_no, topic_id, priority, lo, hi INTO the_claim, the_of, the_priority, the_low, the_high
        FROM queue_claim WHERE worker_id = the_worker AND claim_no > the_checked ORDER BY claim_no LIMIT 1;
      -- By itself: a join does not read a range whose ends are another table's.
      SELECT id INTO the_row FROM queue_message FORCE INDEX (PRIMARY)
        WHERE topic_id = the_of AND priority = the_priority AND id BETWEEN the_low AND the_high
          AND worker_id = the_worker AND claim_no = the_claim LIMIT 1;
      SET the_checked = the_claim;
      IF the_claim IS NOT NULL AND the_row IS NULL THEN
        CALL queue_give_back(the_worker, the_claim, NULL, the_pause);
        SELECT COUNT(*) + COALESCE(SUM(priority >= 100), 0) * 1000000 INTO the_held FROM queue_claim WHERE worker_id = the_worker;
      END IF;
    END WHILE;
    SELECT the_held + COUNT(*) + COALESCE(SUM(suspicions >= 2), 0) * 1000000 INTO the_held
      FROM queue_range FORCE INDEX (queue_range_worker) WHERE worker_id = the_worker;
    SET the_low = NULL;
  END IF;

  -- After a suspect the others have their turn for 200 ms, as with the library: after a mass crash there
  -- may be thousands. The time begins with the first claim after it, however long it was worked on.
  IF @queue_turn = 'after a suspect' THEN
    SET @queue_turn = UTC_TIMESTAMP(6) + INTERVAL 200000 MICROSECOND;
  END IF;
  SET the_turn = NOT COALESCE(@queue_turn BETWEEN UTC_TIMESTAMP(6) AND UTC_TIMESTAMP(6) + INTERVAL 200000 MICROSECOND, FALSE);

  SET out_blocked = FALSE, out_range = NULL;
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
      -- became ready again since then. Deleted rows make a walk from the start expensive.
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
      IF the_row IS NULL AND the_start AND the_stream IS NOT NULL AND the_files < 3 THEN
        -- The group's own topic has nothing: what comes next in the stream is filed there. Others may be quicker to claim it.
        SET the_files = the_files + 1, the_at = NULL, the_count = 0;
        CALL queue_sequence(the_stream, the_waits);
        SET out_blocked = out_blocked OR the_waits;
        IF the_ordered THEN
          CALL queue_claim_range(the_topic, the_stream, the_worker, the_held = 0 AND the_turn, the_claim, out_range, the_waits);
          SET the_low = out_range, the_live = out_range IS NOT NULL;
        ELSE
          CALL queue_file_next(the_topic, the_stream, COALESCE(in_limit, 1), the_held = 0 AND the_turn, the_count, the_waits);
        END IF;
        SET out_blocked = out_blocked OR the_waits, the_files = IF(the_count > 0, the_files, 3);
        ITERATE the_rounds;
      ELSEIF the_row IS NULL AND the_start AND the_held = 0 AND NOT the_turn THEN
        SET the_turn = TRUE, the_files = 2;
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

    the_try: BEGIN
      -- Another session was quicker, or holds a lock for long: this call claims nothing, and nothing is lost.
      DECLARE EXIT HANDLER FOR 1205, 1213, 3572
      BEGIN
        ROLLBACK AND NO CHAIN NO RELEASE;
        SET @queue_unsaid = REPLACE(CONVERT(@queue_unsaid USING latin1), the_unsaid, '');
        SET the_low = NULL, the_live = 0, the_rounds = 100, out_blocked = the_bounds;
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
      SET the_ids = NULL, the_low = NULL, the_count = 0, the_any_over = FALSE, the_overs = '', the_left = '', the_end = FALSE;
      IF the_bounds THEN
        CALL queue_enter_gate(the_topic, the_worker, the_limit, the_priority > 9, the_per_key, the_kept);
        IF the_limit > 0 AND the_per_key IS NOT NULL THEN
          CALL queue_admit(the_topic, the_priority, the_from, the_limit, the_per_key, the_kept, the_admitted, the_next);
        END IF;
        IF the_limit = 0 OR (the_per_key IS NOT NULL AND the_admitted IS NULL) THEN
          COMMIT AND NO CHAIN NO RELEASE;
          SET out_blocked = TRUE;
          IF the_limit = 0 THEN
            SET the_rounds = 100;
          ELSEIF the_priority > 9 THEN
            SET the_held = 1;
          ELSE
            -- Twenty looks a call. The next call goes on behind them.
            SET the_at = IF(the_next IS NULL, the_priority + 1, the_priority), the_at_id = COALESCE(the_next, 0), the_rounds = the_rounds + 4;
            IF the_rounds >= 100 THEN
              SET @queue_mark_priority = the_at, @queue_mark_id = GREATEST(the_at_id, 1), @queue_mark_until = UTC_TIMESTAMP(6) + INTERVAL 1 SECOND;
            END IF;
          END IF;
          LEAVE the_try;
        END IF;
      END IF;
      -- The worker's row first: from here to the commit its death cannot be decided. beat_no is the
      -- claim's number, so none is used twice.
      UPDATE queue_worker SET beat_no = beat_no + 1, beat_at = UTC_TIMESTAMP(6) WHERE id = the_worker AND state = 'alive';
      -- Declared dead since, or killed just now: the next call finds out.
      CALL queue_refuse_killed(ROW_COUNT());
      SELECT beat_no INTO the_claim FROM queue_worker WHERE id = the_worker;
      SET @queue_unsaid = REPLACE(COALESCE(CONVERT(@queue_unsaid USING latin1), ''), the_unsaid, '');
      SET the_unsaid = CONCAT('<', the_topic, ':', the_worker, '.', the_claim, '>');
      SET @queue_unsaid = CONCAT(@queue_unsaid, the_unsaid);
      IF the_per_key IS NOT NULL THEN
        /*M! SET STATEMENT group_concat_max_len = 65536 FOR */
        SELECT JSON_ARRAYAGG(r.id), MIN(r.id), MAX(r.id), COUNT(*), TRUE INTO the_ids, the_low, the_high, the_count, the_any_over
          FROM (SELECT m.id FROM JSON_TABLE(the_admitted, '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$')) k
            STRAIGHT_JOIN queue_message m FORCE INDEX (PRIMARY) ON m.topic_id = the_topic AND m.priority = the_priority AND m.id = k.id
            WHERE m.worker_id = 0 FOR UPDATE /*!80000 OF m */ SKIP LOCKED) r;
      ELSE
        -- MariaDB cuts off what it aggregates at group_concat_max_len.
        /*M! SET STATEMENT group_concat_max_len = 65536 FOR */
        SELECT JSON_ARRAYAGG(r.id), MIN(r.id), MAX(r.id), COUNT(*), MAX(r.is_over) INTO the_ids, the_low, the_high, the_count, the_any_over
          FROM (SELECT m.id, COALESCE(m.expires_at <= UTC_TIMESTAMP(6), FALSE)
                OR (the_window IS NOT NULL AND m.biz_id IS NOT NULL AND EXISTS (
                  SELECT 1 FROM queue_ledger l WHERE l.topic_id = m.topic_id AND l.group_id = 0 AND l.biz_id = m.biz_id
                    AND l.keep_until >= UTC_TIMESTAMP(6))) AS is_over
            FROM queue_message m FORCE INDEX (PRIMARY)
            WHERE m.topic_id = the_topic AND m.priority = the_priority AND m.id >= the_from AND m.worker_id = 0
            ORDER BY m.topic_id, m.priority, m.id LIMIT the_limit FOR UPDATE SKIP LOCKED) r;
      END IF;
      IF the_high - the_low > the_limit * 10 + 1000 THEN
        -- Rescue reads a claim's whole key range: no row far from the first one.
        /*M! SET STATEMENT group_concat_max_len = 65536 FOR */
        SELECT JSON_ARRAYAGG(k.id), MAX(k.id), COUNT(*) INTO the_ids, the_high, the_count
          FROM JSON_TABLE(the_ids, '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$')) k
          WHERE k.id <= the_low + the_limit * 10 + 1000;
      END IF;
      -- Where the next round goes on, if this one hands out nothing: behind what it has seen, or, where
      -- other sessions hold all of it, at the next priority.
      IF the_priority <= 9 THEN
        SET the_at = IF(the_count > 0, the_priority, the_priority + 1), the_at_id = IF(the_count > 0, the_high + 1, 0);
        IF the_per_key IS NOT NULL AND the_count = 0 THEN
          -- Other messages of the same keys, which were not admitted beside these, may be free.
          SELECT MAX(k.id) + 1 INTO the_at_id FROM JSON_TABLE(the_admitted, '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$')) k;
          SET the_at = the_priority, out_blocked = TRUE, the_rounds = the_rounds + 4;
        END IF;
      END IF;
      IF the_any_over THEN
        OPEN the_over_ones;
        the_rows: LOOP
          FETCH the_over_ones INTO the_row, the_id, the_key, the_fate;
          IF the_end THEN
            LEAVE the_rows;
          END IF;
          IF the_key IS NOT NULL THEN
            -- If another transaction has the unique key, the message is left for later.
            SET the_over = NULL;
            SELECT 'held' INTO the_over FROM queue_unique WHERE topic_id = the_topic AND unique_key = the_key AND msg_id = the_id;
            IF the_over IS NOT NULL THEN
              SET the_over = NULL;
              SELECT 'held' INTO the_over FROM queue_unique WHERE topic_id = the_topic AND unique_key = the_key AND msg_id = the_id FOR UPDATE SKIP LOCKED;
              IF the_over IS NULL THEN
                SET the_left = CONCAT_WS(',', NULLIF(the_left, ''), the_row), the_count = the_count - 1, the_end = FALSE;
                ITERATE the_rows;
              END IF;
            END IF;
            SET the_end = FALSE;
          END IF;
          SET the_overs = CONCAT(the_overs, the_row, '=', the_fate, ' ');
        END LOOP;
        CLOSE the_over_ones;
      END IF;
      SET the_live = the_count;
      IF the_count = 0 THEN
        SET the_low = NULL;
      ELSE
        -- Before any row bears it: whatever a KILL leaves behind is within a claim that rescue finds.
        INSERT INTO queue_claim (worker_id, claim_no, topic_id, priority, lo, hi, n, conn_id, claimed_at)
          VALUES (the_worker, the_claim, the_topic, the_priority, the_low, the_high, the_count, CONNECTION_ID(), UTC_TIMESTAMP(6));
        IF the_bounds THEN
          CALL queue_book(the_topic, the_worker, the_claim, the_priority, the_ids, the_count);
        END IF;
        -- MariaDB takes the list for a table that is read whole, which safe updates refuse.
        /*M! SET STATEMENT sql_safe_updates = 0 FOR */
        UPDATE JSON_TABLE(the_ids, '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$')) k
          STRAIGHT_JOIN queue_message m FORCE INDEX (PRIMARY) ON m.topic_id = the_topic AND m.priority = the_priority AND m.id = k.id
          SET m.conn_id = CONNECTION_ID(), m.worker_id = the_worker, m.claim_no = the_claim, m.delivery_no = m.delivery_no + 1
          WHERE m.worker_id = 0 AND FIND_IN_SET(k.id, the_left) = 0;
        CALL queue_refuse_killed(ROW_COUNT() = the_count);
        IF the_trace > 0 THEN
          INSERT INTO queue_trace (topic_id, msg_id, event, at, delivery_no, worker_id, conn_id, client)
            SELECT topic_id, msg_id, 'claimed', UTC_TIMESTAMP(6), delivery_no, worker_id, CONNECTION_ID(), LEFT(USER(), 255)
            FROM queue_message FORCE INDEX (PRIMARY) WHERE topic_id = the_topic AND priority = the_priority
              AND id BETWEEN the_low AND the_high AND worker_id = the_worker AND claim_no = the_claim
              AND CRC32(msg_id) MOD 1000000 < the_trace;
        END IF;
        WHILE the_overs <> '' DO
          SET the_over = SUBSTRING_INDEX(the_overs, ' ', 1), the_overs = SUBSTR(the_overs, LENGTH(the_over) + 2), the_live = the_live - 1;
          CALL queue_settle_row(the_worker, the_claim, SUBSTRING_INDEX(the_over, '=', 1), SUBSTRING_INDEX(the_over, '=', -1),
            'it had expired before its handler could begin', NULL, FALSE, the_fate, the_row);
        END WHILE;
      END IF;
      COMMIT AND NO CHAIN NO RELEASE;
      IF the_per_key IS NOT NULL AND the_count > 0 AND the_priority <= 9 THEN
        -- The ready messages before it wait for their keys: the next claims of this second pass over them.
        SET @queue_mark_priority = the_priority, @queue_mark_id = the_from;
      END IF;
      IF the_count = 0 AND the_priority > 9 THEN
        -- The suspect is another's just now.
        SET the_held = 1;
      ELSEIF the_priority > 9 THEN
        SET @queue_turn = 'after a suspect';
      END IF;
    END;
  END WHILE;
  SET out_topic = the_topic, out_worker = the_worker, out_instance = the_instance, out_claim = the_claim,
    out_priority = the_priority, out_low = IF(the_live > 0, the_low, NULL), out_high = the_high;
END
