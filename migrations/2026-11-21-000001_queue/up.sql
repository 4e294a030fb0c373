-- Every table carries the prefix queue_ and lives in the user's own database, so that a message
-- is enqueued in the user's own transaction. Names are bytes (VARBINARY): 'Mail' and 'mail' differ.

-- kind: queue, stream, or group. A group reads the stream stream_id and is named stream@group: what
-- it could not handle is tried again, and dead-lettered, under the group's own topic.
CREATE TABLE queue_topic (
  id               INT UNSIGNED    NOT NULL AUTO_INCREMENT,
  name             VARBINARY(129)  NOT NULL,
  kind             VARBINARY(16)   NOT NULL DEFAULT 'queue',
  partitions       INT UNSIGNED    NOT NULL DEFAULT 0,
  stream_id        INT UNSIGNED    NULL,
  is_ordered       BOOLEAN         NOT NULL DEFAULT FALSE,
  enqueue_paused   BOOLEAN         NOT NULL DEFAULT FALSE,
  claim_paused     BOOLEAN         NOT NULL DEFAULT FALSE,
  body_limit       INT UNSIGNED    NOT NULL DEFAULT 4194304,
  max_attempts     INT UNSIGNED    NOT NULL DEFAULT 16,
  max_crashes      INT UNSIGNED    NOT NULL DEFAULT 3,
  retry            VARBINARY(1024) NOT NULL DEFAULT 'exponential 1s..1h',
  max_run_time_ms  BIGINT UNSIGNED NULL,
  keep_done_ms     BIGINT UNSIGNED NULL,
  dead_letter_topic_id INT UNSIGNED NULL,
  ledger_window_ms BIGINT UNSIGNED NULL,
  retention_ms     BIGINT UNSIGNED NULL,
  retention_bytes  BIGINT UNSIGNED NULL,
  retention_hard   BOOLEAN         NOT NULL DEFAULT FALSE,
  prune_handled    BOOLEAN         NOT NULL DEFAULT FALSE,
  created_at       DATETIME(6)     NOT NULL,
  updated_at       DATETIME(6)     NOT NULL,
  PRIMARY KEY (id),
  UNIQUE KEY queue_topic_name (name),
  KEY queue_topic_stream (stream_id)
) ENGINE = InnoDB;

-- The hot table: a row exists until its message is settled. No index on claim state: every claim
-- and settle would move an entry at one hot spot (measured, docs/architecture.md).
-- worker_id = 0: ready. priority 100..109: a suspect of priority 0..9, claimed alone.
-- topic_id = 0 is no topic: a row is a producer's lane there, so that one INSERT stores a batch and
-- advances the lane. claim_no: the number of the last batch that was committed; msg_id: its name.
-- history: a line of JSON for each failed run, its newest 32 KiB. No claim reads it.
CREATE TABLE queue_message (
  topic_id     INT UNSIGNED     NOT NULL,
  priority     TINYINT UNSIGNED NOT NULL DEFAULT 5,
  id           BIGINT UNSIGNED  NOT NULL AUTO_INCREMENT,
  msg_id       BINARY(16)       NOT NULL,
  conn_id      BIGINT UNSIGNED  NOT NULL DEFAULT 0,
  worker_id    BIGINT UNSIGNED  NOT NULL DEFAULT 0,
  claim_no     BIGINT UNSIGNED  NOT NULL DEFAULT 0,
  delivery_no  INT UNSIGNED     NOT NULL DEFAULT 0,
  failures     INT UNSIGNED     NOT NULL DEFAULT 0,
  crashes      INT UNSIGNED     NOT NULL DEFAULT 0,
  suspicions   INT UNSIGNED     NOT NULL DEFAULT 0,
  enqueued_at  DATETIME(6)      NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
  expires_at   DATETIME(6)      NULL,
  ordering_key VARBINARY(255)   NULL,
  biz_id       VARBINARY(255)   NULL,
  headers      MEDIUMBLOB       NULL,
  history      MEDIUMBLOB       NULL,
  body         LONGBLOB         NOT NULL,
  PRIMARY KEY (topic_id, priority, id),
  KEY queue_message_id (id),
  CONSTRAINT queue_message_priority CHECK (priority <= 9 OR priority BETWEEN 100 AND 109)
) ENGINE = InnoDB;

