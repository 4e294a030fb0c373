-- Enqueues a JSON array of messages: all of them, or none. The first message goes through queue_enqueue,
-- which checks the account, the topic and the session. One INSERT stores the others. All go singly where the
-- topic deduplicates their ids, is searchable or leaves traces, and where the INSERT leaves one out: then the
-- call for that message says what is wrong with it.
CREATE PROCEDURE queue_send_all(
  IN in_topic    VARBINARY(255),
  IN in_messages LONGBLOB
)
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Enqueue a JSON array of messages. Outcome: @queue_sent, @queue_duplicates.'
BEGIN
  DECLARE the_given    LONGTEXT CHARACTER SET utf8mb4;
  DECLARE the_count    INT UNSIGNED DEFAULT 0;
  DECLARE the_sent     INT UNSIGNED DEFAULT 0;
  DECLARE the_same     INT UNSIGNED DEFAULT 0;
  DECLARE the_n        INT UNSIGNED DEFAULT 0;
  DECLARE the_fault    LONGTEXT CHARACTER SET utf8mb4 DEFAULT NULL;
  DECLARE the_text     VARCHAR(255) CHARACTER SET utf8mb4;
  DECLARE the_number   INT UNSIGNED;
  DECLARE the_topic    INT UNSIGNED DEFAULT NULL;
  DECLARE the_kind     VARBINARY(16);
  DECLARE the_limit    INT UNSIGNED;
  DECLARE the_singly   BOOLEAN DEFAULT FALSE;
  DECLARE the_part     LONGTEXT CHARACTER SET utf8mb4;
  DECLARE the_body     LONGBLOB;
  DECLARE the_priority BIGINT;
  DECLARE the_key      BLOB;
  DECLARE the_biz_id   BLOB;
  DECLARE the_headers  LONGBLOB;
  DECLARE the_id       VARBINARY(255);
  DECLARE the_ones CURSOR FOR
    SELECT COALESCE(CAST(body AS BINARY), FROM_BASE64(base64)), priority, ordering_key, biz_id, IF(JSON_TYPE(headers) = 'OBJECT', headers, NULL), id
    FROM JSON_TABLE(the_part, '$[*]' COLUMNS (
      n FOR ORDINALITY, body LONGTEXT PATH '$.body' ERROR ON ERROR, base64 LONGTEXT PATH '$.body_base64' ERROR ON ERROR, priority BIGINT PATH '$.priority' ERROR ON ERROR,
      ordering_key LONGTEXT PATH '$.key' ERROR ON ERROR, biz_id LONGTEXT PATH '$.biz_id' ERROR ON ERROR, headers JSON PATH '$.headers', id LONGTEXT PATH '$.id' ERROR ON ERROR)) AS given
    ORDER BY n;

  BEGIN
    -- Bytes that are no UTF-8 are refused here, in strict mode. A parameter of text would have them replaced
    -- on its way in, if the caller is not in strict mode.
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: messages must be JSON in UTF-8', MYSQL_ERRNO = 31029;
    SET the_given = in_messages;
  END;
  -- MySQL reads no further than a zero byte.
  IF JSON_VALID(the_given) AND LOCATE(CHAR(0), in_messages) = 0 THEN
    SET the_count = IF(JSON_TYPE(the_given) = 'ARRAY', JSON_LENGTH(the_given), 0);
  END IF;
  IF the_count NOT BETWEEN 1 AND 1000 THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: messages must be a JSON array of 1 to 1000 objects, such as [{"body":"text"}]', MYSQL_ERRNO = 31029;
  END IF;
  BEGIN
    -- In strict mode MariaDB fails where MySQL returns NULL.
    DECLARE EXIT HANDLER FOR 1958
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: a body_base64 is no base64', MYSQL_ERRNO = 31029;
    -- As in queue_options.
    /*M! DECLARE EXIT HANDLER FOR 4038
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: messages must be a JSON array of 1 to 1000 objects, such as [{"body":"text"}]', MYSQL_ERRNO = 31029; */
    -- A JSON null counts as a missing name. The first fault is that of the smallest number.
    SELECT COUNT(*), MIN(CONCAT(LPAD(n, 4, '0'), fault)) INTO the_n, the_fault FROM (
      SELECT n, CASE
        WHEN JSON_TYPE(message) <> 'OBJECT' THEN 'is no object'
        WHEN JSON_LENGTH(rest) > 0 THEN CONCAT('has ', JSON_KEYS(rest), '; the names are body, body_base64, priority, key, biz_id, headers, id')
        WHEN COALESCE(JSON_TYPE(body), 'NULL') NOT IN ('STRING', 'NULL') THEN 'has a body that is no string; pass JSON as its text'
        WHEN COALESCE(JSON_TYPE(base64), 'NULL') NOT IN ('STRING', 'NULL') THEN 'has a body_base64 that is no string'
        WHEN (COALESCE(JSON_TYPE(body), 'NULL') = 'NULL') = (COALESCE(JSON_TYPE(base64), 'NULL') = 'NULL') THEN 'needs either body or body_base64'
        WHEN JSON_TYPE(base64) = 'STRING' AND FROM_BASE64(JSON_UNQUOTE(base64)) IS NULL THEN 'has a body_base64 that is no base64'
        WHEN COALESCE(JSON_TYPE(priority), 'NULL') NOT IN ('INTEGER', 'UNSIGNED INTEGER', 'NULL') OR (JSON_TYPE(priority) <> 'NULL' AND JSON_UNQUOTE(priority) NOT REGEXP '^-?[0-9]{1,9}$') THEN 'has a priority that is no whole number from 0 to 9'
        WHEN COALESCE(JSON_TYPE(ordering_key), 'NULL') NOT IN ('STRING', 'NULL') THEN 'has a key that is no string'
        WHEN COALESCE(JSON_TYPE(biz_id), 'NULL') NOT IN ('STRING', 'NULL') THEN 'has a biz_id that is no string'
        WHEN COALESCE(JSON_TYPE(headers), 'NULL') NOT IN ('OBJECT', 'NULL') THEN 'has headers that are no object'
        WHEN COALESCE(JSON_TYPE(id), 'NULL') NOT IN ('STRING', 'NULL') THEN 'has an id that is no string'
      END AS fault
      FROM (
        SELECT given.*, IF(JSON_TYPE(message) = 'OBJECT',
            JSON_REMOVE(message, '$.body', '$.body_base64', '$.priority', '$.key', '$.biz_id', '$.headers', '$.id'), NULL) AS rest
        FROM JSON_TABLE(the_given, '$[*]' COLUMNS (
          n FOR ORDINALITY, message JSON PATH '$', body JSON PATH '$.body', base64 JSON PATH '$.body_base64', priority JSON PATH '$.priority',
          ordering_key JSON PATH '$.key', biz_id JSON PATH '$.biz_id', headers JSON PATH '$.headers', id JSON PATH '$.id')) AS given) AS named) AS checked;
  END;
  CALL queue_refuse_killed(the_n = the_count);
  IF the_fault IS NOT NULL THEN
    SET the_text = LEFT(CONCAT('queue: message ', CAST(LEFT(the_fault, 4) AS UNSIGNED), ' ', SUBSTR(the_fault, 5)), 128);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = the_text, MYSQL_ERRNO = 31029;
  END IF;
  BEGIN
    -- For a topic that does not exist, the first message's call says so.
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET the_topic = NULL;
    SELECT id, kind, body_limit, searchable_ms IS NOT NULL OR trace_ppm > 0
        OR (dedupe_window_ms IS NOT NULL AND JSON_CONTAINS_PATH(the_given, 'one', '$[*].id'))
      INTO the_topic, the_kind, the_limit, the_singly
      FROM queue_topic WHERE name = in_topic;
  END;
  BEGIN
    -- Where no transaction is open, there is no savepoint.
    DECLARE EXIT HANDLER FOR 1305
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: this takes a transaction: START TRANSACTION before, COMMIT after', MYSQL_ERRNO = 31013;
    SAVEPOINT queue_send_all;
    ROLLBACK TO SAVEPOINT queue_send_all;
  END;

  BEGIN
    -- What is not stored leaves nothing behind, even if the caller commits. After a deadlock there is
    -- nothing to go back to any more.
    DECLARE EXIT HANDLER FOR SQLEXCEPTION, NOT FOUND
    BEGIN
      GET DIAGNOSTICS CONDITION 1 the_text = MESSAGE_TEXT, the_number = MYSQL_ERRNO;
      BEGIN
        DECLARE CONTINUE HANDLER FOR 1305 BEGIN END;
        ROLLBACK TO SAVEPOINT queue_send_all;
      END;
      -- Body, priority, id, headers; the others are about the topic or the session.
      IF the_number IN (31003, 31004, 31005, 31006, 31027) THEN
        SET the_text = LEFT(CONCAT('queue: message ', the_n, ': ', SUBSTR(the_text, 8)), 128);
        RESIGNAL SET MESSAGE_TEXT = the_text;
      END IF;
      RESIGNAL;
    END;

    SET the_n = 0;
    REPEAT
      SET the_part = IF(the_singly, the_given, CONCAT('[', JSON_EXTRACT(the_given, '$[0]'), ']'));
      OPEN the_ones;
      REPEAT
        FETCH the_ones INTO the_body, the_priority, the_key, the_biz_id, the_headers, the_id;
        SET the_n = the_n + 1;
        CALL queue_enqueue(in_topic, the_body, NULL, NULL, NULL, NULL, NULL, NULL, the_priority, the_key, the_biz_id, the_headers, the_id);
        SET the_sent = the_sent + (NOT @queue_duplicate), the_same = the_same + @queue_duplicate;
      UNTIL NOT the_singly OR the_n = the_count END REPEAT;
      CLOSE the_ones;
      IF the_n < the_count THEN
        INSERT INTO queue_message (topic_id, priority, msg_id, enqueued_at, ordering_key, biz_id, headers, body)
          SELECT the_topic, COALESCE(priority, 5),
              -- As in queue_enqueue. MySQL may evaluate UUID() and RAND() once for all rows, hence the number.
              UNHEX(IF(id IS NOT NULL, REPLACE(id, '-', ''), CONCAT(LPAD(HEX(FLOOR(UNIX_TIMESTAMP(NOW(6)) * 1000)), 12, '0'),
                '7', LEFT(random, 3), '8', SUBSTR(random, 4, 15)))),
              UTC_TIMESTAMP(6), ordering_key, biz_id, headers, body
          FROM (
            SELECT n, priority, ordering_key, biz_id, IF(JSON_TYPE(headers) = 'OBJECT', headers, NULL) AS headers, id, COALESCE(CAST(body AS BINARY), FROM_BASE64(base64)) AS body, SHA2(CONCAT(UUID(), RAND(), n), 256) AS random
            FROM JSON_TABLE(the_given, '$[*]' COLUMNS (
              n FOR ORDINALITY, body LONGTEXT PATH '$.body' ERROR ON ERROR, base64 LONGTEXT PATH '$.body_base64' ERROR ON ERROR, priority BIGINT PATH '$.priority' ERROR ON ERROR,
              ordering_key LONGTEXT PATH '$.key' ERROR ON ERROR, biz_id LONGTEXT PATH '$.biz_id' ERROR ON ERROR, headers JSON PATH '$.headers', id LONGTEXT PATH '$.id' ERROR ON ERROR)) AS given) AS parsed
          WHERE n > 1 AND LENGTH(body) <= the_limit AND COALESCE(LENGTH(headers), 0) <= 65536
            AND COALESCE(priority, 5) BETWEEN IF(the_kind = 'stream', 5, 0) AND IF(the_kind = 'stream', 5, 9)
            AND COALESCE(LENGTH(id) = 36 AND id REGEXP '^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$', TRUE)
          ORDER BY n;
        IF ROW_COUNT() = the_count - 1 THEN
          SET the_n = the_count, the_sent = the_sent + the_count - 1;
        ELSE
          ROLLBACK TO SAVEPOINT queue_send_all;
          SET the_n = 0, the_sent = 0, the_same = 0, the_singly = TRUE;
        END IF;
      END IF;
    UNTIL the_n = the_count END REPEAT;
  END;
  SET @queue_sent = the_sent, @queue_duplicates = the_same, @queue_msg_id = NULL, @queue_duplicate = NULL, @queue_replaced = NULL;
END
