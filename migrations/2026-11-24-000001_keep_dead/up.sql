-- How long a topic's dead letters are kept; NULL: until somebody purges or redrives them.
SET @queue_add = IF(
  EXISTS (SELECT 1 FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'queue_topic' AND COLUMN_NAME = 'keep_dead_ms'),
  'DO 0', 'ALTER TABLE queue_topic ADD COLUMN keep_dead_ms BIGINT UNSIGNED NULL, ALGORITHM = INSTANT');
PREPARE queue_add FROM @queue_add;
EXECUTE queue_add;
