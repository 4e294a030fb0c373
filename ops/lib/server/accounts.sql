-- What every development server starts with: one database and one account that may do everything
-- (the tests create databases and accounts of their own).
CREATE DATABASE queue;
CREATE USER 'queue'@'%' IDENTIFIED BY 'queue';
GRANT ALL PRIVILEGES ON *.* TO 'queue'@'%' WITH GRANT OPTION;
CREATE USER 'queue'@'localhost' IDENTIFIED BY 'queue';
GRANT ALL PRIVILEGES ON *.* TO 'queue'@'localhost' WITH GRANT OPTION;
