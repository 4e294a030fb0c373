-- Not for callers. The wait after so many failures by a retry policy, in microseconds, or after 0 the
-- shortest that it ever makes; NULL if the policy cannot be read. As queue-core/src/model/retry.rs reads it:
-- words with one space between, each wait a number and its unit, in whole milliseconds.
CREATE PROCEDURE queue_retry_wait(
  IN  in_policy   BLOB,
  IN  in_failures INT UNSIGNED,
  OUT out_us      BIGINT UNSIGNED
)
  NO SQL
  SQL SECURITY DEFINER
  COMMENT 'Used by queue_settle.'
BEGIN
  DECLARE the_text    VARCHAR(1100) CHARACTER SET latin1 COLLATE latin1_bin DEFAULT LEFT(CONVERT(in_policy USING latin1), 1100);
  DECLARE the_kind    VARCHAR(1100) CHARACTER SET latin1 COLLATE latin1_bin DEFAULT SUBSTRING_INDEX(the_text, ' ', 1);
  DECLARE the_words   INT DEFAULT 0;
  DECLARE the_nth     INT DEFAULT 0;
  DECLARE the_seconds DECIMAL(20, 6);
  DECLARE the_wait    DOUBLE;
  DECLARE the_first   DOUBLE;
  DECLARE the_chosen  DOUBLE;

  SET out_us = NULL, the_text = SUBSTR(the_text, LENGTH(the_kind) + 2);
  IF the_kind = 'exponential' AND the_text NOT LIKE '% %' THEN
    SET the_text = REPLACE(the_text, '..', ' ');
  END IF;
  SET the_words = LENGTH(the_text) - LENGTH(REPLACE(the_text, ' ', '')) + 1;
  IF NOT CASE the_kind WHEN 'fixed' THEN the_words = 1 WHEN 'exponential' THEN the_words = 2 ELSE the_kind = 'ladder' END THEN
    SET the_words = 0;
  END IF;
  the_steps: WHILE the_nth < the_words DO
    SET the_nth = the_nth + 1, the_seconds = NULL;
    BEGIN
      DECLARE CONTINUE HANDLER FOR SQLEXCEPTION SET the_seconds = NULL;
      CALL queue_duration('retry', JSON_QUOTE(SUBSTRING_INDEX(SUBSTRING_INDEX(the_text, ' ', the_nth), ' ', -1)), the_seconds);
    END;
    SET the_wait = the_seconds * 1e6;
    IF COALESCE(the_wait NOT BETWEEN 1e3 AND 31536000e6 OR the_seconds * 1000 <> FLOOR(the_seconds * 1000), TRUE) THEN
      SET the_chosen = NULL;
      LEAVE the_steps;
    END IF;
    IF the_nth = 1 THEN
      SET the_first = the_wait;
    END IF;
    IF in_failures = 0 THEN
      SET the_chosen = CASE WHEN the_kind <> 'exponential' THEN LEAST(COALESCE(the_chosen, the_wait), the_wait)
        WHEN the_nth = 2 AND the_first <= the_wait THEN the_first / 2 END;
    ELSEIF the_kind = 'exponential' AND the_nth = 2 THEN
      SET the_chosen = IF(the_first > the_wait, NULL,
        LEAST(the_first * POW(2, LEAST(in_failures - 1, 62)), the_wait) * (0.5 + RAND() / 2));
    ELSEIF the_kind <> 'exponential' AND the_nth <= in_failures THEN
      SET the_chosen = the_wait;
    END IF;
  END WHILE;
  SET out_us = ROUND(the_chosen);
END
