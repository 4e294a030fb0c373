-- Reads a time of the options: a JSON number of seconds, or a string of a number and its unit, such as "48h".
-- The server's own parser of JSON reads the number.
CREATE PROCEDURE queue_duration(
  IN  in_name     VARCHAR(16) CHARACTER SET latin1,
  IN  in_value    LONGTEXT CHARACTER SET utf8mb4,
  OUT out_seconds DECIMAL(20, 6)
)
  NO SQL
  SQL SECURITY DEFINER
  COMMENT 'Internal: reads a time such as 90 or "48h"; refuses what is none, or is longer than ten years.'
BEGIN
  DECLARE the_text   VARCHAR(255) CHARACTER SET utf8mb4 DEFAULT LEFT(JSON_UNQUOTE(in_value), 255);
  DECLARE the_unit   VARBINARY(8) DEFAULT 's';
  DECLARE the_factor DECIMAL(10, 3);

  IF JSON_TYPE(in_value) = 'STRING' THEN
    SET the_unit = CAST(IF(the_text LIKE '%ms', 'ms', RIGHT(the_text, 1)) AS BINARY);
    SET the_text = LEFT(the_text, CHAR_LENGTH(the_text) - LENGTH(the_unit));
  END IF;
  SET the_factor = CASE the_unit WHEN 'ms' THEN 0.001 WHEN 's' THEN 1 WHEN 'm' THEN 60 WHEN 'h' THEN 3600 WHEN 'd' THEN 86400 WHEN 'w' THEN 604800 END;
  SET out_seconds = NULL;
  IF the_factor IS NOT NULL AND JSON_VALID(the_text) AND CHAR_LENGTH(the_text) <= 12 THEN
    IF JSON_TYPE(the_text) IN ('INTEGER', 'UNSIGNED INTEGER', 'DECIMAL', 'DOUBLE') THEN
      BEGIN
        -- In strict mode a number such as 1e400 fails in the SET.
        DECLARE EXIT HANDLER FOR SQLEXCEPTION SET out_seconds = NULL;
        SET out_seconds = CAST(the_text AS DECIMAL(20, 6)) * the_factor;
      END;
    END IF;
  END IF;
  IF out_seconds IS NULL OR out_seconds NOT BETWEEN 0 AND 315360000 THEN
    SET the_text = LEFT(CONCAT('queue: option ', in_name, ' must be seconds, or a number with its unit (ms, s, m, h, d, w) such as "48h", up to ten years'), 128);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = the_text, MYSQL_ERRNO = 31029;
  END IF;
END
