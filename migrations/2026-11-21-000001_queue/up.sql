-- Every table carries the prefix queue_ and lives in the user's own database, so that a message
-- is enqueued in the user's own transaction. Names are bytes (VARBINARY): 'Mail' and 'mail' differ.

-- kind: queue, stream, group, or broadcast. A group reads the stream stream_id and is named
-- stream@group: what it could not handle is tried again, and dead-lettered, under the group's own
-- topic. A broadcast group gives every member every message; start_at: where a new member begins.
-- header_filter: a JSON array of conditions; NULL: the group wants every message.
-- trace_ppm: of a million messages so many leave a trace; a group has its stream's number.
-- backlog_*: what a sweeper has measured of a topic that has a limit, so that an enqueue counts
-- nothing. They change every few seconds at most.
CREATE TABLE queue_topic (
  id               INT UNSIGNED    NOT NULL AUTO_INCREMENT,
  name             VARBINARY(129)  NOT NULL,
  kind             VARBINARY(16)   NOT NULL DEFAULT 'queue',
  partitions       INT UNSIGNED    NOT NULL DEFAULT 0,
  stream_id        INT UNSIGNED    NULL,
  is_ordered       BOOLEAN         NOT NULL DEFAULT FALSE,
  start_at         VARBINARY(32)   NULL,
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
  max_depth        BIGINT UNSIGNED NULL,
  max_bytes        BIGINT UNSIGNED NULL,
  when_full        VARBINARY(16)   NOT NULL DEFAULT 'block',
  max_running      INT UNSIGNED    NULL,
  max_running_per_key INT UNSIGNED NULL,
  rate_messages    INT UNSIGNED    NULL,
  rate_period_ms   BIGINT UNSIGNED NULL,
  backlog_depth    BIGINT UNSIGNED NULL,
  backlog_bytes    BIGINT UNSIGNED NULL,
  backlog_full     BOOLEAN         NOT NULL DEFAULT FALSE,
  backlog_at       DATETIME(6)     NULL,
  searchable_ms    BIGINT UNSIGNED NULL,
  dedupe_window_ms BIGINT UNSIGNED NULL,
  retention_ms     BIGINT UNSIGNED NULL,
  retention_bytes  BIGINT UNSIGNED NULL,
  retention_hard   BOOLEAN         NOT NULL DEFAULT FALSE,
  prune_handled    BOOLEAN         NOT NULL DEFAULT FALSE,
  trace_ppm        INT UNSIGNED    NOT NULL DEFAULT 0,
  header_filter    VARBINARY(4096) NULL,
  created_at       DATETIME(6)     NOT NULL,
  updated_at       DATETIME(6)     NOT NULL,
  PRIMARY KEY (id),
  UNIQUE KEY queue_topic_name (name),
  KEY queue_topic_stream (stream_id)
) ENGINE = InnoDB;

-- The gate of a topic whose claims are bounded: they go through it one after the other. Until
-- spent_until the rate is used up.
CREATE TABLE queue_limit (
  topic_id    INT UNSIGNED NOT NULL,
  spent_until DATETIME(6)  NOT NULL,
  PRIMARY KEY (topic_id)
) ENGINE = InnoDB;

-- What was claimed through the gate. It counts as long as the message's row is of this claim, so
-- whatever ends the claim frees it; the next claim removes it.
CREATE TABLE queue_slot (
  topic_id  INT UNSIGNED     NOT NULL,
  id        BIGINT UNSIGNED  NOT NULL,
  priority  TINYINT UNSIGNED NOT NULL,
  worker_id BIGINT UNSIGNED  NOT NULL,
  claim_no  BIGINT UNSIGNED  NOT NULL,
  slot_key  VARBINARY(255)   NULL,
  PRIMARY KEY (topic_id, id)
) ENGINE = InnoDB;

-- The switch for all topics at once: what it pauses is paused for each, whatever the topic itself
-- says. Without a row it pauses nothing.
CREATE TABLE queue_switch (
  only_row       TINYINT UNSIGNED NOT NULL,
  enqueue_paused BOOLEAN          NOT NULL,
  claim_paused   BOOLEAN          NOT NULL,
  updated_at     DATETIME(6)      NOT NULL,
  PRIMARY KEY (only_row),
  CONSTRAINT queue_switch_one CHECK (only_row = 1)
) ENGINE = InnoDB;

