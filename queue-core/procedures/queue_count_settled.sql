-- Not for callers. Adds messages that a worker has settled to the throughput of its topic.
CREATE PROCEDURE queue_count_settled(
  IN in_worker BIGINT UNSIGNED,
  IN in_topic  INT UNSIGNED,
  IN in_done   INT,
  IN in_failed INT
)
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Used by queue_claim and queue_settle.'
BEGIN
  DECLARE the_counted BOOLEAN DEFAULT FALSE;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;

  -- Its own row, which it always sees. An upsert of a row that is there locks the gap before it, where others begin theirs (MySQL).
  SELECT 1 INTO the_counted FROM queue_throughput WHERE worker_id = in_worker AND topic_id = in_topic;
  IF the_counted THEN
    UPDATE queue_throughput SET done = done + in_done, failed = failed + in_failed WHERE worker_id = in_worker AND topic_id = in_topic;
    CALL queue_refuse_killed(ROW_COUNT());
  ELSE
    INSERT INTO queue_throughput (worker_id, topic_id, done, failed) VALUES (in_worker, in_topic, in_done, in_failed);
  END IF;
END
