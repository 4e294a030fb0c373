-- Not for callers. Refuses an account that may not do this to the topic.
CREATE PROCEDURE queue_refuse_access(
  IN in_topic VARBINARY(255),
  IN in_verb  VARBINARY(16)
)
  READS SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Used by the other calls.'
BEGIN
  DECLARE the_may  BOOLEAN;
  DECLARE the_text VARCHAR(128);

  CALL queue_may(in_topic, in_verb, the_may);
  IF NOT the_may THEN
    SET the_text = LEFT(CONCAT('queue: this account may not ', in_verb, ' in topic ''', COALESCE(CONVERT(in_topic USING latin1), 'NULL'), '''; an operator adds it to queue_access'), 128);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = the_text, MYSQL_ERRNO = 31028;
  END IF;
END
