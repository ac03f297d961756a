#!/usr/bin/env bash
# The checks that need no engine and run no test.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

unformatted=$(gofmt -l .)
[[ -z $unformatted ]] || die "not formatted: $unformatted" "gofmt -w does it"
go vet ./...
go tool staticcheck ./...
need shellcheck=shellcheck
shellcheck -x -P SCRIPTDIR packaging/dev/*.sh examples/*/*.sh .ci/run
shellcheck examples/mariadb/create examples/mariadb/recover
say "lint: clean"
