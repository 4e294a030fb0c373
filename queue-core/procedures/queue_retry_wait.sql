-- Not for callers. The wait after so many failures by a retry policy, in microseconds, or after 0 the
-- shortest that it ever makes; NULL if the policy cannot be read. As queue-core/src/model/retry.rs reads it.
CREATE PROCEDURE queue_retry_wait(
  IN  in_policy   BLOB,
  IN  in_failures INT UNSIGNED,
  OUT out_us      BIGINT UNSIGNED
)
  NO SQL
  SQL SECURITY DEFINER
  COMMENT 'Used by queue_settle.'
BEGIN
  DECLARE the_text   VARCHAR(1100) CHARACTER SET latin1 COLLATE latin1_bin;
  DECLARE the_kind   VARCHAR(1100) CHARACTER SET latin1 COLLATE latin1_bin;
  DECLARE the_rest   VARCHAR(1100) CHARACTER SET latin1 COLLATE latin1_bin;
  DECLARE the_digits VARCHAR(1100) CHARACTER SET latin1 COLLATE latin1_bin;
  DECLARE the_unit   VARCHAR(1100) CHARACTER SET latin1 COLLATE latin1_bin;
  DECLARE the_words  INT DEFAULT 0;
  DECLARE the_nth    INT DEFAULT 0;
  DECLARE the_wait   DOUBLE;
  DECLARE the_first  DOUBLE;
  DECLARE the_chosen DOUBLE;

  SET out_us = NULL;
  SET the_text = LEFT(TRIM(REGEXP_REPLACE(CONVERT(in_policy USING latin1), '[[:space:]]+', ' ')), 1100);
  SET the_kind = SUBSTRING_INDEX(the_text, ' ', 1);
  SET the_text = SUBSTR(the_text, LENGTH(the_kind) + 2);
  IF the_kind = 'exponential' AND the_text REGEXP '^[^ ]+[.][.][^ ]+$' THEN
    SET the_text = REPLACE(the_text, '..', ' ');
  ELSEIF the_kind = 'exponential' OR (the_kind = 'fixed' AND LOCATE(' ', the_text) > 0) THEN
    SET the_text = '';
  ELSEIF the_kind NOT IN ('fixed', 'ladder') THEN
    SET the_text = '';
  END IF;
  IF the_text <> '' THEN
    SET the_words = LENGTH(the_text) - LENGTH(REPLACE(the_text, ' ', '')) + 1;
  END IF;
  the_steps: WHILE the_nth < the_words DO
    SET the_nth = the_nth + 1, the_wait = 0;
    SET the_rest = SUBSTRING_INDEX(SUBSTRING_INDEX(the_text, ' ', the_nth), ' ', -1);
    WHILE the_rest <> '' DO
      SET the_digits = COALESCE(REGEXP_SUBSTR(the_rest, '^[0-9]+([.][0-9]+)?'), '');
      SET the_rest = SUBSTR(the_rest, LENGTH(the_digits) + 1);
      SET the_unit = COALESCE(REGEXP_SUBSTR(the_rest, '^[A-Za-z]+'), '');
      SET the_rest = SUBSTR(the_rest, LENGTH(the_unit) + 1);
      SET the_wait = the_wait + IF(LENGTH(the_digits) BETWEEN 1 AND 18, the_digits + 0e0, NULL) * CASE
        WHEN the_unit IN ('nanos', 'nsec', 'ns') THEN 1e-3
        WHEN the_unit IN ('usec', 'us') THEN 1e0
        WHEN the_unit IN ('millis', 'msec', 'ms') THEN 1e3
        WHEN the_unit IN ('seconds', 'second', 'secs', 'sec', 's') THEN 1e6
        WHEN the_unit IN ('minutes', 'minute', 'mins', 'min', 'm') THEN 60e6
        WHEN the_unit IN ('hours', 'hour', 'hrs', 'hr', 'h') THEN 3600e6
        WHEN the_unit IN ('days', 'day', 'd') THEN 86400e6
        WHEN the_unit IN ('weeks', 'week', 'wks', 'wk', 'w') THEN 604800e6
        WHEN the_unit IN ('months', 'month', 'M') THEN 2630016e6
        WHEN the_unit IN ('years', 'year', 'yrs', 'yr', 'y') THEN 31557600e6
      END;
    END WHILE;
    IF COALESCE(the_wait NOT BETWEEN 1e3 AND 31536000e6, TRUE) THEN
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
