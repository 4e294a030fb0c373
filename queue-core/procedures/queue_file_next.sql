-- Not for callers. Files the next messages of its stream in the topic of an unordered group, in a transaction of its own: they are
-- ready there, and claimed, retried and rescued as those of a queue. First those of ranges that were given back, or
-- whose owner died; in_suspects: also of ranges whose messages are handled alone. out_blocked: another session has
-- just had the lock of a partition.
CREATE PROCEDURE queue_file_next(
  IN  in_group    INT UNSIGNED,
  IN  in_stream   INT UNSIGNED,
  IN  in_limit    INT,
  IN  in_suspects BOOLEAN,
  OUT out_count   INT,
  OUT out_blocked BOOLEAN
)
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Used by queue_claim.'
BEGIN
  DECLARE the_partition INT UNSIGNED;
  DECLARE the_tried     TEXT CHARACTER SET latin1 DEFAULT '';
  DECLARE the_looks     INT DEFAULT 0;
  DECLARE the_cursor    BIGINT UNSIGNED;
  DECLARE the_range     BIGINT UNSIGNED;
  DECLARE the_low       BIGINT UNSIGNED;
  DECLARE the_high      BIGINT UNSIGNED;
  DECLARE the_first     BIGINT UNSIGNED;
  DECLARE the_next      BIGINT UNSIGNED;
  DECLARE the_end       BIGINT UNSIGNED;
  DECLARE the_lost      BIGINT UNSIGNED;
  DECLARE the_width     INT;
  DECLARE EXIT HANDLER FOR 1205, 1213
  BEGIN
    ROLLBACK AND NO CHAIN NO RELEASE;
    SET out_count = 0, out_blocked = TRUE;
  END;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION
  BEGIN
    ROLLBACK AND NO CHAIN NO RELEASE;
    RESIGNAL;
  END;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;

  -- With a filter a look reads up to a thousand messages, and the session has the next one after eight that found none.
  SELECT IF(header_filter IS NULL, in_limit, 1000) INTO the_width FROM queue_topic WHERE id = in_group;
  SET out_count = 0, out_blocked = FALSE;
  the_looks: WHILE out_count = 0 AND the_looks < 8 DO
    SET the_looks = the_looks + 1, the_partition = NULL, the_cursor = NULL, the_range = NULL;
    SELECT c.partition_no INTO the_partition
      FROM queue_cursor c JOIN queue_partition p ON p.topic_id = in_stream AND p.partition_no = c.partition_no
      WHERE c.group_id = in_group AND NOT FIND_IN_SET(c.partition_no, the_tried)
        AND (p.next_offset > c.next_offset OR EXISTS (SELECT 1 FROM queue_range r FORCE INDEX (queue_range_place)
          WHERE r.group_id = c.group_id AND r.partition_no = c.partition_no AND r.worker_id = 0
            AND (r.ready_at IS NULL OR r.ready_at <= UTC_TIMESTAMP(6)) AND (r.suspicions < 2 OR in_suspects)))
      ORDER BY RAND() LIMIT 1;
    IF the_partition IS NULL THEN
      LEAVE the_looks;
    END IF;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    SAVEPOINT queue_own;
    -- A session that claims of the partition, or resets the group, has this lock.
    SELECT next_offset INTO the_cursor FROM queue_cursor WHERE group_id = in_group AND partition_no = the_partition FOR UPDATE SKIP LOCKED;
    IF the_cursor IS NULL THEN
      ROLLBACK AND NO CHAIN NO RELEASE;
      SET the_tried = CONCAT_WS(',', NULLIF(the_tried, ''), the_partition), out_blocked = TRUE;
      ITERATE the_looks;
    END IF;
    SELECT r.id, r.mark, r.hi INTO the_range, the_low, the_high FROM queue_range r FORCE INDEX (queue_range_place)
      WHERE r.group_id = in_group AND r.partition_no = the_partition AND r.worker_id = 0
        AND (r.ready_at IS NULL OR r.ready_at <= UTC_TIMESTAMP(6)) AND (r.suspicions < 2 OR in_suspects)
      ORDER BY r.mark LIMIT 1 FOR UPDATE SKIP LOCKED;
    SELECT next_offset, first_offset INTO the_next, the_first FROM queue_partition WHERE topic_id = in_stream AND partition_no = the_partition;
    IF the_range IS NULL THEN
      SET the_low = the_cursor, the_high = the_next;
    END IF;
    -- What retention has removed before the group came to it is passed, however much it is.
    SET the_high = LEAST(the_high, GREATEST(the_low, the_first) + the_width);
    IF the_high > the_low THEN
      CALL queue_file_messages(in_group, in_stream, the_partition, COALESCE(the_range, 0), the_low, the_high, in_limit, FALSE, the_end, out_count, the_lost);
      IF the_range IS NULL THEN
        UPDATE queue_cursor SET next_offset = the_end, lost = lost + the_lost WHERE group_id = in_group AND partition_no = the_partition;
        CALL queue_refuse_killed(ROW_COUNT());
      ELSE
        CALL queue_pass(the_range, the_end);
        IF the_lost > 0 THEN
          UPDATE queue_cursor SET lost = lost + the_lost WHERE group_id = in_group AND partition_no = the_partition;
        END IF;
      END IF;
    END IF;
    COMMIT AND NO CHAIN NO RELEASE;
  END WHILE the_looks;
END
