-- queue_send with four more options. A procedure of its own, because a key that is held makes the messages of
-- others duplicates, which takes a privilege: EXECUTE on this procedure.
CREATE PROCEDURE queue_send_unique(
  IN in_topic   VARBINARY(255),
  IN in_body    LONGBLOB,
  IN in_options LONGBLOB
)
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Enqueue one message unless its key is held. Outcome: @queue_msg_id, @queue_duplicate, @queue_replaced.'
BEGIN
  DECLARE the_priority INT DEFAULT NULL;
  DECLARE the_key      BLOB DEFAULT NULL;
  DECLARE the_biz_id   BLOB DEFAULT NULL;
  DECLARE the_headers  LONGBLOB DEFAULT NULL;
  DECLARE the_id       VARBINARY(255) DEFAULT NULL;
  DECLARE the_deliver  DATETIME(6) DEFAULT NULL;
  DECLARE the_expires  DATETIME(6) DEFAULT NULL;
  DECLARE the_unique   BLOB DEFAULT NULL;
  DECLARE the_time     BIGINT DEFAULT NULL;
  DECLARE the_choice   VARBINARY(255) DEFAULT NULL;
  DECLARE the_wait     BIGINT DEFAULT NULL;

  IF in_options IS NOT NULL THEN
    CALL queue_options(in_options, TRUE, the_priority, the_key, the_biz_id, the_headers, the_id, the_deliver, the_expires, the_unique, the_time, the_choice, the_wait);
  END IF;
  CALL queue_enqueue(in_topic, in_body, the_unique, the_time, the_choice, the_wait, the_deliver, the_expires, the_priority, the_key, the_biz_id, the_headers, the_id);
END