-- The hot table: a row exists until its message is settled. No index on claim state: every claim
-- and settle would move an entry at one hot spot (measured, docs/architecture.md).
-- worker_id = 0: ready. priority 100..109: a suspect of priority 0..9, claimed alone.
-- topic_id = 0 is no topic: a row is a producer's lane there, so that one INSERT stores a batch and
-- advances the lane. claim_no: the number of the last batch that was committed; msg_id: its name;
-- priority 1: a producer with a spill journal may ask for it after a restart.
-- history: a line of JSON for each failed run, its newest 32 KiB. No claim reads it.
-- unique_key: held in queue_unique until the message is done; NULL for most.
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
  unique_key   VARBINARY(255)   NULL,
  headers      MEDIUMBLOB       NULL,
  history      MEDIUMBLOB       NULL,
  body         LONGBLOB         NOT NULL,
  PRIMARY KEY (topic_id, priority, id),
  KEY queue_message_id (id),
  CONSTRAINT queue_message_priority CHECK (priority <= 9 OR priority BETWEEN 100 AND 109)
) ENGINE = InnoDB;

-- Messages of the hot table that somebody wants cancelled, by their rows: whoever has one stops
-- handling it. A row is there for as long as somebody waits for that. With a worker's number the
-- message was taken away from that worker, whose handler may still run: it stays until the worker has
-- outlived that.
CREATE TABLE queue_cancellation (
  row_id       BIGINT UNSIGNED NOT NULL,
  requested_at DATETIME(6)     NOT NULL,
  worker_id    BIGINT UNSIGNED NOT NULL DEFAULT 0,
  PRIMARY KEY (row_id)
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
  unique_key   VARBINARY(255)   NULL,
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
  unique_key   VARBINARY(255)   NULL,
  headers      MEDIUMBLOB       NULL,
  history      MEDIUMBLOB       NULL,
  body         LONGBLOB         NOT NULL,
  cause        VARBINARY(16)    NOT NULL,
  last_error   VARBINARY(8192)  NULL,
  died_at      DATETIME(6)      NOT NULL,
  PRIMARY KEY (id),
  KEY queue_dead_topic (topic_id, died_at),
  KEY queue_dead_msg (msg_id)
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
  KEY queue_archive_msg (msg_id),
  KEY queue_archive_keep_until (keep_until)
) ENGINE = InnoDB;

-- How far the handlers of long messages have come, for whoever goes on. progress: a percentage.
-- enqueued_at tells a message from an earlier one with its id, of which something was left.
CREATE TABLE queue_checkpoint (
  topic_id    INT UNSIGNED     NOT NULL,
  msg_id      BINARY(16)       NOT NULL,
  enqueued_at DATETIME(6)      NOT NULL,
  delivery_no INT UNSIGNED     NOT NULL,
  saved_at    DATETIME(6)      NOT NULL,
  progress    TINYINT UNSIGNED NULL,
  state       MEDIUMBLOB       NOT NULL,
  PRIMARY KEY (topic_id, msg_id),
  KEY queue_checkpoint_saved_at (saved_at)
) ENGINE = InnoDB;

