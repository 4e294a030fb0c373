-- Not for callers. Refuses a session whose clock is set (SET timestamp): the procedures' times would be the
-- caller's choice, and a full topic, a held key or a topic's max_run_time whatever it likes them to be.
-- UUID() has the server's own clock in it (version 1: tenths of microseconds since 1582-10-15), which no
-- session sets, no option such as sysdate-is-now changes and no time zone makes ambiguous. @@timestamp is
-- that of this statement, and a set one stays where it is, so that looking again does not help it; a
-- session that the machine has stopped between the two clocks is looked at again.
CREATE PROCEDURE queue_refuse_clock()
  CONTAINS SQL
  SQL SECURITY DEFINER
  COMMENT 'Used by the other calls.'
BEGIN
  DECLARE the_uuid  CHAR(36);
  DECLARE the_looks INT DEFAULT 0;
  DECLARE the_ahead DOUBLE DEFAULT NULL;

  WHILE the_looks < 5 AND COALESCE(the_ahead NOT BETWEEN -1 AND 1, TRUE) DO
    SET the_looks = the_looks + 1, the_uuid = UUID();
    SET the_ahead = @@timestamp + 12219292800
      - CONV(CONCAT(SUBSTR(the_uuid, 16, 3), SUBSTR(the_uuid, 10, 4), SUBSTR(the_uuid, 1, 8)), 16, 10) / 10000000;
  END WHILE;
  IF the_ahead BETWEEN -86400 AND -1 THEN
    -- Within a trigger or a stored function the clock stands since their statement began.
    BEGIN
      DECLARE EXIT HANDLER FOR 1422 SET the_ahead = 0;
      CALL queue_refuse_trigger();
    END;
  END IF;
  IF the_ahead NOT BETWEEN -1 AND 1 THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: the clock of this session is set; SET timestamp = DEFAULT', MYSQL_ERRNO = 31026;
  END IF;
END