-- One row a claim: its key range, so that rescue, re-adoption and claimed depth never scan the backlog.
CREATE TABLE queue_claim (
  worker_id  BIGINT UNSIGNED  NOT NULL,
  claim_no   BIGINT UNSIGNED  NOT NULL,
  topic_id   INT UNSIGNED     NOT NULL,
  priority   TINYINT UNSIGNED NOT NULL,
  lo         BIGINT UNSIGNED  NOT NULL,
  hi         BIGINT UNSIGNED  NOT NULL,
  n          INT UNSIGNED     NOT NULL,
  conn_id    BIGINT UNSIGNED  NOT NULL,
  claimed_at DATETIME(6)      NOT NULL,
  PRIMARY KEY (worker_id, claim_no),
  KEY queue_claim_frontier (topic_id, priority, hi)
) ENGINE = InnoDB;

CREATE TABLE queue_worker (
  id                BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  instance          BINARY(16)      NOT NULL,
  client_id         VARBINARY(255)  NOT NULL,
  version           VARBINARY(32)   NOT NULL,
  account           VARBINARY(255)  NOT NULL,
  state             VARBINARY(16)   NOT NULL DEFAULT 'alive',
  conn_id           BIGINT UNSIGNED NOT NULL DEFAULT 0,
  life_conn_id      BIGINT UNSIGNED NOT NULL DEFAULT 0,
  server_uid        VARBINARY(64)   NOT NULL,
  server_started_at BIGINT          NOT NULL,
  lease_ms          BIGINT UNSIGNED NOT NULL,
  beat_no           BIGINT UNSIGNED NOT NULL DEFAULT 0,
  beat_at           DATETIME(6)     NOT NULL,
  registered_at     DATETIME(6)     NOT NULL,
  ended_at          DATETIME(6)     NULL,
  end_reason        VARBINARY(255)  NULL,
  PRIMARY KEY (id),
  UNIQUE KEY queue_worker_instance (instance),
  KEY queue_worker_state (state, id)
) ENGINE = InnoDB;

-- The lowest id that rescue, release or promote made ready again, and how often: a consumer that
-- sees seq move lowers its low-water mark.
CREATE TABLE queue_floor (
  topic_id INT UNSIGNED     NOT NULL,
  priority TINYINT UNSIGNED NOT NULL,
  floor    BIGINT UNSIGNED  NOT NULL,
  seq      BIGINT UNSIGNED  NOT NULL,
  PRIMARY KEY (topic_id, priority),
  CONSTRAINT queue_floor_priority CHECK (priority <= 9)
) ENGINE = InnoDB;

-- What becomes ready later, in the order in which it does: the clustered key is the timing wheel.
CREATE TABLE queue_scheduled (
  due_at       DATETIME(6)      NOT NULL,
  id           BIGINT UNSIGNED  NOT NULL AUTO_INCREMENT,
  topic_id     INT UNSIGNED     NOT NULL,
  priority     TINYINT UNSIGNED NOT NULL,
  msg_id       BINARY(16)       NOT NULL,
  delivery_no  INT UNSIGNED     NOT NULL,
  failures     INT UNSIGNED     NOT NULL,
  crashes      INT UNSIGNED     NOT NULL,
  suspicions   INT UNSIGNED     NOT NULL,
  enqueued_at  DATETIME(6)      NOT NULL,
  expires_at   DATETIME(6)      NULL,
  ordering_key VARBINARY(255)   NULL,
  biz_id       VARBINARY(255)   NULL,
  headers      MEDIUMBLOB       NULL,
  history      MEDIUMBLOB       NULL,
  body         LONGBLOB         NOT NULL,
  last_error   VARBINARY(8192)  NULL,
  PRIMARY KEY (due_at, id),
  UNIQUE KEY queue_scheduled_id (id),
  KEY queue_scheduled_topic (topic_id),
  KEY queue_scheduled_msg (msg_id),
  CONSTRAINT queue_scheduled_priority CHECK (priority <= 9)
) ENGINE = InnoDB;

