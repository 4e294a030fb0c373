-- Reads a moment of the options, in UTC. A zone would be taken for the session's own by MySQL, and MariaDB knows
-- none, so that only Z is accepted.
CREATE PROCEDURE queue_moment(
  IN  in_name   VARCHAR(16) CHARACTER SET latin1,
  IN  in_value  LONGTEXT CHARACTER SET utf8mb4,
  OUT out_value DATETIME(6)
)
  NO SQL
  SQL SECURITY DEFINER
  COMMENT 'Internal: reads a moment in UTC, such as "2026-12-24T18:00:00Z"; refuses what is none.'
BEGIN
  DECLARE the_text VARCHAR(255) CHARACTER SET utf8mb4 DEFAULT LEFT(JSON_UNQUOTE(in_value), 255);
  DECLARE EXIT HANDLER FOR SQLEXCEPTION
  BEGIN
    SET the_text = LEFT(CONCAT('queue: option ', in_name, ' is no moment in UTC, such as "2026-12-24T18:00:00Z"'), 128);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = the_text, MYSQL_ERRNO = 31008;
  END;

  IF JSON_TYPE(in_value) <> 'STRING' OR the_text LIKE '%+%' OR the_text LIKE '%-%-%-%' OR the_text NOT LIKE '____-%-%' THEN
    SIGNAL SQLSTATE '45000';
  END IF;
  SET out_value = TRIM(TRAILING 'Z' FROM the_text);
END
