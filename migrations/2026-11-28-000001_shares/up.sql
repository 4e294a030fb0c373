-- How many messages of a topic a worker may run at once, out of the topic's max_running. A claim locks
-- only its worker's own row; workers change the shares behind the topic's row of queue_limit.
-- max_running: the limit that the share is part of.
CREATE TABLE IF NOT EXISTS queue_share (
  topic_id    INT UNSIGNED    NOT NULL,
  worker_id   BIGINT UNSIGNED NOT NULL,
  n           INT UNSIGNED    NOT NULL,
  max_running INT UNSIGNED    NOT NULL,
  PRIMARY KEY (topic_id, worker_id)
) ENGINE = InnoDB;
