version() { redis-server --version; }
start() { run redis-server --bind "$HOST" --port "$PORT" --dir "$DIR" --save '' --daemonize no; }
# Each request has a connection of its own. After a refused connection redis-benchmark may
# never end.
once() { timeout -s KILL 30 redis-benchmark -h "$HOST" -p "$PORT" -c 8 -k 0 -n 2000 -t get --csv; }
tally() {
  tr -d '"' <"$DIR/load.out" | awk -F, '$1 == "GET" { n += 2000; if ($NF > max) max = $NF } END { print n + 0, e + 0, max + 0 }' e="$gave_up"
}
