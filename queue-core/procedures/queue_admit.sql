-- Not for callers. Finds up to in_limit ready messages of a priority, from a place on, whose keys have
-- room, as a JSON array of their rows; NULL if there is none. One of in_kept has one place less. The topic's
-- gate is locked. One call looks at a thousand messages, which takes about a millisecond. out_next is where
-- the next call goes on; NULL: the priority has no more.
CREATE PROCEDURE queue_admit(
  IN  in_topic    INT UNSIGNED,
  IN  in_priority TINYINT UNSIGNED,
  IN  in_from     BIGINT UNSIGNED,
  IN  in_limit    INT,
  IN  in_per_key  BIGINT,
  IN  in_kept     VARBINARY(255),
  OUT out_ids     MEDIUMTEXT CHARACTER SET utf8mb4,
  OUT out_next    BIGINT UNSIGNED
)
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Used by queue_claim.'
BEGIN
  DECLARE the_high BIGINT UNSIGNED;
  DECLARE the_full BOOLEAN;

  SET out_ids = NULL;
  -- The window first: a message that is in it and gone a moment later hides no other.
  SELECT COUNT(*) = 1000, MAX(w.id) INTO the_full, the_high
    FROM (SELECT id FROM queue_message FORCE INDEX (PRIMARY)
      WHERE topic_id = in_topic AND priority = in_priority AND id >= in_from AND worker_id = 0
      ORDER BY topic_id, priority, id LIMIT 1000) w;
  SET out_next = IF(the_full, the_high + 1, NULL);
  -- MariaDB cuts off what it aggregates at group_concat_max_len.
  /*M! SET STATEMENT group_concat_max_len = 65536 FOR */
  SELECT JSON_ARRAYAGG(f.id) INTO out_ids
    FROM (SELECT w.id
      FROM (SELECT id, ordering_key, ROW_NUMBER() OVER (PARTITION BY ordering_key ORDER BY id) AS nth
        FROM queue_message FORCE INDEX (PRIMARY)
        WHERE topic_id = in_topic AND priority = in_priority AND id BETWEEN in_from AND the_high AND worker_id = 0) w
      LEFT JOIN (SELECT slot_key, COUNT(*) AS n FROM queue_slot FORCE INDEX (PRIMARY)
        WHERE topic_id = in_topic AND slot_key IS NOT NULL GROUP BY slot_key) s ON s.slot_key = w.ordering_key
      WHERE w.ordering_key IS NULL OR w.nth + COALESCE(s.n, 0) + (w.ordering_key <=> in_kept) <= in_per_key
      ORDER BY w.id LIMIT in_limit) f;
END
