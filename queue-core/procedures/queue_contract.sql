-- Which calls a client may rely on. A capability is never taken away without another version.
CREATE PROCEDURE queue_contract()
  NO SQL
  SQL SECURITY DEFINER
  COMMENT 'One row: the version of the contract, and a JSON array of capabilities.'
BEGIN
  SELECT '1.0-rc' AS version, '["send","send_all","send_unique","cancel","claim","wait","limits","groups","settle","checkpoint","asked_to_stop"]' AS capabilities;
END