CREATE TABLE queue_dead (
  id           BIGINT UNSIGNED  NOT NULL AUTO_INCREMENT,
  topic_id     INT UNSIGNED     NOT NULL,
  priority     TINYINT UNSIGNED NOT NULL,
  msg_id       BINARY(16)       NOT NULL,
  delivery_no  INT UNSIGNED     NOT NULL,
  failures     INT UNSIGNED     NOT NULL,
  crashes      INT UNSIGNED     NOT NULL,
  suspicions   INT UNSIGNED     NOT NULL,
  enqueued_at  DATETIME(6)      NOT NULL,
  ordering_key VARBINARY(255)   NULL,
  biz_id       VARBINARY(255)   NULL,
  headers      MEDIUMBLOB       NULL,
  history      MEDIUMBLOB       NULL,
  body         LONGBLOB         NOT NULL,
  cause        VARBINARY(16)    NOT NULL,
  last_error   VARBINARY(8192)  NULL,
  died_at      DATETIME(6)      NOT NULL,
  PRIMARY KEY (id),
  KEY queue_dead_topic (topic_id, died_at)
) ENGINE = InnoDB;

-- Finished messages that the topic keeps for a time, and discarded ones with their reason.
CREATE TABLE queue_archive (
  id           BIGINT UNSIGNED  NOT NULL AUTO_INCREMENT,
  topic_id     INT UNSIGNED     NOT NULL,
  priority     TINYINT UNSIGNED NOT NULL,
  msg_id       BINARY(16)       NOT NULL,
  delivery_no  INT UNSIGNED     NOT NULL,
  failures     INT UNSIGNED     NOT NULL,
  crashes      INT UNSIGNED     NOT NULL,
  suspicions   INT UNSIGNED     NOT NULL,
  enqueued_at  DATETIME(6)      NOT NULL,
  ordering_key VARBINARY(255)   NULL,
  biz_id       VARBINARY(255)   NULL,
  headers      MEDIUMBLOB       NULL,
  history      MEDIUMBLOB       NULL,
  body         LONGBLOB         NOT NULL,
  outcome      VARBINARY(16)    NOT NULL,
  reason       VARBINARY(8192)  NULL,
  settled_at   DATETIME(6)      NOT NULL,
  keep_until   DATETIME(6)      NOT NULL,
  PRIMARY KEY (id),
  KEY queue_archive_topic (topic_id, settled_at),
  KEY queue_archive_keep_until (keep_until)
) ENGINE = InnoDB;

-- Recurring messages: one row a schedule. Whoever has locked the row enqueues what is due of it and
-- moves next_at on, in one transaction, so that each tick is enqueued once.
CREATE TABLE queue_schedule (
  name         VARBINARY(64)    NOT NULL,
  topic_id     INT UNSIGNED     NOT NULL,
  cron         VARBINARY(255)   NOT NULL,
  time_zone    VARBINARY(64)    NOT NULL,
  missed       VARBINARY(16)    NOT NULL,
  paused       BOOLEAN          NOT NULL DEFAULT FALSE,
  next_at      DATETIME(6)      NULL,
  last_at      DATETIME(6)      NULL,
  ticks        BIGINT UNSIGNED  NOT NULL DEFAULT 0,
  priority     TINYINT UNSIGNED NOT NULL,
  ordering_key VARBINARY(255)   NULL,
  headers      MEDIUMBLOB       NULL,
  body         LONGBLOB         NOT NULL,
  created_at   DATETIME(6)      NOT NULL,
  updated_at   DATETIME(6)      NOT NULL,
  PRIMARY KEY (name),
  KEY queue_schedule_next (next_at),
  KEY queue_schedule_topic (topic_id),
  CONSTRAINT queue_schedule_priority CHECK (priority <= 9)
) ENGINE = InnoDB;

-- The biz ids that were handled within their topic's ledger window. group_id is 0 for a queue.
CREATE TABLE queue_ledger (
  topic_id   INT UNSIGNED   NOT NULL,
  group_id   INT UNSIGNED   NOT NULL DEFAULT 0,
  biz_id     VARBINARY(255) NOT NULL,
  msg_id     BINARY(16)     NOT NULL,
  keep_until DATETIME(6)    NOT NULL,
  PRIMARY KEY (topic_id, group_id, biz_id),
  KEY queue_ledger_keep_until (keep_until)
) ENGINE = InnoDB;

