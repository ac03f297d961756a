# Functions for the scripts in this directory; sourced, not run. The scripts run in
# the top directory of the clone. Logs and pid files of their processes are in var/dev.
# shellcheck shell=bash

cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit
PATH=$PATH:/usr/sbin:/sbin
state=$PWD/var/dev
# Without debug information a compiler needs a seventh less CPU time.
nodebug=-dwarf=false
# For tests and the programs that they build, which so share what is compiled. A release (build.sh)
# shares most of it.
# shellcheck disable=SC2034
goflags="-trimpath -tags=grpcnotrace -gcflags=all=$nodebug"

say() { printf '%s\n' "$*"; }
die() { printf 'error: %s\nhint: %s\n' "$1" "$2" >&2; exit 1; }

as_root() {
  if [[ $(id -u) = 0 ]]; then "$@"; else sudo "$@"; fi
}

root_is_possible() {
  [[ $(id -u) = 0 ]] || command -v sudo >/dev/null || die "sudo is not installed" "run this as root"
}

# need COMMAND=PACKAGE… installs the Debian packages of missing commands. It does not
# start their services: policy-rc.d prevents that.
need() {
  local pair missing=()
  for pair; do
    command -v "${pair%%=*}" >/dev/null || missing+=("${pair#*=}")
  done
  [[ ${#missing[@]} -gt 0 ]] || return 0
  command -v apt-get >/dev/null ||
    die "not installed: ${missing[*]}" "these scripts install packages on Debian only; install them by hand"
  say "installing ${missing[*]}"
  local policy=/usr/sbin/policy-rc.d ours='' failed=''
  if [[ ! -e $policy ]]; then
    printf '#!/bin/sh\nexit 101\n' | as_root install -m 755 /dev/stdin $policy
    ours=yes
  fi
  install_packages "${missing[@]}" || failed=yes
  [[ -z $ours ]] || as_root rm -f $policy
  [[ -z $failed ]] || die "could not install ${missing[*]}" "see the output of apt-get above"
}

install_packages() {
  local get=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -y)
  as_root "${get[@]}" install --no-install-recommends "$@" >/dev/null 2>&1 && return
  as_root "${get[@]}" update && as_root "${get[@]}" install --no-install-recommends "$@"
}

# debian_mirror prints the mirror of Debian that apt on this host uses.
debian_mirror() {
  local mirror
  # shellcheck disable=SC2016 # apt-get expands it
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Label: Debian' 'Created-By: Packages' | head -n 1)
  [[ -n $mirror ]] || die "apt on this host has no mirror of Debian" "run apt-get update"
  printf '%s\n' "$mirror"
}

# apt_sources WORK TYPE SUITE prepares a directory for apt_in: for the packages (TYPE deb) or the
# sources (deb-src) of another suite of Debian. This host's apt keeps its own.
apt_sources() {
  local mirror
  mirror=$(debian_mirror)
  mkdir -p "$1"/lists/partial "$1"/archives/partial
  printf '%s\n' "$2 [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $3 main" >"$1/sources.list"
}

# apt_in WORK COMMAND… runs apt-get with the directory that apt_sources has prepared. It works as root:
# apt's sandbox user could not write there.
apt_in() {
  local work=$1
  shift
  apt-get -qq -o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=/dev/null \
    -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work" -o APT::Sandbox::User=root "$@"
}

# engine runs the engine's client as root, which may use its socket.
engine() { as_root env ${DOCKER_HOST:+"DOCKER_HOST=$DOCKER_HOST"} docker "$@"; }
engine_answers() { engine version >/dev/null 2>&1; }

# born PID prints the start time of a process, in ticks after boot (proc(5), stat,
# field 22). With the start time a pid file cannot refer to a reused pid. It fails if
# the process does not exist.
born() {
  local stat fields
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  read -ra fields <<<"${stat##*) }" # field 3 and on
  [[ ${fields[0]} != Z ]] || return 1 # a zombie: in a container its parent may never reap it
  printf '%s\n' "${fields[19]}"
}

# launch NAME COMMAND… runs a command as root in the background. Its output goes to
# var/dev/NAME.log, its pid to var/dev/NAME.pid.
launch() {
  local name=$1 pid
  shift
  # shellcheck disable=SC2016 # the inner shell expands these
  pid=$(as_root bash -c 'log=$1; shift; setsid "$@" >>"$log" 2>&1 </dev/null & echo $!' _ "$state/$name.log" "$@")
  printf '%s %s\n' "$pid" "$(born "$pid" || echo gone)" >"$state/$name.pid"
}

# running NAME prints the pid of the process that launch started, if it still runs.
running() {
  local pid start
  read -r pid start 2>/dev/null <"$state/$1.pid" && [[ $(born "$pid") = "$start" ]] && printf '%s\n' "$pid"
}

# follow_agent finds the agent again after `holdfast agent --upgrade`: another process has its
# arguments then.
follow_agent() {
  local dir args
  running agent >/dev/null && return
  for dir in /proc/[0-9]*; do
    args=$(tr '\0' ' ' 2>/dev/null <"$dir/cmdline") || continue # it has ended
    if [[ $args = "$PWD/bin/holdfast agent --config $state/holdfast.yaml " ]]; then
      printf '%s %s\n' "${dir#/proc/}" "$(born "${dir#/proc/}" || echo gone)" >"$state/agent.pid"
    fi
  done
}

# stop NAME SECONDS sends SIGTERM to the process that launch started and waits for its end.
stop() {
  local name=$1 pid i
  pid=$(running "$name") || return 1
  as_root kill -TERM "$pid"
  for ((i = 0; i < $2 * 10; i++)); do
    running "$name" >/dev/null || { rm -f "$state/$name.pid"; return 0; }
    sleep 0.1
  done
  die "$name (pid $pid) has not ended within $2 s" "its log is $state/$name.log"
}

# answers PORT PATH sends a GET request to this host and succeeds on status 200.
answers() {
  local status
  exec 3<>"/dev/tcp/127.0.0.1/$1" || return 1
  printf 'GET %s HTTP/1.0\r\nHost: localhost\r\n\r\n' "$2" >&3
  read -r -t 5 status <&3 || status=
  exec 3>&-
  [[ $status = HTTP/1.?\ 200* ]]
}
