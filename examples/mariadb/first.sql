-- Executed once, when a database is created. Choose a password. The first statement makes
-- the bootstrap server load its grant tables, so that it accepts new accounts.
FLUSH PRIVILEGES;
CREATE DATABASE app;
CREATE USER app IDENTIFIED BY 'change-me';
GRANT ALL ON app.* TO app;
