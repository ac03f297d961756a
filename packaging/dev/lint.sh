#!/usr/bin/env bash
# The checks that need no engine and run no test.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

unformatted=$(gofmt -l .)
[[ -z $unformatted ]] || die "not formatted: $unformatted" "gofmt -w does it"
large=$(git ls-files -z | xargs -0 stat -c '%s %n' -- 2>/dev/null | awk '$1 > 2 * 1024 * 1024 { print $2 }')
[[ -z $large ]] || die "over 2 MB: $large" "built files do not belong in the sources"
go vet ./...
go tool staticcheck ./...
# A module of its own.
go -C packaging/deb vet ./...
need shellcheck=shellcheck
shellcheck -x -P SCRIPTDIR packaging/dev/*.sh examples/*/*.sh test/machine/*.sh .ci/run
shellcheck examples/mariadb/create examples/mariadb/recover packaging/deb/scripts/*
say "lint: clean"
