-- Where the janitor must not have PROCESS, which shows what every session of the server runs: a view that shows
-- the ids of connections and nothing else, by an account that nobody can log in with. An administrator runs it
-- in the queue's database, after `rowmq migrate` and the accounts; `rowmq doctor` says whether it serves.
CREATE USER IF NOT EXISTS 'queue_process_list'@'localhost' ACCOUNT LOCK;
GRANT /*!80000 SELECT ON performance_schema.threads */ /*M!100600 PROCESS ON *.* */ TO 'queue_process_list'@'localhost';
-- sees_all: whether that account sees the connections of others; without PROCESS MariaDB would show it none.
CREATE OR REPLACE DEFINER = 'queue_process_list'@'localhost' SQL SECURITY DEFINER VIEW queue_connection AS
  SELECT /*!80000 PROCESSLIST_ID AS conn_id, 1 AS sees_all
    FROM performance_schema.threads WHERE PROCESSLIST_ID IS NOT NULL */
  /*M!100600 ID AS conn_id, (SELECT COUNT(*) FROM information_schema.USER_PRIVILEGES
      WHERE PRIVILEGE_TYPE = 'PROCESS' AND GRANTEE = '''queue_process_list''@''localhost''') AS sees_all
    FROM information_schema.PROCESSLIST */;
GRANT SELECT ON queue_connection TO 'queue_janitor'@'%';
GRANT SELECT ON queue_connection TO 'queue_consumer'@'%';
