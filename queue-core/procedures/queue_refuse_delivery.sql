-- Not for callers. Refuses a delivery that this session does not hold.
CREATE PROCEDURE queue_refuse_delivery(IN in_delivery VARCHAR(64) CHARACTER SET latin1)
  NO SQL
  SQL SECURITY DEFINER
  COMMENT 'Used by the calls of consumers.'
BEGIN
  DECLARE the_text VARCHAR(255) CHARACTER SET latin1 DEFAULT CONCAT('queue: this session does not hold ', in_delivery, ' any more: ROLLBACK, it is done or another consumer has it');

  SET the_text = LEFT(the_text, 128);
  SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = the_text, MYSQL_ERRNO = 31015;
END
