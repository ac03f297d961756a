version() { gunicorn --version; }
prepare() {
  cat >"$DIR/app.py" <<-END
	def app(environ, start_response):
	    start_response('200 OK', [('Content-Type', 'text/plain')])
	    return [b'pong\n']
	END
}
start() { run gunicorn --chdir "$DIR" --bind "$HOST:$PORT" --workers 2 app:app; }
reload() { kill -HUP "$(pid)"; }
