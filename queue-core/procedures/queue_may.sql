-- Not for callers. Whether the account that called may do this to the topic (queue_access). The table is read
-- whole: of a range that is read while a KILL QUERY comes, MariaDB says that it is empty, and no row
-- would mean that everybody may.
CREATE PROCEDURE queue_may(
  IN  in_topic VARBINARY(255),
  IN  in_verb  VARBINARY(16),
  OUT out_may  BOOLEAN
)
  READS SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Used by the other calls.'
BEGIN
  SELECT COALESCE(MAX(account = LEFT(USER(), LENGTH(USER()) - LENGTH(SUBSTRING_INDEX(USER(), '@', -1)) - 1) AND topic IN (in_topic, '*')), in_verb <> 'others')
    INTO out_may FROM queue_access IGNORE INDEX (PRIMARY) WHERE verb = in_verb;
END
