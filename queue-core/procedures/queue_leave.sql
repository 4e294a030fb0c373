-- The session is no consumer any more: what it still holds is given back, uncharged, by the next sweep.
CREATE PROCEDURE queue_leave()
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Give back what this session has claimed and not settled.'
BEGIN
  DECLARE the_worker   BIGINT UNSIGNED;
  DECLARE the_lease    BIGINT UNSIGNED;
  DECLARE the_instance BINARY(16);
  DECLARE the_open     BOOLEAN;
  DECLARE the_killed   BOOLEAN;

  CALL queue_refuse_clock();
  CALL queue_undo_killed(the_open, the_killed);
  IF the_open THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: COMMIT or ROLLBACK before queue_leave, and call it with autocommit on', MYSQL_ERRNO = 31014;
  END IF;
  CALL queue_own_worker(the_worker, the_lease, the_instance);
  IF the_worker IS NOT NULL THEN
    UPDATE queue_worker SET state = 'stopped', ended_at = UTC_TIMESTAMP(6) WHERE id = the_worker AND state = 'alive';
    CALL queue_refuse_killed(ROW_COUNT());
    DO RELEASE_LOCK(CONCAT('queue:', LOWER(HEX(the_instance))));
    SET @queue_lease = NULL, @queue_checkpoints = NULL;
    SET SESSION wait_timeout = @@GLOBAL.wait_timeout, SESSION net_write_timeout = @@GLOBAL.net_write_timeout, SESSION net_read_timeout = @@GLOBAL.net_read_timeout;
  END IF;
END
