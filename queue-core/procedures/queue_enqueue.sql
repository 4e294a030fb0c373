CREATE PROCEDURE queue_enqueue(
  IN in_topic    VARBINARY(255),
  IN in_body     LONGBLOB,
  IN in_priority INT,
  IN in_key      BLOB,
  IN in_biz_id   BLOB,
  IN in_headers  LONGBLOB,
  IN in_msg_id   VARBINARY(255)
)
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Enqueue one message; NULL takes the default. The id is left in @queue_msg_id.'
BEGIN
  CALL queue_enqueue_unique(in_topic, in_body, NULL, NULL, NULL, NULL, NULL, NULL, in_priority, in_key, in_biz_id, in_headers, in_msg_id);
END
