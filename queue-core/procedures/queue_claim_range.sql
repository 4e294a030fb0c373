-- Not for callers. Claims the next message of one partition of an ordered group, as a range of one offset, in a transaction of its
-- own: nothing of the partition is claimed while it is held, or waits for its retry. in_alone: the session holds
-- nothing, so it may claim a message that is handled alone. out_range is NULL if nothing was claimed; out_blocked
-- says that another session has just had the lock of a partition.
CREATE PROCEDURE queue_claim_range(
  IN  in_group    INT UNSIGNED,
  IN  in_stream   INT UNSIGNED,
  IN  in_worker   BIGINT UNSIGNED,
  IN  in_alone    BOOLEAN,
  OUT out_claim   BIGINT UNSIGNED,
  OUT out_range   BIGINT UNSIGNED,
  OUT out_blocked BOOLEAN
)
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Used by queue_claim.'
BEGIN
  DECLARE the_partition INT UNSIGNED;
  DECLARE the_tried     TEXT CHARACTER SET latin1 DEFAULT '';
  DECLARE the_rounds    INT DEFAULT 0;
  DECLARE the_looks     INT;
  DECLARE the_unsaid    VARCHAR(64) CHARACTER SET latin1 DEFAULT '';
  DECLARE the_window    BIGINT UNSIGNED;
  DECLARE the_trace     INT UNSIGNED;
  DECLARE the_width     INT;
  DECLARE the_cursor    BIGINT UNSIGNED;
  DECLARE the_free      BOOLEAN;
  DECLARE the_range     BIGINT UNSIGNED;
  DECLARE the_low       BIGINT UNSIGNED;
  DECLARE the_high      BIGINT UNSIGNED;
  DECLARE the_first     BIGINT UNSIGNED;
  DECLARE the_end       BIGINT UNSIGNED;
  DECLARE the_count     INT;
  DECLARE the_lost      BIGINT UNSIGNED;
  DECLARE the_rest      BIGINT UNSIGNED;
  DECLARE the_passed    MEDIUMTEXT CHARACTER SET utf8mb4;
  DECLARE the_next      BIGINT UNSIGNED;
  DECLARE the_row       BIGINT UNSIGNED;
  DECLARE the_fate      VARCHAR(16);
  DECLARE EXIT HANDLER FOR 1205, 1213
  BEGIN
    ROLLBACK AND NO CHAIN NO RELEASE;
    SET @queue_unsaid = REPLACE(CONVERT(@queue_unsaid USING latin1), the_unsaid, '');
    SET out_range = NULL, out_blocked = TRUE;
  END;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION
  BEGIN
    ROLLBACK AND NO CHAIN NO RELEASE;
    SET @queue_unsaid = REPLACE(CONVERT(@queue_unsaid USING latin1), the_unsaid, '');
    RESIGNAL;
  END;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;

  SELECT ledger_window_ms, trace_ppm, IF(header_filter IS NULL, 1, 1000) INTO the_window, the_trace, the_width FROM queue_topic WHERE id = in_group;
  SET out_range = NULL, out_blocked = FALSE;
  the_rounds: WHILE out_range IS NULL AND the_rounds < 20 DO
    SET the_rounds = the_rounds + 1, the_partition = NULL, the_cursor = NULL, the_range = NULL, the_free = NULL, the_looks = 0, the_fate = NULL;
    -- Its lowest range must be free and due; without any, the next message of the log is claimed.
    SELECT c.partition_no INTO the_partition
      FROM queue_cursor c JOIN queue_partition p ON p.topic_id = in_stream AND p.partition_no = c.partition_no
      WHERE c.group_id = in_group AND NOT FIND_IN_SET(c.partition_no, the_tried)
        AND NOT EXISTS (SELECT 1 FROM queue_range r FORCE INDEX (queue_range_place)
          WHERE r.group_id = c.group_id AND r.partition_no = c.partition_no AND r.worker_id <> 0)
        AND COALESCE((SELECT COALESCE(r.ready_at <= UTC_TIMESTAMP(6), TRUE) AND (r.suspicions < 2 OR in_alone)
          FROM queue_range r FORCE INDEX (queue_range_place) WHERE r.group_id = c.group_id AND r.partition_no = c.partition_no
          ORDER BY r.mark LIMIT 1), p.next_offset > c.next_offset)
      ORDER BY RAND() LIMIT 1;
    IF the_partition IS NULL THEN
      LEAVE the_rounds;
    END IF;
    SET the_tried = CONCAT_WS(',', NULLIF(the_tried, ''), the_partition);
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    SAVEPOINT queue_own;
    -- As in queue_claim_once: from here to the commit the worker's death cannot be decided.
    UPDATE queue_worker SET beat_no = beat_no + 1, beat_at = UTC_TIMESTAMP(6) WHERE id = in_worker AND state = 'alive';
    CALL queue_refuse_killed(ROW_COUNT());
    SELECT beat_no INTO out_claim FROM queue_worker WHERE id = in_worker;
    SELECT next_offset INTO the_cursor FROM queue_cursor WHERE group_id = in_group AND partition_no = the_partition FOR UPDATE SKIP LOCKED;
    IF the_cursor IS NULL THEN
      ROLLBACK AND NO CHAIN NO RELEASE;
      SET out_blocked = TRUE;
      ITERATE the_rounds;
    END IF;
    -- Looked for twice: a KILL can hide a range, and what follows it would be claimed before it.
    WHILE the_range IS NULL AND the_looks < 2 DO
      SET the_looks = the_looks + 1;
      SELECT r.id, r.mark, r.hi, COALESCE(r.ready_at <= UTC_TIMESTAMP(6), TRUE) AND (r.suspicions < 2 OR in_alone)
          AND NOT EXISTS (SELECT 1 FROM queue_range o FORCE INDEX (queue_range_place)
            WHERE o.group_id = in_group AND o.partition_no = the_partition AND o.worker_id <> 0)
        INTO the_range, the_low, the_high, the_free
        FROM queue_range r FORCE INDEX (queue_range_place) WHERE r.group_id = in_group AND r.partition_no = the_partition
        ORDER BY r.mark LIMIT 1;
    END WHILE;
    IF NOT the_free THEN
      ROLLBACK AND NO CHAIN NO RELEASE;
      ITERATE the_rounds;
    END IF;
    SELECT next_offset, first_offset INTO the_next, the_first FROM queue_partition WHERE topic_id = in_stream AND partition_no = the_partition;
    IF the_range IS NULL THEN
      SET the_low = the_cursor, the_high = the_next;
    END IF;
    -- What retention has removed before the group came to it is passed, however much it is.
    SET the_end = LEAST(the_high, GREATEST(the_low, the_first) + the_width);
    IF the_end <= the_low THEN
      ROLLBACK AND NO CHAIN NO RELEASE;
      ITERATE the_rounds;
    END IF;
    CALL queue_file_messages(in_group, in_stream, the_partition, COALESCE(the_range, 0), the_low, the_end, 1, FALSE, the_end, the_count, the_lost);
    SET the_row = LAST_INSERT_ID();
    UPDATE queue_cursor SET next_offset = IF(the_range IS NULL, the_end, next_offset), lost = lost + the_lost
      WHERE group_id = in_group AND partition_no = the_partition;
    CALL queue_refuse_killed(the_range IS NOT NULL OR ROW_COUNT() = 1);
    IF the_range IS NOT NULL AND the_count = 0 THEN
      CALL queue_pass(the_range, the_end);
    ELSEIF the_range IS NOT NULL THEN
      IF the_end - 1 > the_low THEN
        CALL queue_pass(the_range, the_end - 1);
      END IF;
      IF the_end < the_high THEN
        -- The rest stays free, with what transactions have acked of it.
        INSERT INTO queue_range (group_id, partition_no, mark, hi, delivery_no, suspicions)
          SELECT group_id, partition_no, the_end, hi, delivery_no, suspicions FROM queue_range WHERE id = the_range;
        SET the_rest = LAST_INSERT_ID();
        SET the_passed = NULL, the_looks = 0;
        WHILE the_passed IS NULL AND the_looks < 2 DO
          SET the_looks = the_looks + 1;
          /*M! SET STATEMENT group_concat_max_len = 1048576 FOR */
          SELECT JSON_ARRAYAGG(offset_no) INTO the_passed FROM queue_passed WHERE range_id = the_range AND offset_no >= the_end;
        END WHILE;
        IF the_passed IS NOT NULL THEN
          /*M! SET STATEMENT sql_safe_updates = 0 FOR */
          UPDATE JSON_TABLE(the_passed, '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$')) k
            STRAIGHT_JOIN queue_passed p FORCE INDEX (PRIMARY) ON p.range_id = the_range AND p.offset_no = k.id SET p.range_id = the_rest;
        END IF;
      END IF;
      UPDATE queue_range SET hi = the_end, worker_id = in_worker, claim_no = out_claim, conn_id = CONNECTION_ID(),
          delivery_no = delivery_no + 1, ready_at = NULL, claimed_at = UTC_TIMESTAMP(6)
        WHERE id = the_range AND worker_id = 0;
      CALL queue_refuse_killed(ROW_COUNT());
    ELSEIF the_count = 1 THEN
      INSERT INTO queue_range (group_id, partition_no, mark, hi, worker_id, claim_no, conn_id, delivery_no, claimed_at)
        VALUES (in_group, the_partition, the_end - 1, the_end, in_worker, out_claim, CONNECTION_ID(), 1, UTC_TIMESTAMP(6));
      SET the_range = LAST_INSERT_ID();
    END IF;
    IF the_count = 1 THEN
      SELECT CASE WHEN m.expires_at <= UTC_TIMESTAMP(6) THEN 'discard' WHEN the_window IS NOT NULL AND EXISTS (SELECT 1 FROM queue_ledger l
          WHERE l.topic_id = in_group AND l.group_id = 0 AND l.biz_id = m.biz_id AND l.keep_until >= UTC_TIMESTAMP(6)) THEN 'repeated' END
        INTO the_fate FROM queue_message m FORCE INDEX (queue_message_id) WHERE m.id = the_row;
      IF the_trace > 0 THEN
        INSERT INTO queue_trace (topic_id, msg_id, event, at, delivery_no, worker_id, conn_id, client)
          SELECT m.topic_id, m.msg_id, 'claimed', UTC_TIMESTAMP(6), m.delivery_no + 1, in_worker, CONNECTION_ID(), LEFT(USER(), 255)
          FROM queue_message m FORCE INDEX (queue_message_id) WHERE m.id = the_row AND CRC32(m.msg_id) MOD 1000000 < the_trace;
      END IF;
      DELETE m FROM queue_message m FORCE INDEX (queue_message_id) WHERE m.id = the_row;
      CALL queue_refuse_killed(ROW_COUNT());
      IF the_fate IS NULL THEN
        SET out_range = the_range, the_unsaid = CONCAT('<', in_group, ':', in_worker, '.', out_claim, '>');
        SET @queue_unsaid = CONCAT(COALESCE(CONVERT(@queue_unsaid USING latin1), ''), the_unsaid);
      ELSE
        CALL queue_end_range(the_range, the_fate, 'it had expired before its handler could begin', NULL, FALSE, the_fate);
      END IF;
    END IF;
    COMMIT AND NO CHAIN NO RELEASE;
    IF the_count = 0 OR the_fate IS NOT NULL THEN
      -- Passed: what follows it is next.
      SET the_tried = '';
    END IF;
  END WHILE the_rounds;
END
