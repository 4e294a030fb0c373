-- Not for callers. Begins a transaction for a call that takes several statements, where none is open. The
-- savepoint tells queue_undo_killed that a killed call has left it open.
CREATE PROCEDURE queue_begin()
  CONTAINS SQL
  SQL SECURITY DEFINER
  COMMENT 'Used by the other calls.'
BEGIN
  START TRANSACTION;
  SAVEPOINT queue_own;
END
