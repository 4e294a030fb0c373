-- A row of a stream's log may hold a page: `messages` messages, the last of which has the row's offset.
-- entries says what of the page belongs to which message (queue-core/src/model/page.rs); its bodies lie in
-- `body`, msg_id is that of its first message, enqueued_at that of its earliest. NULL: the row is one message.
SET @queue_add = IF(
  EXISTS (SELECT 1 FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'queue_log' AND COLUMN_NAME = 'entries'),
  'DO 0', 'ALTER TABLE queue_log ADD COLUMN messages INT UNSIGNED NOT NULL DEFAULT 1, ADD COLUMN entries MEDIUMBLOB NULL, ALGORITHM = INSTANT');
PREPARE queue_add FROM @queue_add;
EXECUTE queue_add;

-- Whether pages are written: in new databases, and in others after `rowmq migrate --pages`.
SET @queue_add = IF(
  EXISTS (SELECT 1 FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'queue_partition' AND COLUMN_NAME = 'pages'),
  'DO 0', 'ALTER TABLE queue_partition ADD COLUMN pages BOOLEAN NOT NULL DEFAULT FALSE, ALGORITHM = INSTANT');
PREPARE queue_add FROM @queue_add;
EXECUTE queue_add;
