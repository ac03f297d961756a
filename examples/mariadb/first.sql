-- Run once, when a database is made. Choose a password. The first line makes a
-- server that is being set up read its accounts, so that it takes new ones.
FLUSH PRIVILEGES;
CREATE DATABASE app;
CREATE USER app IDENTIFIED BY 'change-me';
GRANT ALL ON app.* TO app;
