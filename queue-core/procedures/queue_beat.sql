-- Says that this session is alive, while it works on what it has claimed.
CREATE PROCEDURE queue_beat()
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Say that this session still works on what it has claimed.'
BEGIN
  DECLARE the_worker   BIGINT UNSIGNED;
  DECLARE the_lease    BIGINT UNSIGNED;
  DECLARE the_instance BINARY(16);
  DECLARE the_open     BOOLEAN;
  DECLARE the_killed   BOOLEAN;

  CALL queue_refuse_clock();
  CALL queue_undo_killed(the_open, the_killed);
  IF the_open THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: nobody sees a beat before its COMMIT: call queue_beat with autocommit on and no transaction open', MYSQL_ERRNO = 31014;
  END IF;
  CALL queue_own_worker(the_worker, the_lease, the_instance);
  IF the_worker IS NULL THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: this session holds nothing any more: ROLLBACK what it works on, and claim anew', MYSQL_ERRNO = 31015;
  END IF;
  UPDATE queue_worker SET beat_no = beat_no + 1, beat_at = UTC_TIMESTAMP(6) WHERE id = the_worker AND state = 'alive';
  CALL queue_refuse_killed(ROW_COUNT());
END
