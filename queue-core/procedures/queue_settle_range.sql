-- Not for callers. Settles a delivery of an ordered group that this session holds, in the transaction that is open.
CREATE PROCEDURE queue_settle_range(
  IN  in_worker   BIGINT UNSIGNED,
  IN  in_claim    BIGINT UNSIGNED,
  IN  in_number   BIGINT UNSIGNED,
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
  DECLARE the_range BIGINT UNSIGNED;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET the_range = NULL;

  CALL queue_own_range(in_worker, in_claim, in_number, the_range);
  IF the_range IS NOT NULL THEN
    -- A reset or a rescue may have had it since.
    SELECT id INTO the_range FROM queue_range WHERE id = the_range AND worker_id = in_worker AND claim_no = in_claim FOR UPDATE;
  END IF;
  IF the_range IS NULL THEN
    CALL queue_refuse_delivery(CONCAT_WS('.', in_worker, in_claim, in_number));
  END IF;
  CALL queue_end_range(the_range, in_verdict, in_reason, in_delay_us, in_once, out_verdict);
END
