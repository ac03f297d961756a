#!/usr/bin/env bash
# Stops the processes that make up started, and no others: first the agent, which
# drains, then the Docker daemon, if make up started it.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

follow_agent
if running agent >/dev/null; then
  from=$(($(wc -c <"$state/agent.log") + 1))
  stop agent 60
  tail -c "+$from" "$state/agent.log"
  say "the agent has drained and ended"
else
  say "no agent started by make up is running"
fi

case $(cat "$state/engine.by" 2>/dev/null) in
  systemd)
    as_root systemctl stop docker.socket docker
    say "the Docker daemon is stopped"
    ;;
  us)
    if stop engine 60; then say "the Docker daemon is stopped"; else say "the Docker daemon had already ended"; fi
    ;;
  *) say "make up started no Docker daemon: none to stop" ;;
esac
rm -f "$state/engine.by"
