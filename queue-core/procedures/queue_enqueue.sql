-- Enqueues one message for queue_send, queue_send_unique and queue_send_all.
-- The parameters are wider than the columns: a caller that is not in strict mode would have a value
-- that is too long cut on its way in; here, in strict mode, the INSERT refuses it (1406).
-- Times are UTC. in_deliver_at NULL: ready at once; in the past: too. in_expires_at NULL: never.
-- in_unique_key NULL: not unique. in_unique_for and in_max_wait are seconds; NULL: until the message is
-- done, and without an end. in_on_conflict: keep (or NULL), replace, debounce.
CREATE PROCEDURE queue_enqueue(
  IN in_topic       VARBINARY(255),
  IN in_body        LONGBLOB,
  IN in_unique_key  BLOB,
  IN in_unique_for  BIGINT,
  IN in_on_conflict VARBINARY(255),
  IN in_max_wait    BIGINT,
  IN in_deliver_at  DATETIME(6),
  IN in_expires_at  DATETIME(6),
  IN in_priority    INT,
  IN in_key         BLOB,
  IN in_biz_id      BLOB,
  IN in_headers     LONGBLOB,
  IN in_msg_id      VARBINARY(255)
)
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Internal: enqueues one message unless its key is held.'
BEGIN
  DECLARE the_topic  INT UNSIGNED DEFAULT NULL;
  DECLARE the_pause  BOOLEAN;
  DECLARE the_switch BOOLEAN;
  DECLARE the_limit  INT UNSIGNED;
  DECLARE the_full   BOOLEAN;
  DECLARE the_fill   VARCHAR(64);
  DECLARE the_search BOOLEAN;
  DECLARE the_trace  INT UNSIGNED;
  DECLARE the_row    BIGINT UNSIGNED DEFAULT NULL;
  DECLARE the_window BIGINT UNSIGNED;
  DECLARE the_kind   VARBINARY(16);
  DECLARE the_text   VARCHAR(128);
  DECLARE the_random CHAR(32);
  -- In latin1 every byte is a character, so that a name of any bytes can be shown.
  DECLARE the_name   VARCHAR(255) CHARACTER SET utf8mb4 DEFAULT COALESCE(CONVERT(in_topic USING latin1), 'NULL');
  DECLARE the_id     VARBINARY(255) DEFAULT in_msg_id;
  DECLARE the_choice VARBINARY(255) DEFAULT COALESCE(in_on_conflict, 'keep');
  DECLARE the_dedupe BOOLEAN;
  DECLARE the_other  BINARY(16) DEFAULT NULL;
  DECLARE the_level  TINYINT UNSIGNED DEFAULT NULL;
  DECLARE the_ready  BIGINT UNSIGNED DEFAULT NULL;
  DECLARE the_later  BIGINT UNSIGNED DEFAULT NULL;
  DECLARE the_found  BIGINT UNSIGNED DEFAULT NULL;
  DECLARE the_now    DATETIME(6);
  DECLARE the_fate   VARCHAR(16) DEFAULT 'stored';
  -- USER() is who called; CURRENT_USER() would be who made the procedure.
  DECLARE the_account VARBINARY(512) DEFAULT LEFT(USER(), LENGTH(USER()) - LENGTH(SUBSTRING_INDEX(USER(), '@', -1)) - 1);
  DECLARE the_mine   BOOLEAN DEFAULT TRUE;
  DECLARE the_open   BOOLEAN DEFAULT TRUE;
  DECLARE the_killed BOOLEAN;
  DECLARE the_parts  BOOLEAN;

  CALL queue_refuse_clock();
  CALL queue_refuse_access(in_topic, 'enqueue');
  BEGIN
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET the_topic = NULL;
    -- A measurement older than 30 s says nothing any more.
    SELECT id, kind, enqueue_paused, EXISTS (SELECT 1 FROM queue_switch x WHERE x.enqueue_paused), body_limit, dedupe_window_ms, searchable_ms IS NOT NULL, trace_ppm,
        backlog_full AND backlog_at > UTC_TIMESTAMP(6) - INTERVAL 30 SECOND
          AND (backlog_depth >= max_depth * 0.9 OR backlog_bytes >= max_bytes * 0.9),
        IF(backlog_depth >= max_depth * 0.9, CONCAT(backlog_depth, ' messages, the limit is ', max_depth), CONCAT(backlog_bytes, ' bytes, the limit is ', max_bytes))
      INTO the_topic, the_kind, the_pause, the_switch, the_limit, the_window, the_search, the_trace, the_full, the_fill
      FROM queue_topic WHERE name = in_topic;
  END;

  IF the_topic IS NULL THEN
    SET the_text = LEFT(CONCAT('queue: unknown topic ''', the_name, '''; create it: rowmq topic create NAME'), 128);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = the_text, MYSQL_ERRNO = 31001;
  END IF;
  IF the_pause THEN
    SET the_text = LEFT(CONCAT('queue: topic ''', the_name, ''' takes no messages now; rowmq topic resume NAME'), 128);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = the_text, MYSQL_ERRNO = 31002;
  END IF;
  IF the_switch THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: no topic takes messages now; rowmq access read-write', MYSQL_ERRNO = 31002;
  END IF;
  IF the_full THEN
    SET the_text = LEFT(CONCAT('queue: topic ''', the_name, ''' is full (about ', the_fill, '); try again when it is drained'), 128);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = the_text, MYSQL_ERRNO = 31020;
  END IF;
  IF in_body IS NULL THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: the body is NULL; an empty body is ''''', MYSQL_ERRNO = 31003;
  END IF;
  IF LENGTH(in_body) > the_limit THEN
    SET the_text = LEFT(CONCAT('queue: body of ', LENGTH(in_body), ' bytes, the topic takes ', the_limit, '; raise: rowmq topic set NAME --body-limit'), 128);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = the_text, MYSQL_ERRNO = 31004;
  END IF;
  IF LENGTH(in_headers) > 65536 THEN
    SET the_text = LEFT(CONCAT('queue: headers of ', LENGTH(in_headers), ' bytes, a message takes 65536; put it into the body'), 128);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = the_text, MYSQL_ERRNO = 31027;
  END IF;
  IF in_priority IS NOT NULL AND (in_priority < 0 OR in_priority > 9) THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: priority must be 0 (first) to 9 (last)', MYSQL_ERRNO = 31005;
  END IF;
  IF the_kind = 'stream' AND in_priority <> 5 THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: a stream takes no priorities, its messages keep their order', MYSQL_ERRNO = 31005;
  END IF;
  IF the_kind = 'stream' AND in_unique_key IS NOT NULL AND in_unique_for IS NULL THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: a message of a stream is never done; hold its unique key for a time', MYSQL_ERRNO = 31009;
  END IF;
  -- The length, because $ is also before a line feed at the end.
  IF LENGTH(the_id) <> 36 OR CONVERT(the_id USING latin1) NOT REGEXP '^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$' THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: id must be a UUID of 36 characters', MYSQL_ERRNO = 31006;
  END IF;
  -- A session that is not in strict mode has made a zero of what it could not read.
  IF in_deliver_at < '1970-01-01' OR in_expires_at < '1970-01-01' THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: deliver_at or expires_at is no DATETIME(6) after 1970; write UTC, without a zone: 2026-12-24 18:00:00', MYSQL_ERRNO = 31008;
  END IF;
  IF in_expires_at <= GREATEST(COALESCE(in_deliver_at, UTC_TIMESTAMP(6)), UTC_TIMESTAMP(6)) THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: it expires before it is ready, or has expired already, so no consumer would handle it', MYSQL_ERRNO = 31007;
  END IF;
  IF in_unique_key IS NOT NULL THEN
    IF LENGTH(in_unique_key) NOT BETWEEN 1 AND 255 THEN
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: unique must have 1 to 255 bytes', MYSQL_ERRNO = 31009;
    END IF;
    IF in_unique_for NOT BETWEEN 1 AND 315360000 OR in_max_wait NOT BETWEEN 1 AND 315360000 THEN
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: unique_for and max_wait must be 1 s to ten years', MYSQL_ERRNO = 31010;
    END IF;
    IF the_choice NOT IN ('keep', 'replace', 'debounce') OR (the_choice <> 'keep' AND in_unique_for IS NOT NULL)
       OR (the_choice <> 'debounce' AND in_max_wait IS NOT NULL) THEN
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: on_conflict is keep, or, without unique_for, replace or debounce; only debounce has max_wait', MYSQL_ERRNO = 31011;
    END IF;
    IF the_choice = 'debounce' AND COALESCE(in_deliver_at <= UTC_TIMESTAMP(6), TRUE) THEN
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: a debounced message needs deliver_in, or a deliver_at that has not passed', MYSQL_ERRNO = 31012;
    END IF;
  ELSEIF in_unique_for IS NOT NULL OR in_on_conflict IS NOT NULL OR in_max_wait IS NOT NULL THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: unique_for, on_conflict and max_wait need unique', MYSQL_ERRNO = 31009;
  END IF;
  SET the_id = UNHEX(REPLACE(CONVERT(the_id USING latin1), '-', ''));
  SET the_dedupe = the_id IS NOT NULL AND the_window IS NOT NULL;
  IF the_id IS NULL THEN
    -- UUIDv7 (RFC 9562): 48 bits of milliseconds, then random bits around version and variant.
    SET the_random = LEFT(SHA2(CONCAT(UUID(), RAND()), 256), 32);
    SET the_id = UNHEX(CONCAT(
      LPAD(HEX(FLOOR(UNIX_TIMESTAMP(NOW(6)) * 1000)), 12, '0'),
      '7', SUBSTR(the_random, 1, 3), '8', SUBSTR(the_random, 4, 15)));
  END IF;
  SET the_parts = the_dedupe OR in_unique_key IS NOT NULL OR the_search OR CRC32(the_id) MOD 1000000 < the_trace;
  IF the_parts AND NOT the_dedupe AND in_unique_key IS NULL THEN
    BEGIN
      -- Within a trigger or a stored function all is one statement.
      DECLARE EXIT HANDLER FOR 1422 BEGIN END;
      CALL queue_undo_killed(the_open, the_killed);
    END;
    IF NOT the_open THEN
      CALL queue_begin();
    END IF;
  END IF;

  BEGIN
    -- What is not stored leaves nothing behind, even if the caller commits. After a deadlock there is
    -- nothing to go back to any more.
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
      IF NOT the_open THEN
        CALL queue_end(FALSE);
      ELSEIF the_parts THEN
        BEGIN
          DECLARE CONTINUE HANDLER FOR 1305 BEGIN END;
          ROLLBACK TO SAVEPOINT queue_enqueue;
        END;
      END IF;
      RESIGNAL;
    END;

    IF the_parts AND the_open THEN
      BEGIN
        -- Where no transaction is open, there is no savepoint.
        DECLARE CONTINUE HANDLER FOR 1305
          SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: this takes a transaction: START TRANSACTION before, COMMIT after', MYSQL_ERRNO = 31013;
        SAVEPOINT queue_enqueue;
        ROLLBACK TO SAVEPOINT queue_enqueue;
      END;
    END IF;

    IF the_dedupe THEN
      -- Two rows affected: it was there, whatever the caller's session counts.
      INSERT INTO queue_dedupe (topic_id, msg_id, keep_until)
        VALUES (the_topic, the_id, UTC_TIMESTAMP(6) + INTERVAL LEAST(the_window, 315360000000) * 1000 MICROSECOND)
        ON DUPLICATE KEY UPDATE
          repeats = IF(keep_until < UTC_TIMESTAMP(6), 0, repeats + 1),
          keep_until = IF(keep_until < UTC_TIMESTAMP(6), VALUES(keep_until), keep_until);
      IF ROW_COUNT() > 1 THEN
        SELECT IF(repeats > 0, 'duplicate', 'stored') INTO the_fate
          FROM queue_dedupe WHERE topic_id = the_topic AND msg_id = the_id;
      END IF;
    END IF;

    IF in_unique_key IS NOT NULL AND the_fate = 'stored' THEN
      INSERT INTO queue_unique (topic_id, unique_key, msg_id, keep_until, account)
        VALUES (the_topic, in_unique_key, the_id, UTC_TIMESTAMP(6) + INTERVAL in_unique_for SECOND, the_account)
        ON DUPLICATE KEY UPDATE
          repeats = IF(keep_until < UTC_TIMESTAMP(6), 0, repeats + 1),
          msg_id = IF(keep_until < UTC_TIMESTAMP(6), VALUES(msg_id), msg_id),
          priority = IF(keep_until < UTC_TIMESTAMP(6), NULL, priority),
          ready_id = IF(keep_until < UTC_TIMESTAMP(6), NULL, ready_id),
          scheduled_id = IF(keep_until < UTC_TIMESTAMP(6), NULL, scheduled_id),
          account = IF(keep_until < UTC_TIMESTAMP(6), VALUES(account), account),
          keep_until = IF(keep_until < UTC_TIMESTAMP(6), VALUES(keep_until), keep_until);
      IF ROW_COUNT() > 1 THEN
        SELECT IF(repeats > 0, 'duplicate', 'stored'), msg_id, priority, ready_id, scheduled_id, COALESCE(account, the_account) = the_account
          INTO the_fate, the_other, the_level, the_ready, the_later, the_mine
          FROM queue_unique WHERE topic_id = the_topic AND unique_key = in_unique_key;
        -- The message of another account is neither changed nor named.
        IF NOT the_mine THEN
          CALL queue_may(in_topic, 'others', the_mine);
        END IF;
      END IF;
      -- The same message once more replaces nothing: its first end would free the key of the second.
      IF the_fate = 'duplicate' AND the_choice <> 'keep' AND the_other <> the_id AND the_mine AND (the_ready IS NOT NULL OR the_later IS NOT NULL) THEN
        BEGIN
          DECLARE CONTINUE HANDLER FOR NOT FOUND SET the_found = NULL;
          IF the_ready > 0 THEN
            SELECT id INTO the_found FROM queue_message FORCE INDEX (PRIMARY)
              WHERE topic_id = the_topic AND priority = the_level AND id = the_ready
                AND worker_id = 0 AND msg_id = the_other AND delivery_no = 0 FOR UPDATE SKIP LOCKED;
          ELSEIF the_later IS NOT NULL THEN
            SELECT id INTO the_found FROM queue_scheduled FORCE INDEX (queue_scheduled_id)
              WHERE id = the_later AND topic_id = the_topic
                AND msg_id = the_other AND delivery_no = 0 FOR UPDATE SKIP LOCKED;
          END IF;
        END;
        IF the_found IS NULL THEN
          UPDATE queue_unique SET msg_id = the_id, repeats = 0, keep_until = NULL, account = the_account
            WHERE topic_id = the_topic AND unique_key = in_unique_key;
          CALL queue_refuse_killed(ROW_COUNT());
          SET the_fate = 'stored';
        ELSEIF the_ready IS NOT NULL THEN
          UPDATE queue_message FORCE INDEX (PRIMARY)
            SET ordering_key = in_key, biz_id = in_biz_id, headers = in_headers, body = in_body, expires_at = in_expires_at
            WHERE topic_id = the_topic AND priority = the_level AND id = the_ready;
          IF ROW_COUNT() = 0 THEN
            -- Of the same words as before, or killed. FOR UPDATE: of what it has locked the caller's
            -- transaction may see an older version.
            SELECT COUNT(*) INTO the_found FROM queue_message FORCE INDEX (PRIMARY)
              WHERE topic_id = the_topic AND priority = the_level AND id = the_ready
                AND ordering_key <=> in_key AND biz_id <=> in_biz_id AND headers <=> in_headers AND body <=> in_body AND expires_at <=> in_expires_at
              FOR UPDATE;
            CALL queue_refuse_killed(the_found);
          END IF;
          SET the_fate = 'replaced';
        ELSE
          SET the_now = UTC_TIMESTAMP(6);
          UPDATE queue_scheduled FORCE INDEX (queue_scheduled_id)
            SET ordering_key = in_key, biz_id = in_biz_id, headers = in_headers, body = in_body, expires_at = in_expires_at,
              due_at = GREATEST(the_now, LEAST(COALESCE(in_deliver_at, the_now), enqueued_at + INTERVAL COALESCE(in_max_wait, 315360000) SECOND))
            WHERE id = the_later;
          IF ROW_COUNT() = 0 THEN
            SELECT COUNT(*) INTO the_found FROM queue_scheduled FORCE INDEX (queue_scheduled_id)
              WHERE id = the_later
                AND ordering_key <=> in_key AND biz_id <=> in_biz_id AND headers <=> in_headers AND body <=> in_body AND expires_at <=> in_expires_at
                AND due_at = GREATEST(the_now, LEAST(COALESCE(in_deliver_at, the_now), enqueued_at + INTERVAL COALESCE(in_max_wait, 315360000) SECOND))
              FOR UPDATE;
            CALL queue_refuse_killed(the_found);
          END IF;
          SET the_fate = 'replaced';
        END IF;
      END IF;
      IF the_fate = 'duplicate' AND the_dedupe AND the_other <> the_id THEN
        -- Its key refused it, so that it is nowhere: the id is as new as before.
        DELETE FROM queue_dedupe WHERE topic_id = the_topic AND msg_id = the_id;
        CALL queue_refuse_killed(ROW_COUNT());
      END IF;
    END IF;

    IF the_fate = 'stored' AND in_deliver_at IS NULL THEN
      INSERT INTO queue_message (topic_id, priority, msg_id, enqueued_at, expires_at, ordering_key, biz_id, unique_key, headers, body)
        VALUES (the_topic, COALESCE(in_priority, 5), the_id, UTC_TIMESTAMP(6), in_expires_at, in_key, in_biz_id, IF(in_unique_for IS NULL, in_unique_key, NULL), in_headers, in_body);
      SET the_row = LAST_INSERT_ID();
    ELSEIF the_fate = 'stored' THEN
      INSERT INTO queue_scheduled (due_at, topic_id, priority, msg_id, delivery_no, failures, crashes, suspicions, enqueued_at, expires_at, ordering_key, biz_id, unique_key, headers, body)
        VALUES (GREATEST(in_deliver_at, UTC_TIMESTAMP(6)), the_topic, COALESCE(in_priority, 5), the_id, 0, 0, 0, 0, UTC_TIMESTAMP(6), in_expires_at, in_key, in_biz_id, IF(in_unique_for IS NULL, in_unique_key, NULL), in_headers, in_body);
    END IF;
    IF the_fate = 'stored' AND in_unique_key IS NOT NULL AND the_choice <> 'keep' THEN
      UPDATE queue_unique SET priority = COALESCE(in_priority, 5),
          ready_id = IF(in_deliver_at IS NULL, LAST_INSERT_ID(), NULL),
          scheduled_id = IF(in_deliver_at IS NULL, NULL, LAST_INSERT_ID())
        WHERE topic_id = the_topic AND unique_key = in_unique_key;
      CALL queue_refuse_killed(ROW_COUNT());
    END IF;
    IF the_search AND the_fate = 'stored' THEN
      INSERT INTO queue_lookup (topic_id, msg_id, row_id, enqueued_at, biz_id, ordering_key)
        VALUES (the_topic, the_id, the_row, UTC_TIMESTAMP(6), in_biz_id, in_key)
        ON DUPLICATE KEY UPDATE row_id = VALUES(row_id), enqueued_at = VALUES(enqueued_at);
    ELSEIF the_search AND the_fate = 'replaced' THEN
      UPDATE queue_lookup SET biz_id = in_biz_id, ordering_key = in_key
        WHERE topic_id = the_topic AND msg_id = the_other;
      IF ROW_COUNT() = 0 THEN
        SELECT COUNT(*) INTO the_found FROM queue_lookup
          WHERE topic_id = the_topic AND msg_id = the_other AND NOT (biz_id <=> in_biz_id AND ordering_key <=> in_key)
          FOR UPDATE;
        CALL queue_refuse_killed(the_found = 0);
      END IF;
    END IF;
    IF the_fate = 'replaced' AND CRC32(the_other) MOD 1000000 < the_trace THEN
      INSERT INTO queue_trace (topic_id, msg_id, event, at, conn_id, client)
        VALUES (the_topic, the_other, 'replaced', UTC_TIMESTAMP(6), CONNECTION_ID(), LEFT(USER(), 255));
    ELSEIF the_fate = 'stored' AND CRC32(the_id) MOD 1000000 < the_trace THEN
      INSERT INTO queue_trace (topic_id, msg_id, event, at, conn_id, client)
        VALUES (the_topic, the_id, 'enqueued', UTC_TIMESTAMP(6), CONNECTION_ID(), LEFT(USER(), 255));
    END IF;
    IF NOT the_open THEN
      CALL queue_end(TRUE);
    END IF;
  END;
  SET @queue_duplicate = the_fate <> 'stored', @queue_replaced = the_fate = 'replaced';
  IF the_fate <> 'stored' AND the_other <> the_id THEN
    SET the_id = IF(the_mine, the_other, NULL);
  END IF;
  SET @queue_msg_id = LOWER(CONCAT(
    SUBSTR(HEX(the_id), 1, 8), '-', SUBSTR(HEX(the_id), 9, 4), '-', SUBSTR(HEX(the_id), 13, 4), '-',
    SUBSTR(HEX(the_id), 17, 4), '-', SUBSTR(HEX(the_id), 21, 12)));
END
