-- Not for callers. Whether a transaction is open, after what a killed call has left open is undone:
-- no handler runs after KILL QUERY or the end of a statement's time, so nothing rolls back. Such a
-- transaction is known by its savepoint, which no transaction of the caller has. A lock timeout that
-- queue_enter_gate has shortened is put back.
CREATE PROCEDURE queue_undo_killed(
  OUT out_open   BOOLEAN,
  OUT out_killed BOOLEAN
)
  CONTAINS SQL
  SQL SECURITY DEFINER
  COMMENT 'Used by the calls of consumers.'
BEGIN
  SET out_open = TRUE, out_killed = TRUE;
  BEGIN
    DECLARE CONTINUE HANDLER FOR 1305 SET out_killed = FALSE;
    ROLLBACK TO SAVEPOINT queue_own;
  END;
  IF out_killed THEN
    ROLLBACK AND NO CHAIN NO RELEASE;
  END IF;
  BEGIN
    DECLARE CONTINUE HANDLER FOR 1305 SET out_open = FALSE;
    SAVEPOINT queue_open;
    ROLLBACK TO SAVEPOINT queue_open;
  END;
  IF @queue_lock_wait IS NOT NULL THEN
    SET SESSION innodb_lock_wait_timeout = @queue_lock_wait, @queue_lock_wait = NULL;
  END IF;
END