-- Streams. Producers insert into queue_message, the stream's inbox; the sequencer moves what has
-- committed into queue_log. Its lock on the partitions' rows is what makes offsets dense and their
-- order that of commits; next_offset is the offset of the next message, first_offset that of the
-- oldest one kept.
CREATE TABLE queue_partition (
  topic_id     INT UNSIGNED    NOT NULL,
  partition_no INT UNSIGNED    NOT NULL,
  next_offset  BIGINT UNSIGNED NOT NULL DEFAULT 0,
  first_offset BIGINT UNSIGNED NOT NULL DEFAULT 0,
  PRIMARY KEY (topic_id, partition_no)
) ENGINE = InnoDB;

CREATE TABLE queue_log (
  topic_id     INT UNSIGNED    NOT NULL,
  partition_no INT UNSIGNED    NOT NULL,
  offset_no    BIGINT UNSIGNED NOT NULL,
  msg_id       BINARY(16)      NOT NULL,
  enqueued_at  DATETIME(6)     NOT NULL,
  sequenced_at DATETIME(6)     NOT NULL,
  expires_at   DATETIME(6)     NULL,
  ordering_key VARBINARY(255)  NULL,
  biz_id       VARBINARY(255)  NULL,
  headers      MEDIUMBLOB      NULL,
  body         LONGBLOB        NOT NULL,
  PRIMARY KEY (topic_id, partition_no, offset_no)
) ENGINE = InnoDB;

-- next_offset: what the group claims next of the partition. generation: counts the resets.
-- lost: messages that retention removed before the group had claimed them.
CREATE TABLE queue_cursor (
  group_id     INT UNSIGNED    NOT NULL,
  partition_no INT UNSIGNED    NOT NULL,
  next_offset  BIGINT UNSIGNED NOT NULL,
  generation   BIGINT UNSIGNED NOT NULL DEFAULT 0,
  lost         BIGINT UNSIGNED NOT NULL DEFAULT 0,
  PRIMARY KEY (group_id, partition_no)
) ENGINE = InnoDB;

-- One row a claimed range of offsets, from mark up to hi, which is not of it. worker_id = 0: it is
-- to be claimed again. Rows are inserted under the lock of their cursor only, so that a reset,
-- which holds it, removes them all. failures, history and ready_at are those of the message at mark.
CREATE TABLE queue_range (
  id           BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  group_id     INT UNSIGNED    NOT NULL,
  partition_no INT UNSIGNED    NOT NULL,
  mark         BIGINT UNSIGNED NOT NULL,
  hi           BIGINT UNSIGNED NOT NULL,
  worker_id    BIGINT UNSIGNED NOT NULL DEFAULT 0,
  claim_no     BIGINT UNSIGNED NOT NULL DEFAULT 0,
  conn_id      BIGINT UNSIGNED NOT NULL DEFAULT 0,
  delivery_no  INT UNSIGNED    NOT NULL DEFAULT 0,
  failures     INT UNSIGNED    NOT NULL DEFAULT 0,
  crashes      INT UNSIGNED    NOT NULL DEFAULT 0,
  suspicions   INT UNSIGNED    NOT NULL DEFAULT 0,
  history      MEDIUMBLOB      NULL,
  ready_at     DATETIME(6)     NULL,
  claimed_at   DATETIME(6)     NULL,
  PRIMARY KEY (id),
  KEY queue_range_place (group_id, partition_no),
  KEY queue_range_worker (worker_id, claim_no),
  CONSTRAINT queue_range_mark CHECK (mark < hi)
) ENGINE = InnoDB;

-- Messages of a claimed range, at its mark or after it, whose handlers have acked them in transactions
-- of their own.
CREATE TABLE queue_passed (
  range_id  BIGINT UNSIGNED NOT NULL,
  offset_no BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (range_id, offset_no)
) ENGINE = InnoDB;

