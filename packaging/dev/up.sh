#!/usr/bin/env bash
# Prepares a first session: starts an engine if none answers, builds the binary and the
# demo's image, and starts the agent. The script is idempotent; make down stops the
# processes. With RUNSC=1 a second template runs under gVisor: the script builds runsc and
# registers it with an engine that it starts.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

url=http://127.0.0.1:7070/s/alice/
finish() {
  cat <<END

  open    $url
  watch   http://127.0.0.1:7071/
  look    $( [[ $(id -u) = 0 ]] || echo 'sudo ')bin/holdfast session ls
  log     var/dev/agent.log
  stop    make down
END
}

start_engine() {
  if [[ -n ${DOCKER_HOST:-} ]]; then
    die "no engine answers at DOCKER_HOST ($DOCKER_HOST)" "start it, or unset DOCKER_HOST"
  fi
  need dockerd=docker.io
  say "starting a Docker daemon"
  if [[ -d /run/systemd/system ]]; then
    as_root systemctl start docker
    echo systemd >"$state/engine.by"
  else
    launch engine dockerd "${runsc[@]}"
    echo us >"$state/engine.by"
  fi
  local i
  for ((i = 0; i < 60; i++)); do
    engine_answers && return
    [[ $(cat "$state/engine.by") = systemd ]] || running engine >/dev/null || break
    sleep 0.5
  done
  [[ ! -f $state/engine.log ]] || tail -n 15 "$state/engine.log" >&2
  die "the Docker daemon does not start" "see var/dev/engine.log or journalctl -u docker"
}

start_agent() {
  launch agent env ${DOCKER_HOST:+"DOCKER_HOST=$DOCKER_HOST"} "$PWD/bin/holdfast" agent --config "$state/holdfast.yaml"
  local i
  for ((i = 0; i < 300; i++)); do
    answers 7071 /readyz 2>/dev/null && return
    running agent >/dev/null || break
    sleep 0.1
  done
  tail -n 15 "$state/agent.log" >&2
  die "the agent does not start" "see var/dev/agent.log"
}

# gvisor builds runsc and registers it with an engine that this script starts.
gvisor() {
  packaging/dev/runsc.sh "$state/runsc"
  # The agent writes the second program when it starts.
  runsc=("--add-runtime=runsc=$state/runsc" "--add-runtime=runsc-holdfast=$state/runsc-holdfast")
}

command -v go >/dev/null || die "Go is not installed" "install the version that go.mod names"
root_is_possible
mkdir -p "$state"
follow_agent
if pid=$(running agent); then
  answers 7071 /readyz ||
    die "the agent runs (pid $pid) but accepts no sessions" "after holdfast drain: run make down, then make up"
  say "the agent is already running (pid $pid); for a newer build run make down first"
  finish
  exit
fi
need docker=docker.io
runsc=()
[[ -z ${RUNSC:-} ]] || gvisor
engine_answers || start_engine
if [[ -n ${RUNSC:-} ]] && ! engine info -f '{{json .Runtimes}}' | grep -q '"runsc-holdfast"'; then
  die "the running engine has no runtime runsc-holdfast" "add it to runtimes in /etc/docker/daemon.json, with the path $state/runsc-holdfast, and reload the engine; then run make up again"
fi
[[ -e bin/holdfast ]] || say "building; the first build takes some minutes"
make --no-print-directory build demo-image
sed "s|@STATE@|$state|" packaging/dev/holdfast.yaml >"$state/holdfast.yaml"
[[ -z ${RUNSC:-} ]] || sed "s|@STATE@|$state|g" packaging/dev/gvisor.yaml >>"$state/holdfast.yaml"
: >"$state/agent.log"
start_agent
say "the agent is up"
finish
