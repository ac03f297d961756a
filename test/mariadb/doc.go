// Package mariadb tests the worked example in examples/mariadb: a real MariaDB
// as a session of a whole agent, replaced while clients write to it.
package mariadb
