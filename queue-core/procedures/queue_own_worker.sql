-- Not for callers. The worker that this session is, or NULL. Its name lock, which ends with the session,
-- tells it from an earlier session that had the same id (history H21).
CREATE PROCEDURE queue_own_worker(
  OUT out_worker   BIGINT UNSIGNED,
  OUT out_lease    BIGINT UNSIGNED,
  OUT out_instance BINARY(16)
)
  READS SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Used by the calls of consumers.'
BEGIN
  DECLARE the_looks INT DEFAULT 0;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET out_worker = NULL;

  SET out_worker = NULL;
  -- As the session remembers; the same is asked of it as of any other.
  SELECT id, lease_ms, instance INTO out_worker, out_lease, out_instance FROM queue_worker
    WHERE id = @queue_worker AND state = 'alive' AND conn_id = CONNECTION_ID() AND life_conn_id = CONNECTION_ID()
      AND IS_USED_LOCK(CONCAT('queue:', LOWER(HEX(instance)))) = CONNECTION_ID();
  WHILE out_worker IS NULL AND the_looks < 2 DO
    SET the_looks = the_looks + 1;
    SELECT id, lease_ms, instance INTO out_worker, out_lease, out_instance FROM queue_worker
      WHERE state = 'alive' AND conn_id = CONNECTION_ID() AND life_conn_id = CONNECTION_ID()
        AND IS_USED_LOCK(CONCAT('queue:', LOWER(HEX(instance)))) = CONNECTION_ID() LIMIT 1;
  END WHILE;
END
