-- The last checkpoint of a delivery's message, unless it belongs to an earlier message with the same id. No row: none.
CREATE PROCEDURE queue_last_checkpoint(
  IN in_delivery VARBINARY(255)
)
  READS SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Return how far the work on the message of a delivery had come. No row: nothing was saved.'
BEGIN
  DECLARE the_topic    INT UNSIGNED;
  DECLARE the_priority TINYINT UNSIGNED;
  DECLARE the_row      BIGINT UNSIGNED;
  DECLARE the_worker   BIGINT UNSIGNED;
  DECLARE the_claim    BIGINT UNSIGNED;

  CALL queue_held(in_delivery, FALSE, the_topic, the_priority, the_row, the_worker, the_claim);
  SET @queue_checkpoints = 1;
  SELECT k.delivery_no, k.saved_at, k.progress, k.state
    FROM queue_message m FORCE INDEX (PRIMARY) STRAIGHT_JOIN queue_checkpoint k FORCE INDEX (PRIMARY)
      ON k.topic_id = m.topic_id AND k.msg_id = m.msg_id AND k.enqueued_at = m.enqueued_at
    WHERE m.topic_id = the_topic AND m.priority = the_priority AND m.id = the_row;
END
