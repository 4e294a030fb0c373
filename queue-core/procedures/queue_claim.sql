-- Claims up to in_limit (NULL: 1) messages, and returns them. While nothing is ready it waits for up to
-- in_wait seconds (NULL: it does not wait). A session that has been silent for @queue_lease seconds
-- (NULL: 60) is ended by the server, and its claims with it.
CREATE PROCEDURE queue_claim(
  IN in_topic VARBINARY(255),
  IN in_limit INT,
  IN in_wait  INT
)
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Claim messages for this session; settle each by queue_settle. No row: nothing is ready.'
BEGIN
  DECLARE the_topic    INT UNSIGNED;
  DECLARE the_worker   BIGINT UNSIGNED;
  DECLARE the_instance BINARY(16);
  DECLARE the_claim    BIGINT UNSIGNED;
  DECLARE the_priority TINYINT UNSIGNED;
  DECLARE the_low      BIGINT UNSIGNED;
  DECLARE the_high     BIGINT UNSIGNED;
  DECLARE the_range    BIGINT UNSIGNED;
  DECLARE the_number   BIGINT UNSIGNED DEFAULT NULL;
  DECLARE the_left     DOUBLE DEFAULT COALESCE(in_wait, 0);
  DECLARE the_polls    INT DEFAULT 0;
  DECLARE the_blocked  BOOLEAN;

  IF in_wait NOT BETWEEN 0 AND 3600 THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: wait must be 0 to 3600 seconds, or NULL for 0', MYSQL_ERRNO = 31030;
  END IF;
  CALL queue_claim_once(in_topic, in_limit, the_topic, the_worker, the_instance, the_claim, the_priority, the_low, the_high, the_range, the_blocked);
  WHILE the_low IS NULL AND the_left > 0 DO
    CALL queue_wait(the_worker, the_instance, the_topic, the_blocked, the_left, the_polls);
    IF the_left IS NOT NULL THEN
      CALL queue_claim_once(in_topic, in_limit, the_topic, the_worker, the_instance, the_claim, the_priority, the_low, the_high, the_range, the_blocked);
    END IF;
  END WHILE;

  IF the_range IS NOT NULL THEN
    BEGIN
      DECLARE EXIT HANDLER FOR SQLEXCEPTION
      BEGIN
        ROLLBACK AND NO CHAIN NO RELEASE;
        RESIGNAL;
      END;
      -- The claim holds the message in the log: it is read by a copy that is undone again.
      SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
      START TRANSACTION;
      SAVEPOINT queue_own;
      CALL queue_take_out(the_range, the_low);
      SELECT IF(suspicions >= 2, 105, 5), 1000000000000000000 + mark INTO the_priority, the_number FROM queue_range WHERE id = the_range;
      SET the_high = the_low;
    END;
  END IF;
  SELECT CONCAT(worker_id, '.', claim_no, '.', COALESCE(the_number, id)) AS delivery,
      LOWER(CONCAT_WS('-', SUBSTR(HEX(msg_id), 1, 8), SUBSTR(HEX(msg_id), 9, 4), SUBSTR(HEX(msg_id), 13, 4),
        SUBSTR(HEX(msg_id), 17, 4), SUBSTR(HEX(msg_id), 21, 12))) AS msg_id,
      delivery_no, failures, priority % 100 AS priority, enqueued_at, expires_at, ordering_key AS `key`, biz_id, headers, body
    FROM queue_message FORCE INDEX (PRIMARY)
    WHERE topic_id = the_topic AND priority = the_priority AND id BETWEEN COALESCE(the_low, 1) AND IF(the_low IS NULL, 0, the_high)
      AND worker_id = the_worker AND claim_no = the_claim
    ORDER BY topic_id, queue_message.priority, id;
  IF the_range IS NOT NULL THEN
    ROLLBACK AND NO CHAIN NO RELEASE;
  END IF;
END
