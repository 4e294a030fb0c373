-- What becomes of deliveries, one or several with commas between them: ack, retry, snooze, dead-letter,
-- discard or release. All of them, or none. In a transaction that is open it is part of it; else it is
-- one of its own.
-- @queue_undone: deliveries whose work may have been undone, because a settle in its transaction failed.
-- Each stays there until a call has settled it, or refused to ack it alone.
CREATE PROCEDURE queue_settle(
  IN in_deliveries MEDIUMBLOB,
  IN in_verdict    VARBINARY(255),
  IN in_reason     LONGTEXT CHARACTER SET utf8mb4,
  IN in_delay      DECIMAL(20,6)
)
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Settle deliveries that this session holds. What became of their messages is left in @queue_settled.'
BEGIN
  DECLARE the_own      BOOLEAN;
  DECLARE the_open     BOOLEAN;
  DECLARE the_killed   BOOLEAN;
  DECLARE the_undone   BOOLEAN DEFAULT FALSE;
  DECLARE the_done     BOOLEAN;
  DECLARE the_count    INT DEFAULT 0;
  DECLARE the_claims   INT DEFAULT 0;
  DECLARE the_rows     MEDIUMTEXT CHARACTER SET latin1 DEFAULT NULL;
  DECLARE the_list     MEDIUMTEXT CHARACTER SET latin1 DEFAULT CONVERT(in_deliveries USING latin1);
  DECLARE the_rest     MEDIUMTEXT CHARACTER SET latin1 DEFAULT CONCAT(the_list, ',');
  DECLARE the_others   MEDIUMTEXT CHARACTER SET latin1 DEFAULT COALESCE(CONVERT(@queue_undone USING latin1), '');
  DECLARE the_token    VARCHAR(64) CHARACTER SET latin1;
  DECLARE the_claim    VARCHAR(64) CHARACTER SET latin1 DEFAULT '';
  DECLARE the_worker   BIGINT UNSIGNED;
  DECLARE the_claim_no BIGINT UNSIGNED;
  DECLARE the_row      BIGINT UNSIGNED;
  DECLARE the_topic    INT UNSIGNED;
  DECLARE the_priority TINYINT UNSIGNED;
  DECLARE the_released MEDIUMTEXT CHARACTER SET utf8mb4 DEFAULT NULL;
  DECLARE the_verdict  VARCHAR(16);
  DECLARE the_none     BIGINT UNSIGNED;
  DECLARE the_verdicts TEXT CHARACTER SET latin1 DEFAULT NULL;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;

  SET @queue_settled = NULL;
  CALL queue_refuse_clock();
  IF COALESCE(in_verdict NOT IN ('ack', 'retry', 'snooze', 'dead-letter', 'discard', 'release'), TRUE) THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: the verdict is ack, retry, snooze, dead-letter, discard or release', MYSQL_ERRNO = 31019;
  END IF;
  IF in_delay NOT BETWEEN 0 AND 315360000 OR (in_delay IS NULL AND in_verdict = 'snooze')
     OR (in_delay IS NOT NULL AND in_verdict NOT IN ('retry', 'snooze')) THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: delay is 0 to 315360000 seconds, for snooze and, in place of the retry policy, for retry; else NULL', MYSQL_ERRNO = 31021;
  END IF;
  SET the_claim = SUBSTRING_INDEX(LEFT(the_list, 64), '.', 2);
  IF LOCATE(',', the_list) > 0 AND LENGTH(in_deliveries) <= 64000 AND the_others = '' AND the_claim NOT REGEXP '[^0-9.]'
     AND the_claim REGEXP '^[1-9][0-9]{0,18}[.][1-9][0-9]{0,18}$' THEN
    -- Deliveries of one claim, as most lists have them, are read as a set.
    SET the_rows = SUBSTR(REPLACE(CONCAT(',', the_list), CONCAT(',', the_claim, '.'), ','), 2);
    SET the_count = LENGTH(the_rows) - LENGTH(REPLACE(the_rows, ',', '')) + 1;
    IF the_count <= 1000 AND LENGTH(the_list) = LENGTH(the_rows) + the_count * (LENGTH(the_claim) + 1)
       AND the_rows NOT REGEXP '[^0-9,]' AND JSON_VALID(CONCAT('[', the_rows, ']')) THEN
      -- Larger numbers are NULL on MySQL, and the largest of the type on MariaDB.
      SELECT COUNT(*) = the_count INTO the_claims
        FROM JSON_TABLE(CONCAT('[', the_rows, ']'), '$[*]' COLUMNS (id DECIMAL(19,0) PATH '$')) k
        WHERE k.id BETWEEN 1 AND 9999999999999999998;
    END IF;
  END IF;
  IF the_claims = 1 THEN
    SET the_worker = SUBSTRING_INDEX(the_claim, '.', 1), the_claim_no = SUBSTRING_INDEX(the_claim, '.', -1);
    SET @queue_unsaid = REGEXP_REPLACE(CONVERT(@queue_unsaid USING latin1), CONCAT('<[0-9]+:', REPLACE(the_claim, '.', '[.]'), '>'), '');
  ELSE
    SET the_claim = '', the_rows = NULL, the_count = 0;
    REPEAT
      SET the_count = the_count + 1, the_token = LEFT(SUBSTRING_INDEX(the_rest, ',', 1), 64);
      -- As queue_claim writes it, and not otherwise: it is compared as text, too.
      IF the_count > 1000 OR LENGTH(in_deliveries) > 64000 OR the_token REGEXP '[^0-9.]'
         OR COALESCE(the_token NOT REGEXP '^[1-9][0-9]{0,18}[.][1-9][0-9]{0,18}[.][1-9][0-9]{0,18}$', TRUE) THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: that is no delivery; pass the column delivery of queue_claim as it came, or up to 1000 with commas between', MYSQL_ERRNO = 31022;
      END IF;
      SET the_rest = SUBSTR(the_rest, LENGTH(the_token) + 2);
      SET the_worker = SUBSTRING_INDEX(the_token, '.', 1), the_row = SUBSTRING_INDEX(the_token, '.', -1);
      SET the_claim_no = SUBSTRING_INDEX(SUBSTRING_INDEX(the_token, '.', 2), '.', -1);
      IF FIND_IN_SET(the_token, the_others) > 0 THEN
        SET the_others = TRIM(BOTH ',' FROM REPLACE(CONCAT(',', the_others, ','), CONCAT(',', the_token, ','), ','));
        -- If another message has done the same, and that is committed, an ack alone loses nothing.
        CALL queue_repeated(the_worker, the_claim_no, the_row, the_done);
        SET the_undone = the_undone OR NOT the_done;
      END IF;
      IF the_claim <> SUBSTRING_INDEX(the_token, '.', 2) THEN
        -- The session that knows the delivery has received it.
        SET the_claim = SUBSTRING_INDEX(the_token, '.', 2), the_claims = the_claims + 1;
        SET @queue_unsaid = REGEXP_REPLACE(CONVERT(@queue_unsaid USING latin1), CONCAT('<[0-9]+:', REPLACE(the_claim, '.', '[.]'), '>'), '');
      END IF;
      SET the_rows = CONCAT_WS(',', the_rows, the_row);
    UNTIL the_rest = '' END REPEAT;
  END IF;
  CALL queue_undo_killed(the_open, the_killed);
  SET the_own = NOT the_open;
  IF the_own AND in_verdict = 'ack' AND (the_killed OR the_undone) THEN
    SET @queue_undone = the_others;
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: the transaction of this ack was undone, and the work with it: do both again in a new one, or settle ''retry''', MYSQL_ERRNO = 31025;
  END IF;
  IF in_verdict = 'release' AND NOT the_own THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: release gives the message back undone: ROLLBACK before, and call it with autocommit on', MYSQL_ERRNO = 31014;
  END IF;
  -- Taken back below. It stands if this fails, is killed, or the transaction is undone whole: the work
  -- is undone, too, and a client that says its last statement again must not be believed.
  SET @queue_undone = IF(the_open OR the_killed, LEFT(CONCAT_WS(',', the_list, NULLIF(the_others, '')), 256000), the_others);
  BEGIN
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
      -- After a deadlock there is nothing to go back to any more.
      DECLARE CONTINUE HANDLER FOR 1305 BEGIN END;
      IF the_own THEN
        ROLLBACK AND NO CHAIN NO RELEASE;
      ELSE
        ROLLBACK TO SAVEPOINT queue_settle;
      END IF;
      RESIGNAL;
    END;
    IF the_own THEN
      SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
      START TRANSACTION;
      SAVEPOINT queue_own;
    ELSE
      SAVEPOINT queue_settle;
    END IF;
    SET the_rest = CONCAT(the_list, ',');
    IF in_verdict = 'ack' AND the_count > 1 AND the_claims = 1 THEN
      CALL queue_ack_rows(the_worker, the_claim_no, the_rows, the_count, the_done);
      IF the_done THEN
        SET the_rest = '', the_verdicts = CONCAT('ack', REPEAT(',ack', the_count - 1));
      END IF;
    END IF;
    the_deliveries: WHILE the_rest <> '' DO
      SET the_token = SUBSTRING_INDEX(the_rest, ',', 1), the_rest = SUBSTR(the_rest, LENGTH(the_token) + 2);
      SET the_worker = SUBSTRING_INDEX(the_token, '.', 1), the_row = SUBSTRING_INDEX(the_token, '.', -1);
      SET the_claim_no = SUBSTRING_INDEX(SUBSTRING_INDEX(the_token, '.', 2), '.', -1);
      IF the_row >= 1000000000000000000 THEN
        CALL queue_settle_range(the_worker, the_claim_no, the_row, in_verdict, in_reason, in_delay * 1000000, NOT the_own, the_verdict);
        SET the_verdicts = CONCAT_WS(',', the_verdicts, the_verdict);
        ITERATE the_deliveries;
      END IF;
      IF in_verdict = 'release' THEN
        -- Before its last row takes the claim with it.
        SELECT topic_id, priority INTO the_topic, the_priority FROM queue_claim WHERE worker_id = the_worker AND claim_no = the_claim_no;
        SET the_released = CONCAT_WS(',', the_released, JSON_ARRAY(the_topic, the_priority, the_row));
      END IF;
      CALL queue_settle_row(the_worker, the_claim_no, the_row, in_verdict, in_reason, in_delay * 1000000, NOT the_own, the_verdict, the_none);
      SET the_verdicts = CONCAT_WS(',', the_verdicts, the_verdict);
    END WHILE the_deliveries;
    IF the_released IS NOT NULL THEN
      -- The lowest of each, in an order: who releases several meets others who do.
      INSERT INTO queue_floor (topic_id, priority, floor, seq)
        SELECT r.topic_id, r.priority, MIN(r.id), 1
          FROM JSON_TABLE(CONCAT('[', the_released, ']'), '$[*]' COLUMNS (topic_id INT UNSIGNED PATH '$[0]',
            priority TINYINT UNSIGNED PATH '$[1]', id BIGINT UNSIGNED PATH '$[2]')) r
          WHERE r.priority <= 9 GROUP BY r.topic_id, r.priority ORDER BY r.topic_id, r.priority
        ON DUPLICATE KEY UPDATE floor = VALUES(floor), seq = queue_floor.seq + 1;
    END IF;
    IF the_own THEN
      COMMIT AND NO CHAIN NO RELEASE;
    END IF;
  END;
  SET @queue_settled = the_verdicts, @queue_undone = the_others;
END
