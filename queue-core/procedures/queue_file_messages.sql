-- Not for callers. Copies messages of a stream's log into the topic of a group, as ready messages, in the transaction
-- that is open: the first in_limit that the group wants of the offsets from in_low up to in_high. out_end is
-- where it stopped, out_lost how many messages before that the log does not have any more. The group's cursor of the
-- partition is locked, or the range is held. in_all: whether it wants them does not matter.
-- in_range: a range that the group has claimed before, whose history its messages go on with; 0: none.
CREATE PROCEDURE queue_file_messages(
  IN  in_group     INT UNSIGNED,
  IN  in_stream    INT UNSIGNED,
  IN  in_partition INT UNSIGNED,
  IN  in_range     BIGINT UNSIGNED,
  IN  in_low       BIGINT UNSIGNED,
  IN  in_high      BIGINT UNSIGNED,
  IN  in_limit     INT,
  IN  in_all       BOOLEAN,
  OUT out_end      BIGINT UNSIGNED,
  OUT out_count    INT,
  OUT out_lost     BIGINT UNSIGNED
)
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Used by queue_claim and queue_settle.'
BEGIN
  DECLARE the_filter   MEDIUMTEXT CHARACTER SET utf8mb4 DEFAULT NULL;
  DECLARE the_last     BIGINT UNSIGNED DEFAULT NULL;
  DECLARE the_bad      BIGINT UNSIGNED DEFAULT NULL;
  DECLARE the_first    BIGINT UNSIGNED;
  DECLARE the_newer    BOOLEAN;
  DECLARE the_places   MEDIUMTEXT CHARACTER SET utf8mb4;
  DECLARE the_seen     BIGINT DEFAULT 0;
  DECLARE the_kept     BIGINT UNSIGNED;
  DECLARE the_hi       BIGINT UNSIGNED DEFAULT NULL;
  DECLARE the_looks    INT DEFAULT 0;
  DECLARE the_numbers  VARCHAR(255) CHARACTER SET utf8mb4 DEFAULT CONCAT('[', REPEAT('0,', 63), '0]');
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;

  SET out_end = in_high, out_count = 0;
  -- Its conditions: name, name=value,value or name!=value,value. MariaDB cuts off what it aggregates at group_concat_max_len.
  /*M! SET STATEMENT group_concat_max_len = 131072 FOR */
  SELECT JSON_ARRAYAGG(JSON_ARRAY(CONCAT('$.', JSON_QUOTE(IF(j.word LIKE '%=%', TRIM(TRAILING '!' FROM SUBSTRING_INDEX(j.word, '=', 1)), j.word))),
      IF(j.word LIKE '%=%', SUBSTR(j.word, LOCATE('=', j.word) + 1), NULL), SUBSTRING_INDEX(j.word, '=', 1) LIKE '%!')) INTO the_filter
    FROM queue_topic t JOIN JSON_TABLE(COALESCE(CONVERT(t.header_filter USING utf8mb4), '[]'), '$[*]'
      COLUMNS (word VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$')) j WHERE t.id = in_group AND NOT in_all;
  -- The row with the last message. Rows have up to 64 messages, and stand under the offset of their last.
  SELECT MIN(offset_no) INTO the_last FROM queue_log WHERE topic_id = in_stream AND partition_no = in_partition AND offset_no >= in_high - 1;
  SET the_last = COALESCE(the_last, in_high - 1);

  -- The first page that cannot be read (queue-core/src/model/page.rs). Looked for twice, as below: a KILL can hide all rows.
  WHILE the_seen = 0 AND the_looks < 2 DO
    SET the_looks = the_looks + 1;
    SELECT COUNT(*), MIN(CASE WHEN r.entries IS NOT NULL
      AND NOT COALESCE(HEX(LEFT(r.entries, 2)) = '0001' AND CONV(HEX(SUBSTRING(r.entries, 3, 2)), 16, 10) = r.messages
        AND LENGTH(r.entries) >= 16 + 52 * r.messages AND CONV(HEX(SUBSTRING(r.entries, 5, 4)), 16, 10) = LENGTH(r.body)
        AND CONV(HEX(SUBSTRING(r.entries, 13, 4)), 16, 10) = CRC32(CONCAT(LEFT(r.entries, 12), SUBSTRING(r.entries, 17)))
        AND CONV(HEX(SUBSTRING(r.entries, 9, 4)), 16, 10) = CRC32(r.body), FALSE) THEN r.offset_no END) INTO the_seen, the_bad
      FROM queue_log r FORCE INDEX (PRIMARY)
      WHERE r.topic_id = in_stream AND r.partition_no = in_partition AND r.offset_no BETWEEN in_low AND the_last;
  END WHILE;
  IF the_bad IS NOT NULL THEN
    SELECT r.offset_no + 1 - r.messages, HEX(LEFT(r.entries, 2)) > '0001' AND LENGTH(r.entries) >= 16
        AND CONV(HEX(SUBSTRING(r.entries, 13, 4)), 16, 10) = CRC32(CONCAT(LEFT(r.entries, 12), SUBSTRING(r.entries, 17)))
      INTO the_first, the_newer FROM queue_log r WHERE r.topic_id = in_stream AND r.partition_no = in_partition AND r.offset_no = the_bad;
    -- All of a damaged page is passed at once, but for what is beyond the range.
    SELECT hi INTO the_hi FROM queue_range WHERE id = in_range;
    SET out_end = IF(the_first > in_low, the_first, LEAST(the_bad + 1, COALESCE(the_hi, the_bad + 1)));
    IF the_first <= in_low AND the_newer THEN
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: the log of this stream has a page of a newer release; run rowmq migrate of that release', MYSQL_ERRNO = 31032;
    END IF;
  END IF;

  IF the_bad IS NOT NULL AND the_first <= in_low THEN
    -- A damaged page is one dead letter, with all of its bytes.
    INSERT INTO queue_dead (topic_id, priority, msg_id, delivery_no, failures, crashes, suspicions, enqueued_at, headers, body, cause, last_error, died_at)
      SELECT in_group, 5, r.msg_id, 1, 1, 0, 0, r.enqueued_at, '{"queue-damaged-page":"it was damaged when it was filed"}',
          CONCAT(r.entries, r.body), 'decode', 'the page of the log is damaged: a checksum does not match', UTC_TIMESTAMP(6)
        FROM queue_log r WHERE r.topic_id = in_stream AND r.partition_no = in_partition AND r.offset_no = the_bad;
    CALL queue_refuse_killed(ROW_COUNT());
    SET out_lost = out_end - in_low - 1;
  ELSE
    -- Which messages the group wants, each with the row that has it. Headers that are no JSON object count as one.
    SET the_looks = 0;
    WHILE out_count = 0 AND the_looks < 2 DO
      SET the_looks = the_looks + 1;
      /*M! SET STATEMENT group_concat_max_len = 131072 FOR */
      SELECT JSON_ARRAYAGG(JSON_ARRAY(w.at, w.row_no)), COUNT(*), IF(COUNT(*) = in_limit, MAX(w.at) + 1, out_end)
        INTO the_places, out_count, out_end
        FROM (SELECT o.at, o.row_no
            FROM (SELECT h.at, h.row_no, CASE WHEN LENGTH(h.headers) - LENGTH(REPLACE(REPLACE(h.headers, '[', ''), '{', '')) > 100 THEN JSON_OBJECT('malformed-headers', h.headers)
                  WHEN JSON_VALID(h.headers) AND JSON_TYPE(h.headers) = 'OBJECT' THEN h.headers
                  ELSE JSON_OBJECT('malformed-headers', h.headers) END AS headers
                FROM (SELECT b.at, b.row_no, IF(b.headers IS NULL, '{}', COALESCE(CONVERT(b.headers USING utf8mb4), 'no UTF-8')) AS headers
                    FROM (SELECT e.at, e.row_no, CASE WHEN the_filter IS NULL THEN NULL WHEN e.entries IS NULL THEN e.headers
                          WHEN CONV(HEX(SUBSTRING(e.entries, e.entry + 51, 1)), 16, 10) DIV 4 MOD 2 = 1 THEN SUBSTRING(e.entries,
                            1 + CONV(HEX(SUBSTRING(e.entries, e.entry + 40, 4)), 16, 10) + CONV(HEX(SUBSTRING(e.entries, e.entry + 48, 1)), 16, 10)
                            + CONV(HEX(SUBSTRING(e.entries, e.entry + 49, 1)), 16, 10), CONV(HEX(SUBSTRING(e.entries, e.entry + 44, 4)), 16, 10))
                          END AS headers
                        FROM (SELECT r.offset_no AS row_no, r.offset_no + k.nth - r.messages AS at, 17 + 52 * (k.nth - 1) AS entry, r.entries, r.headers
                          FROM queue_log r FORCE INDEX (PRIMARY)
                          STRAIGHT_JOIN JSON_TABLE(the_numbers, '$[*]' COLUMNS (nth FOR ORDINALITY)) k
                          WHERE r.topic_id = in_stream AND r.partition_no = in_partition AND r.offset_no BETWEEN in_low AND the_last
                            AND k.nth <= r.messages) e
                        WHERE e.at >= in_low AND e.at < out_end
                          AND NOT EXISTS (SELECT 1 FROM queue_passed p WHERE p.range_id = in_range AND p.offset_no = e.at)) b) h) o
            WHERE the_filter IS NULL OR NOT EXISTS (
              SELECT 1 FROM JSON_TABLE(the_filter, '$[*]' COLUMNS (path VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[0]',
                list VARCHAR(4096) CHARACTER SET utf8mb4 PATH '$[1]', is_not INT PATH '$[2]')) c
              WHERE CASE WHEN JSON_EXTRACT(o.headers, c.path) IS NULL THEN TRUE WHEN c.list IS NULL THEN FALSE
                ELSE (FIND_IN_SET(CAST(JSON_UNQUOTE(JSON_EXTRACT(o.headers, c.path)) AS BINARY), CAST(c.list AS BINARY)) > 0) = c.is_not END)
            ORDER BY o.at LIMIT in_limit) w;
    END WHILE;
    -- Whatever is missing must have been removed: a KILL can hide rows.
    SELECT COALESCE(SUM(LEAST(r.offset_no + 1, out_end) - GREATEST(r.offset_no + 1 - r.messages, in_low)), 0) INTO the_seen
      FROM queue_log r FORCE INDEX (PRIMARY)
      WHERE r.topic_id = in_stream AND r.partition_no = in_partition AND r.offset_no BETWEEN in_low AND the_last AND r.offset_no + 1 - r.messages < out_end;
    SELECT first_offset INTO the_kept FROM queue_partition WHERE topic_id = in_stream AND partition_no = in_partition;
    SET out_lost = out_end - in_low - the_seen;
    CALL queue_refuse_killed(the_seen >= CAST(out_end AS SIGNED) - CAST(LEAST(GREATEST(in_low, the_kept), out_end) AS SIGNED));
  END IF;

  IF out_count > 0 THEN
    INSERT INTO queue_message (topic_id, priority, delivery_no, failures, crashes, suspicions, history,
        msg_id, enqueued_at, expires_at, ordering_key, biz_id, headers, body)
      SELECT in_group, IF(COALESCE(x.suspicions, 0) >= 2, 105, 5), COALESCE(x.delivery_no, 0), IF(x.mark = m.at, x.failures, 0),
          IF(x.mark = m.at, x.crashes, 0), COALESCE(x.suspicions, 0), IF(x.mark = m.at, x.history, NULL),
          IF(m.entries IS NULL, m.msg_id, SUBSTRING(m.entries, m.entry, 16)),
          IF(m.entries IS NULL, m.enqueued_at, m.enqueued_at + INTERVAL LEAST(m.after_us, 6324480000000000) MICROSECOND),
          CASE WHEN m.entries IS NULL THEN m.expires_at
            WHEN m.flags DIV 8 MOD 2 = 1 THEN m.enqueued_at + INTERVAL LEAST(m.expiry_us, 6324480000000000) MICROSECOND
            WHEN m.flags DIV 16 MOD 2 = 1 THEN TIMESTAMP('1970-01-01') + INTERVAL LEAST(m.expiry_us, 6324480000000000) MICROSECOND END,
          IF(m.entries IS NULL, m.ordering_key, IF(m.flags MOD 2 = 1, SUBSTRING(m.entries, m.tail, m.key_bytes), NULL)),
          IF(m.entries IS NULL, m.biz_id, IF(m.flags DIV 2 MOD 2 = 1, SUBSTRING(m.entries, m.tail + m.key_bytes, m.biz_bytes), NULL)),
          IF(m.entries IS NULL, m.headers, IF(m.flags DIV 4 MOD 2 = 1, SUBSTRING(m.entries, m.tail + m.key_bytes + m.biz_bytes, m.header_bytes), NULL)),
          IF(m.entries IS NULL, m.body, SUBSTRING(m.body, m.body_at, m.body_bytes))
        FROM (SELECT e.*, CAST(CONV(HEX(SUBSTRING(e.entries, e.entry + 16, 8)), 16, 10) AS UNSIGNED) AS after_us,
              CAST(CONV(HEX(SUBSTRING(e.entries, e.entry + 24, 8)), 16, 10) AS UNSIGNED) AS expiry_us,
              1 + CONV(HEX(SUBSTRING(e.entries, e.entry + 32, 4)), 16, 10) AS body_at,
              CONV(HEX(SUBSTRING(e.entries, e.entry + 36, 4)), 16, 10) AS body_bytes,
              1 + CONV(HEX(SUBSTRING(e.entries, e.entry + 40, 4)), 16, 10) AS tail,
              CONV(HEX(SUBSTRING(e.entries, e.entry + 44, 4)), 16, 10) AS header_bytes,
              CONV(HEX(SUBSTRING(e.entries, e.entry + 48, 1)), 16, 10) AS key_bytes,
              CONV(HEX(SUBSTRING(e.entries, e.entry + 49, 1)), 16, 10) AS biz_bytes,
              CONV(HEX(SUBSTRING(e.entries, e.entry + 51, 1)), 16, 10) AS flags
            FROM (SELECT k.at, 17 + 52 * (k.at + r.messages - r.offset_no - 1) AS entry, r.entries, r.msg_id, r.enqueued_at,
                r.expires_at, r.ordering_key, r.biz_id, r.headers, r.body
              FROM JSON_TABLE(the_places, '$[*]' COLUMNS (at BIGINT UNSIGNED PATH '$[0]', row_no BIGINT UNSIGNED PATH '$[1]')) k
              STRAIGHT_JOIN queue_log r FORCE INDEX (PRIMARY) ON r.topic_id = in_stream AND r.partition_no = in_partition AND r.offset_no = k.row_no) e) m
        LEFT JOIN queue_range x ON x.id = in_range
        ORDER BY m.at;
    -- Fewer: retention has just removed some. The caller finds nothing, and looks again.
    SET the_seen = ROW_COUNT();
    IF the_seen <> out_count AND in_all THEN
      SET out_count = 0, out_lost = 1;
    ELSEIF the_seen <> out_count THEN
      SIGNAL SQLSTATE '40001' SET MESSAGE_TEXT = 'queue: retention has removed what was to be claimed', MYSQL_ERRNO = 1213;
    END IF;
  END IF;
END
