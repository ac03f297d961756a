#!/bin/sh
# Runs node-problem-detector for `holdfast-bench accuracy --peer npd=bench/peers/npd.sh`, and
# prints a line for each event or condition that it generates. On Kubernetes they become
# events and conditions of the node, with the same text. The monitors are those of the
# project's DaemonSet; the docker monitor reads a file because a test host has no journal.
# The check of the connection table is added: without Kubernetes, the other check of its file
# would fail at all times.
set -eu
cd "$(dirname "$0")/../.."
npd=${NPD:-$(packaging/dev/exam-peers.sh npd)}
config=$npd/config
jq --arg log "$ENGINE_LOG" '.logPath = $log' "$config/docker-monitor-filelog.json" >"$PEER_DIR/docker.json"
jq --arg at "$config/plugin/network_problem.sh" '.rules |= [.[] | select(.reason == "ConntrackFull") | .path = $at]' \
  "$config/network-problem-monitor.json" >"$PEER_DIR/network.json"
"$npd/node-problem-detector" --enable-k8s-exporter=false --port=0 --prometheus-port="$PEER_PORT" \
  --config.system-log-monitor="$config/kernel-monitor.json,$config/readonly-monitor.json,$PEER_DIR/docker.json" \
  --config.custom-plugin-monitor="$PEER_DIR/network.json" >"$PEER_DIR/log" 2>&1 &
pid=$!
trap 'trap "" TERM; kill "$pid"; wait; exit' TERM # a second signal must not end the wait
sleep 10 & # it reads the last 5 minutes of the kernel's log first
wait $!
echo ready
tail -n +1 -f --pid="$pid" "$PEER_DIR/log" | sed -u -n 's/ Conditions:.*//; s/.*New status generated: &{//p' &
wait
