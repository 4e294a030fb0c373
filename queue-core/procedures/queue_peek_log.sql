-- Not for callers. What identifies the message at the mark of a range (queue-core/src/model/page.rs). out_group is NULL if the log
-- does not have it any more.
CREATE PROCEDURE queue_peek_log(
  IN  in_range        BIGINT UNSIGNED,
  OUT out_group       INT UNSIGNED,
  OUT out_msg_id      BINARY(16),
  OUT out_enqueued_at DATETIME(6),
  OUT out_biz_id      VARBINARY(255)
)
  READS SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Used by the calls of consumers.'
BEGIN
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;

  SET out_group = NULL, out_biz_id = NULL;
  SELECT e.group_id, IF(e.entries IS NULL, e.msg_id, SUBSTRING(e.entries, e.entry, 16)),
      IF(e.entries IS NULL, e.enqueued_at, e.enqueued_at + INTERVAL CAST(CONV(HEX(SUBSTRING(e.entries, e.entry + 16, 8)), 16, 10) AS UNSIGNED) MICROSECOND),
      IF(e.entries IS NULL, e.biz_id, SUBSTRING(e.entries, 1 + CONV(HEX(SUBSTRING(e.entries, e.entry + 40, 4)), 16, 10)
        + CONV(HEX(SUBSTRING(e.entries, e.entry + 48, 1)), 16, 10), CONV(HEX(SUBSTRING(e.entries, e.entry + 49, 1)), 16, 10)))
    INTO out_group, out_msg_id, out_enqueued_at, out_biz_id
    FROM (SELECT r.group_id, l.msg_id, l.enqueued_at, l.biz_id, l.entries, 17 + 52 * (r.mark + l.messages - l.offset_no - 1) AS entry
      FROM queue_range r STRAIGHT_JOIN queue_topic t ON t.id = r.group_id
      STRAIGHT_JOIN queue_log l FORCE INDEX (PRIMARY) ON l.topic_id = t.stream_id AND l.partition_no = r.partition_no
        AND l.offset_no = (SELECT MIN(x.offset_no) FROM queue_log x WHERE x.topic_id = t.stream_id AND x.partition_no = r.partition_no AND x.offset_no >= r.mark)
      WHERE r.id = in_range AND r.mark + l.messages > l.offset_no) e;
END
