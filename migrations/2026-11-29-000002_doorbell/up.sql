-- The topics that a worker is rung for while it is idle: their ids, separated by commas. NULL: it polls.
SET @queue_add = IF(
  EXISTS (SELECT 1 FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'queue_worker' AND COLUMN_NAME = 'topics'),
  'DO 0', 'ALTER TABLE queue_worker ADD COLUMN topics MEDIUMBLOB NULL, ALGORITHM = INSTANT');
PREPARE queue_add FROM @queue_add;
EXECUTE queue_add;