-- How much each worker has got done, in totals that it tells now and then. worker_id 0: all that are gone.
CREATE TABLE queue_throughput (
  worker_id BIGINT UNSIGNED NOT NULL,
  topic_id  INT UNSIGNED    NOT NULL,
  done      BIGINT UNSIGNED NOT NULL DEFAULT 0,
  failed    BIGINT UNSIGNED NOT NULL DEFAULT 0,
  picked_up BIGINT UNSIGNED NOT NULL DEFAULT 0,
  waited_us BIGINT UNSIGNED NOT NULL DEFAULT 0,
  PRIMARY KEY (worker_id, topic_id)
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

-- What was enqueued in topics that are searchable, by what people search for. row_id: its row in the
-- hot table, as far as is known; NULL until it has one. State is never kept here: it is looked up.
CREATE TABLE queue_lookup (
  topic_id     INT UNSIGNED    NOT NULL,
  msg_id       BINARY(16)      NOT NULL,
  row_id       BIGINT UNSIGNED NULL,
  enqueued_at  DATETIME(6)     NOT NULL,
  biz_id       VARBINARY(255)  NULL,
  ordering_key VARBINARY(255)  NULL,
  PRIMARY KEY (topic_id, msg_id),
  KEY queue_lookup_biz (topic_id, biz_id),
  KEY queue_lookup_key (topic_id, ordering_key),
  KEY queue_lookup_time (topic_id, enqueued_at)
) ENGINE = InnoDB;

-- The ids that clients gave their messages, within their topic's dedupe window. repeats: how often
-- the id has come again.
CREATE TABLE queue_dedupe (
  topic_id   INT UNSIGNED    NOT NULL,
  msg_id     BINARY(16)      NOT NULL,
  repeats    BIGINT UNSIGNED NOT NULL DEFAULT 0,
  keep_until DATETIME(6)     NOT NULL,
  PRIMARY KEY (topic_id, msg_id),
  KEY queue_dedupe_keep_until (keep_until)
) ENGINE = InnoDB;

-- The unique keys and the message that holds each: until a time, or, where keep_until is NULL, until
-- that message is done. priority, ready_id and scheduled_id: the row it was stored in, for messages
-- that may be replaced while they wait; ready_id 0: it was redriven, and the next one that replaces
-- is stored beside it.
CREATE TABLE queue_unique (
  topic_id     INT UNSIGNED     NOT NULL,
  unique_key   VARBINARY(255)   NOT NULL,
  msg_id       BINARY(16)       NOT NULL,
  repeats      BIGINT UNSIGNED  NOT NULL DEFAULT 0,
  keep_until   DATETIME(6)      NULL,
  priority     TINYINT UNSIGNED NULL,
  ready_id     BIGINT UNSIGNED  NULL,
  scheduled_id BIGINT UNSIGNED  NULL,
  PRIMARY KEY (topic_id, unique_key),
  KEY queue_unique_keep_until (keep_until)
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

-- How far the named members of broadcast groups have come. worker_id: the worker that is the member
-- now, if it is alive; whoever takes the name, or puts the member elsewhere, changes it, and so fences
-- that worker. lost: messages that retention removed before the member had read them.
CREATE TABLE queue_member (
  group_id     INT UNSIGNED    NOT NULL,
  name         VARBINARY(64)   NOT NULL,
  partition_no INT UNSIGNED    NOT NULL,
  next_offset  BIGINT UNSIGNED NOT NULL,
  lost         BIGINT UNSIGNED NOT NULL DEFAULT 0,
  worker_id    BIGINT UNSIGNED NOT NULL DEFAULT 0,
  told_at      DATETIME(6)     NOT NULL,
  PRIMARY KEY (group_id, name, partition_no)
) ENGINE = InnoDB;

-- What happened to the messages that a topic traces, a row an event, written by the transaction that
-- made it happen. topic_id is that of the group where a group did it. client: who enqueued or
-- claimed. No unique key beside the number: nobody who writes waits for another.
CREATE TABLE queue_trace (
  id           BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  topic_id     INT UNSIGNED    NOT NULL,
  msg_id       BINARY(16)      NOT NULL,
  event        VARBINARY(16)   NOT NULL,
  at           DATETIME(6)     NOT NULL,
  delivery_no  INT UNSIGNED    NOT NULL DEFAULT 0,
  worker_id    BIGINT UNSIGNED NOT NULL DEFAULT 0,
  conn_id      BIGINT UNSIGNED NOT NULL DEFAULT 0,
  client       VARBINARY(255)  NULL,
  partition_no INT UNSIGNED    NULL,
  offset_no    BIGINT UNSIGNED NULL,
  outcome      VARBINARY(16)   NULL,
  error        VARBINARY(1024) NULL,
  PRIMARY KEY (id),
  KEY queue_trace_msg (msg_id),
  KEY queue_trace_at (at)
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

-- Who changed what by hand, written by the transactions that changed it. messages: how many it was, so
-- far; a change of many messages is many transactions, and each adds its own.
CREATE TABLE queue_audit (
  id       BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  at       DATETIME(6)     NOT NULL,
  actor    VARBINARY(255)  NOT NULL,
  origin   VARBINARY(255)  NOT NULL,
  action   VARBINARY(32)   NOT NULL,
  target   VARBINARY(129)  NOT NULL,
  detail   VARBINARY(1024) NULL,
  messages BIGINT UNSIGNED NOT NULL DEFAULT 0,
  PRIMARY KEY (id),
  KEY queue_audit_at (at)
) ENGINE = InnoDB;

-- On MariaDB a KILL QUERY that comes while a range is planned makes an UPDATE or DELETE of one table
-- change nothing, and a SELECT find nothing, and answer that all is well (*run*: with one kill in seven;
-- not on MySQL, not for a SELECT by a whole key, not for an INSERT). So what must have a row is checked
-- by queue_refuse_killed, and what is believed to be gone is looked for twice.

-- Not for callers. Fails as a killed statement does, if an UPDATE or DELETE that must have had a row had
-- none.
CREATE PROCEDURE queue_refuse_killed(IN in_rows BIGINT)
  NO SQL
  SQL SECURITY DEFINER
  COMMENT 'Used by the other calls.'
BEGIN
  IF in_rows = 0 THEN
    SIGNAL SQLSTATE '70100' SET MESSAGE_TEXT = 'Query execution was interrupted', MYSQL_ERRNO = 1317;
  END IF;
END;

-- The SQL contract (docs/sql-contract.md): enqueue from any language inside the caller's transaction.
-- SQL SECURITY DEFINER: a producer account needs EXECUTE on this procedure and nothing else.
-- The parameters are wider than the columns: a caller that is not in strict mode would have a value
-- that is too long cut on its way in; here, in strict mode, the INSERT refuses it (1406).
-- Times are UTC. in_deliver_at NULL: ready at once; in the past: too. in_expires_at NULL: never.
-- in_unique_key NULL: not unique. in_unique_for and in_max_wait are seconds; NULL: until the message is
-- done, and without an end. in_on_conflict: keep (or NULL), replace, debounce.
CREATE PROCEDURE queue_enqueue_unique(
  IN in_topic       VARBINARY(255),
  IN in_body        LONGBLOB,
  IN in_unique_key  BLOB,
  IN in_unique_for  BIGINT,
  IN in_on_conflict VARBINARY(255),
  IN in_max_wait    BIGINT,
  IN in_deliver_at  DATETIME(6),
  IN in_expires_at  DATETIME(6),
  IN in_priority    INT,
  IN in_key         BLOB,
  IN in_biz_id      BLOB,
  IN in_headers     LONGBLOB,
  IN in_msg_id      VARBINARY(255)
)
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Enqueue one message unless its key is held. Outcome: @queue_msg_id, @queue_duplicate, @queue_replaced.'
BEGIN
  DECLARE the_topic  INT UNSIGNED DEFAULT NULL;
  DECLARE the_pause  BOOLEAN;
  DECLARE the_switch BOOLEAN;
  DECLARE the_limit  INT UNSIGNED;
  DECLARE the_full   BOOLEAN;
  DECLARE the_fill   VARCHAR(64);
  DECLARE the_search BOOLEAN;
  DECLARE the_trace  INT UNSIGNED;
  DECLARE the_row    BIGINT UNSIGNED DEFAULT NULL;
  DECLARE the_window BIGINT UNSIGNED;
  DECLARE the_kind   VARBINARY(16);
  DECLARE the_text   VARCHAR(128);
  DECLARE the_random CHAR(32);
  -- In latin1 every byte is a character, so that a name of any bytes can be shown.
  DECLARE the_name   VARCHAR(255) CHARACTER SET utf8mb4 DEFAULT COALESCE(CONVERT(in_topic USING latin1), 'NULL');
  DECLARE the_id     VARBINARY(255) DEFAULT in_msg_id;
  DECLARE the_choice VARBINARY(255) DEFAULT COALESCE(in_on_conflict, 'keep');
  DECLARE the_dedupe BOOLEAN;
  DECLARE the_other  BINARY(16) DEFAULT NULL;
  DECLARE the_level  TINYINT UNSIGNED DEFAULT NULL;
  DECLARE the_ready  BIGINT UNSIGNED DEFAULT NULL;
  DECLARE the_later  BIGINT UNSIGNED DEFAULT NULL;
  DECLARE the_found  BIGINT UNSIGNED DEFAULT NULL;
  DECLARE the_now    DATETIME(6);
  DECLARE the_fate   VARCHAR(16) DEFAULT 'stored';

  BEGIN
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET the_topic = NULL;
    -- A measurement that nobody has renewed for 30 s says nothing any more.
    SELECT id, kind, enqueue_paused, EXISTS (SELECT 1 FROM queue_switch x WHERE x.enqueue_paused), body_limit, dedupe_window_ms, searchable_ms IS NOT NULL, trace_ppm,
        backlog_full AND backlog_at > UTC_TIMESTAMP(6) - INTERVAL 30 SECOND
          AND (backlog_depth >= max_depth * 0.9 OR backlog_bytes >= max_bytes * 0.9),
        IF(backlog_depth >= max_depth * 0.9, CONCAT(backlog_depth, ' messages, the limit is ', max_depth), CONCAT(backlog_bytes, ' bytes, the limit is ', max_bytes))
      INTO the_topic, the_kind, the_pause, the_switch, the_limit, the_window, the_search, the_trace, the_full, the_fill
      FROM queue_topic WHERE name = in_topic;
  END;

  IF the_topic IS NULL THEN
    SET the_text = LEFT(CONCAT('queue: unknown topic ''', the_name, '''; create it: queuectl topic create NAME'), 128);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = the_text, MYSQL_ERRNO = 31001;
  END IF;
  IF the_pause THEN
    SET the_text = LEFT(CONCAT('queue: topic ''', the_name, ''' takes no messages now; queuectl topic resume NAME'), 128);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = the_text, MYSQL_ERRNO = 31002;
  END IF;
  IF the_switch THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: no topic takes messages now; queuectl access read-write', MYSQL_ERRNO = 31002;
  END IF;
  IF the_full THEN
    SET the_text = LEFT(CONCAT('queue: topic ''', the_name, ''' is full (about ', the_fill, '); try again when it is drained'), 128);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = the_text, MYSQL_ERRNO = 31020;
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
  IF the_kind = 'stream' AND in_unique_key IS NOT NULL AND in_unique_for IS NULL THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: a message of a stream is never done; hold its unique key for a time', MYSQL_ERRNO = 31009;
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
  IF in_unique_key IS NOT NULL THEN
    IF LENGTH(in_unique_key) NOT BETWEEN 1 AND 255 THEN
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: unique_key must have 1 to 255 bytes, or be NULL', MYSQL_ERRNO = 31009;
    END IF;
    IF in_unique_for NOT BETWEEN 1 AND 315360000 OR in_max_wait NOT BETWEEN 1 AND 315360000 THEN
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: unique_for and max_wait are seconds, 1 to 315360000 (ten years), or NULL', MYSQL_ERRNO = 31010;
    END IF;
    IF the_choice NOT IN ('keep', 'replace', 'debounce') OR (the_choice <> 'keep' AND in_unique_for IS NOT NULL)
       OR (the_choice <> 'debounce' AND in_max_wait IS NOT NULL) THEN
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: on_conflict is keep, or, with unique_for NULL, replace or debounce; only debounce has max_wait', MYSQL_ERRNO = 31011;
    END IF;
    IF the_choice = 'debounce' AND COALESCE(in_deliver_at <= UTC_TIMESTAMP(6), TRUE) THEN
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: a debounced message needs a deliver_at that has not passed', MYSQL_ERRNO = 31012;
    END IF;
  ELSEIF in_unique_for IS NOT NULL OR in_on_conflict IS NOT NULL OR in_max_wait IS NOT NULL THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: unique_key is NULL, so unique_for, on_conflict and max_wait must be too', MYSQL_ERRNO = 31009;
  END IF;
  SET the_dedupe = the_id IS NOT NULL AND the_window IS NOT NULL;
  IF the_id IS NULL THEN
    -- UUIDv7 (RFC 9562): 48 bits of milliseconds, then random bits around version and variant.
    SET the_random = LEFT(SHA2(CONCAT(UUID(), RAND()), 256), 32);
    SET the_id = UNHEX(CONCAT(
      LPAD(HEX(FLOOR(UNIX_TIMESTAMP(NOW(6)) * 1000)), 12, '0'),
      '7', SUBSTR(the_random, 1, 3), '8', SUBSTR(the_random, 4, 15)));
  END IF;

  BEGIN
    -- What is not stored leaves nothing behind, even if the caller commits. After a deadlock there is
    -- nothing to go back to any more.
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
      IF the_dedupe OR in_unique_key IS NOT NULL THEN
        BEGIN
          DECLARE CONTINUE HANDLER FOR 1305 BEGIN END;
          ROLLBACK TO SAVEPOINT queue_enqueue;
        END;
      END IF;
      RESIGNAL;
    END;

    IF the_dedupe OR in_unique_key IS NOT NULL THEN
      BEGIN
        -- Where no transaction is open, there is no savepoint.
        DECLARE CONTINUE HANDLER FOR 1305
          SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: this takes a transaction: START TRANSACTION before, COMMIT after', MYSQL_ERRNO = 31013;
        SAVEPOINT queue_enqueue;
        ROLLBACK TO SAVEPOINT queue_enqueue;
      END;
    END IF;

    IF the_dedupe THEN
      -- Two rows affected: it was there, whatever the caller's session counts.
      INSERT INTO queue_dedupe (topic_id, msg_id, keep_until)
        VALUES (the_topic, the_id, UTC_TIMESTAMP(6) + INTERVAL LEAST(the_window, 315360000000) * 1000 MICROSECOND)
        ON DUPLICATE KEY UPDATE
          repeats = IF(keep_until < UTC_TIMESTAMP(6), 0, repeats + 1),
          keep_until = IF(keep_until < UTC_TIMESTAMP(6), VALUES(keep_until), keep_until);
      IF ROW_COUNT() > 1 THEN
        SELECT IF(repeats > 0, 'duplicate', 'stored') INTO the_fate
          FROM queue_dedupe WHERE topic_id = the_topic AND msg_id = the_id;
      END IF;
    END IF;

    IF in_unique_key IS NOT NULL AND the_fate = 'stored' THEN
      INSERT INTO queue_unique (topic_id, unique_key, msg_id, keep_until)
        VALUES (the_topic, in_unique_key, the_id, UTC_TIMESTAMP(6) + INTERVAL in_unique_for SECOND)
        ON DUPLICATE KEY UPDATE
          repeats = IF(keep_until < UTC_TIMESTAMP(6), 0, repeats + 1),
          msg_id = IF(keep_until < UTC_TIMESTAMP(6), VALUES(msg_id), msg_id),
          priority = IF(keep_until < UTC_TIMESTAMP(6), NULL, priority),
          ready_id = IF(keep_until < UTC_TIMESTAMP(6), NULL, ready_id),
          scheduled_id = IF(keep_until < UTC_TIMESTAMP(6), NULL, scheduled_id),
          keep_until = IF(keep_until < UTC_TIMESTAMP(6), VALUES(keep_until), keep_until);
      IF ROW_COUNT() > 1 THEN
        SELECT IF(repeats > 0, 'duplicate', 'stored'), msg_id, priority, ready_id, scheduled_id
          INTO the_fate, the_other, the_level, the_ready, the_later
          FROM queue_unique WHERE topic_id = the_topic AND unique_key = in_unique_key;
      END IF;
      -- The same message once more replaces nothing: its first end would free the key of the second.
      IF the_fate = 'duplicate' AND the_choice <> 'keep' AND the_other <> the_id AND (the_ready IS NOT NULL OR the_later IS NOT NULL) THEN
        BEGIN
          DECLARE CONTINUE HANDLER FOR NOT FOUND SET the_found = NULL;
          IF the_ready > 0 THEN
            SELECT id INTO the_found FROM queue_message FORCE INDEX (PRIMARY)
              WHERE topic_id = the_topic AND priority = the_level AND id = the_ready
                AND worker_id = 0 AND msg_id = the_other AND delivery_no = 0 FOR UPDATE SKIP LOCKED;
          ELSEIF the_later IS NOT NULL THEN
            SELECT id INTO the_found FROM queue_scheduled FORCE INDEX (queue_scheduled_id)
              WHERE id = the_later AND topic_id = the_topic
                AND msg_id = the_other AND delivery_no = 0 FOR UPDATE SKIP LOCKED;
          END IF;
        END;
        IF the_found IS NULL THEN
          UPDATE queue_unique SET msg_id = the_id, repeats = 0, keep_until = NULL
            WHERE topic_id = the_topic AND unique_key = in_unique_key;
          CALL queue_refuse_killed(ROW_COUNT());
          SET the_fate = 'stored';
        ELSEIF the_ready IS NOT NULL THEN
          UPDATE queue_message FORCE INDEX (PRIMARY)
            SET ordering_key = in_key, biz_id = in_biz_id, headers = in_headers, body = in_body, expires_at = in_expires_at
            WHERE topic_id = the_topic AND priority = the_level AND id = the_ready;
          IF ROW_COUNT() = 0 THEN
            -- Of the same words as before, or killed. FOR UPDATE: of what it has locked the caller's
            -- transaction may see an older version.
            SELECT COUNT(*) INTO the_found FROM queue_message FORCE INDEX (PRIMARY)
              WHERE topic_id = the_topic AND priority = the_level AND id = the_ready
                AND ordering_key <=> in_key AND biz_id <=> in_biz_id AND headers <=> in_headers AND body <=> in_body AND expires_at <=> in_expires_at
              FOR UPDATE;
            CALL queue_refuse_killed(the_found);
          END IF;
          SET the_fate = 'replaced';
        ELSE
          SET the_now = UTC_TIMESTAMP(6);
          UPDATE queue_scheduled FORCE INDEX (queue_scheduled_id)
            SET ordering_key = in_key, biz_id = in_biz_id, headers = in_headers, body = in_body, expires_at = in_expires_at,
              due_at = GREATEST(the_now, LEAST(COALESCE(in_deliver_at, the_now), enqueued_at + INTERVAL COALESCE(in_max_wait, 315360000) SECOND))
            WHERE id = the_later;
          IF ROW_COUNT() = 0 THEN
            SELECT COUNT(*) INTO the_found FROM queue_scheduled FORCE INDEX (queue_scheduled_id)
              WHERE id = the_later
                AND ordering_key <=> in_key AND biz_id <=> in_biz_id AND headers <=> in_headers AND body <=> in_body AND expires_at <=> in_expires_at
                AND due_at = GREATEST(the_now, LEAST(COALESCE(in_deliver_at, the_now), enqueued_at + INTERVAL COALESCE(in_max_wait, 315360000) SECOND))
              FOR UPDATE;
            CALL queue_refuse_killed(the_found);
          END IF;
          SET the_fate = 'replaced';
        END IF;
      END IF;
      IF the_fate = 'duplicate' AND the_dedupe AND the_other <> the_id THEN
        -- Its key refused it, so that it is nowhere: the id is as new as before.
        DELETE FROM queue_dedupe WHERE topic_id = the_topic AND msg_id = the_id;
        CALL queue_refuse_killed(ROW_COUNT());
      END IF;
    END IF;

    IF the_fate = 'stored' AND in_deliver_at IS NULL THEN
      INSERT INTO queue_message (topic_id, priority, msg_id, enqueued_at, expires_at, ordering_key, biz_id, unique_key, headers, body)
        VALUES (the_topic, COALESCE(in_priority, 5), the_id, UTC_TIMESTAMP(6), in_expires_at, in_key, in_biz_id, IF(in_unique_for IS NULL, in_unique_key, NULL), in_headers, in_body);
      SET the_row = LAST_INSERT_ID();
    ELSEIF the_fate = 'stored' THEN
      INSERT INTO queue_scheduled (due_at, topic_id, priority, msg_id, delivery_no, failures, crashes, suspicions, enqueued_at, expires_at, ordering_key, biz_id, unique_key, headers, body)
        VALUES (GREATEST(in_deliver_at, UTC_TIMESTAMP(6)), the_topic, COALESCE(in_priority, 5), the_id, 0, 0, 0, 0, UTC_TIMESTAMP(6), in_expires_at, in_key, in_biz_id, IF(in_unique_for IS NULL, in_unique_key, NULL), in_headers, in_body);
    END IF;
    IF the_fate = 'stored' AND in_unique_key IS NOT NULL AND the_choice <> 'keep' THEN
      UPDATE queue_unique SET priority = COALESCE(in_priority, 5),
          ready_id = IF(in_deliver_at IS NULL, LAST_INSERT_ID(), NULL),
          scheduled_id = IF(in_deliver_at IS NULL, NULL, LAST_INSERT_ID())
        WHERE topic_id = the_topic AND unique_key = in_unique_key;
      CALL queue_refuse_killed(ROW_COUNT());
    END IF;
    IF the_search AND the_fate = 'stored' THEN
      INSERT INTO queue_lookup (topic_id, msg_id, row_id, enqueued_at, biz_id, ordering_key)
        VALUES (the_topic, the_id, the_row, UTC_TIMESTAMP(6), in_biz_id, in_key)
        ON DUPLICATE KEY UPDATE row_id = VALUES(row_id), enqueued_at = VALUES(enqueued_at);
    ELSEIF the_search AND the_fate = 'replaced' THEN
      UPDATE queue_lookup SET biz_id = in_biz_id, ordering_key = in_key
        WHERE topic_id = the_topic AND msg_id = the_other;
      IF ROW_COUNT() = 0 THEN
        SELECT COUNT(*) INTO the_found FROM queue_lookup
          WHERE topic_id = the_topic AND msg_id = the_other AND NOT (biz_id <=> in_biz_id AND ordering_key <=> in_key)
          FOR UPDATE;
        CALL queue_refuse_killed(the_found = 0);
      END IF;
    END IF;
    IF the_fate = 'stored' AND CRC32(the_id) MOD 1000000 < the_trace THEN
      -- USER() is who called; CURRENT_USER() would be who made the procedure.
      INSERT INTO queue_trace (topic_id, msg_id, event, at, conn_id, client)
        VALUES (the_topic, the_id, 'enqueued', UTC_TIMESTAMP(6), CONNECTION_ID(), LEFT(USER(), 255));
    END IF;
  END;
  SET @queue_duplicate = the_fate <> 'stored', @queue_replaced = the_fate = 'replaced';
  IF the_fate <> 'stored' AND the_other IS NOT NULL THEN
    SET the_id = the_other;
  END IF;
  SET @queue_msg_id = LOWER(CONCAT_WS('-',
    SUBSTR(HEX(the_id), 1, 8), SUBSTR(HEX(the_id), 9, 4), SUBSTR(HEX(the_id), 13, 4),
    SUBSTR(HEX(the_id), 17, 4), SUBSTR(HEX(the_id), 21, 12)));
END;

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
  CALL queue_enqueue_unique(in_topic, in_body, NULL, NULL, NULL, NULL, in_deliver_at, in_expires_at, in_priority, in_key, in_biz_id, in_headers, in_msg_id);
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
  CALL queue_enqueue_unique(in_topic, in_body, NULL, NULL, NULL, NULL, NULL, NULL, in_priority, in_key, in_biz_id, in_headers, in_msg_id);
END;

CREATE PROCEDURE queue_cancel(
  IN in_topic  VARBINARY(255),
  IN in_msg_id VARBINARY(255)
)
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Take back a message whose time has not come. @queue_cancelled: 1, or 0 if none waits.'
BEGIN
  DECLARE the_row   BIGINT UNSIGNED DEFAULT NULL;
  DECLARE the_looks TINYINT UNSIGNED DEFAULT 0;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET the_row = NULL;

  SET @queue_cancelled = 0;
  -- What is not found is looked for once more.
  WHILE the_looks < 2 AND NOT @queue_cancelled DO
    SET the_looks = the_looks + 1, the_row = NULL;
    -- Read without locks: what is not there must not lock the place where it would be, which is
    -- where others insert (REPEATABLE READ, both servers' default).
    SELECT s.id INTO the_row FROM queue_scheduled s FORCE INDEX (queue_scheduled_msg), queue_topic t
      WHERE s.msg_id = IF(LENGTH(in_msg_id) = 16, in_msg_id, UNHEX(REPLACE(CONVERT(in_msg_id USING latin1), '-', '')))
        AND t.id = s.topic_id AND t.name = in_topic
      LIMIT 1;
    IF the_row IS NOT NULL THEN
      -- With its unique key, in one statement: it may commit by itself.
      DELETE s, u FROM queue_scheduled s FORCE INDEX (queue_scheduled_id)
        LEFT JOIN queue_unique u FORCE INDEX (PRIMARY)
          ON u.topic_id = s.topic_id AND u.unique_key = s.unique_key AND u.msg_id = s.msg_id
        WHERE s.id = the_row;
      SET @queue_cancelled = ROW_COUNT() > 0;
    END IF;
  END WHILE;
END;
