-- Migrations are additive: going back means restoring a backup, never dropping messages.
SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: migrations are additive and are not reverted';
