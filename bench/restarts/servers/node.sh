version() { echo "Node $(node --version)"; }
prepare() { echo "require('http').createServer((q, r) => r.end('pong\n')).listen($PORT, '$HOST')" >"$DIR/server.js"; }
start() { run node "$DIR/server.js"; }
