#!/bin/bash
# Runs Netdata for `holdfast-bench accuracy --peer netdata=bench/peers/netdata.sh`, and prints a
# line for each alarm when it becomes a warning or critical. The alarms and the plugins are
# Debian's defaults, cgroups and apps among them. The database is in memory, the web server on
# loopback, and notifications and anonymous statistics are off; Debian builds it without its cloud.
# The socket of its command line is always /tmp/netdata-ipc.
set -eu
warm=${NETDATA_WARM_UP:-660} # seconds before the first fault; an alarm is first judged when its period is over
mkdir -p "$PEER_DIR"/{etc,cache,lib,log,home,lock}
# On a host with both versions Netdata takes v2, which has no controllers there.
unified=yes
[[ -e /sys/fs/cgroup/cgroup.controllers ]] || unified=no
touch "$PEER_DIR/etc/.opt-out-from-anonymous-statistics"
cat >"$PEER_DIR/etc/netdata.conf" <<END
[global]
  run as user = root
[directories]
  config = $PEER_DIR/etc
  cache = $PEER_DIR/cache
  lib = $PEER_DIR/lib
  log = $PEER_DIR/log
  home = $PEER_DIR/home
  lock = $PEER_DIR/lock
  registry = $PEER_DIR/lib/registry
[db]
  mode = ram
  retention = 3600
[web]
  bind to = 127.0.0.1:$PEER_PORT
[statsd]
  enabled = no
[plugin:cgroups]
  use unified cgroups = $unified
[health]
  script to execute on alarm = /bin/true
END
DISABLE_TELEMETRY=1 netdata -D -c "$PEER_DIR/etc/netdata.conf" >"$PEER_DIR/log/out" 2>&1 &
pid=$!
trap 'trap "" TERM; kill "$pid"; wait "$pid"; exit' TERM # a second signal must not end the wait
last=0
# raised prints the alarms after the number $last, and sets $last to the newest.
raised() {
  local log
  log=$(curl -sf --max-time 5 "http://127.0.0.1:$PEER_PORT/api/v1/alarm_log?after=$last") || return 0
  jq -r '.[] | select(.status == "WARNING" or .status == "CRITICAL") |
    "\(.chart) \(.name) \(.status) \(.value_string): \(.info)"' <<<"$log"
  last=$(jq --argjson last "$last" '[.[].unique_id, $last] | max' <<<"$log")
}
begun=$SECONDS
ready=''
while kill -0 "$pid" 2>/dev/null; do
  raised
  if [[ -z $ready && $((SECONDS - begun)) -ge $warm ]]; then
    ready=yes
    echo ready
  fi
  sleep 1 &
  wait $!
done
