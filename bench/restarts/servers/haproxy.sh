version() { haproxy -v; }
prepare() {
  cat >"$DIR/haproxy.cfg" <<-END
	global
	  maxconn 9000
	  hard-stop-after 10s
	defaults
	  mode http
	  timeout connect 5s
	  timeout client 30s
	  timeout server 30s
	frontend front
	  bind $HOST:$PORT
	  http-request return status 200 content-type text/plain string pong
	END
}
stop() { local p && p=$(pid) && kill -TERM "$p" && gone "$p"; }
start() { haproxy -D -f "$DIR/haproxy.cfg" -p "$DIR/pid"; }
reload() { haproxy -D -f "$DIR/haproxy.cfg" -p "$DIR/pid" -sf "$(pid)"; }
killed() { local p && p=$(pid) && kill -KILL "$p" && gone "$p"; }
