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
  DECLARE the_id       BINARY(16);
  DECLARE the_enqueued_at DATETIME(6);

  CALL queue_held(in_delivery, FALSE, the_topic, the_priority, the_row, the_worker, the_claim, the_id, the_enqueued_at);
  SET @queue_checkpoints = 1;
  SELECT k.delivery_no, k.saved_at, k.progress, k.state
    FROM queue_checkpoint k WHERE k.topic_id = the_topic AND k.msg_id = the_id AND k.enqueued_at = the_enqueued_at;
END
