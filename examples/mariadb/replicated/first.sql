-- The content of a new primary. Choose passwords; serve has that of repl.
FLUSH PRIVILEGES;
CREATE DATABASE app;
CREATE USER app IDENTIFIED BY 'change-me';
GRANT ALL ON app.* TO app;
CREATE USER repl IDENTIFIED BY 'change-me';
GRANT REPLICATION SLAVE ON *.* TO repl;
