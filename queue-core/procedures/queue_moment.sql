-- Reads a moment of the options, which may be given in two ways: a time from now on, or a moment in UTC. MySQL would
-- take another zone for the session's own, and MariaDB knows none, so that only Z is accepted.
CREATE PROCEDURE queue_moment(
  IN  in_name  VARCHAR(16) CHARACTER SET latin1,
  IN  in_after LONGTEXT CHARACTER SET utf8mb4,
  IN  in_at    LONGTEXT CHARACTER SET utf8mb4,
  OUT out_at   DATETIME(6)
)
  NO SQL
  SQL SECURITY DEFINER
  COMMENT 'Internal: reads NAME_in, such as "48h", or NAME_at, such as "2026-12-24T18:00:00Z".'
BEGIN
  DECLARE the_seconds DECIMAL(20, 6);
  DECLARE the_text    VARCHAR(255) CHARACTER SET utf8mb4 DEFAULT LEFT(JSON_UNQUOTE(in_at), 255);

  IF in_after <> 'null' AND in_at <> 'null' THEN
    SET the_text = CONCAT('queue: options ', in_name, '_in and ', in_name, '_at exclude each other');
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = the_text, MYSQL_ERRNO = 31029;
  ELSEIF in_after <> 'null' THEN
    CALL queue_duration(CONCAT(in_name, '_in'), in_after, the_seconds);
    SET out_at = UTC_TIMESTAMP(6) + INTERVAL the_seconds SECOND;
  ELSEIF in_at <> 'null' THEN
    BEGIN
      -- In strict mode, what is no date fails in the SET.
      DECLARE EXIT HANDLER FOR SQLEXCEPTION
      BEGIN
        SET the_text = LEFT(CONCAT('queue: option ', in_name, '_at is no moment in UTC, such as "2026-12-24T18:00:00Z"'), 128);
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = the_text, MYSQL_ERRNO = 31008;
      END;
      IF JSON_TYPE(in_at) <> 'STRING' OR the_text LIKE '%+%' OR the_text LIKE '%-%-%-%' OR COALESCE(the_text NOT LIKE '____-%-%', TRUE) THEN
        SIGNAL SQLSTATE '45000';
      END IF;
      SET out_at = TRIM(TRAILING 'Z' FROM the_text);
    END;
  END IF;
END
