-- Reads the options of a message: NULL for each that is missing or null. The caller says whether it may be unique.
CREATE PROCEDURE queue_options(
  IN  in_options    LONGBLOB,
  IN  in_may_unique BOOLEAN,
  OUT out_priority  INT,
  OUT out_key       BLOB,
  OUT out_biz_id    BLOB,
  OUT out_headers   LONGBLOB,
  OUT out_id        VARBINARY(255),
  OUT out_deliver   DATETIME(6),
  OUT out_expires   DATETIME(6),
  OUT out_unique    BLOB,
  OUT out_hold      BIGINT,
  OUT out_choice    VARBINARY(255),
  OUT out_wait      BIGINT
)
  NO SQL
  SQL SECURITY DEFINER
  COMMENT 'Internal: reads the JSON object of options.'
BEGIN
  DECLARE the_given    LONGTEXT CHARACTER SET utf8mb4;
  DECLARE the_rest     LONGTEXT CHARACTER SET utf8mb4;
  DECLARE the_priority LONGTEXT CHARACTER SET utf8mb4;
  DECLARE the_key      LONGTEXT CHARACTER SET utf8mb4;
  DECLARE the_biz_id   LONGTEXT CHARACTER SET utf8mb4;
  DECLARE the_headers  LONGTEXT CHARACTER SET utf8mb4;
  DECLARE the_id       LONGTEXT CHARACTER SET utf8mb4;
  DECLARE the_in       LONGTEXT CHARACTER SET utf8mb4;
  DECLARE the_at       LONGTEXT CHARACTER SET utf8mb4;
  DECLARE the_end_in   LONGTEXT CHARACTER SET utf8mb4;
  DECLARE the_end_at   LONGTEXT CHARACTER SET utf8mb4;
  DECLARE the_unique   LONGTEXT CHARACTER SET utf8mb4;
  DECLARE the_hold     LONGTEXT CHARACTER SET utf8mb4;
  DECLARE the_choice   LONGTEXT CHARACTER SET utf8mb4;
  DECLARE the_wait     LONGTEXT CHARACTER SET utf8mb4;
  DECLARE the_fault    VARCHAR(255) CHARACTER SET utf8mb4;
  DECLARE the_seconds  DECIMAL(20, 6);
  -- To MariaDB text may be valid that its other functions cannot read, such as one with a control character.
  /*M! DECLARE EXIT HANDLER FOR 4038
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: options must be NULL or a JSON object, such as {"priority":3}', MYSQL_ERRNO = 31029; */

  BEGIN
    -- As in queue_send_all: bytes that are no UTF-8 are refused here, in strict mode.
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: options must be JSON in UTF-8', MYSQL_ERRNO = 31029;
    SET the_given = in_options;
  END;
  -- MySQL reads no further than a zero byte.
  IF NOT JSON_VALID(the_given) OR LOCATE(CHAR(0), in_options) > 0 THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: options must be NULL or a JSON object, such as {"priority":3}', MYSQL_ERRNO = 31029;
  END IF;
  IF JSON_TYPE(the_given) <> 'OBJECT' THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: options must be NULL or a JSON object, such as {"priority":3}', MYSQL_ERRNO = 31029;
  END IF;
  SET the_rest = JSON_REMOVE(the_given, '$.priority', '$.key', '$.biz_id', '$.headers', '$.id', '$.deliver_in', '$.deliver_at',
      '$.expires_in', '$.expires_at', '$.unique', '$.unique_for', '$.on_conflict', '$.max_wait');
  SET the_priority = JSON_EXTRACT(the_given, '$.priority');
  SET the_key = JSON_EXTRACT(the_given, '$.key');
  SET the_biz_id = JSON_EXTRACT(the_given, '$.biz_id');
  SET the_headers = JSON_EXTRACT(the_given, '$.headers');
  SET the_id = JSON_EXTRACT(the_given, '$.id');
  SET the_in = JSON_EXTRACT(the_given, '$.deliver_in');
  SET the_at = JSON_EXTRACT(the_given, '$.deliver_at');
  SET the_end_in = JSON_EXTRACT(the_given, '$.expires_in');
  SET the_end_at = JSON_EXTRACT(the_given, '$.expires_at');
  SET the_unique = JSON_EXTRACT(the_given, '$.unique');
  SET the_hold = JSON_EXTRACT(the_given, '$.unique_for');
  SET the_choice = JSON_EXTRACT(the_given, '$.on_conflict');
  SET the_wait = JSON_EXTRACT(the_given, '$.max_wait');
  -- No condition is true of a name that is missing.
  SET the_fault = CASE
    WHEN JSON_LENGTH(the_rest) > 0 THEN LEFT(CONCAT('no option ', JSON_KEYS(the_rest),
      '; they are priority, key, biz_id, headers, id, deliver_in, deliver_at, expires_in, expires_at'), 255)
    WHEN NOT in_may_unique AND (the_unique <> 'null' OR the_hold <> 'null' OR the_choice <> 'null' OR the_wait <> 'null')
      THEN 'unique, unique_for, on_conflict and max_wait are options of queue_send_unique'
    WHEN JSON_TYPE(the_priority) NOT IN ('INTEGER', 'UNSIGNED INTEGER', 'NULL') OR (the_priority <> 'null' AND the_priority NOT REGEXP '^-?[0-9]{1,9}$') THEN 'option priority is no whole number from 0 to 9'
    WHEN JSON_TYPE(the_key) NOT IN ('STRING', 'NULL') THEN 'option key is no string'
    WHEN JSON_TYPE(the_biz_id) NOT IN ('STRING', 'NULL') THEN 'option biz_id is no string'
    WHEN JSON_TYPE(the_headers) NOT IN ('OBJECT', 'NULL') THEN 'option headers is no object'
    WHEN JSON_TYPE(the_id) NOT IN ('STRING', 'NULL') THEN 'option id is no string'
    WHEN JSON_TYPE(the_unique) NOT IN ('STRING', 'NULL') THEN 'option unique is no string'
    WHEN JSON_TYPE(the_choice) NOT IN ('STRING', 'NULL') THEN 'option on_conflict is no string'
  END;
  IF the_fault IS NOT NULL THEN
    SET the_fault = LEFT(CONCAT('queue: ', the_fault), 128);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = the_fault, MYSQL_ERRNO = 31029;
  END IF;

  IF the_priority <> 'null' THEN
    SET out_priority = the_priority;
  END IF;
  IF the_key <> 'null' THEN
    SET out_key = JSON_UNQUOTE(the_key);
  END IF;
  IF the_biz_id <> 'null' THEN
    SET out_biz_id = JSON_UNQUOTE(the_biz_id);
  END IF;
  IF the_headers <> 'null' THEN
    SET out_headers = the_headers;
  END IF;
  IF the_id <> 'null' THEN
    SET out_id = LEFT(JSON_UNQUOTE(the_id), 255);
  END IF;
  IF the_unique <> 'null' THEN
    SET out_unique = JSON_UNQUOTE(the_unique);
  END IF;
  IF the_choice <> 'null' THEN
    SET out_choice = LEFT(JSON_UNQUOTE(the_choice), 60);
  END IF;
  IF COALESCE(the_in, the_at) IS NOT NULL THEN
    CALL queue_moment('deliver', the_in, the_at, out_deliver);
  END IF;
  IF COALESCE(the_end_in, the_end_at) IS NOT NULL THEN
    CALL queue_moment('expires', the_end_in, the_end_at, out_expires);
  END IF;
  IF the_hold <> 'null' THEN
    CALL queue_duration('unique_for', the_hold, the_seconds);
    SET out_hold = CEIL(the_seconds);
  END IF;
  IF the_wait <> 'null' THEN
    CALL queue_duration('max_wait', the_wait, the_seconds);
    SET out_wait = CEIL(the_seconds);
  END IF;
END
