-- Not for callers. Moves the mark of a range, which this transaction has locked, to in_to. At its end the range is gone.
CREATE PROCEDURE queue_pass(
  IN in_range BIGINT UNSIGNED,
  IN in_to    BIGINT UNSIGNED
)
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Used by queue_claim and queue_settle.'
BEGIN
  DECLARE the_passed MEDIUMTEXT CHARACTER SET utf8mb4 DEFAULT NULL;

  -- What transactions of handlers have acked before it. Key by key: a range of keys would wait for a row behind it.
  /*M! SET STATEMENT group_concat_max_len = 1048576 FOR */
  SELECT JSON_ARRAYAGG(offset_no) INTO the_passed FROM queue_passed WHERE range_id = in_range AND offset_no < in_to;
  IF the_passed IS NOT NULL THEN
    /*M! SET STATEMENT sql_safe_updates = 0 FOR */
    DELETE p FROM JSON_TABLE(the_passed, '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$')) k
      STRAIGHT_JOIN queue_passed p FORCE INDEX (PRIMARY) ON p.range_id = in_range AND p.offset_no = k.id;
  END IF;
  DELETE FROM queue_range WHERE id = in_range AND hi <= in_to;
  IF ROW_COUNT() = 0 THEN
    UPDATE queue_range SET mark = in_to, failures = 0, crashes = 0, history = NULL, ready_at = NULL WHERE id = in_range;
    CALL queue_refuse_killed(ROW_COUNT());
  END IF;
END
