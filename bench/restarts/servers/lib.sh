#!/usr/bin/env bash
# Begins the script of each server: what most servers have in common. A server's file
# follows it, and replaces what is different there. DIR is the server's directory, HOST and
# PORT are its address, RUN is how long the load tool runs at a time, in seconds.
#
# The first argument is what to do: version, prepare, start, stop, reload, killed, or load.
set -euo pipefail
export LC_ALL=C

# run starts a server in the background, in a process group of its own.
run() {
  setsid "$@" </dev/null >>"$DIR/server.log" 2>&1 &
  echo $! >"$DIR/pid"
}

pid() { cat "$DIR/pid"; }

# gone waits until the processes, or with -PID groups of them, have ended.
gone() {
  local p
  for p; do
    while kill -0 -- "$p" 2>/dev/null; do sleep 0.01; done
  done
}

# until_it COMMAND… waits up to three minutes until the command succeeds.
until_it() {
  while ((SECONDS < 180)); do
    "$@" >/dev/null 2>&1 && return
    sleep 0.1
  done
  "$@" || { tail -n 5 "$DIR/server.log" >&2 && return 1; }
}

prepare() { :; }
stop() { kill -TERM "$(pid)" && gone "-$(pid)"; }
killed() { kill -KILL -- "-$(pid)" && gone "-$(pid)"; }

# nobody COMMAND… runs a server that refuses to run as root.
nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }

# once runs the load tool for RUN seconds. tally prints the answered requests of all runs, the
# errors, and the longest wait in milliseconds, by the tool's own account. A run that gave up is an
# error. This once is for HTTP: each request has a connection of its own.
once() { wrk -t 1 -c 4 -d "${RUN}s" --timeout 30s -H 'Connection: close' "http://$HOST:$PORT/"; }
tally() {
  awk 'function ms(t) { return t ~ /us$/ ? t / 1000 : t ~ /ms$/ ? t + 0 : t ~ /m$/ ? t * 60000 : t * 1000 }
    / requests in / { n += $1 }
    /Socket errors:/ { e += $4 + $6 + $8 + $10 }
    /Non-2xx/ { e += $NF; n -= $NF }
    $1 == "Latency" && NF == 5 && ms($4) > max { max = ms($4) }
    END { print n + 0, e + 0, max + 0 }' e="$gave_up" "$DIR/load.out"
}

# load runs the tool again and again until there is a file DIR/stop, and prints the tally.
gave_up=0
load() {
  : >"$DIR/load.out"
  : >"$DIR/load.err"
  while [[ ! -e $DIR/stop ]]; do
    once >>"$DIR/load.out" 2>>"$DIR/load.err" </dev/null || { gave_up=$((gave_up + 1)) && sleep 0.1; }
  done
  tally
}
