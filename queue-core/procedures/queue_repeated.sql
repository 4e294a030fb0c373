-- Not for callers. Whether the ledger has the biz id of a delivery's message: another message with it has been acked.
CREATE PROCEDURE queue_repeated(
  IN  in_worker   BIGINT UNSIGNED,
  IN  in_claim    BIGINT UNSIGNED,
  IN  in_row      BIGINT UNSIGNED,
  OUT out_repeated BOOLEAN
)
  READS SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Used by queue_settle.'
BEGIN
  DECLARE the_topic  INT UNSIGNED DEFAULT NULL;
  DECLARE the_biz_id VARBINARY(255) DEFAULT NULL;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;

  SET out_repeated = FALSE;
  IF in_row < 1000000000000000000 THEN
    SELECT m.topic_id, m.biz_id INTO the_topic, the_biz_id
      FROM queue_claim c JOIN queue_message m FORCE INDEX (PRIMARY) ON m.topic_id = c.topic_id AND m.priority = c.priority AND m.id = in_row
      WHERE c.worker_id = in_worker AND c.claim_no = in_claim;
  ELSE
    -- Of an ordered group: its message is in the log (queue-core/src/model/page.rs).
    SELECT e.group_id, IF(e.entries IS NULL, e.biz_id, SUBSTRING(e.entries, 1 + CONV(HEX(SUBSTRING(e.entries, e.entry + 40, 4)), 16, 10)
          + CONV(HEX(SUBSTRING(e.entries, e.entry + 48, 1)), 16, 10), CONV(HEX(SUBSTRING(e.entries, e.entry + 49, 1)), 16, 10)))
      INTO the_topic, the_biz_id
      FROM (SELECT r.group_id, l.biz_id, l.entries, 17 + 52 * (r.mark + l.messages - l.offset_no - 1) AS entry
        FROM queue_range r FORCE INDEX (queue_range_worker) STRAIGHT_JOIN queue_topic t ON t.id = r.group_id
        STRAIGHT_JOIN queue_log l FORCE INDEX (PRIMARY) ON l.topic_id = t.stream_id AND l.partition_no = r.partition_no
          AND l.offset_no = (SELECT MIN(x.offset_no) FROM queue_log x WHERE x.topic_id = t.stream_id AND x.partition_no = r.partition_no AND x.offset_no >= r.mark)
        WHERE r.worker_id = in_worker AND r.claim_no = in_claim AND r.mark + l.messages > l.offset_no) e;
  END IF;
  SELECT TRUE INTO out_repeated FROM queue_ledger
    WHERE topic_id = the_topic AND group_id = 0 AND biz_id = the_biz_id AND keep_until >= UTC_TIMESTAMP(6);
END
