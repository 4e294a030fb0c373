-- Who may do what by the SQL contract, and whose message is whose (docs/security.md). Each statement can be run
-- again after one that did not get its lock.

-- What an account may do to a topic by the procedures. A verb that no row has is open to every account
-- that may call; one that a row has only to the accounts of its rows. `others` is the exception: nobody
-- may change the messages of other accounts without a row. account: the name without its host, as the
-- session signed in. topic: a name, or * for all of them.
CREATE TABLE IF NOT EXISTS queue_access (
  verb    VARBINARY(16)  NOT NULL,
  account VARBINARY(255) NOT NULL,
  topic   VARBINARY(128) NOT NULL,
  PRIMARY KEY (verb, account, topic),
  CONSTRAINT queue_access_verb CHECK (verb IN ('enqueue', 'cancel', 'claim', 'others'))
) ENGINE = InnoDB;

-- The account that stored the row. By a default, so that every program's INSERT says it: USER() is who
-- signed in, also within a procedure. NULL: from before this migration. A column without a default
-- and a new default change only the table's definition on both servers, whatever its size (ADD COLUMN
-- with this default would copy it).
SET @queue_add = IF(
  EXISTS (SELECT 1 FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'queue_scheduled' AND COLUMN_NAME = 'account'),
  'DO 0', 'ALTER TABLE queue_scheduled ADD COLUMN account VARBINARY(255) NULL, ALGORITHM = INSTANT');
PREPARE queue_add FROM @queue_add;
EXECUTE queue_add;
ALTER TABLE queue_scheduled ALTER COLUMN account
  SET DEFAULT (LEFT(USER(), LENGTH(USER()) - LENGTH(SUBSTRING_INDEX(USER(), '@', -1)) - 1)), ALGORITHM = INSTANT;
SET @queue_add = IF(
  EXISTS (SELECT 1 FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'queue_unique' AND COLUMN_NAME = 'account'),
  'DO 0', 'ALTER TABLE queue_unique ADD COLUMN account VARBINARY(255) NULL, ALGORITHM = INSTANT');
PREPARE queue_add FROM @queue_add;
EXECUTE queue_add;
ALTER TABLE queue_unique ALTER COLUMN account
  SET DEFAULT (LEFT(USER(), LENGTH(USER()) - LENGTH(SUBSTRING_INDEX(USER(), '@', -1)) - 1)), ALGORITHM = INSTANT;
