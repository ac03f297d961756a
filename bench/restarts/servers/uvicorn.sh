version() { uvicorn --version; }
prepare() {
  cat >"$DIR/app.py" <<-END
	async def app(scope, receive, send):
	    await send({'type': 'http.response.start', 'status': 200, 'headers': [(b'content-type', b'text/plain'), (b'content-length', b'5')]})
	    await send({'type': 'http.response.body', 'body': b'pong\n'})
	END
}
start() { run uvicorn --app-dir "$DIR" --host "$HOST" --port "$PORT" --lifespan off --log-level error app:app; }
