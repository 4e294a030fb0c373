-- Not for callers. Fails as a killed statement does, if an UPDATE or DELETE that must have had a row had
-- none.
CREATE PROCEDURE queue_refuse_killed(IN in_rows BIGINT)
  NO SQL
  SQL SECURITY DEFINER
  COMMENT 'Used by the other calls.'
BEGIN
  IF in_rows = 0 THEN
    SIGNAL SQLSTATE '70100' SET MESSAGE_TEXT = 'Query execution was interrupted', MYSQL_ERRNO = 1317;
  END IF;
END
