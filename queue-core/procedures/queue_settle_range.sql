-- Not for callers. Settles a delivery of an ordered group that this session holds, in the transaction that is open.
CREATE PROCEDURE queue_settle_range(
  IN  in_worker   BIGINT UNSIGNED,
  IN  in_claim    BIGINT UNSIGNED,
  IN  in_delivery BIGINT UNSIGNED,
  IN  in_verdict  VARBINARY(16),
  IN  in_reason   LONGTEXT CHARACTER SET utf8mb4,
  IN  in_delay_us BIGINT UNSIGNED,
  IN  in_once     BOOLEAN,
  OUT out_verdict VARCHAR(16)
)
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Used by queue_settle.'
BEGIN
  DECLARE the_range BIGINT UNSIGNED DEFAULT NULL;
  DECLARE the_looks INT DEFAULT 0;
  DECLARE the_text  VARCHAR(128) CHARACTER SET latin1;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET the_range = NULL;

  -- The session that claimed, and not a later one that was given the same id (history H21). Looked for twice: a KILL can
  -- hide a range.
  WHILE the_range IS NULL AND the_looks < 2 DO
    SET the_looks = the_looks + 1;
    SELECT r.id INTO the_range FROM queue_range r FORCE INDEX (queue_range_worker) JOIN queue_worker w ON w.id = r.worker_id
      WHERE r.worker_id = in_worker AND r.claim_no = in_claim AND r.conn_id = CONNECTION_ID()
        AND r.mark = in_delivery - 1000000000000000000
        AND IS_USED_LOCK(CONCAT('queue:', LOWER(HEX(w.instance)))) = CONNECTION_ID();
  END WHILE;
  IF the_range IS NOT NULL THEN
    -- A reset or a rescue may have had it since.
    SELECT id INTO the_range FROM queue_range WHERE id = the_range AND worker_id = in_worker AND claim_no = in_claim FOR UPDATE;
  END IF;
  IF the_range IS NULL THEN
    SET the_text = LEFT(CONCAT('queue: this session does not hold ', CONCAT_WS('.', in_worker, in_claim, in_delivery), ' any more: ROLLBACK, it is done or another consumer has it'), 128);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = the_text, MYSQL_ERRNO = 31015;
  END IF;
  CALL queue_end_range(the_range, in_verdict, in_reason, in_delay_us, in_once, out_verdict);
END
