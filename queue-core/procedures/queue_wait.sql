-- Not for callers. Waits until the session is rung, for at most five seconds or io_left, and takes the
-- time from io_left. While it waits, no transaction and no read view is open. The sweeper holds the
-- session's bell, a name lock, and releases it to wake the session (queue-core/src/store/doorbell.rs).
-- in_blocked: what is ready has to wait for limits, of which no bell rings; so the session polls. io_polls
-- counts how many times in a row it has polled. io_left becomes NULL if the client is gone: then the
-- caller must claim nothing.
CREATE PROCEDURE queue_wait(
  IN    in_worker   BIGINT UNSIGNED,
  IN    in_instance BINARY(16),
  IN    in_topic    INT UNSIGNED,
  IN    in_blocked  BOOLEAN,
  INOUT io_left     DOUBLE,
  INOUT io_polls    INT
)
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Used by queue_claim.'
BEGIN
  DECLARE the_bell  VARCHAR(64) CHARACTER SET utf8mb4 DEFAULT CONCAT('queue:', LOWER(HEX(in_instance)), ':bell');
  DECLARE the_start DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
  DECLARE the_step  DOUBLE;
  DECLARE the_time  DOUBLE;
  DECLARE the_rang  INT;

  -- A call that was killed may have left it with this session.
  DO RELEASE_LOCK(the_bell);
  UPDATE queue_worker SET topics = CONCAT_WS(',', topics, in_topic)
    WHERE id = in_worker AND NOT COALESCE(FIND_IN_SET(in_topic, topics), 0);
  IF in_blocked OR IS_USED_LOCK(the_bell) IS NULL THEN
    -- There may be room soon; or the bell has just rung and the sweeper is about to take it back; or there is
    -- no sweeper. The session polls, for at most five seconds: SLEEP does not notice that a client is gone.
    IF io_polls >= 6 THEN
      SET io_left = LEAST(io_left, 5);
    END IF;
    SET the_step = LEAST(0.005 * POW(2, LEAST(io_polls, 6)), io_left), io_polls = io_polls + 1;
    DO SLEEP(the_step);
    -- The planned time, not the measured one: a change of the clock does not end the wait.
    SET io_left = io_left - the_step;
  ELSE
    SET the_step = LEAST(5, CEIL(io_left)), io_polls = 0;
    SET the_rang = GET_LOCK(the_bell, the_step);
    SET the_time = TIMESTAMPDIFF(MICROSECOND, the_start, UTC_TIMESTAMP(6)) / 1e6;
    IF the_rang = 1 THEN
      DO RELEASE_LOCK(the_bell);
      SET io_left = io_left - LEAST(the_step, GREATEST(0, the_time));
    ELSEIF the_time < the_step - 0.5 THEN
      -- Once a second the servers look whether the client of a waiting session is still there, and
      -- end the wait if it is not. MySQL ends the call, too.
      SET io_left = NULL;
    ELSE
      SET io_left = io_left - the_step;
    END IF;
  END IF;
END
