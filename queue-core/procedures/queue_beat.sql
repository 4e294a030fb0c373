-- Says that this session is alive, while it works on what it has claimed, and learns which of it is to be cancelled.
CREATE PROCEDURE queue_beat()
  MODIFIES SQL DATA
  SQL SECURITY DEFINER
  COMMENT 'Say that this session still works. @queue_asked_to_stop: deliveries that are to be cancelled.'
BEGIN
  DECLARE the_worker   BIGINT UNSIGNED;
  DECLARE the_lease    BIGINT UNSIGNED;
  DECLARE the_instance BINARY(16);
  DECLARE the_open     BOOLEAN;
  DECLARE the_killed   BOOLEAN;

  CALL queue_refuse_clock();
  CALL queue_undo_killed(the_open, the_killed);
  IF the_open THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: nobody sees a beat before its COMMIT: call queue_beat with autocommit on and no transaction open', MYSQL_ERRNO = 31014;
  END IF;
  CALL queue_own_worker(the_worker, the_lease, the_instance);
  IF the_worker IS NULL THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'queue: this session holds nothing any more: ROLLBACK what it works on, and claim anew', MYSQL_ERRNO = 31015;
  END IF;
  UPDATE queue_worker SET beat_no = beat_no + 1, beat_at = UTC_TIMESTAMP(6) WHERE id = the_worker AND state = 'alive';
  CALL queue_refuse_killed(ROW_COUNT());
  -- As a worker reads it with its pulse (store/floor.rs). A list that is cut off would end in another delivery.
  /*M! SET STATEMENT group_concat_max_len = 65536 FOR */
  SELECT /*+ SET_VAR(group_concat_max_len = 65536) */ GROUP_CONCAT(delivery) INTO @queue_asked_to_stop FROM (
    SELECT CONCAT_WS('.', m.worker_id, m.claim_no, m.id) AS delivery
    FROM queue_cancellation x STRAIGHT_JOIN queue_message m FORCE INDEX (queue_message_id) ON m.id = x.row_id
    WHERE x.requested_at > UTC_TIMESTAMP(6) - INTERVAL 30 SECOND AND m.worker_id = the_worker LIMIT 16) asked;
END
