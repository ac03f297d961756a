version() { nginx -v 2>&1; }
prepare() {
  cat >"$DIR/nginx.conf" <<-END
	worker_processes 1;
	pid $DIR/pid;
	error_log $DIR/server.log;
	events { worker_connections 5000; }
	http {
	  access_log off;
	  client_body_temp_path $DIR/body;
	  proxy_temp_path $DIR/proxy;
	  fastcgi_temp_path $DIR/fastcgi;
	  uwsgi_temp_path $DIR/uwsgi;
	  scgi_temp_path $DIR/scgi;
	  server {
	    listen $HOST:$PORT;
	    location / { return 200 "pong\n"; }
	  }
	}
	END
}
# As Debian's unit: the test listens for a moment.
start() {
  nginx -t -q -c "$DIR/nginx.conf" -e "$DIR/server.log"
  nginx -c "$DIR/nginx.conf" -e "$DIR/server.log"
}
stop() { local p && p=$(pid) && kill -QUIT "$p" && gone "$p"; }
reload() { kill -HUP "$(pid)"; }
killed() {
  local all
  all="$(pid) $(pgrep -P "$(pid)" | tr '\n' ' ')"
  # shellcheck disable=SC2086 # a list
  kill -KILL $all && gone $all
}
