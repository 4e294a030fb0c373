-- Not for callers. Lowers io_limit to the places that a topic has left which limits only how many of its
-- messages run. The topic's gate is locked. Workers of the library have shares of the limit, and claim
-- within them without the gate. A session has none: it takes what is in no share, then the shares of
-- workers that run nothing, and then, up to an equal part, what busy workers with more do not use. If that
-- does not suffice, they lose what they have beyond an equal part as soon as it is free
-- (queue-core/src/worker/deal.rs).
CREATE PROCEDURE queue_take_places(
  IN    in_topic  INT UNSIGNED,
  IN    in_worker BIGINT UNSIGNED,
  IN    in_max    BIGINT,
  INOUT io_limit  INT
)
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Used by queue_claim.'
BEGIN
  DECLARE the_unlocked MEDIUMTEXT CHARACTER SET utf8mb4;
  DECLARE the_holders  MEDIUMTEXT CHARACTER SET utf8mb4;
  DECLARE the_room     BIGINT;
  DECLARE the_mine     BIGINT;
  DECLARE the_equal    BIGINT;
  DECLARE the_owed     BIGINT DEFAULT 0;
  DECLARE the_wanted   BIGINT;
  DECLARE the_other    BIGINT UNSIGNED;
  DECLARE the_share    BIGINT;
  DECLARE the_running  BIGINT;
  DECLARE the_given    BIGINT;
  DECLARE the_lost     BIGINT;
  DECLARE the_list     MEDIUMTEXT CHARACTER SET utf8mb4 DEFAULT NULL;
  DECLARE the_claim    BIGINT UNSIGNED;
  DECLARE the_priority TINYINT UNSIGNED;
  DECLARE the_low      BIGINT UNSIGNED;
  DECLARE the_high     BIGINT UNSIGNED;
  DECLARE the_end      BOOLEAN DEFAULT FALSE;
  DECLARE the_claims CURSOR FOR
    SELECT worker_id, claim_no, priority, lo, hi FROM queue_claim FORCE INDEX (queue_claim_frontier) WHERE topic_id = in_topic;
  -- Those that run nothing first.
  DECLARE the_others CURSOR FOR
    SELECT h.worker, h.share, h.running
      FROM JSON_TABLE(the_holders, '$[*]' COLUMNS (worker BIGINT UNSIGNED PATH '$.worker', share BIGINT PATH '$.share', running BIGINT PATH '$.running')) h
      WHERE h.share > 0 AND JSON_CONTAINS(the_unlocked, CAST(h.worker AS CHAR))
      ORDER BY h.running > 0, h.worker;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET the_end = TRUE;

  -- A share that a claim has locked stays as it is: a frozen worker must not hold up the topic.
  /*M! SET STATEMENT group_concat_max_len = 1048576 FOR */
  SELECT COALESCE(JSON_ARRAYAGG(s.worker_id), '[]') INTO the_unlocked
    FROM (SELECT worker_id FROM queue_share FORCE INDEX (PRIMARY) WHERE topic_id = in_topic FOR UPDATE SKIP LOCKED) s;
  -- From here on no claim within an unlocked share runs, so the counts hold. A worker that is gone runs nothing.
  OPEN the_claims;
  the_count: LOOP
    FETCH the_claims INTO the_other, the_claim, the_priority, the_low, the_high;
    IF the_end THEN
      LEAVE the_count;
    END IF;
    -- By itself: a join does not read a range whose ends are another table's.
    SELECT COUNT(*) INTO the_running FROM queue_message FORCE INDEX (PRIMARY)
      WHERE topic_id = in_topic AND priority = the_priority AND id BETWEEN the_low AND the_high
        AND worker_id = the_other AND claim_no = the_claim;
    SET the_list = CONCAT_WS(',', the_list, CONCAT('{"worker":', the_other, ',"running":', the_running, '}'));
  END LOOP;
  CLOSE the_claims;
  SET the_end = FALSE, the_list = CONCAT('[', COALESCE(the_list, ''), ']');
  /*M! SET STATEMENT group_concat_max_len = 1048576 FOR */
  SELECT COALESCE(JSON_ARRAYAGG(JSON_OBJECT('worker', h.worker, 'share', h.share, 'running', h.running)), '[]') INTO the_holders
    FROM (SELECT u.worker, SUM(u.share) AS share, SUM(u.running) AS running
      FROM (SELECT worker_id AS worker, n AS share, 0 AS running FROM queue_share FORCE INDEX (PRIMARY) WHERE topic_id = in_topic
        UNION ALL
        SELECT c.worker, 0, c.running
          FROM JSON_TABLE(the_list, '$[*]' COLUMNS (worker BIGINT UNSIGNED PATH '$.worker', running BIGINT PATH '$.running')) c) u
      GROUP BY u.worker) h;
  SELECT in_max - COALESCE(SUM(GREATEST(h.share, h.running)), 0), COALESCE(SUM(IF(h.worker = in_worker, h.running, 0)), 0),
      GREATEST(1, in_max DIV (1 + COALESCE(SUM(h.running > 0 AND h.worker <> in_worker), 0)))
    INTO the_room, the_mine, the_equal
    FROM JSON_TABLE(the_holders, '$[*]' COLUMNS (worker BIGINT UNSIGNED PATH '$.worker', share BIGINT PATH '$.share', running BIGINT PATH '$.running')) h;

  IF the_room < io_limit THEN
    OPEN the_others;
    the_deal: LOOP
      FETCH the_others INTO the_other, the_share, the_running;
      IF the_end OR the_room >= io_limit THEN
        LEAVE the_deal;
      END IF;
      IF the_running = 0 THEN
        SET the_given = LEAST(io_limit - the_room, the_share), the_lost = 0;
      ELSE
        SET the_wanted = LEAST(io_limit, the_equal - the_mine) - the_room - the_owed;
        SET the_given = GREATEST(0, LEAST(the_wanted, the_share - the_equal, the_share - the_running));
        SET the_lost = GREATEST(0, LEAST(the_wanted, the_share - the_equal) - the_given), the_owed = the_owed + the_lost;
      END IF;
      IF the_given + the_lost > 0 THEN
        UPDATE queue_share SET n = n - the_given - the_lost WHERE topic_id = in_topic AND worker_id = the_other;
        SET the_room = the_room + the_given;
      END IF;
    END LOOP;
    CLOSE the_others;
  END IF;
  SET io_limit = GREATEST(0, LEAST(io_limit, the_room));
END