-- What each duty did last, for queuectl and for consumers that ask whether a janitor is at work.
CREATE TABLE queue_duty (
  name    VARBINARY(32)   NOT NULL,
  conn_id BIGINT UNSIGNED NOT NULL,
  holder  VARBINARY(255)  NOT NULL,
  runs    BIGINT UNSIGNED NOT NULL,
  ran_at  DATETIME(6)     NOT NULL,
  report  MEDIUMBLOB      NOT NULL,
  PRIMARY KEY (name)
) ENGINE = InnoDB;

-- The SQL contract (docs/sql-contract.md): enqueue from any language inside the caller's transaction.
-- SQL SECURITY DEFINER: a producer account needs EXECUTE on this procedure and nothing else.
-- The parameters are wider than the columns: a caller that is not in strict mode would have a value
-- that is too long cut on its way in; here, in strict mode, the INSERT refuses it (1406).
-- Times are UTC. in_deliver_at NULL: ready at once; in the past: too. in_expires_at NULL: never.
CREATE PROCEDURE queue_enqueue_at(
  IN in_topic      VARBINARY(255),
  IN in_body       LONGBLOB,
  IN in_deliver_at DATETIME(6),
  IN in_expires_at DATETIME(6),
  IN in_priority   INT,
  IN in_key        BLOB,
  IN in_biz_id     BLOB,
  IN in_headers    LONGBLOB,
  IN in_msg_id     VARBINARY(255)
)
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Enqueue one message for later; NULL takes the default. The id is left in @queue_msg_id.'
BEGIN
  DECLARE the_topic  INT UNSIGNED DEFAULT NULL;
  DECLARE the_pause  BOOLEAN;
  DECLARE the_limit  INT UNSIGNED;
  DECLARE the_kind   VARBINARY(16);
  DECLARE the_text   VARCHAR(128);
  DECLARE the_random CHAR(32);
  -- In latin1 every byte is a character, so that a name of any bytes can be shown.
  DECLARE the_name   VARCHAR(255) CHARACTER SET utf8mb4 DEFAULT COALESCE(CONVERT(in_topic USING latin1), 'NULL');
  DECLARE the_id     VARBINARY(255) DEFAULT in_msg_id;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET the_topic = NULL;

  SELECT id, enqueue_paused, body_limit, kind INTO the_topic, the_pause, the_limit, the_kind
    FROM queue_topic WHERE name = in_topic;

  IF the_topic IS NULL THEN
    SET the_text = LEFT(CONCAT('queue: unknown topic ''', the_name, '''; create it: queuectl topic create NAME'), 128);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = the_text, MYSQL_ERRNO = 31001;
  END IF;
  IF the_pause THEN
    SET the_text = LEFT(CONCAT('queue: topic ''', the_name, ''' takes no messages now; queuectl topic resume NAME'), 128);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = the_text, MYSQL_ERRNO = 31002;
  END IF;
  IF in_body IS NULL THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: the body is NULL; an empty body is ''''', MYSQL_ERRNO = 31003;
  END IF;
  IF LENGTH(in_body) > the_limit THEN
    SET the_text = LEFT(CONCAT('queue: body of ', LENGTH(in_body), ' bytes, the topic takes ', the_limit, '; raise: queuectl topic set NAME --body-limit'), 128);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = the_text, MYSQL_ERRNO = 31004;
  END IF;
  IF in_priority IS NOT NULL AND (in_priority < 0 OR in_priority > 9) THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: priority must be 0 (first) to 9 (last), or NULL for 5', MYSQL_ERRNO = 31005;
  END IF;
  IF the_kind = 'stream' AND in_priority <> 5 THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: a stream takes no priorities, its messages keep their order; pass NULL', MYSQL_ERRNO = 31005;
  END IF;
  IF CONVERT(the_id USING latin1) REGEXP '^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$' THEN
    SET the_id = UNHEX(REPLACE(CONVERT(the_id USING latin1), '-', ''));
  END IF;
  IF LENGTH(the_id) <> 16 THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: msg_id must be a UUID: 36 characters of text or 16 bytes, or NULL', MYSQL_ERRNO = 31006;
  END IF;
  -- A session that is not in strict mode has made a zero of what it could not read.
  IF in_deliver_at < '1970-01-01' OR in_expires_at < '1970-01-01' THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: deliver_at or expires_at is no DATETIME(6) after 1970; write UTC, without a zone: 2026-12-24 18:00:00', MYSQL_ERRNO = 31008;
  END IF;
  IF in_expires_at <= GREATEST(COALESCE(in_deliver_at, UTC_TIMESTAMP(6)), UTC_TIMESTAMP(6)) THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: expires_at has passed or is not after deliver_at, so nobody would handle it', MYSQL_ERRNO = 31007;
  END IF;
  IF the_id IS NULL THEN
    -- UUIDv7 (RFC 9562): 48 bits of milliseconds, then random bits around version and variant.
    SET the_random = LEFT(SHA2(CONCAT(UUID(), RAND()), 256), 32);
    SET the_id = UNHEX(CONCAT(
      LPAD(HEX(FLOOR(UNIX_TIMESTAMP(NOW(6)) * 1000)), 12, '0'),
      '7', SUBSTR(the_random, 1, 3), '8', SUBSTR(the_random, 4, 15)));
  END IF;

  IF in_deliver_at IS NULL THEN
    INSERT INTO queue_message (topic_id, priority, msg_id, enqueued_at, expires_at, ordering_key, biz_id, headers, body)
      VALUES (the_topic, COALESCE(in_priority, 5), the_id, UTC_TIMESTAMP(6), in_expires_at, in_key, in_biz_id, in_headers, in_body);
  ELSE
    INSERT INTO queue_scheduled (due_at, topic_id, priority, msg_id, delivery_no, failures, crashes, suspicions, enqueued_at, expires_at, ordering_key, biz_id, headers, body)
      VALUES (GREATEST(in_deliver_at, UTC_TIMESTAMP(6)), the_topic, COALESCE(in_priority, 5), the_id, 0, 0, 0, 0, UTC_TIMESTAMP(6), in_expires_at, in_key, in_biz_id, in_headers, in_body);
  END IF;
  SET @queue_msg_id = LOWER(CONCAT_WS('-',
    SUBSTR(HEX(the_id), 1, 8), SUBSTR(HEX(the_id), 9, 4), SUBSTR(HEX(the_id), 13, 4),
    SUBSTR(HEX(the_id), 17, 4), SUBSTR(HEX(the_id), 21, 12)));
END;

CREATE PROCEDURE queue_enqueue(
  IN in_topic    VARBINARY(255),
  IN in_body     LONGBLOB,
  IN in_priority INT,
  IN in_key      BLOB,
  IN in_biz_id   BLOB,
  IN in_headers  LONGBLOB,
  IN in_msg_id   VARBINARY(255)
)
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Enqueue one message; NULL takes the default. The id is left in @queue_msg_id.'
BEGIN
  CALL queue_enqueue_at(in_topic, in_body, NULL, NULL, in_priority, in_key, in_biz_id, in_headers, in_msg_id);
END;

CREATE PROCEDURE queue_cancel(
  IN in_topic  VARBINARY(255),
  IN in_msg_id VARBINARY(255)
)
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Take back a message whose time has not come. @queue_cancelled: 1, or 0 if none waits.'
BEGIN
  DECLARE the_row BIGINT UNSIGNED DEFAULT NULL;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET the_row = NULL;

  -- Read without locks: what is not there must not lock the place where it would be, which is
  -- where others insert (REPEATABLE READ, both servers' default).
  SELECT s.id INTO the_row FROM queue_scheduled s FORCE INDEX (queue_scheduled_msg), queue_topic t
    WHERE s.msg_id = IF(LENGTH(in_msg_id) = 16, in_msg_id, UNHEX(REPLACE(CONVERT(in_msg_id USING latin1), '-', '')))
      AND t.id = s.topic_id AND t.name = in_topic
    LIMIT 1;
  SET @queue_cancelled = 0;
  IF the_row IS NOT NULL THEN
    DELETE s FROM queue_scheduled s FORCE INDEX (queue_scheduled_id) WHERE s.id = the_row;
    SET @queue_cancelled = ROW_COUNT();
  END IF;
END;
