version() { mariadbd --version; }
prepare() {
  mkdir "$DIR/data"
  cat >"$DIR/connect.lua" <<-END # each query has a connection of its own
	function event()
	  local connection = sysbench.sql.driver():connect()
	  connection:query("SELECT 1")
	  connection:disconnect()
	end
	END
  start
  until_it mariadb-admin --no-defaults -h "$HOST" -P "$PORT" ping
  stop
}
start() {
  run mariadbd --no-defaults --user=root --datadir="$DIR/data" --bind-address="$HOST" --port="$PORT" --socket="$DIR/s" \
    --skip-grant-tables --skip-networking=0 --skip-name-resolve --innodb-buffer-pool-size=16M --innodb-flush-log-at-trx-commit=0
}
once() {
  sysbench "$DIR/connect.lua" --db-driver=mysql --mysql-host="$HOST" --mysql-port="$PORT" --mysql-user=root --mysql-db=information_schema \
    --threads=4 --rate=200 --time="$RUN" run
}
tally() {
  awk '/total number of events:/ { n += $NF } $1 == "max:" && $2 > max { max = $2 }
    END { print n + 0, e + 0, max + 0 }' e="$gave_up" "$DIR/load.out"
}
