-- Not for callers. Gives the first messages of a stream's inbox their offsets, as queue-core/src/stream/sequence.rs,
-- in a transaction of its own. It leaves out the partitions that
-- another session has locked: out_blocked.
CREATE PROCEDURE queue_sequence(
  IN  in_stream   INT UNSIGNED,
  OUT out_blocked BOOLEAN
)
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Used by queue_claim.'
BEGIN
  DECLARE the_waiting    BIGINT UNSIGNED DEFAULT NULL;
  DECLARE the_partitions INT DEFAULT 0;
  DECLARE the_locked     TEXT CHARACTER SET utf8mb4 DEFAULT NULL;
  DECLARE the_count      INT DEFAULT 0;
  DECLARE the_rows       MEDIUMTEXT CHARACTER SET utf8mb4;
  DECLARE EXIT HANDLER FOR 1205, 1213
  BEGIN
    ROLLBACK AND NO CHAIN NO RELEASE;
    SET out_blocked = TRUE;
  END;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION
  BEGIN
    ROLLBACK AND NO CHAIN NO RELEASE;
    RESIGNAL;
  END;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;

  SET out_blocked = FALSE;
  SELECT id INTO the_waiting FROM queue_message FORCE INDEX (PRIMARY) WHERE topic_id = in_stream
    ORDER BY topic_id, priority, id LIMIT 1;
  IF the_waiting IS NOT NULL THEN
    SELECT partitions INTO the_partitions FROM queue_topic WHERE id = in_stream;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    SAVEPOINT queue_own;
    -- The partitions before the inbox is read: so offsets follow the order of commits.
    /*M! SET STATEMENT group_concat_max_len = 131072 FOR */
    SELECT JSON_ARRAYAGG(p.partition_no), COUNT(*) < the_partitions INTO the_locked, out_blocked
      FROM (SELECT partition_no FROM queue_partition WHERE topic_id = in_stream FOR UPDATE SKIP LOCKED) p;
    IF the_locked IS NOT NULL THEN
      -- One plain SELECT: if a later message of a connection is in it, so is an earlier one (history H14). At most
      -- 16 MiB: larger transactions hold up replication. MariaDB cuts off what it aggregates at group_concat_max_len.
      /*M! SET STATEMENT group_concat_max_len = 131072 FOR */
      SELECT JSON_ARRAYAGG(JSON_ARRAY(m.priority, m.id, m.partition_no, m.place)), COUNT(*) INTO the_rows, the_count
        FROM (SELECT w.priority, w.id, w.partition_no, w.nth, w.bytes,
              ROW_NUMBER() OVER (PARTITION BY w.partition_no ORDER BY w.nth) - 1 AS place
            FROM (SELECT i.priority, i.id, i.partition_no, ROW_NUMBER() OVER (ORDER BY i.priority, i.id) AS nth,
                  SUM(i.bytes) OVER (ORDER BY i.priority, i.id) AS bytes
                FROM (SELECT priority, id, COALESCE(CRC32(ordering_key), id) MOD the_partitions AS partition_no, LENGTH(body) AS bytes
                    FROM queue_message FORCE INDEX (PRIMARY) WHERE topic_id = in_stream
                    ORDER BY topic_id, priority, id LIMIT 1000) i
                  JOIN JSON_TABLE(the_locked, '$[*]' COLUMNS (no INT UNSIGNED PATH '$')) l ON l.no = i.partition_no) w) m
        WHERE m.nth = 1 OR m.bytes <= 16777216;
    END IF;
    IF the_count > 0 THEN
      INSERT INTO queue_log (topic_id, partition_no, offset_no, msg_id, enqueued_at, sequenced_at, expires_at, ordering_key, biz_id, headers, body)
        SELECT in_stream, k.partition_no, p.next_offset + k.place, m.msg_id, m.enqueued_at, UTC_TIMESTAMP(6), m.expires_at,
            m.ordering_key, m.biz_id, m.headers, m.body
          FROM JSON_TABLE(the_rows, '$[*]' COLUMNS (priority TINYINT UNSIGNED PATH '$[0]', id BIGINT UNSIGNED PATH '$[1]',
            partition_no INT UNSIGNED PATH '$[2]', place INT UNSIGNED PATH '$[3]')) k
          STRAIGHT_JOIN queue_message m FORCE INDEX (PRIMARY) ON m.topic_id = in_stream AND m.priority = k.priority AND m.id = k.id
          STRAIGHT_JOIN queue_partition p ON p.topic_id = in_stream AND p.partition_no = k.partition_no;
      IF ROW_COUNT() <> the_count THEN
        SIGNAL SQLSTATE '40001' SET MESSAGE_TEXT = 'queue: a message of the inbox was purged just now', MYSQL_ERRNO = 1213;
      END IF;
      /*M! SET STATEMENT sql_safe_updates = 0 FOR */
      UPDATE (SELECT k.partition_no, COUNT(*) AS n
          FROM JSON_TABLE(the_rows, '$[*]' COLUMNS (partition_no INT UNSIGNED PATH '$[2]')) k GROUP BY k.partition_no) c
        STRAIGHT_JOIN queue_partition p ON p.topic_id = in_stream AND p.partition_no = c.partition_no
        SET p.next_offset = p.next_offset + c.n;
      CALL queue_refuse_killed(ROW_COUNT());
      /*M! SET STATEMENT sql_safe_updates = 0 FOR */
      DELETE m FROM JSON_TABLE(the_rows, '$[*]' COLUMNS (priority TINYINT UNSIGNED PATH '$[0]', id BIGINT UNSIGNED PATH '$[1]')) k
        STRAIGHT_JOIN queue_message m FORCE INDEX (PRIMARY) ON m.topic_id = in_stream AND m.priority = k.priority AND m.id = k.id;
      IF ROW_COUNT() <> the_count THEN
        SIGNAL SQLSTATE '40001' SET MESSAGE_TEXT = 'queue: a message of the inbox was purged just now', MYSQL_ERRNO = 1213;
      END IF;
    END IF;
    COMMIT AND NO CHAIN NO RELEASE;
  END IF;
END
