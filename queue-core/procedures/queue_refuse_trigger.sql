-- Not for callers. Fails (1422) within a trigger or a stored function, where nothing may commit, and does nothing
-- elsewhere.
CREATE PROCEDURE queue_refuse_trigger()
  CONTAINS SQL
  SQL SECURITY DEFINER
  COMMENT 'Used by the other calls.'
BEGIN
  IF FALSE THEN
    COMMIT;
  END IF;
END
