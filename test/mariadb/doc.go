// Package mariadb tests the example in examples/mariadb: a real MariaDB is a session of an
// agent, and is replaced while clients write to it.
package mariadb
