-- Not for callers. The range of an ordered group by which this session holds a delivery, or NULL. in_number is the last part of the
-- delivery.
CREATE PROCEDURE queue_own_range(
  IN  in_worker BIGINT UNSIGNED,
  IN  in_claim  BIGINT UNSIGNED,
  IN  in_number BIGINT UNSIGNED,
  OUT out_range BIGINT UNSIGNED
)
  READS SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Used by the calls of consumers.'
BEGIN
  DECLARE the_looks INT DEFAULT 0;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;

  SET out_range = NULL;
  -- The session that claimed, and not a later one that was given the same id (history H21). Looked for twice: a KILL can
  -- hide a range.
  WHILE out_range IS NULL AND the_looks < 2 DO
    SET the_looks = the_looks + 1;
    SELECT r.id INTO out_range FROM queue_range r FORCE INDEX (queue_range_worker) JOIN queue_worker w ON w.id = r.worker_id
      WHERE r.worker_id = in_worker AND r.claim_no = in_claim AND r.conn_id = CONNECTION_ID()
        AND r.mark = in_number - 1000000000000000000
        AND IS_USED_LOCK(CONCAT('queue:', LOWER(HEX(w.instance)))) = CONNECTION_ID();
  END WHILE;
END
