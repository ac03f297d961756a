version() { postgres --version; }
prepare() {
  chown 65534:65534 "$DIR"
  nobody initdb -D "$DIR/data" -U postgres -A trust --no-sync --no-locale -E UTF8 >/dev/null
  cat >>"$DIR/data/postgresql.conf" <<-END
	listen_addresses = '$HOST'
	port = $PORT
	unix_socket_directories = ''
	fsync = off
	shared_buffers = 16MB
	END
  start
  until_it pg_isready -q -h "$HOST" -p "$PORT"
  pgbench -i -q -h "$HOST" -p "$PORT" -U postgres postgres 2>/dev/null
  stop
}
start() { run setpriv --reuid=65534 --regid=65534 --clear-groups postgres -D "$DIR/data"; }
stop() { nobody pg_ctl -D "$DIR/data" stop -s -m fast -w; }
reload() { nobody pg_ctl -D "$DIR/data" reload -s; }
killed() { # its processes have a group each
  local all
  all="$(pid) $(pgrep -P "$(pid)" | tr '\n' ' ')"
  # shellcheck disable=SC2086 # a list
  kill -KILL $all && gone $all
}
# A client that pgbench loses does not come back: a run without any ends early.
once() { pgbench -n -S -C -c 8 -j 2 -R 200 -T "$RUN" -l --log-prefix="$DIR/transactions" -h "$HOST" -p "$PORT" -U postgres postgres; }
tally() {
  cat "$DIR"/transactions.* | awk -v errors="$(grep -c 'error: connection to server\|client .* aborted' "$DIR/load.err")" '
    { n++; if ($3 > max) max = $3 } END { print n + 0, errors + 0, max / 1000 }'
  rm -f "$DIR"/transactions.*
}
